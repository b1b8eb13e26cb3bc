"""Plain matrices over a prompt, bit for bit against ``expert_numerics`` and the decode kernel."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.formats.quantize import quantize  # noqa: E402
from strata.gpu.float_matrix import pack_floats  # noqa: E402
from strata.gpu.kernels.float_product import float_product  # noqa: E402
from strata.gpu.kernels.float_prompt import float_prompt_product  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize(
    ("inner", "num_rows"), [(64, 35), (76, 1), (316, 3), (320, 9), (324, 67), (672, 2)]
)
def test_products_have_the_reference_bits(
    name: str, inner: int, num_rows: int, device: str
) -> None:
    rng = np.random.default_rng()
    raw = quantize(FORMATS[name], rng.normal(0, 1, (num_rows, inner)).astype(np.float32))
    x = rng.normal(0, 3, (67, inner)).astype(np.float32)
    matrix = pack_floats(name, torch.from_numpy(raw).to(device), inner)
    wide = poison(device, 67, inner + 8)
    rows = wide[:, 4:-4]
    rows.copy_(torch.from_numpy(x))
    out = poison(device, 67, num_rows)
    float_prompt_product(matrix, rows, out)
    expected = expert_numerics.product(name, raw, x, "test")
    assert np.array_equal(out.cpu().numpy().view(np.uint32), expected.view(np.uint32))
    decoded = poison(device, 3, num_rows)
    float_product(matrix, rows[60:63], decoded)
    assert torch.equal(decoded, out[60:63])
