"""Dense products of packed matrices, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.kernels.product import product  # noqa: E402
from strata.gpu.kernels.quantize import empty_codes, quantize  # noqa: E402
from strata.gpu.packing import pack  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402

INNERS = {32: 608, 64: 320, 256: 512}


def quantized(x: np.ndarray, device: str):
    codes = empty_codes(*x.shape, device)
    for field in (codes.scales, codes.scaled_sums, codes.scaled_half_sums):
        field.fill_(float("nan"))
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    quantize(torch.from_numpy(x).to(device), codes, bad)
    assert bad.item() == 0
    return codes


def assert_same_bits(found, expected: np.ndarray) -> None:
    assert np.array_equal(found.cpu().numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_products_have_the_reference_bits(name: str, device: str) -> None:
    rng = np.random.default_rng()
    inner, num_rows = INNERS[FORMATS[name].block_size], 37
    raw = random_rows(name, num_rows, inner, seed=int(rng.integers(1 << 30)))
    x = rng.normal(0, 3, (2, inner)).astype(np.float32)
    matrix = pack(name, torch.from_numpy(raw).to(device), inner)
    out = torch.full((2, num_rows), float("nan"), device=device)
    product(matrix, quantized(x, device), out)
    assert_same_bits(out, expert_numerics.product(name, raw, x, "test"))
