"""The gated delta net of a decode window: two launches from projections to gated output.

The first splits each head's columns among programs of one warp, which hold their part of the memory
in registers and need nothing of each other; the second norms whole heads.

Per value head and row: convolution and silu of its channels, l2 norm of q and k, decay and rate,
the delta rule, gated norm, and int8 codes for the product that follows. A window does not change
the memory by its own rows: they wait in rings, and those that are kept are stepped in when the next
window reads the memory anyway, by the same operations. Rings go by position, so a row that is not
kept is written over.

Reference: ``strata.reference.gated_delta``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED, div, exp, over, quotient, sigmoid, silu
from strata.gpu.kernels.causal_conv import (
    MAX_WINDOW_ROWS,
    conv_rows,
    followed,
    keep_row,
    past_of,
    weights_of,
)
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.quantize_tail import store_tail, tail_args
from strata.reference.norms import L2_EPS, SOFTPLUS_LINEAR_ABOVE

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

# Rows of a window beside the pending rows of the one before.
STEP_RING = 2 * MAX_WINDOW_ROWS

# Columns of a head's memory that one program has; calls of an interpreted one cost the same.
_COLUMNS = 32 if INTERPRETED else 16
_STEP_RING, _MAX_ROWS = tl.constexpr(STEP_RING), tl.constexpr(MAX_WINDOW_ROWS)
_L2_EPS = tl.constexpr(L2_EPS)
_SOFTPLUS_LINEAR_ABOVE = tl.constexpr(SOFTPLUS_LINEAR_ABOVE)


@dataclass(frozen=True, slots=True)
class GdnMemory:
    """What one layer keeps of a conversation; all float32.

    Attributes:
        memory: [Hv, Dk, Dv], of all committed rows but the pending ones.
        ring: [R, channels], raw inputs of the convolution; that of position p in row p % R.
            R is a power of two, at least 8 + kernel - 1.
        keys: [STEP_RING, Hv, Dk], normed, of position p in row p % STEP_RING.
        values: [STEP_RING, Hv, Dv].
        rates: [STEP_RING, Hv, 2], decay and rate of learning.
    """

    memory: Tensor
    ring: Tensor
    keys: Tensor
    values: Tensor
    rates: Tensor


@dataclass(frozen=True, slots=True)
class GdnConstants:
    """Small weights of one layer; all float32.

    Attributes:
        conv: [kernel, channels]; the last tap is the current token. Channels are q | k | v.
        dt_bias, ssm_a: [Hv].
        gamma: [Dv] of the gated norm.
    """

    conv: Tensor
    dt_bias: Tensor
    ssm_a: Tensor
    gamma: Tensor


def gdn_window(
    qkv: Tensor,
    z: Tensor,
    alpha: Tensor,
    beta: Tensor,
    constants: GdnConstants,
    state: GdnMemory,
    position: Tensor,
    num_pending: Tensor,
    out: Tensor,
    codes: Codes | None = None,
    bad: Tensor | None = None,
    *,
    is_silu_gate: bool,
    eps: float,
) -> None:
    """out = what the rows' heads give; ``state`` takes in the pending rows and notes the new ones.

    Bytes: the memory (3.1 MB) read, and written where rows are pending; weights of the convolution
    0.16 MB. Grid: value heads by 16 columns (48 by 8), one warp: its memory lies in 64 registers a
    thread. Then value heads by N, one warp.

    Args:
        qkv: [N, channels] float32 projections, N from 0 (only the pending rows) to 8. Rows of any
            stride, here and in the next three.
        z: [N, Hv * Dv] float32.
        alpha: [N, Hv] float32.
        beta: [N, Hv] float32.
        constants: of the layer.
        state: of the layer.
        position: [1] int64, tokens before row 0.
        num_pending: [1] int32, rows of the last window that were kept. The caller sets it to zero
            once all layers have run, and to k when it commits k rows of this window.
        out: [N, Hv * Dv] float32.
        codes: of ``out``, Dv a multiple of 32; ``tail_args`` says what it must hold.
        bad: [1] int32, becomes 1 when an output is NaN or infinite.
        is_silu_gate: silu in place of sigmoid on z.
        eps: of the gated norm.
    """
    heads, key_dim, value_dim = state.memory.shape
    kernel, channels = constants.conv.shape
    key_heads = (channels - heads * value_dim) // (2 * key_dim)
    *tail, groups = tail_args(codes, bad)
    num_rows = qkv.shape[0]
    _step_kernel[(heads, triton.cdiv(value_dim, _COLUMNS))](
        qkv, alpha, beta, constants.conv, constants.dt_bias, constants.ssm_a, state.memory,
        state.ring, state.keys, state.values, state.rates, position, num_pending, out, num_rows,
        key_dim**-0.5, KERNEL=kernel, RING=state.ring.shape[0], KEY_HEADS=key_heads, HEADS=heads,
        DK=key_dim, DV=value_dim, DK_TILE=triton.next_power_of_2(key_dim), COLUMNS=_COLUMNS,
        QKV=qkv.stride(0), ALPHA=alpha.stride(0), BETA=beta.stride(0), num_warps=1, **LAUNCH_AFTER,
    )  # fmt: skip
    if num_rows == 0:
        return
    _gated_norm_kernel[(heads, num_rows)](
        out, z, constants.gamma, *tail, eps, HEADS=heads, DV=value_dim,
        DV_TILE=triton.next_power_of_2(value_dim), IS_SILU=is_silu_gate,
        HAS_CODES=codes is not None, GROUPS=groups, Z=z.stride(0), num_warps=1, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def log_from_one(u):
    """log(u) of normal u >= 1: u = 2^n m, m in 0.7 .. 1.42, log m = 2 artanh((m - 1) / (m + 1))."""
    bits = u.to(tl.int32, bitcast=True)
    m = ((bits & 0x007FFFFF) + 0x3F800000).to(tl.float32, bitcast=True)
    n = ((bits >> 23) - 127).to(tl.float32)
    is_high = m > 1.41421356
    m = tl.where(is_high, m * 0.5, m)
    n = tl.where(is_high, n + 1.0, n)
    s = quotient(m - 1.0, m + 1.0)
    t = s * s
    p = 0.11111111 * t + 0.14285715
    p = p * t + 0.2
    p = p * t + 0.33333334
    return n * 0.693359375 + (n * -2.12194442e-4 + 2.0 * (s + (s * t) * p))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), x above 20. With u = 1 + e rounded, e / (u - 1) takes the rounding out."""
    e = exp(x)
    u = e + 1.0
    d = u - 1.0
    y = tl.where(d > 5.9604645e-8, log_from_one(u) * quotient(e, tl.maximum(d, 5.9604645e-8)), e)
    return tl.where(x > _SOFTPLUS_LINEAR_ABOVE, x, y)


