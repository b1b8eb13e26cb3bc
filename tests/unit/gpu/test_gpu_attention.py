"""Attention against the float64 reference on the very cells, halves or codes; rows by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import assert_equal_codes, poison, zero_codes  # noqa: E402

from strata.gpu.kernels.attention import Parts, Selection, attend  # noqa: E402
from strata.gpu.kernels.qsa_append import Cells  # noqa: E402
from strata.gpu.kernels.quantize import quantize  # noqa: E402
from strata.reference.norms import sigmoid  # noqa: E402
from strata.reference.sparse_attention import attend as reference  # noqa: E402
from strata.reference.sparse_attention import select_cells  # noqa: E402

HEADS, KV_HEADS, BLOCK = 4, 2, 4


class Layer:
    """Random cells and rows; ``budget`` None is dense."""

    def __init__(
        self, kind: str, num_cells: int, num_rows: int, budget: int | None, device: str,
        head_dim: int = 64,
    ) -> None:  # fmt: skip
        self.rng = np.random.default_rng(num_cells + head_dim)
        self.device, self.before, self.budget = device, num_cells - num_rows, budget
        self.q, self.gate = (
            self.rng.standard_normal((num_rows, HEADS, head_dim)).astype(np.float32) for _ in "qg"
        )
        self.capacity = num_cells + 5
        self.k, self.cell_keys, key_scales = self._cells(kind, head_dim)
        self.v, self.cell_values, value_scales = self._cells(kind, head_dim)
        self.cells = Cells(
            self.cell_keys,
            self.cell_values,
            *((key_scales, value_scales) if key_scales is not None else ()),
        )
        self.scores = np.abs(self.rng.standard_normal((num_rows, num_cells // BLOCK)))

    def _cells(self, kind: str, dim: int) -> tuple[np.ndarray, torch.Tensor, torch.Tensor | None]:
        """Values in float64 [capacity, Hkv, Dh] and as cells; unwritten ones are poison."""
        shape, seen = (KV_HEADS, self.capacity, dim), self.capacity - 5
        if kind == "int8":
            codes = self.rng.integers(-127, 128, shape).astype(np.int8)
            scales = (self.rng.random((*shape[:2], dim // 64)) / 64).astype(np.float16)
            wide = codes * np.repeat(scales.astype(np.float64), 64, axis=2)
            scales[:, seen:] = np.nan
            return (
                wide.swapaxes(0, 1), torch.tensor(codes, device=self.device),
                torch.tensor(scales, device=self.device),
            )  # fmt: skip
        halves = self.rng.standard_normal(shape).astype(np.float16)
        halves[:, seen:] = np.nan
        return halves.astype(np.float64).swapaxes(0, 1), torch.tensor(halves).to(self.device), None

    def selection(self) -> tuple[Selection, list[np.ndarray]]:
        """What the device is told, and the cells of each row by the reference."""
        num_rows, chosen, cells = len(self.q), None, []
        if self.budget is not None:
            chosen = torch.full((num_rows, self.budget // BLOCK), 10**6, dtype=torch.int32)
        for row in range(num_rows):
            num = self.before + row + 1
            if chosen is None:
                cells.append(np.arange(num))
                continue
            cells.append(select_cells(self.scores[row], num, self.budget, BLOCK))
            if num // BLOCK > self.budget // BLOCK:  # else it must not be looked at
                chosen[row] = torch.tensor(cells[row][: self.budget : BLOCK] // BLOCK)
        if chosen is not None:
            chosen = chosen.to(self.device)
        return Selection(chosen, BLOCK, self.capacity), cells

    def run(self, rows: slice, codes=None, bad=None) -> torch.Tensor:
        selection, _ = self.selection()
        if selection.chosen is not None:
            selection = Selection(selection.chosen[rows], BLOCK, self.capacity)
        q = torch.tensor(self.q[rows], device=self.device)
        size = (len(q), selection.num_parts, HEADS)
        parts = Parts(poison(self.device, *size, q.shape[2]), poison(self.device, *size, 2))
        q_gate = torch.cat([q * torch.nan, torch.tensor(self.gate[rows], device=self.device)], 2)
        out = poison(self.device, len(q), HEADS * q.shape[2])
        attend(
            q, q_gate[:, :, q.shape[2] :], self.cells, selection,
            torch.tensor([self.before + rows.start], device=self.device), parts, out, codes, bad,
        )  # fmt: skip
        return out

    def expected(self) -> np.ndarray:
        _, cells = self.selection()
        q = self.q.astype(np.float64) * self.q.shape[2] ** 0.5
        out = [
            reference(q[n], self.k, self.v, chosen, HEADS // KV_HEADS)
            for n, chosen in enumerate(cells)
        ]
        return (np.stack(out) * sigmoid(self.gate.astype(np.float64))).reshape(len(q), -1)


@pytest.mark.parametrize("kind", ["half", "int8"])
@pytest.mark.parametrize(
    ("num_cells", "num_rows", "budget"),
    [(3, 3, 64), (70, 4, 64), (402, 2, 128), (1100, 1, None), (9, 2, None)],
)
def test_attention_is_the_reference(
    kind: str, num_cells: int, num_rows: int, budget: int | None, device: str
) -> None:
    layer = Layer(kind, num_cells, num_rows, budget, device)
    out = layer.run(slice(0, num_rows))
    expected = layer.expected()
    np.testing.assert_allclose(out.cpu(), expected, rtol=3e-6, atol=3e-6 * np.abs(expected).max())


def test_widths_that_fill_no_tile(device: str) -> None:
    layer = Layer("half", 90, 2, 32, device, head_dim=24)
    np.testing.assert_allclose(layer.run(slice(0, 2)).cpu(), layer.expected(), atol=3e-6)


@pytest.mark.parametrize("kind", ["half", "int8"])
@pytest.mark.parametrize("budget", [64, None])
def test_a_row_is_the_same_alone_and_in_a_window(
    kind: str, budget: int | None, device: str
) -> None:
    layer = Layer(kind, 160, 8, budget, device)
    together = layer.run(slice(0, 8))
    for row in (0, 3, 7):
        assert torch.equal(layer.run(slice(row, row + 1))[0], together[row])


def test_a_second_run_gives_the_same_bits(device: str) -> None:
    layer = Layer("half", 90, 2, 64, device)
    assert torch.equal(layer.run(slice(0, 2)), layer.run(slice(0, 2)))


def test_large_scores_do_not_overflow(device: str) -> None:
    layer = Layer("half", 200, 2, None, device)
    layer.q *= 50
    expected = layer.expected()
    np.testing.assert_allclose(layer.run(slice(0, 2)).cpu(), expected, atol=1e-4)


def test_codes_are_those_of_the_output(device: str) -> None:
    layer = Layer("half", 80, 3, 64, device)
    codes, wanted = (zero_codes(3, HEADS * 64, device) for _ in range(2))
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    quantize(layer.run(slice(0, 3), codes, bad), wanted, bad)
    assert_equal_codes(codes, wanted)
    assert bad.item() == 0
