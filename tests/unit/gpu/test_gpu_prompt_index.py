"""Many rows appended against one by one, by equality; chosen blocks against a stable sort."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402
from tests.unit.gpu.test_gpu_qsa_append import EPS, Layer  # noqa: E402

from strata.gpu.kernels import index_prompt, indexer, qsa_append  # noqa: E402
from strata.reference.sparse_attention import select_cells  # noqa: E402

BLOCK = 4


def _append(layer: Layer, first: int, num: int) -> tuple[torch.Tensor, ...]:
    """Appends rows as a prompt does; queries, index queries and their pairs of halves."""
    rows = slice(first, first + num)
    gammas = [layer.tensor(gamma) for gamma in layer.gammas]
    rope = qsa_append.RopeTable(layer.tensor(layer.cos), layer.tensor(layer.sin))
    positions = torch.arange(first, first + num, device=layer.device)
    queries = poison(layer.device, num, 3, layer.dh)
    qsa_append.append(
        *(layer.tensor(a[rows]) for a in (layer.q_gate, layer.k, layer.v)), *gammas[:2], rope,
        positions[:1], EPS, layer.cells, queries,
    )  # fmt: skip
    index_q = poison(layer.device, num, 2, layer.di)
    pairs = poison(layer.device, 2, num, 2, layer.di).half()
    inputs = qsa_append.IndexInputs(
        layer.tensor(layer.index_q[rows]), layer.tensor(layer.index_k[rows]), *gammas[2:], index_q,
        layer.block,
    )  # fmt: skip
    index_prompt.append_index(inputs, rope, positions, first, EPS, layer.keys, pairs)
    return queries, index_q, pairs


@pytest.fixture(scope="module")
def single(device: str) -> tuple[Layer, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A layer whose rows were appended one by one, and the queries of each."""
    layer = Layer(device)
    return layer, [layer.append(row, 1) for row in range(23)]


@pytest.mark.parametrize("cuts", [[0, 23], [0, 1, 2, 19, 23], [0, 5, 23]])
def test_many_rows_leave_what_single_rows_leave(cuts: list[int], single, device: str) -> None:
    together, (singly, alone) = Layer(device), single
    for first, end in pairwise(cuts):
        queries, index_q, pairs = _append(together, first, end - first)
        assert torch.equal(queries, torch.cat([q for q, _ in alone[first:end]]))
        assert torch.equal(index_q, torch.cat([q for _, q in alone[first:end]]))
        error = pairs.double().sum(dim=0) / 16 - index_q.double()
        assert error.abs().max() < 1e-6
    for mine, theirs in zip(together.state(), singly.state(), strict=True):
        assert torch.equal(torch.nan_to_num(mine), torch.nan_to_num(theirs))


class Prompt:
    """Index queries of a prompt chunk and the pooled keys it can see."""

    def __init__(self, position: int, num: int, dim: int, device: str) -> None:
        rng = np.random.default_rng(position + num)
        self.position, self.num, self.device = position, num, device
        blocks = (position + num) // BLOCK
        self.keys = rng.standard_normal((blocks, dim)).astype(np.float32)
        self.queries = rng.standard_normal((num, 2, dim)).astype(np.float32)

    def pairs(self) -> torch.Tensor:
        scaled = torch.tensor(self.queries * 16, device=self.device)
        high = scaled.half()
        return torch.stack([high, (scaled - high.float()).half()])

    def pooled(self) -> torch.Tensor:
        groups = -(-len(self.keys) // indexer.INDEX_GROUP)
        padded = np.full((groups * indexer.INDEX_GROUP, self.keys.shape[1]), np.nan, np.float32)
        padded[: len(self.keys)] = self.keys
        turned = padded.reshape(groups, indexer.INDEX_GROUP, -1).swapaxes(1, 2)
        return torch.tensor(np.ascontiguousarray(turned), device=self.device)

    def scores(self) -> np.ndarray:
        wide = np.einsum("nhd,bd->nhb", self.queries.astype(np.float64), self.keys)
        return np.maximum(wide, 0).sum(axis=1)

    def select(self, budget: int, rows: slice, scratch: index_prompt.IndexScratch) -> torch.Tensor:
        """Chosen blocks of some rows; -7 where nothing is written."""
        scratch.scores.fill_(torch.nan)
        num = rows.stop - rows.start
        chosen = torch.full((num, budget // BLOCK), -7, dtype=torch.int32, device=self.device)
        first = self.position + rows.start
        index_prompt.select_prompt(
            self.pairs()[:, rows].contiguous(), self.pooled(),
            torch.arange(first, first + num, device=self.device), first, budget // BLOCK, BLOCK,
            scratch, chosen,
        )  # fmt: skip
        return chosen


def _scratch(device: str, rows: int = 16) -> index_prompt.IndexScratch:
    """Less room than the chunk has rows, so that several tiles are taken."""
    full = index_prompt.index_scratch(1000, 8, BLOCK, device)
    return index_prompt.IndexScratch(full.scores[:rows], full.candidates[:, :rows])


@pytest.mark.parametrize(("position", "num"), [(0, 40), (150, 9), (301, 35)])
@pytest.mark.parametrize("dim", [16, 24])
def test_chosen_blocks_are_those_of_a_stable_sort(position, num, dim, device) -> None:
    prompt, budget = Prompt(position, num, dim, device), 32
    chosen = prompt.select(budget, slice(0, num), _scratch(device)).tolist()
    scores = prompt.scores()
    for row in range(num):
        cells = position + row + 1
        if cells // BLOCK <= budget // BLOCK:
            assert chosen[row] == [-7] * (budget // BLOCK)
        else:
            expected = select_cells(scores[row], cells, budget, BLOCK)
            assert chosen[row] == (expected[:budget:BLOCK] // BLOCK).tolist()


def test_scores_are_those_of_float64(device: str) -> None:
    prompt, scratch = Prompt(300, 20, 24, device), _scratch(device, 32)
    prompt.select(32, slice(0, 20), scratch)
    seen = (300 + 1) // BLOCK  # all rows see these
    scores = scratch.scores[:20, :seen].double().cpu().numpy()
    np.testing.assert_allclose(scores, prompt.scores()[:, :seen], rtol=1e-6, atol=2e-6)
    assert not np.signbit(scores).any()


def test_equal_keys_are_chosen_from_the_lowest(device: str) -> None:
    prompt = Prompt(400, 10, 16, device)
    prompt.keys[:] = prompt.keys[7]
    chosen = prompt.select(32, slice(0, 10), _scratch(device))
    assert (chosen.cpu() == torch.arange(8)).all()


@pytest.mark.parametrize("cut", [1, 17])
def test_cuts_leave_no_trace(cut: int, device: str) -> None:
    prompt = Prompt(301, 24, 16, device)
    whole = prompt.select(32, slice(0, 24), _scratch(device))
    parts = [prompt.select(32, rows, _scratch(device)) for rows in (slice(0, cut), slice(cut, 24))]
    assert torch.equal(torch.cat(parts), whole)