@triton.jit
def _normed(x):
    """x over sqrt(sum of x^2 + 1e-6)."""
    return x * div(1.0, tl.sqrt_rn(tl.sum(x * x, axis=0) + _L2_EPS))


@triton.jit
def _rates_of(
    head, num_rows, alpha_ptr, beta_ptr, dt_ptr, a_ptr, ALPHA: tl.constexpr, BETA: tl.constexpr
):
    """Decay and rate of all rows of the window, [MAX_WINDOW_ROWS] each."""
    row = tl.arange(0, _MAX_ROWS)
    is_row = row < num_rows
    alpha = tl.load(alpha_ptr + row * ALPHA + head, is_row, 0.0)
    beta = tl.load(beta_ptr + row * BETA + head, is_row, 0.0)
    decay = exp(tl.load(a_ptr + head) * softplus(alpha + tl.load(dt_ptr + head)))
    return decay, sigmoid(beta)


@triton.jit
def _number(x, place):
    """Element ``place`` of x [MAX_WINDOW_ROWS]; never -0."""
    return tl.sum(tl.where(tl.arange(0, _MAX_ROWS) == place, x, 0.0), axis=0)


@triton.jit
def _pending_row(
    row, head, position, keys_ptr, values_ptr, rates_ptr, offs_k, offs_v, is_k, is_v,
    HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """(k, v, decay, rate) of a row of the window before; any past the last one."""
    slot = ((position + tl.minimum(row, -1)) & (_STEP_RING - 1)).to(tl.int32) * HEADS + head
    k = tl.load(keys_ptr + slot * DK + offs_k, mask=is_k, other=0.0)
    v = tl.load(values_ptr + slot * DV + offs_v, mask=is_v, other=0.0)
    return k, v, tl.load(rates_ptr + 2 * slot), tl.load(rates_ptr + 2 * slot + 1)


@triton.jit
def _with_pending(
    memory, row, head, position, keys_ptr, values_ptr, rates_ptr, offs_k, offs_v, is_k, is_v,
    HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """The memory after the rows from ``row``, which is negative, to the last before the window."""
    k, v, decay, rate = _pending_row(
        row, head, position, keys_ptr, values_ptr, rates_ptr, offs_k, offs_v, is_k, is_v, HEADS,
        DK, DV,
    )  # fmt: skip
    while row < 0:
        # The row after is asked for before this one is stepped in.
        k_then, v_then, decay_then, rate_then = _pending_row(
            row + 1, head, position, keys_ptr, values_ptr, rates_ptr, offs_k, offs_v, is_k, is_v,
            HEADS, DK, DV,
        )  # fmt: skip
        delta = rate * (v - decay * tl.sum(memory * k[:, None], axis=0))
        memory = memory * decay + k[:, None] * delta[None, :]
        k, v, decay, rate = k_then, v_then, decay_then, rate_then
        row += 1
    return memory


@triton.jit
def _note_row(
    row, head, first, position, q_raw, k_raw, v_raw, k, v, decay, rate, ring_ptr, keys_ptr,
    values_ptr, rates_ptr, is_k, is_v, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Puts a row of the window into the rings; every program of a head has q and k."""
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * DK + HEADS * DV
    offs_k = tl.arange(0, k.shape[0])
    offs_v = first + tl.arange(0, v.shape[0])
    q_at = head % KEY_HEADS * DK + offs_k
    k_at = KEY_HEADS * DK + q_at
    v_at = 2 * KEY_HEADS * DK + head * DV + offs_v
    is_first = first == 0
    # A key head's raw channels have several readers and one keeper.
    is_keeper = is_k & (head < KEY_HEADS) & is_first
    slot = ((position + row) & (_STEP_RING - 1)).to(tl.int32) * HEADS + head
    keep_row(ring_ptr, v_at, is_v, row, position, CHANNELS, v_raw, RING)
    tl.store(values_ptr + slot * DV + offs_v, v, is_v)
    keep_row(ring_ptr, q_at, is_keeper, row, position, CHANNELS, q_raw, RING)
    keep_row(ring_ptr, k_at, is_keeper, row, position, CHANNELS, k_raw, RING)
    tl.store(keys_ptr + slot * DK + offs_k, k, is_k & is_first)
    tl.store(rates_ptr + 2 * slot, decay, is_first)
    tl.store(rates_ptr + 2 * slot + 1, rate, is_first)


@triton.jit
def _all_below(offs, END: tl.constexpr, IS_SURE: tl.constexpr):
    """Which numbers are below END; where that is sure, known when compiled."""
    if IS_SURE:
        return tl.full(offs.shape, True, tl.int1)
    return offs < END


@triton.jit(do_not_specialize=["num_rows"])
def _step_kernel(
    qkv_ptr, alpha_ptr, beta_ptr, conv_ptr, dt_ptr, a_ptr, memory_ptr, ring_ptr, keys_ptr,
    values_ptr, rates_ptr, position_ptr, num_pending_ptr, out_ptr, num_rows, scale,
    KERNEL: tl.constexpr, RING: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, DK_TILE: tl.constexpr, COLUMNS: tl.constexpr,
    QKV: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    first = tl.program_id(1) * COLUMNS
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * DK + HEADS * DV
    memory_bytes = memory_ptr.to(tl.pointer_type(tl.uint8), bitcast=True)
    if first == 0:
        fetch_ahead(memory_bytes, head, HEADS, DK * DV * 4, 1)
    offs_k = tl.arange(0, DK_TILE)
    offs_v = first + tl.arange(0, COLUMNS)
    is_k = _all_below(offs_k, DK, DK == DK_TILE)
    is_v = _all_below(offs_v, DV, DV % COLUMNS == 0)
    q_at = head % KEY_HEADS * DK + offs_k
    k_at = KEY_HEADS * DK + q_at
    v_at = 2 * KEY_HEADS * DK + head * DV + offs_v
    q_taps = weights_of(conv_ptr, q_at, is_k, CHANNELS, KERNEL)
    k_taps = weights_of(conv_ptr, k_at, is_k, CHANNELS, KERNEL)
    v_taps = weights_of(conv_ptr, v_at, is_v, CHANNELS, KERNEL)
    wait_for_inputs()
    position, num_pending = tl.load(position_ptr), tl.load(num_pending_ptr)
    at_memory = memory_ptr + (head * DK + offs_k[:, None]) * DV + offs_v[None, :]
    is_memory = is_k[:, None] & is_v[None, :]
    memory = tl.load(at_memory, mask=is_memory, other=0.0)
    q_next = tl.load(qkv_ptr + q_at, is_k & (num_rows > 0), 0.0)
    k_next = tl.load(qkv_ptr + k_at, is_k & (num_rows > 0), 0.0)
    v_next = tl.load(qkv_ptr + v_at, is_v & (num_rows > 0), 0.0)
    decays, rates = _rates_of(head, num_rows, alpha_ptr, beta_ptr, dt_ptr, a_ptr, ALPHA, BETA)
    q_past = past_of(ring_ptr, q_at, is_k, position, CHANNELS, KERNEL, RING)
    k_past = past_of(ring_ptr, k_at, is_k, position, CHANNELS, KERNEL, RING)
    v_past = past_of(ring_ptr, v_at, is_v, position, CHANNELS, KERNEL, RING)
    memory = _with_pending(
        memory, -num_pending, head, position, keys_ptr, values_ptr, rates_ptr, offs_k, offs_v,
        is_k, is_v, HEADS, DK, DV,
    )  # fmt: skip
    if num_pending > 0:
        tl.store(at_memory, memory, mask=is_memory)
    row = 0
    while row < num_rows:
        q_own, k_own, v_own = q_next, k_next, v_next
        is_more, following = row + 1 < num_rows, qkv_ptr + (row + 1) * QKV
        q_next = tl.load(following + q_at, is_k & is_more, 0.0)
        k_next = tl.load(following + k_at, is_k & is_more, 0.0)
        v_next = tl.load(following + v_at, is_v & is_more, 0.0)
        q = _normed(conv_rows(q_past, q_own, q_taps)) * scale
        k = _normed(conv_rows(k_past, k_own, k_taps))
        v = conv_rows(v_past, v_own, v_taps)
        q_past, k_past, v_past = (
            followed(q_past, q_own), followed(k_past, k_own), followed(v_past, v_own)
        )  # fmt: skip
        decay, rate = _number(decays, row), _number(rates, row)
        # q . (decay S + k delta) = decay (q . S) + (q . k) delta: both sums read the old memory.
        read = tl.sum(memory * q[:, None], axis=0)
        delta = rate * (v - decay * tl.sum(memory * k[:, None], axis=0))
        o = decay * read + tl.sum(q * k, axis=0) * delta
        tl.store(out_ptr + (row * HEADS + head) * DV + offs_v, o, mask=is_v)
        memory = memory * decay + k[:, None] * delta[None, :]
        _note_row(
            row, head, first, position, q_own, k_own, v_own, k, v, decay, rate, ring_ptr, keys_ptr,
            values_ptr, rates_ptr, is_k, is_v, KEY_HEADS, HEADS, DK, DV, RING,
        )  # fmt: skip
        row += 1


@triton.jit
def _gated_norm_kernel(
    out_ptr, z_ptr, gamma_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr,
    eps, HEADS: tl.constexpr, DV: tl.constexpr, DV_TILE: tl.constexpr, IS_SILU: tl.constexpr,
    HAS_CODES: tl.constexpr, GROUPS: tl.constexpr, Z: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1)
    offs_v = tl.arange(0, DV_TILE)
    is_v = offs_v < DV
    gamma = tl.load(gamma_ptr + offs_v, mask=is_v, other=0.0)
    wait_for_inputs()
    at = out_ptr + (row * HEADS + head) * DV + offs_v
    o = tl.load(at, mask=is_v, other=0.0)
    gate = tl.load(z_ptr + row * Z + head * DV + offs_v, mask=is_v, other=0.0)
    inverse = div(1.0, tl.sqrt_rn(over(tl.sum(o * o, axis=0), DV) + eps))
    gate = silu(gate) if IS_SILU else sigmoid(gate)
    o = o * inverse * gamma * gate
    tl.store(at, o, mask=is_v)
    if HAS_CODES:
        store_tail(
            o, row, head * (DV // 32), DV // 32, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
            halves_ptr, bad_ptr, GROUPS, DV_TILE // 32,
        )  # fmt: skip
