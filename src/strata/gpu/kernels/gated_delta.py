"""The gated delta net of a decode window: two launches from projections to gated output.

The first (``delta_step``) splits each head's columns among warps, which hold their part of the
memory in registers; the second norms whole heads.

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

from strata.gpu.kernels.arith import INTERPRETED, div, over, sigmoid, silu
from strata.gpu.kernels.delta_step import STEP_RING, _step_kernel
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.quantize_tail import store_tail, tail_args

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

# Columns of a head's memory that one warp has, and warps of a program, an even number. Calls of an
# interpreted kernel cost the same however many threads it has.
STEP_COLUMNS, STEP_WARPS = (1, 32) if INTERPRETED else (4, 4)
__all__ = ["STEP_RING", "GdnConstants", "GdnMemory", "gdn_window"]


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
    0.16 MB. Grid: value heads by 16 columns (48 by 8), four warps: 16 registers of a thread hold
    the memory. Then value heads by N, one warp.

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
    columns = STEP_COLUMNS if value_dim % STEP_COLUMNS == 0 else 1
    _step_kernel[(heads, triton.cdiv(value_dim, columns * STEP_WARPS))](
        qkv, alpha, beta, constants.conv, constants.dt_bias, constants.ssm_a, state.memory,
        state.ring, state.keys, state.values, state.rates, position, num_pending, out, num_rows,
        key_dim**-0.5, KERNEL=kernel, RING=state.ring.shape[0], KEY_HEADS=key_heads, HEADS=heads,
        DK=key_dim, DV=value_dim, PER=triton.cdiv(triton.next_power_of_2(key_dim), 32),
        COLUMNS=columns, WARPS=STEP_WARPS, QKV=qkv.stride(0), ALPHA=alpha.stride(0),
        BETA=beta.stride(0), num_warps=STEP_WARPS, **LAUNCH_AFTER,
    )  # fmt: skip
    if num_rows == 0:
        return
    _gated_norm_kernel[(heads, num_rows)](
        out, z, constants.gamma, *tail, eps, HEADS=heads, DV=value_dim,
        DV_TILE=triton.next_power_of_2(value_dim), IS_SILU=is_silu_gate,
        HAS_CODES=codes is not None, GROUPS=groups, Z=z.stride(0), num_warps=1, **LAUNCH_AFTER,
    )  # fmt: skip


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
