"""The write before a hyper-connection's read for the rows of a prompt chunk, and that read's norm.

The same as ``hyper_connections.write_and_norm`` with a program for all streams of a row, so that
the block's output, which is the larger part of the bytes behind a mixture, is read once.

Reference: ``strata.reference.hyper_connections``, ``strata.reference.experts``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, sigmoid
from strata.gpu.kernels.hyper_connections import ExpertOutputs
from strata.gpu.kernels.sizes import next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

# Columns of a stream at a time; what they leave stays in registers until the norm is known.
_COLUMNS = 512


def write_prompt(
    streams: Tensor,
    block_output: Tensor | ExpertOutputs | None,
    inject: Tensor | None,
    gamma: Tensor,
    eps: float,
    inverse: Tensor,
    xn: Tensor | None,
) -> None:
    """streams += 2 sigmoid(inject / S) * output; inverse = 1 / rms of every stream; xn = normed.

    Bytes a row: streams 41 KB read and written, xn 41 KB if it is wanted, the output (ten experts:
    113 KB). Grid: (N).

    Args:
        streams: [N, S, D] float32.
        block_output: [N, D] float32, or a mixture's parts; None to norm only.
        inject: [N, S] float32 products of the read before, rows of any stride; None to norm only.
        gamma: [S * D] float32 of the read that follows.
        eps: of the norm.
        inverse: [N, S] float32.
        xn: [N, S * D] float32, stream * inverse * gamma; None where the read makes it itself.
    """
    num_rows, num_streams, width = streams.shape
    parts = block_output if isinstance(block_output, ExpertOutputs) else None
    plain = None if isinstance(block_output, ExpertOutputs) else block_output
    experts: tuple[Tensor | None, ...] = (None, None, None, None)
    if parts is not None:
        experts = (parts.outputs, parts.topk_weights, parts.shared, parts.shared_weight)
    _write_prompt_kernel[(num_rows,)](
        streams, plain, *experts, inject, 0 if inject is None else inject.stride(0), gamma, xn,
        inverse, eps, TOP_K=0 if parts is None else parts.outputs.shape[1], STREAMS=num_streams,
        STREAM_TILE=next_power_of_2(num_streams), D=width,
        COLUMNS=min(_COLUMNS, next_power_of_2(width)), num_warps=4, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _output_columns(
    plain_ptr, experts_ptr, weights_ptr, shared_ptr, shared_weight_ptr, row, column, mask,
    TOP_K: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The block's output in these columns."""
    if TOP_K > 0:
        first = row * TOP_K
        y = tl.load(experts_ptr + first * D + column, mask, 0.0)
        total = tl.load(weights_ptr + first) * y
        for k in tl.static_range(1, TOP_K):
            y = tl.load(experts_ptr + (first + k) * D + column, mask, 0.0)
            total += tl.load(weights_ptr + first + k) * y
        y = tl.load(shared_ptr + row * D + column, mask, 0.0)
        total += tl.load(shared_weight_ptr + row) * y
    else:
        total = tl.load(plain_ptr + row * D + column, mask, 0.0)
    return total


@triton.jit
def _write_prompt_kernel(
    streams_ptr, plain_ptr, experts_ptr, weights_ptr, shared_ptr, shared_weight_ptr, inject_ptr,
    inject_stride, gamma_ptr, xn_ptr, inverse_ptr, eps, TOP_K: tl.constexpr, STREAMS: tl.constexpr,
    STREAM_TILE: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (D + COLUMNS - 1) // COLUMNS
    row = tl.program_id(0).to(tl.int64)
    stream = tl.arange(0, STREAM_TILE)
    is_stream = stream < STREAMS
    at_row = row * (STREAMS * D) + stream[:, None] * D
    if inject_ptr is not None:
        inject = tl.load(inject_ptr + row * inject_stride + stream, is_stream, 0.0)
        weight = (2.0 * sigmoid(div(inject, float(STREAMS))))[:, None]
    squares = tl.zeros([STREAM_TILE, COLUMNS], tl.float32)
    tiles = ()
    for tile in tl.static_range(TILES):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        mask = is_stream[:, None] & (column < D)[None, :]
        x = tl.load(streams_ptr + at_row + column[None, :], mask, 0.0)
        if inject_ptr is not None:
            total = _output_columns(
                plain_ptr, experts_ptr, weights_ptr, shared_ptr, shared_weight_ptr, row, column,
                column < D, TOP_K, D,
            )  # fmt: skip
            x += weight * total[None, :]
            tl.store(streams_ptr + at_row + column[None, :], x, mask)
        squares += x * x
        if xn_ptr is not None:
            tiles = tiles + (x,)
    mean = div(tl.sum(squares, axis=1), float(D))
    inverse = div(1.0, tl.sqrt_rn(mean + eps))
    tl.store(inverse_ptr + row * STREAMS + stream, inverse, is_stream)
    if xn_ptr is not None:
        for tile in tl.static_range(TILES):
            column = tile * COLUMNS + tl.arange(0, COLUMNS)
            mask = is_stream[:, None] & (column < D)[None, :]
            gamma = tl.load(gamma_ptr + stream[:, None] * D + column[None, :], mask, 0.0)
            xn = tiles[tile] * inverse[:, None] * gamma
            tl.store(xn_ptr + at_row + column[None, :], xn, mask)
