"""Sorting by expert against a stable sort of numpy."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from strata.gpu.kernels.expert_sort import empty_plan, sort_by_expert  # noqa: E402


def _random_ids(num_rows: int, top_k: int, num_experts: int) -> np.ndarray:
    rng = np.random.default_rng()
    rows = [rng.permutation(num_experts)[:top_k] for _ in range(num_rows)]
    return np.array(rows, np.int32)


def _sorted_plan(ids: np.ndarray, num_experts: int, tokens: int, device: str):
    plan = empty_plan(ids.size + 40, num_experts, tokens, device)
    for field in (plan.order, plan.counts, plan.offsets, plan.tiles, plan.histogram):
        field.fill_(-(1 << 20))
    sort_by_expert(torch.from_numpy(ids).to(device), plan)
    return plan


def _assert_is_sorted(plan, ids: np.ndarray, num_experts: int, tokens: int) -> None:
    flat = ids.reshape(-1)
    known = np.flatnonzero((flat >= 0) & (flat < num_experts))
    order = known[np.argsort(flat[known], kind="stable")]
    counts = np.bincount(flat[known], minlength=num_experts)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    assert np.array_equal(plan.order.cpu().numpy()[: len(order)], order)
    assert np.array_equal(plan.counts.cpu().numpy(), counts)
    assert np.array_equal(plan.offsets.cpu().numpy(), offsets)
    tiles = [
        (expert, first)
        for expert in range(num_experts)
        for first in range(offsets[expert], offsets[expert + 1], tokens)
    ]
    found = plan.tiles.cpu().numpy()[: plan.max_tiles(flat.size)]
    assert found[: len(tiles)].tolist() == [list(tile) for tile in tiles]
    assert (found[len(tiles) :, 0] == -1).all()


@pytest.mark.parametrize(("num_rows", "top_k", "num_experts"), [(1, 3, 5), (90, 4, 12), (33, 1, 1)])
def test_pairs_are_sorted_and_cut_into_tiles(
    num_rows: int, top_k: int, num_experts: int, device: str
) -> None:
    ids = _random_ids(num_rows, top_k, num_experts)
    plan = _sorted_plan(ids, num_experts, 16, device)
    _assert_is_sorted(plan, ids, num_experts, 16)


def test_every_row_may_want_the_same_expert(device: str) -> None:
    ids = np.full((70, 2), 3, np.int32)
    plan = _sorted_plan(ids, 7, 32, device)
    _assert_is_sorted(plan, ids, 7, 32)


def test_ids_of_nobody_are_left_out(device: str) -> None:
    ids = _random_ids(50, 3, 9)
    ids[::4, 1] = -1
    ids[1::5, 0] = 9
    plan = _sorted_plan(ids, 9, 16, device)
    _assert_is_sorted(plan, ids, 9, 16)


def test_experts_in_no_slot_are_left_out(device: str) -> None:
    ids = _random_ids(40, 3, 9)
    plan = empty_plan(ids.size, 9, 16, device)
    slot_of = torch.tensor([0, -1, 2, 3, -1, 5, 6, 7, 1], dtype=torch.int32, device=device)
    sort_by_expert(torch.from_numpy(ids).to(device), plan, slot_of)
    _assert_is_sorted(plan, np.where(np.isin(ids, (1, 4)), -1, ids), 9, 16)
