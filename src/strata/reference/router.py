"""The router: which experts a token passes through, and with what weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.reference.norms import Array, softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Smallest sum the weights are divided by; never reached by a softmax's largest K of E <= 16384 K.
_MIN_WEIGHT_SUM = 2.0**-14


@dataclass(frozen=True, slots=True)
class Routing:
    """Experts of each token, best first.

    Attributes:
        expert_ids: [T, K] int64.
        topk_weights: [T, K].
    """

    expert_ids: NDArray[np.int64]
    topk_weights: Array


def route(x: Array, router_weight: Array, top_k: int, weights_scale: float) -> Routing:
    """Softmax over all experts, the K largest, made to sum to ``weights_scale``.

    Args:
        x: [T, D].
        router_weight: [E, D].
        top_k: K.
        weights_scale: factor on the normalised weights.

    Equal probabilities: lower expert first.
    """
    probs = softmax(x @ router_weight.T)
    ids = np.argsort(-probs, axis=-1, kind="stable")[:, :top_k]
    chosen = np.take_along_axis(probs, ids, axis=-1)
    total = np.maximum(chosen.sum(axis=-1, keepdims=True), x.dtype.type(_MIN_WEIGHT_SUM))
    return Routing(ids, chosen / total * x.dtype.type(weights_scale))
