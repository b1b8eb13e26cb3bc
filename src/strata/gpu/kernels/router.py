"""The router of a decode window: probabilities of all experts, the best K of each row, weights.

Owns everything behind the router's products. Equal probabilities: lower expert first.
Reference: ``strata.reference.router``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import div, exp, sigmoid
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.sizes import next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

# Smallest sum the weights are divided by.
_MIN_WEIGHT_SUM = tl.constexpr(2.0**-14)
_LARGEST = tl.constexpr(3.4028234663852886e38)


def route(
    logits: Tensor,
    shared_logits: Tensor,
    weights_scale: float,
    expert_ids: Tensor,
    topk_weights: Tensor,
    shared_weight: Tensor,
    bad: Tensor,
) -> None:
    """Softmax, the K largest in order, made to sum to ``weights_scale``; the shared expert's gate.

    Bytes a row: 1 KB at 256 experts. Grid: (N), one warp: K rounds of shuffles.

    Args:
        logits: [N, E] float32; rows of any stride.
        shared_logits: [N, 1] float32; likewise.
        weights_scale: factor on the normalised weights.
        expert_ids: [N, K] int32.
        topk_weights: [N, K] float32.
        shared_weight: [N] float32, sigmoid of the shared logit.
        bad: [1] int32, becomes 1 when a logit is NaN or infinite; the ids are valid even then.
    """
    num_rows, num_experts = logits.shape
    _route_kernel[(num_rows,)](
        logits, shared_logits, expert_ids, topk_weights, shared_weight, bad, logits.stride(0),
        shared_logits.stride(0), weights_scale, EXPERTS=num_experts,
        TILE=next_power_of_2(num_experts), TOP_K=expert_ids.shape[1],
        K_TILE=next_power_of_2(expert_ids.shape[1]), num_warps=1, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _route_kernel(
    logits_ptr, shared_ptr, ids_ptr, weights_ptr, shared_weight_ptr, bad_ptr, stride,
    shared_stride, weights_scale, EXPERTS: tl.constexpr, TILE: tl.constexpr, TOP_K: tl.constexpr,
    K_TILE: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, TILE)
    logits = tl.load(logits_ptr + row * stride + offs, offs < EXPERTS, 0.0)
    is_finite = tl.abs(logits) <= _LARGEST
    tl.store(bad_ptr, 1, tl.min(is_finite.to(tl.int32), axis=0) == 0)
    logits = tl.where(is_finite, logits, 0.0)
    logits = tl.where(offs < EXPERTS, logits, float("-inf"))
    powers = exp(logits - tl.max(logits, axis=0))
    powers = tl.where(offs < EXPERTS, powers, 0.0)
    probs = div(powers, tl.sum(powers, axis=0))
    # Probabilities order like their bits; none is negative but those taken.
    keys = tl.where(offs < EXPERTS, probs.to(tl.int32, bitcast=True), -1)
    offs_k = tl.arange(0, K_TILE)
    chosen = tl.zeros([K_TILE], tl.float32)
    ids = tl.zeros([K_TILE], tl.int32)
    total = 0.0
    for k in tl.static_range(TOP_K):
        best = tl.max(keys, axis=0)
        expert = tl.min(tl.where(keys == best, offs, TILE), axis=0)
        keys = tl.where(offs == expert, -1, keys)
        prob = best.to(tl.float32, bitcast=True)
        total += prob
        chosen = tl.where(offs_k == k, prob, chosen)
        ids = tl.where(offs_k == k, expert, ids)
    weights = div(chosen, tl.maximum(total, _MIN_WEIGHT_SUM)) * weights_scale
    tl.store(ids_ptr + row * TOP_K + offs_k, ids, offs_k < TOP_K)
    tl.store(weights_ptr + row * TOP_K + offs_k, weights, offs_k < TOP_K)
    shared = tl.load(shared_ptr + row * shared_stride)
    tl.store(bad_ptr, 1, (tl.abs(shared) <= _LARGEST) == 0)
    tl.store(shared_weight_ptr + row, sigmoid(tl.where(tl.abs(shared) <= _LARGEST, shared, 0.0)))
