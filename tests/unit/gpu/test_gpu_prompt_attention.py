"""Attention of a prompt chunk against the float64 reference on the very cells; cuts by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402
from tests.unit.gpu.test_gpu_attention import BLOCK, HEADS, KV_HEADS, Layer  # noqa: E402

from strata.gpu.kernels.attention_prompt import attend_prompt  # noqa: E402
from strata.reference.norms import sigmoid  # noqa: E402
from strata.reference.sparse_attention import attend as reference  # noqa: E402


def _run(layer: Layer, rows: slice) -> torch.Tensor:
    chosen = layer.selection()[0].chosen
    num, dim = rows.stop - rows.start, layer.q.shape[2]
    out = poison(layer.device, num, HEADS * dim)
    # The gate is every second half of a wider tensor, as the projection leaves it.
    wide = torch.tensor(np.concatenate([layer.q, layer.gate], axis=2)[rows], device=layer.device)
    attend_prompt(
        torch.tensor(layer.q[rows] * np.float32(dim**-0.5), device=layer.device), wide[..., dim:],
        layer.cells, None if chosen is None else chosen[rows], BLOCK, layer.before + rows.start,
        out,
    )  # fmt: skip
    return out


def _expected(layer: Layer) -> np.ndarray:
    out = []
    for row, cells in enumerate(layer.selection()[1]):
        q = (layer.q[row] * np.float32(layer.q.shape[2] ** -0.5)).astype(np.float64)
        # The reference scales by itself; the device gets scaled queries.
        y = reference(q * layer.q.shape[2] ** 0.5, layer.k, layer.v, cells, HEADS // KV_HEADS)
        out.append(y * sigmoid(layer.gate[row].astype(np.float64)))
    return np.stack(out).reshape(len(out), -1)


CASES = [(70, 20, None), (40, 40, None), (200, 12, 64), (90, 30, 64), (30, 30, 64)]


@pytest.mark.parametrize(("num_cells", "num_rows", "budget"), CASES)
@pytest.mark.parametrize(("kind", "head_dim"), [("float16", 64), ("float16", 24), ("int8", 128)])
def test_a_chunk_is_the_reference(kind, head_dim, num_cells, num_rows, budget, device) -> None:
    layer = Layer(kind, num_cells, num_rows, budget, device, head_dim)
    out = _run(layer, slice(0, num_rows)).double().cpu().numpy()
    expected = _expected(layer)
    assert np.linalg.norm(out - expected) <= 1e-6 * np.linalg.norm(expected)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["float16", "int8"])
@pytest.mark.parametrize("cut", [1, 10, 18])
def test_cuts_leave_no_trace(kind: str, cut: int, device: str) -> None:
    layer = Layer(kind, 90, 40, 64, device)  # the first rows see every cell, the last do not
    whole = _run(layer, slice(0, 40))
    assert torch.equal(torch.cat([_run(layer, slice(0, cut)), _run(layer, slice(cut, 40))]), whole)


def test_one_cell_gets_all_the_weight(device: str) -> None:
    """The largest score lies far above the rest, and in the last tile."""
    layer = Layer("float16", 200, 4, None, device)
    layer.cells.keys[:, 195] = 60 * torch.sign(layer.cells.keys[:, 195])
    layer.k[195] = layer.cells.keys[:, 195].double().cpu().numpy()
    out = _run(layer, slice(0, 4)).double().cpu().numpy()
    np.testing.assert_allclose(out, _expected(layer), rtol=1e-5, atol=3e-6)
