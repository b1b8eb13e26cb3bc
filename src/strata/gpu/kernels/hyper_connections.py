"""Residual streams of a decode window: write a block's output, norm for the next read, mix.

Owns everything of a hyper-connection but its products. The write before a read and that read's
norm are one launch, which also adds up the experts where the block was a mixture: token = w0 * y0;
token += w1 * y1; ... in routing order; token += shared weight * shared.

Reference: ``strata.reference.hyper_connections``, ``strata.reference.experts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import div, over, sigmoid, silu
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.float_product import no_bits_after
from strata.gpu.kernels.quantize_tail import store_tail, tail_args

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

# Columns of one program of the mix: eight blocks of codes.
_MIX_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class ExpertOutputs:
    """A mixture's parts, not yet added up; all float32.

    Attributes:
        outputs: [N, K, D] in routing order.
        topk_weights: [N, K].
        shared: [N, D].
        shared_weight: [N], after its sigmoid.
    """

    outputs: Tensor
    topk_weights: Tensor
    shared: Tensor
    shared_weight: Tensor


def write_and_norm(
    streams: Tensor,
    block_output: Tensor | ExpertOutputs | None,
    inject: Tensor | None,
    gamma: Tensor,
    eps: float,
    xn: Tensor,
    codes: Codes | None = None,
    bad: Tensor | None = None,
    split: Tensor | None = None,
) -> None:
    """streams += 2 sigmoid(inject / S) * output; xn = rms norm of every stream; codes of xn.

    Bytes a row: streams 41 KB read and written, xn 41 KB, and the output four times (ten experts:
    113 KB), all of it in the second level cache. Grid: (streams, N), 8 warps.

    Args:
        streams: [N, S, D] float32.
        block_output: [N, D] float32, or a mixture's parts; None to norm only.
        inject: [N, S] float32 products of the read before, rows of any stride; None to norm only.
        gamma: [S * D] float32 of the read that follows.
        eps: of the norm.
        xn: [N, S * D] float32.
        codes: of xn; only where D is a multiple of 32.
        bad: [1] int32, becomes 1 when xn is NaN or infinite.
        split: [N, S * D] float32, xn again as ``float_product`` takes split rows, or None.
    """
    num_rows, num_streams, width = streams.shape
    parts = block_output if isinstance(block_output, ExpertOutputs) else None
    plain = None if isinstance(block_output, ExpertOutputs) else block_output
    experts: tuple[Tensor | None, ...] = (None, None, None, None)
    if parts is not None:
        experts = (parts.outputs, parts.topk_weights, parts.shared, parts.shared_weight)
    *tail, groups = tail_args(codes, bad)
    _write_kernel[(num_streams, num_rows)](
        streams, plain, *experts, inject, 0 if inject is None else inject.stride(0), gamma, xn,
        split, *tail, eps,
        TOP_K=0 if parts is None else parts.outputs.shape[1], STREAMS=num_streams, D=width,
        D_TILE=max(32, triton.next_power_of_2(width)), HAS_CODES=codes is not None, GROUPS=groups,
        num_warps=8, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _write_kernel(
    streams_ptr, plain_ptr, experts_ptr, weights_ptr, shared_ptr, shared_weight_ptr, inject_ptr,
    inject_stride, gamma_ptr, xn_ptr, split_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
    halves_ptr, bad_ptr, eps,
    TOP_K: tl.constexpr, STREAMS: tl.constexpr, D: tl.constexpr, D_TILE: tl.constexpr,
    HAS_CODES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    offs = tl.arange(0, D_TILE)
    mask = offs < D
    at = (row * STREAMS + stream) * D + offs
    gamma = tl.load(gamma_ptr + stream * D + offs, mask=mask, other=0.0)
    wait_for_inputs()
    x = tl.load(streams_ptr + at, mask=mask, other=0.0)
    if inject_ptr is not None:
        inject = tl.load(inject_ptr + row * inject_stride + stream)
        if TOP_K > 0:
            first = row * TOP_K
            factors = (tl.load(weights_ptr + first),)
            outputs = (tl.load(experts_ptr + first * D + offs, mask=mask, other=0.0),)
            for k in tl.static_range(1, TOP_K):
                factors = factors + (tl.load(weights_ptr + first + k),)
                y = tl.load(experts_ptr + (first + k) * D + offs, mask=mask, other=0.0)
                outputs = outputs + (y,)
            factors = factors + (tl.load(shared_weight_ptr + row),)
            y = tl.load(shared_ptr + row * D + offs, mask=mask, other=0.0)
            outputs = outputs + (y,)
            bits = outputs[0].to(tl.int32, bitcast=True) | no_bits_after(outputs)
            total = factors[0] * bits.to(tl.float32, bitcast=True)
            for k in tl.static_range(1, TOP_K + 1):
                total += factors[k] * outputs[k]
        else:
            total = tl.load(plain_ptr + row * D + offs, mask=mask, other=0.0)
        weight = 2.0 * sigmoid(over(inject, STREAMS))
        x += weight * total
        tl.store(streams_ptr + at, x, mask=mask)
    inverse = div(1.0, tl.sqrt_rn(div(tl.sum(x * x, axis=0), D) + eps))
    x = x * inverse * gamma
    tl.store(xn_ptr + at, x, mask=mask)
    if split_ptr is not None:
        column = stream * D + offs
        place = column // 16 * 16 + column % 4 * 4 + column % 16 // 4
        tl.store(split_ptr + row * STREAMS * D + place, x, mask=mask)
    if HAS_CODES:
        store_tail(
            x, row, stream * (D // 32), D // 32, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
            halves_ptr, bad_ptr, GROUPS, D_TILE // 32,
        )  # fmt: skip


def silu_of_quotient(
    low: Tensor,
    divisor: int,
    out: Tensor,
    codes: Codes | None = None,
    bad: Tensor | None = None,
    *,
    is_split: bool = False,
) -> None:
    """out = silu(low / divisor), and its codes: between the products of a read.

    Bytes: 1.3 KB a row at rank 320. Grid: (N), 4 warps.

    Args:
        low: [N, r] float32; may be ``out``.
        divisor: the number of streams.
        out: [N, r] float32.
        codes: of ``out``; only where r is a multiple of 32.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
        is_split: ``out`` lies as ``float_product`` takes split rows.
    """
    num_rows, rank = low.shape
    *tail, groups = tail_args(codes, bad)
    _silu_kernel[(num_rows,)](
        low, low.stride(0), out, *tail, DIVISOR=divisor, IS_SPLIT=is_split, RANK=rank,
        RANK_TILE=max(32, triton.next_power_of_2(rank)), HAS_CODES=codes is not None,
        GROUPS=groups, num_warps=4, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _silu_kernel(
    low_ptr, low_stride, out_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr,
    DIVISOR: tl.constexpr, IS_SPLIT: tl.constexpr, RANK: tl.constexpr, RANK_TILE: tl.constexpr,
    HAS_CODES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, RANK_TILE)
    low = tl.load(low_ptr + row * low_stride + offs, mask=offs < RANK, other=0.0)
    y = silu(over(low, DIVISOR))
    place = offs // 16 * 16 + offs % 4 * 4 + offs % 16 // 4 if IS_SPLIT else offs
    tl.store(out_ptr + row * RANK + place, y, mask=offs < RANK)
    if HAS_CODES:
        store_tail(
            y, row, 0, RANK // 32, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
            bad_ptr, GROUPS, RANK_TILE // 32,
        )  # fmt: skip


def mix(
    xn: Tensor,
    gate: Tensor,
    num_streams: int,
    x: Tensor,
    codes: Codes | None = None,
    bad: Tensor | None = None,
) -> None:
    """x = mean over the streams of xn * sigmoid(gate), and its codes: what a block reads.

    Decode windows have it in one launch with the product, ``stream_read``.

    Bytes a row: 92 KB. Grid: (D / 256, N): ten programs a row, 4 warps.

    Args:
        xn: [N, S * D] float32.
        gate: [N, S * D] float32 products, columns as the rows of the up matrix lie: in
            ``stream_read.read_order``, which needs D to be a multiple of 32.
        num_streams: S.
        x: [N, D] float32.
        codes: of x; only where D is a multiple of 32.
        bad: [1] int32, becomes 1 when x is NaN or infinite.
    """
    num_rows, width = x.shape
    *tail, groups = tail_args(codes, bad)
    _mix_kernel[(triton.cdiv(width, _MIX_COLUMNS), num_rows)](
        xn, gate, x, *tail, STREAMS=num_streams, D=width, COLUMNS=_MIX_COLUMNS,
        HAS_CODES=codes is not None, GROUPS=groups, num_warps=4, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _mix_kernel(
    xn_ptr, gate_ptr, x_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr,
    STREAMS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr, HAS_CODES: tl.constexpr,
    GROUPS: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    first = tl.program_id(0) * COLUMNS
    row = tl.program_id(1).to(tl.int64)
    offs = first + tl.arange(0, COLUMNS)
    mask = offs < D
    total = tl.zeros([COLUMNS], tl.float32)
    for stream in tl.static_range(STREAMS):
        at = (row * STREAMS + stream) * D + offs
        # By 32 columns, then by stream.
        column = (offs // 32 * STREAMS + stream) * 32 + offs % 32
        gate_at = row * (STREAMS * D) + column
        gate = sigmoid(tl.load(gate_ptr + gate_at, mask=mask, other=0.0))
        total += tl.load(xn_ptr + at, mask=mask, other=0.0) * gate
    x = over(total, STREAMS)
    tl.store(x_ptr + row * D + offs, x, mask=mask)
    if HAS_CODES:
        left = tl.minimum(D // 32 - first // 32, COLUMNS // 32)
        store_tail(
            x, row, first // 32, left, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
            bad_ptr, GROUPS, COLUMNS // 32,
        )  # fmt: skip
