"""Dense products of packed matrices, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.kernels.product import Tiling, product  # noqa: E402
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
    x = rng.normal(0, 3, (3, inner)).astype(np.float32)
    matrix = pack(name, torch.from_numpy(raw).to(device), inner)
    expected = expert_numerics.product(name, raw, x, "test")
    for num in (1, 3):  # dot products of four bytes, and the matrix instruction
        out = torch.full((num, num_rows), float("nan"), device=device)
        product(matrix, quantized(x[:num], device), out)
        assert_same_bits(out, expected[:num])


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 7, 8])
def test_a_row_has_the_same_bits_in_every_window(num_rows: int, device: str) -> None:
    rng = np.random.default_rng()
    inner = 288
    raw = random_rows("Q5_1", 24, inner, seed=int(rng.integers(1 << 30)))
    x = rng.normal(0, 3, (num_rows, inner)).astype(np.float32)
    matrix = pack("Q5_1", torch.from_numpy(raw).to(device), inner)
    # Rows of the output may lie apart, as when a launch is one of several into one tensor.
    out = torch.full((num_rows, 40), float("nan"), device=device)
    product(matrix, quantized(x, device), out[:, 8:32])
    assert_same_bits(out[:, 8:32].contiguous(), expert_numerics.product("Q5_1", raw, x, "test"))
    assert out[:, :8].isnan().all()
    assert out[:, 32:].isnan().all()


@pytest.mark.parametrize(
    "tiling",
    [
        (1, 1, False),  # four groups at once, of three
        (2, 5, False),  # rounds, the last not full, and more panels than there are
        (4, 3, False),
        (1, 2, True),
        (1, 6, True),
        (4, 4, True, 128),
    ],
)
def test_the_tiling_changes_no_bit(tiling: Tiling, device: str) -> None:
    rng = np.random.default_rng()
    inner = 608
    raw = random_rows("IQ4_NL", 24, inner, seed=int(rng.integers(1 << 30)))
    x = rng.normal(0, 3, (1, inner)).astype(np.float32)
    matrix = pack("IQ4_NL", torch.from_numpy(raw).to(device), inner)
    out = torch.full((1, 24), float("nan"), device=device)
    product(matrix, quantized(x, device), out, tiling)
    assert_same_bits(out, expert_numerics.product("IQ4_NL", raw, x, "test"))


def test_codes_are_the_reference_codes(device: str) -> None:
    rng = np.random.default_rng()
    x = rng.normal(0, 3, (3, 352)).astype(np.float32)
    x[0, 32:64] = 0
    x[1, :32] = np.spacing(np.float32(0)) * rng.integers(-200, 200, 32)
    x[2, :6] = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5]
    x[2, 6:32] = 0
    found = quantized(x, device)
    codes, scales = expert_numerics.quantize_activations(x, "test")
    by_group = found.codes.cpu().numpy().transpose(0, 2, 1, 3).reshape(3, -1)
    assert np.array_equal(by_group[:, :352], codes)
    assert not by_group[:, 352:].any()
    assert np.array_equal(found.scales.cpu().numpy().reshape(3, -1)[:, :11], scales)
    sums = codes.reshape(3, -1, 16).sum(axis=2, dtype=np.int32)
    scaled = np.repeat(scales, 2, axis=1) * sums.astype(np.float32)
    assert np.array_equal(found.scaled_half_sums.cpu().numpy().reshape(3, -1)[:, :22], scaled)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_value_that_is_no_number_raises_the_flag(bad: float, device: str) -> None:
    x = torch.zeros(2, 64, device=device)
    x[1, 37] = bad
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    quantize(x, empty_codes(2, 64, device), flag)
    assert flag.item() == 1
