"""Routed experts and the shared expert with float weights; exact bits are ``expert_numerics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.reference.norms import Array, sigmoid, silu
from strata.reference.router import route

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.model_spec import ModelSpec


def gated_mlp(x: Array, gate: Array, up: Array, down: Array) -> Array:
    """down . (silu(gate . x) * (up . x)): [T, D] with gate, up [F, D] and down [D, F]."""
    return np.asarray((silu(x @ gate.T) * (x @ up.T)) @ down.T)


def mixture(x: Array, weights: Mapping[str, Array], layer: int, spec: ModelSpec) -> Array:
    """Weighted sum of each token's experts in routing order, then the gated shared expert.

    Args:
        x: [T, D].
        weights: by GGUF name; experts [E, out, in].
        layer: index of the layer.
        spec: geometry.

    Returns:
        [T, D].
    """
    prefix = f"blk.{layer}.ffn_"
    routing = route(x, weights[f"{prefix}gate_inp.weight"], spec.top_k, spec.expert_weights_scale)
    gate, up, down = (weights[f"{prefix}{role}_exps.weight"] for role in ("gate", "up", "down"))
    out = np.zeros_like(x)
    for t, (ids, topk_weights) in enumerate(
        zip(routing.expert_ids, routing.topk_weights, strict=True)
    ):
        for expert, weight in zip(ids, topk_weights, strict=True):
            out[t] += weight * gated_mlp(x[t], gate[expert], up[expert], down[expert])
    shared = gated_mlp(
        x, *(weights[f"{prefix}{role}_shexp.weight"] for role in ("gate", "up", "down"))
    )
    shared_gate = x @ weights[f"{prefix}gate_inp_shexp.weight"].reshape(-1)
    return np.asarray(out + sigmoid(shared_gate)[:, None] * shared)
