"""Products of plain types, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.formats.quantize import quantize  # noqa: E402
from strata.gpu.float_matrix import pack_floats  # noqa: E402
from strata.gpu.kernels import float_product as module  # noqa: E402
from strata.gpu.kernels import float_tiling  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402

float_product = module.float_product


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("inner", [5, 64, 319, 320, 321, 2560])
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


@pytest.mark.parametrize("name", ["F32", "BF16"])
@pytest.mark.parametrize("inner", [640, 1056])
@pytest.mark.parametrize("rows_of_program", [2, 16])
def test_bits_do_not_depend_on_the_grid(
    name: str, inner: int, rows_of_program: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng()
    raw = quantize(FORMATS[name], rng.normal(0, 1, (11, inner)).astype(np.float32))
    x = rng.normal(0, 3, (3, inner)).astype(np.float32)
    matrix = pack_floats(name, torch.from_numpy(raw).to(device), inner)
    rows = torch.from_numpy(x).to(device)
    split = rows.view(3, -1, 4, 4).transpose(2, 3).reshape(3, inner).contiguous()
    expected = expert_numerics.product(name, raw, x, "test")
    monkeypatch.setattr(module, "tiling_of", lambda *_: module.FloatTiling(rows_of_program))
    for is_split in (False, True):
        for count in (1, 3):
            out = torch.full((count, 11), float("nan"), device=device)
            given = split if is_split else rows
            float_product(matrix, given[:count], out, is_split=is_split)
            found = out.cpu().numpy().view(np.uint32)
            assert np.array_equal(found, expected[:count].view(np.uint32)), (is_split, count)


@pytest.mark.parametrize("name", ["F32", "BF16"])
def test_values_past_the_end_are_not_read(name: str, device: str) -> None:
    """An infinite weight beside a short last segment stays what it is."""
    inner = 352
    weights = torch.ones((8, inner), dtype={"F32": torch.float32, "BF16": torch.bfloat16}[name])
    weights[3, inner - 1] = torch.inf
    matrix = pack_floats(name, weights.view(torch.uint8).to(device), inner)
    out = torch.full((1, 8), float("nan"), device=device)
    float_product(matrix, torch.ones((1, inner), device=device), out)
    expected = np.full((1, 8), inner, np.float32)
    expected[0, 3] = np.inf
    assert np.array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("num_inputs", [1, 4])
@pytest.mark.parametrize(("num_rows", "inner"), [(324, 10240), (257, 2560), (8, 320), (9, 64)])
def test_a_card_has_programs_enough(
    num_rows: int, inner: int, num_inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float_tiling, "INTERPRETED", False)
    rows = float_tiling.tiling_of(num_rows, inner, num_inputs).rows
    threads = 4 * rows * -(-inner // 320)
    assert 32 <= threads <= 512
    assert threads == 32 or -(-num_rows // rows) >= 64
