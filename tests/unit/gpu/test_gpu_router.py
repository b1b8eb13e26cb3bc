"""Chosen experts by equality with a stable sort, weights against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels.router import route  # noqa: E402
from strata.reference.norms import sigmoid  # noqa: E402
from strata.reference.router import route as reference  # noqa: E402

Routed = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]


def _route(logits: np.ndarray, shared: np.ndarray, top_k: int, scale: float, device: str) -> Routed:
    num = len(logits)
    ids = torch.full((num, top_k), -9, dtype=torch.int32, device=device)
    weights, shared_weight = poison(device, num, top_k), poison(device, num)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    route(
        torch.tensor(logits, device=device), torch.tensor(shared, device=device), scale, ids,
        weights, shared_weight, bad,
    )  # fmt: skip
    return ids, weights, shared_weight, bad.item()


@pytest.mark.parametrize(("experts", "top_k"), [(256, 10), (24, 3), (8, 8)])
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "far apart"])
def test_routing_is_the_reference(experts: int, top_k: int, kind: str, device: str) -> None:
    rng = np.random.default_rng(experts)
    logits = rng.standard_normal((4, experts)).astype(np.float32)
    if kind == "ties":
        logits = np.round(logits)  # minus and plus zero among them
    elif kind == "equal":
        logits[:] = 1.25
    elif kind == "far apart":  # all probabilities but a few are zero, which are ties too
        logits *= 90
    shared = rng.standard_normal((4, 1)).astype(np.float32)
    ids, weights, shared_weight, bad = _route(logits, shared, top_k, 1.5, device)
    # In float64 the reference tells apart what float32 rounds to equal probabilities.
    exact = reference(logits, np.eye(experts, dtype=np.float32), top_k, 1.5)
    assert bad == 0
    if kind != "far apart":
        assert np.array_equal(ids.cpu(), exact.expert_ids)
    assert all(len(set(row)) == top_k for row in ids.tolist())
    wide = reference(logits.astype(np.float64), np.eye(experts), top_k, 1.5)
    np.testing.assert_allclose(weights.cpu(), wide.topk_weights, rtol=2e-6, atol=1e-30)
    expected = sigmoid(shared.astype(np.float64))[:, 0]
    np.testing.assert_allclose(shared_weight.cpu(), expected, rtol=1e-6)


def test_zero_probabilities_go_by_the_lower_expert(device: str) -> None:
    logits = np.full((1, 16), -500, np.float32)
    logits[0, 11] = 0
    ids, weights, _, _ = _route(logits, np.zeros((1, 1), np.float32), 4, 1.0, device)
    assert ids.tolist() == [[11, 0, 1, 2]]
    assert weights.tolist() == [[1, 0, 0, 0]]


def test_a_row_is_routed_alike_alone_and_in_a_window(device: str) -> None:
    rng = np.random.default_rng(3)
    logits = rng.standard_normal((8, 40)).astype(np.float32)
    shared = rng.standard_normal((8, 1)).astype(np.float32)
    together = _route(logits, shared, 5, 1.0, device)
    for row in range(8):
        alone = _route(logits[row : row + 1], shared[row : row + 1], 5, 1.0, device)
        for a, b in zip(alone[:3], together[:3], strict=True):
            assert torch.equal(a[0], b[row])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_raises_the_flag_and_keeps_ids_valid(value: float, device: str) -> None:
    logits, shared = np.zeros((1, 16), np.float32), np.zeros((1, 1), np.float32)
    logits[0, 3] = value
    ids, _, _, bad = _route(logits, shared, 4, 1.0, device)
    assert bad == 1
    assert all(0 <= expert < 16 for expert in ids[0].tolist())
    logits[0, 3], shared[0, 0] = 0, value
    assert _route(logits, shared, 4, 1.0, device)[3] == 1
