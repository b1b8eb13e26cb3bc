"""Matrices of several formats in one launch against one launch for each, by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.row_codes import poison, zero_codes  # noqa: E402
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.gpu.float_matrix import FloatMatrix, pack_floats  # noqa: E402
from strata.gpu.kernels.bundle_product import bundle_product  # noqa: E402
from strata.gpu.kernels.float_product import float_product  # noqa: E402
from strata.gpu.kernels.product import product  # noqa: E402
from strata.gpu.kernels.quantize import quantize  # noqa: E402
from strata.gpu.packing import pack  # noqa: E402

INNER = 512
# Format, rows; the last panel of some is not full.
CASES = [
    [("IQ4_XS", 40), ("BF16", 12)],
    [("Q8_0", 16), ("Q6_K", 9)],
    [("F32", 8), ("Q4_K", 24), ("F16", 10)],
    [("IQ4_XS", 300), ("Q6_K", 16), ("Q8_0", 16), ("BF16", 20)],
]


def _matrix(name: str, num_rows: int, rng: np.random.Generator, device: str):
    if name in ("F32", "F16", "BF16"):
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        values = torch.tensor(rng.standard_normal((num_rows, INNER)), dtype=torch.float32)
        return pack_floats(name, values.to(dtype).view(torch.uint8).to(device), INNER)
    raw = random_rows(name, num_rows, INNER, seed=int(rng.integers(1e9)))
    return pack(name, torch.from_numpy(raw).to(device), INNER)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("num_rows", "is_split"), [(1, True), (3, True), (2, False)])
def test_one_launch_has_the_bits_of_several(
    case: list[tuple[str, int]],
    num_rows: int,
    is_split: bool,  # noqa: FBT001 - parametrized
    device: str,
) -> None:
    rng = np.random.default_rng()
    matrices, column = [], 0
    for name, size in case:
        matrices.append((_matrix(name, size, rng, device), column))
        column += -(-size // 8) * 8
    x = torch.tensor(rng.normal(0, 2, (num_rows, INNER)), dtype=torch.float32, device=device)
    codes, bad = zero_codes(num_rows, INNER, device), torch.zeros(1, dtype=torch.int32)
    quantize(x, codes, bad.to(device))
    split = x.view(num_rows, -1, 4, 4).transpose(2, 3).reshape(num_rows, INNER).contiguous()

    wanted, out = poison(device, num_rows, column + 8), poison(device, num_rows, column + 8)
    for matrix, first in matrices:
        columns = wanted[:, first : first + matrix.num_rows]
        if isinstance(matrix, FloatMatrix):
            float_product(matrix, x, columns)
            again = torch.empty_like(columns)
            float_product(matrix, split, again, is_split=True)
            assert torch.equal(again, columns)
        else:
            product(matrix, codes, columns)
    bundle_product(matrices, codes, split if is_split else x, out, is_split=is_split)
    assert torch.equal(out.view(torch.int32), wanted.view(torch.int32))
