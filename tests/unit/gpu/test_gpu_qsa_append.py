"""Queries, cells and pooled keys against the float64 reference; windows against single rows."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels import qsa_append  # noqa: E402
from strata.gpu.kernels.causal_conv import ring_rows  # noqa: E402
from strata.gpu.kernels.indexer import INDEX_GROUP  # noqa: E402
from strata.model_spec import RopeSpec  # noqa: E402
from strata.reference.norms import rms_norm  # noqa: E402
from strata.reference.rope import rope_tables, rotate  # noqa: E402

EPS, CAPACITY = 1e-6, 40


class Layer:
    """Projections of all cells of a conversation, and the device's state of them."""

    def __init__(self, device: str, *, is_int8: bool = False, head_dim: int = 64) -> None:
        self.device, self.is_int8, self.dh, self.di, self.block = device, is_int8, head_dim, 24, 4
        rng = np.random.default_rng(head_dim)

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.q_gate, self.k = random(CAPACITY, 3, 2 * head_dim), random(CAPACITY, 1, head_dim)
        self.v, self.index_q = random(CAPACITY, 1, head_dim), random(CAPACITY, 2, self.di)
        self.index_k = random(CAPACITY, self.di)
        self.gammas = [1 + random(n) / 4 for n in (head_dim, head_dim, self.di, self.di)]
        rope = RopeSpec(dim=8, base=1e4, sections=(4, 0, 0))
        tables = rope_tables(rope, np.arange(CAPACITY), np.float32)
        self.cos, self.sin = map(np.ascontiguousarray, tables)
        kind = torch.int8 if is_int8 else torch.float16
        scales = (1, CAPACITY, head_dim // 64)
        self.cells = qsa_append.Cells(
            *(torch.full((1, CAPACITY, head_dim), 99, device=device, dtype=kind) for _ in "kv"),
            *(torch.full(scales, torch.nan, dtype=torch.float16, device=device) for _ in "kv"),
        )  # fmt: skip
        if not is_int8:
            self.cells = qsa_append.Cells(self.cells.keys, self.cells.values)
        self.keys = qsa_append.IndexKeys(
            poison(device, ring_rows(self.block), self.di), poison(device, 1, self.di, INDEX_GROUP)
        )

    def tensor(self, a: np.ndarray) -> torch.Tensor:
        return torch.tensor(a, device=self.device)

    def append(self, first: int, num: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends rows; their queries and index queries."""
        rows = slice(first, first + num)
        gammas = [self.tensor(gamma) for gamma in self.gammas]
        queries = poison(self.device, num, 3, self.dh)
        index_q = poison(self.device, num, 2, self.di)
        inputs = qsa_append.IndexInputs(
            self.tensor(self.index_q[rows]), self.tensor(self.index_k[rows]), *gammas[2:],
            index_q, self.block,
        )  # fmt: skip
        qsa_append.append(
            *(self.tensor(a[rows]) for a in (self.q_gate, self.k, self.v)), *gammas[:2],
            qsa_append.RopeTable(self.tensor(self.cos), self.tensor(self.sin)),
            torch.tensor([first], device=self.device), EPS, self.cells, queries,
            (inputs, self.keys),
        )  # fmt: skip
        return queries, index_q

    def turned(self, a: np.ndarray, gamma: np.ndarray, cells: slice) -> np.ndarray:
        """Normed and rotated in float64; a: [T, heads, width]."""
        normed = rms_norm(a.astype(np.float64), gamma.astype(np.float64), EPS)
        return rotate(normed, self.cos[cells].astype(float), self.sin[cells].astype(float))

    def pooled(self, num_cells: int) -> np.ndarray:
        """Pooled keys the device should hold, in float64."""
        num = num_cells // self.block
        raw = self.index_k[: num * self.block].astype(np.float64)
        mean = raw.reshape(num, self.block, -1).mean(axis=1)
        cells = slice(0, num * self.block, self.block)
        return self.turned(mean[:, None], self.gammas[3], cells)[:, 0]

    def state(self) -> list[torch.Tensor]:
        return [self.cells.keys, self.cells.values, self.keys.ring, self.keys.pooled]


@pytest.mark.parametrize("head_dim", [64, 16])
def test_rows_become_the_reference_cells(head_dim: int, device: str) -> None:
    layer = Layer(device, head_dim=head_dim)
    for first, num in ((0, 8), (8, 3), (11, 6)):
        queries, index_q = layer.append(first, num)
        cells = slice(first, first + num)
        q = layer.q_gate[cells, :, :head_dim]
        expected = layer.turned(q, layer.gammas[0], cells) * head_dim**-0.5
        np.testing.assert_allclose(queries.cpu(), expected, rtol=1e-5, atol=1e-6)
        expected = layer.turned(layer.index_q[cells], layer.gammas[2], cells)
        np.testing.assert_allclose(index_q.cpu(), expected, rtol=1e-5, atol=1e-6)
    keys = layer.turned(layer.k[:17], layer.gammas[1], slice(0, 17))[:, 0]
    np.testing.assert_allclose(layer.cells.keys[0, :17].cpu(), keys, rtol=2**-10, atol=1e-6)
    assert np.array_equal(layer.cells.values[0, :17].cpu(), layer.v[:17, 0].astype(np.float16))
    assert (layer.cells.keys[0, 17:] == 99).all()
    pooled = layer.keys.pooled[0].T.cpu()
    np.testing.assert_allclose(pooled[:4], layer.pooled(17), rtol=1e-5, atol=1e-6)
    assert torch.isnan(pooled[4:]).all()


def test_int8_cells_are_the_nearest_codes(device: str) -> None:
    layer = Layer(device, is_int8=True)
    layer.v[2] = 0
    layer.append(0, 8)
    assert layer.cells.value_scales is not None
    groups = layer.v[:8, 0].reshape(8, -1, 64)
    scales = (np.abs(groups).max(axis=2) / np.float32(127)).astype(np.float16)
    assert np.array_equal(layer.cells.value_scales[0, :8].cpu(), scales)
    wide = scales.astype(np.float32)[..., None]
    with np.errstate(invalid="ignore"):
        codes = np.where(wide == 0, 0, np.clip(np.rint(groups / wide), -127, 127))
    assert np.array_equal(layer.cells.values[0, :8].cpu(), codes.reshape(8, -1))


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_a_window_is_its_rows_one_by_one(kind: str, device: str) -> None:
    is_int8 = kind == "int8"
    together, single = Layer(device, is_int8=is_int8), Layer(device, is_int8=is_int8)
    for first, num in ((0, 5), (5, 8)):
        window = together.append(first, num)
        for row in range(num):
            alone = single.append(first + row, 1)
            for a, b in zip(alone, window, strict=True):
                assert torch.equal(a[0], b[row])
    for a, b in zip(together.state(), single.state(), strict=True):
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))


def test_dropped_rows_leave_no_trace(device: str) -> None:
    """Wrong drafts behind two kept rows, then the true rows, against the true rows alone."""
    layer, truth = Layer(device), Layer(device)
    layer.append(0, 3)
    true_keys = layer.index_k.copy()
    layer.index_k[5:] += 1
    layer.append(3, 8)
    layer.index_k = true_keys
    layer.append(5, 6)
    truth.append(0, 3)
    truth.append(3, 8)
    for a, b in zip(layer.state(), truth.state(), strict=True):
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
