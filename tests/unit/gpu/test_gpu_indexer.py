"""Scores against float64; selection against a stable sort, by equality, ties and all."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from strata.gpu.kernels import indexer  # noqa: E402
from strata.reference.sparse_attention import select_cells  # noqa: E402


def _position(cells_before: int, device: str) -> torch.Tensor:
    return torch.tensor([cells_before], dtype=torch.int64, device=device)


def _poison(device: str, *shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan, device=device)


def _packed(keys: np.ndarray, device: str) -> torch.Tensor:
    """[blocks, dim] to [groups, dim, INDEX_GROUP], the rest poisoned."""
    groups = -(-len(keys) // indexer.INDEX_GROUP)
    padded = np.full((groups * indexer.INDEX_GROUP, keys.shape[1]), np.nan, np.float32)
    padded[: len(keys)] = keys
    packed = padded.reshape(groups, indexer.INDEX_GROUP, -1).transpose(0, 2, 1)
    return torch.from_numpy(np.ascontiguousarray(packed)).to(device)


@pytest.mark.parametrize("dim", [16, 24])
def test_scores_are_those_of_float64_for_every_row(dim: int, device: str) -> None:
    rng = np.random.default_rng(dim)
    cells, block, num_rows = 4 * 150 + 2, 4, 3
    keys = rng.standard_normal(((cells + num_rows) // block, dim)).astype(np.float32)
    queries = rng.standard_normal((num_rows, 4, dim)).astype(np.float32)
    scores = _poison(device, num_rows, 3 * indexer.INDEX_GROUP)
    indexer.score_blocks(
        torch.from_numpy(queries).to(device), _packed(keys, device), _position(cells, device), 8,
        block, scores,
    )  # fmt: skip
    scores = scores.cpu()
    wide = np.einsum("nhd,bd->nhb", queries.astype(np.float64), keys.astype(np.float64))
    expected = np.maximum(wide, 0).sum(axis=1)
    for row in range(num_rows):
        seen = (cells + row + 1) // block
        np.testing.assert_allclose(scores[row, :seen], expected[row, :seen], rtol=1e-5, atol=1e-5)
        assert not torch.signbit(scores[row, :seen]).any()  # selection reads the bits


def test_a_row_scores_alike_alone_and_in_a_window(device: str) -> None:
    rng = np.random.default_rng(1)
    keys = _packed(rng.standard_normal((120, 16)).astype(np.float32), device)
    queries = torch.from_numpy(rng.standard_normal((8, 4, 16)).astype(np.float32)).to(device)
    together = _poison(device, 8, 128)
    indexer.score_blocks(queries, keys, _position(400, device), 8, 4, together)
    for row in range(8):
        alone = _poison(device, 1, 128)
        at = _position(400 + row, device)
        indexer.score_blocks(queries[row : row + 1], keys, at, 8, 4, alone)
        seen = (400 + row + 1) // 4
        assert torch.equal(alone[0, :seen], together[row, :seen])


def test_equal_keys_score_equally_wherever_they_lie(device: str) -> None:
    rng = np.random.default_rng(2)
    key = rng.standard_normal(16).astype(np.float32)
    scores = _poison(device, 1, 192)
    queries = torch.from_numpy(rng.standard_normal((1, 4, 16)).astype(np.float32)).to(device)
    keys = _packed(np.tile(key, (150, 1)), device)
    indexer.score_blocks(queries, keys, _position(599, device), 8, 4, scores)
    assert len(torch.unique(scores[0, :150])) == 1


def test_nothing_is_scored_where_everything_is_taken(device: str) -> None:
    scores = _poison(device, 1, 64)
    queries, keys = torch.ones((1, 4, 16), device=device), torch.ones((1, 16, 64), device=device)
    indexer.score_blocks(queries, keys, _position(38, device), 40, 4, scores)
    assert torch.isnan(scores).all()


def _selected(
    scores: np.ndarray, cells_before: int, budget: int, block: int, tile: int, device: str
) -> list:
    num_rows, width = scores.shape
    budget_blocks = budget // block
    tiles = indexer.num_select_tiles(width, tile)
    chosen = torch.full((num_rows, budget_blocks), -7, dtype=torch.int32, device=device)
    candidates = torch.full(
        (2, num_rows, tiles * budget_blocks), -7, dtype=torch.int32, device=device
    )
    indexer.select_blocks(
        torch.from_numpy(scores).to(device), _position(cells_before, device), num_rows,
        budget_blocks, block, candidates, chosen, tile=tile,
    )  # fmt: skip
    return chosen.tolist()


@pytest.mark.parametrize("kind", ["distinct", "few values", "all zero", "subnormal", "huge"])
@pytest.mark.parametrize("tile", [32, 128, 1024])
def test_selection_is_that_of_a_stable_sort(kind: str, tile: int, device: str) -> None:
    rng = np.random.default_rng(tile)
    cells_before, budget, block, num_rows = 4 * 197 + 1, 64, 4, 4
    scores = np.abs(rng.standard_normal((num_rows, 256))).astype(np.float32)
    if kind == "few values":
        scores = rng.integers(0, 3, scores.shape).astype(np.float32)
    elif kind == "all zero":
        scores[:] = 0
    elif kind == "subnormal":
        scores *= np.float32(1e-41)
    elif kind == "huge":
        scores *= np.float32(1e38)
    chosen = _selected(scores, cells_before, budget, block, tile, device)
    for row in range(num_rows):
        num_cells = cells_before + row + 1
        cells = select_cells(scores[row], num_cells, budget, block)
        expected = cells[:budget:block] // block
        assert chosen[row] == expected.tolist()


def test_the_edge_between_all_blocks_and_the_best(device: str) -> None:
    scores = np.abs(np.random.default_rng(0).standard_normal((8, 64))).astype(np.float32)
    chosen = _selected(scores, 4 * 16 - 2, 64, 4, 64, device)
    # Rows see 15, 16, 16, 16, 16, 17 .. blocks.
    for row in range(8):
        num_cells = 4 * 16 - 2 + row + 1
        if num_cells // 4 <= 16:
            assert chosen[row] == [-7] * 16
        else:
            assert chosen[row] == (select_cells(scores[row], num_cells, 64, 4)[:64:4] // 4).tolist()
