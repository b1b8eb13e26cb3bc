"""BF16 matrices over a prompt against float64, cuts by equality."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.float_matrix import FloatMatrix, pack_floats  # noqa: E402
from strata.gpu.kernels import bf16_prompt  # noqa: E402
from strata.gpu.kernels.bf16_prompt import bf16_prompt_product  # noqa: E402


def _matrix(num_rows: int, inner: int, device: str) -> tuple[FloatMatrix, np.ndarray]:
    generator = torch.Generator().manual_seed(num_rows)
    values = torch.randn((num_rows, inner), generator=generator).bfloat16()
    raw = values.view(torch.uint8).to(device)
    return pack_floats("BF16", raw, inner), values.double().numpy()


def _product(matrix: FloatMatrix, x: np.ndarray, device: str) -> torch.Tensor:
    wide = poison(device, len(x), matrix.inner + 8)
    wide[:, 4:-4] = torch.from_numpy(x).to(device)
    size = matrix.num_rows * matrix.inner + 5
    room = torch.full((size,), torch.nan, dtype=torch.bfloat16, device=device)
    out = poison(device, len(x), matrix.num_rows + 5)
    bf16_prompt_product(matrix, wide[:, 4:-4], room, out[:, 2:-3])
    assert out[:, :2].isnan().all()
    assert out[:, -3:].isnan().all()
    return out[:, 2:-3]


@pytest.mark.parametrize(("num_tokens", "num_rows", "inner"), [(5, 20, 64), (150, 133, 96)])
def test_products_are_those_of_float64(
    num_tokens: int, num_rows: int, inner: int, device: str
) -> None:
    matrix, weights = _matrix(num_rows, inner, device)
    x = np.random.default_rng().normal(0, 3, (num_tokens, inner)).astype(np.float32)
    x[0] *= 1e-12
    x[1, ::2] *= 1e6
    found = _product(matrix, x, device).double().cpu().numpy()
    expected = x.astype(np.float64) @ weights.T
    scale = np.abs(x.astype(np.float64)) @ np.abs(weights.T)
    assert (np.abs(found - expected) / scale).max() < 1e-6


@pytest.mark.parametrize("num_rows", [1, 15, 63, 64, 65, 80, 81, 144, 324, 336, 337, 400])
@pytest.mark.parametrize("least", [0, 1 << 30])
def test_every_row_of_a_matrix_is_there(
    num_rows: int, least: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both tilings: several tiles of a program, a narrow one behind them, several programs."""
    monkeypatch.setattr(bf16_prompt, "_LEAST_PROGRAMS", least)
    matrix, weights = _matrix(num_rows, 32, device)
    x = np.random.default_rng().normal(0, 3, (3, 32)).astype(np.float32)
    found = _product(matrix, x, device).double().cpu().numpy()
    scale = np.abs(x.astype(np.float64)) @ np.abs(weights.T)
    assert (np.abs(found - x.astype(np.float64) @ weights.T) / scale).max() < 1e-6


@given(num_rows=st.integers(1, 2000), most=st.integers(1, 8))
def test_tiles_hold_all_rows(num_rows: int, most: int) -> None:
    count, tail, groups = bf16_prompt.tiles_of_rows(num_rows, most)
    assert 1 <= count <= most
    assert groups == -(-num_rows // (64 * count + tail))  # as the kernel counts them
    assert not tail or (groups == 1 and 64 * count < num_rows)


@pytest.mark.parametrize("num_rows", [20, 324])
def test_a_row_has_its_bits_alone_and_in_any_tile(
    num_rows: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, _ = _matrix(num_rows, 64, device)
    x = np.random.default_rng().normal(0, 3, (130, 64)).astype(np.float32)
    whole = _product(matrix, x, device)
    for first, end in ((0, 1), (64, 130), (129, 130)):
        assert torch.equal(_product(matrix, x[first:end], device), whole[first:end])
    monkeypatch.setattr(bf16_prompt, "_LEAST_PROGRAMS", 0)
    assert torch.equal(_product(matrix, x, device), whole)
