"""Choices of the router and of the indexer: ties, orders and edges, on hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strata.reference import norms
from strata.reference.router import route
from strata.reference.sparse_attention import attend, select_cells


def test_equal_probabilities_go_to_the_lower_expert() -> None:
    weight = np.array([[1.0], [3.0], [2.0], [3.0], [2.0], [3.0]])
    routing = route(np.ones((1, 1)), weight, top_k=4, weights_scale=1.0)
    assert routing.expert_ids.tolist() == [[1, 3, 5, 2]]
    powers = np.exp([3.0, 3.0, 3.0, 2.0])
    np.testing.assert_allclose(routing.topk_weights[0], powers / powers.sum(), atol=1e-15)


def test_weights_sum_to_the_scale() -> None:
    rng = np.random.default_rng(0)
    routing = route(rng.normal(size=(7, 5)), rng.normal(size=(9, 5)), top_k=3, weights_scale=2.5)
    np.testing.assert_allclose(routing.topk_weights.sum(axis=1), 2.5)
    assert (np.diff(routing.topk_weights, axis=1) <= 0).all()


def test_blocks_best_first_ties_low_then_ascending_with_tail() -> None:
    scores = np.array([1.0, 5.0, 5.0, 0.0, 5.0])
    chosen = select_cells(scores, num_cells=22, budget=8, block=4)
    assert chosen.tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 20, 21]


def test_signed_zeros_tie() -> None:
    scores = np.array([-0.0, 0.0, -0.0, 0.0])
    assert select_cells(scores, 8, budget=4, block=2).tolist() == [0, 1, 2, 3]


@given(st.integers(1, 80), st.integers(1, 6), st.integers(1, 5), st.data())
def test_selection_against_a_sort_in_python(
    num_cells: int, block: int, blocks_kept: int, data: st.DataObject
) -> None:
    num_blocks = num_cells // block
    scores = data.draw(st.lists(st.integers(0, 3), min_size=num_blocks, max_size=num_blocks))
    found = select_cells(np.array(scores, float), num_cells, blocks_kept * block, block)
    best = sorted(range(num_blocks), key=lambda b: (-scores[b], b))[:blocks_kept]
    wanted = [c for c in range(num_cells) if c // block in best or c >= num_blocks * block]
    assert found.tolist() == wanted
    assert len(found) == min(num_cells, blocks_kept * block + num_cells % block)


def test_attention_over_chosen_cells_against_torch() -> None:
    rng = np.random.default_rng(1)
    q = rng.normal(size=(6, 8))
    keys, values = rng.normal(size=(2, 12, 3, 8))
    cells = np.array([0, 3, 4, 11])
    wanted = torch.nn.functional.scaled_dot_product_attention(
        torch.from_numpy(q)[None, :, None],
        torch.from_numpy(keys[cells]).transpose(0, 1)[None],
        torch.from_numpy(values[cells]).transpose(0, 1)[None],
        enable_gqa=True,
    )[0, :, 0]
    np.testing.assert_allclose(attend(q, keys, values, cells, 2), wanted.numpy(), atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (norms.sigmoid, torch.sigmoid),
        (norms.silu, torch.nn.functional.silu),
        (norms.softplus, torch.nn.functional.softplus),
        (norms.softmax, lambda x: torch.softmax(x, dim=-1)),
    ],
)
def test_pointwise_functions_against_torch(ours, theirs, dtype: type) -> None:
    x = np.linspace(-1000, 1000, 4001).astype(dtype)
    found = ours(x)
    assert found.dtype == dtype
    wanted = theirs(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=4 * np.finfo(dtype).eps, atol=1e-36)


def test_norms_against_torch() -> None:
    rng = np.random.default_rng(2)
    x, gamma = rng.normal(size=(4, 16)), rng.normal(size=16)
    wanted = torch.nn.functional.rms_norm(
        torch.from_numpy(x), (16,), torch.from_numpy(gamma), eps=1e-3
    )
    np.testing.assert_allclose(norms.rms_norm(x, gamma, 1e-3), wanted.numpy(), atol=1e-14)
    np.testing.assert_allclose((norms.l2_norm(x) ** 2).sum(axis=1), 1, atol=1e-6)
    assert not norms.l2_norm(np.zeros((1, 3))).any()
