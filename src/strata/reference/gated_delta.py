"""The gated delta net: a causal convolution and a recurrent state instead of attention.

``stepwise`` is the definition. ``chunked`` is the same function with matrix products, as prompts
use it. Value head h reads key head h % Hk (the order in which GGUF stores value heads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.model_spec import Gate
from strata.reference.norms import Array, l2_norm, rms_norm, sigmoid, silu, softplus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.model_spec import ModelSpec


@dataclass(slots=True)
class GdnState:
    """Running state of one layer.

    Attributes:
        conv: [kernel - 1, channels], the newest raw inputs of the convolution, oldest first.
        memory: [Hv, Dk, Dv], one matrix for each value head.
    """

    conv: Array
    memory: Array


def initial_state(spec: ModelSpec, dtype: type) -> GdnState:
    """The state before the first token: zeros."""
    memory_shape = (spec.gdn_value_heads, spec.gdn_key_dim, spec.gdn_value_dim)
    conv: Array = np.zeros((spec.gdn_conv_kernel - 1, spec.gdn_conv_channels), dtype)
    return GdnState(conv, np.zeros(memory_shape, dtype))


def causal_conv(x: Array, history: Array, weight: Array, dilation: int = 1) -> Array:
    """Depthwise convolution; out[t] = sum_i weight[:, i] * input[t - (kernel - 1 - i) * dilation].

    Args:
        x: [T, channels].
        history: [(kernel - 1) * dilation, channels], the inputs before x, oldest first.
        weight: [channels, kernel]; the last tap is the current token.
        dilation: distance of neighbouring taps in tokens.

    Returns:
        [T, channels].
    """
    extended = np.concatenate([history, x])
    out = np.zeros_like(x)
    for tap in range(weight.shape[1]):
        out += extended[tap * dilation : tap * dilation + len(x)] * weight[:, tap]
    return out


def stepwise(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, memory: Array
) -> tuple[Array, Array]:
    """The delta rule token by token.

    S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  o = S^T q / sqrt(Dk)

    Args:
        q: [T, Hv, Dk], L2-normalised; key heads already repeated for the value heads.
        k: [T, Hv, Dk], L2-normalised.
        v: [T, Hv, Dv].
        log_decay: [T, Hv], g <= 0.
        beta: [T, Hv], in 0..1.
        memory: [Hv, Dk, Dv]; not modified.

    Returns:
        o [T, Hv, Dv] and the new memory.
    """
    scale = q.shape[-1] ** -0.5
    out = np.zeros_like(v)
    for t in range(len(q)):
        memory = memory * np.exp(log_decay[t])[:, None, None]
        predicted = np.einsum("hkv,hk->hv", memory, k[t])
        correction = beta[t][:, None] * (v[t] - predicted)
        memory = memory + k[t][:, :, None] * correction[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", memory, q[t]) * scale
    return out, memory


def chunked(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, memory: Array, chunk: int = 64
) -> tuple[Array, Array]:
    """``stepwise`` with ``chunk`` tokens at a time; same arguments and results.

    With G the running sum of g in a chunk, the corrections u of all its tokens solve
    (1 + strict_lower(beta_i exp(G_i - G_j) k_i . k_j)) u = beta (v - exp(G) S^T k).

    Source: the UT transform of Yang et al. 2024 (arXiv 2406.06484, 2412.06464).
    """
    out = np.zeros_like(v)
    for first in range(0, len(q), chunk):
        part = slice(first, first + chunk)
        out[part], memory = _one_chunk(
            q[part], k[part], v[part], log_decay[part], beta[part], memory
        )
    return out, memory


def _one_chunk(
    q: Array, k: Array, v: Array, log_decay: Array, beta: Array, memory: Array
) -> tuple[Array, Array]:
    # Heads first: [Hv, C, ...].
    q, k, v = (np.swapaxes(a, 0, 1) for a in (q * q.shape[-1] ** -0.5, k, v))
    total = np.cumsum(log_decay, axis=0).T  # G, [Hv, C]
    size = total.shape[1]
    not_after = np.tri(size, dtype=bool)
    # Only i >= j, where the exponent is not positive.
    exponent = np.where(not_after, total[:, :, None] - total[:, None, :], 0)
    decay = np.where(not_after, np.exp(exponent), 0)
    before = np.where(np.tri(size, k=-1, dtype=bool), decay * (k @ np.swapaxes(k, 1, 2)), 0)
    b = beta.T[:, :, None]
    from_start = np.exp(total)[:, :, None]
    system = np.eye(size, dtype=v.dtype) + b * before
    corrections = np.linalg.solve(system, b * (v - from_start * (k @ memory)))
    out = from_start * (q @ memory) + (decay * (q @ np.swapaxes(k, 1, 2))) @ corrections
    to_end = np.exp(total[:, -1:] - total)[:, :, None]
    memory = memory * from_start[:, -1:] + np.swapaxes(k * to_end, 1, 2) @ corrections
    return np.swapaxes(out, 0, 1), memory


def gated_delta_net(
    x: Array, state: GdnState, weights: Mapping[str, Array], layer: int, spec: ModelSpec
) -> Array:
    """The layer's output [T, D] for inputs x [T, D]; advances ``state`` by T tokens."""
    prefix = f"blk.{layer}."
    raw = x @ weights[f"{prefix}attn_qkv.weight"].T
    mixed = silu(causal_conv(raw, state.conv, weights[f"{prefix}ssm_conv1d.weight"]))
    kept = len(state.conv)
    state.conv = np.concatenate([state.conv, raw])[len(raw) :] if kept else state.conv

    key_size = spec.gdn_key_heads * spec.gdn_key_dim
    q, k, v = np.split(mixed, [key_size, 2 * key_size], axis=1)
    key_shape = (len(x), spec.gdn_key_heads, spec.gdn_key_dim)
    key_head = np.arange(spec.gdn_value_heads) % spec.gdn_key_heads
    q = l2_norm(q.reshape(key_shape))[:, key_head]
    k = l2_norm(k.reshape(key_shape))[:, key_head]
    v = v.reshape(len(x), spec.gdn_value_heads, spec.gdn_value_dim)

    beta = sigmoid(x @ weights[f"{prefix}ssm_beta.weight"].T)
    alpha = x @ weights[f"{prefix}ssm_alpha.weight"].T
    log_decay = softplus(alpha + weights[f"{prefix}ssm_dt.bias"]) * weights[f"{prefix}ssm_a"]
    out, state.memory = stepwise(q, k, v, log_decay, beta, state.memory)

    z = (x @ weights[f"{prefix}attn_gate.weight"].T).reshape(v.shape)
    gate = sigmoid(z) if spec.gdn_gate is Gate.SIGMOID else silu(z)
    gated = rms_norm(out, weights[f"{prefix}ssm_norm.weight"], spec.rms_eps) * gate
    return np.asarray(gated.reshape(len(x), -1) @ weights[f"{prefix}ssm_out.weight"].T)
