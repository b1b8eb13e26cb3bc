"""Products of plain types, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.formats.quantize import quantize  # noqa: E402
from strata.gpu.float_matrix import pack_floats  # noqa: E402
from strata.gpu.kernels.float_product import float_product  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("inner", [5, 64, 300])
def test_products_have_the_reference_bits(name: str, inner: int, device: str) -> None:
    rng = np.random.default_rng()
    num_rows = 19
    raw = quantize(FORMATS[name], rng.normal(0, 1, (num_rows, inner)).astype(np.float32))
    x = rng.normal(0, 3, (3, inner + 4)).astype(np.float32)[:, :inner]
    matrix = pack_floats(name, torch.from_numpy(raw).to(device), inner)
    rows = torch.from_numpy(np.ascontiguousarray(x)).to(device)
    wide = torch.full((3, num_rows + 5), float("nan"), device=device)
    float_product(matrix, rows, wide[:, 2 : 2 + num_rows])
    expected = expert_numerics.product(name, raw, x, "test")
    found = wide[:, 2 : 2 + num_rows].cpu().numpy()
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
    # Nothing beside it was written.
    assert torch.isnan(wide[:, :2]).all()
    assert torch.isnan(wide[:, 2 + num_rows :]).all()
    # A row alone has the same bits.
    alone = torch.full((1, num_rows), float("nan"), device=device)
    float_product(matrix, rows[1:2], alone)
    assert np.array_equal(alone.cpu().numpy().view(np.uint32), expected[1:2].view(np.uint32))
