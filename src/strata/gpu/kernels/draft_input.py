"""What the draft layer reads: a token's embedding beside each stream of the position before it.

Reference: ``strata.reference.draft_layer``. Each of the two norms is one over the whole row: all
values of the embedding, all values of all streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS = 1024


def keep_streams(streams: Tensor, position: Tensor, ring: Tensor) -> None:
    """ring[(position + n) % R] = streams[n]: they wait for their tokens.

    Bytes a row: 82 KB. Grid: (S * D / 1024, N).

    Args:
        streams: [N, S, D] float32.
        position: [1] int64, of row 0.
        ring: [R, S * D] float32, R a power of two.
    """
    width = ring.shape[1]
    _keep_streams_kernel[(triton.cdiv(width, _COLUMNS), len(streams))](
        streams, position, ring, WIDTH=width, RING=len(ring), COLUMNS=_COLUMNS, num_warps=4,
        **LAUNCH,
    )  # fmt: skip


@triton.jit
def _keep_streams_kernel(
    streams_ptr, position_ptr, ring_ptr, WIDTH: tl.constexpr, RING: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    offs = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    slot = (tl.load(position_ptr) + row) & (RING - 1)
    x = tl.load(streams_ptr + row * WIDTH + offs, offs < WIDTH, 0.0)
    tl.store(ring_ptr + slot * WIDTH + offs, x, offs < WIDTH)


def join(
    embedded: Tensor,
    streams: Tensor,
    position: Tensor | None,
    embed_gamma: Tensor,
    stream_gamma: Tensor,
    eps: float,
    joined: Tensor,
) -> None:
    """joined[n, s] = norm of the embedding | this stream's part of the norm of all streams.

    Bytes a row: 225 KB, most of it in the second level cache. Grid: (S, N), 8 warps.

    Args:
        embedded: [N, D] float32.
        streams: [R, S * D] float32: a ring of R rows, or the N rows themselves.
        position: [1] int64 of row 0 in the ring; None for rows themselves.
        embed_gamma: [D].
        stream_gamma: [S * D].
        eps: of the norms.
        joined: [N, S, 2 D] float32.
    """
    num_rows, num_streams, wide = joined.shape
    width = wide // 2
    _join_streams_kernel[(num_streams, num_rows)](
        embedded, streams, position, embed_gamma, stream_gamma, joined, eps, STREAMS=num_streams,
        D=width, RING=len(streams), TILE=triton.next_power_of_2(width),
        WIDE_TILE=triton.next_power_of_2(num_streams * width), num_warps=8, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _inverse_rms(x, eps, WIDTH: tl.constexpr):
    return div(1.0, tl.sqrt_rn(div(tl.sum(x * x, axis=0), WIDTH) + eps))


@triton.jit
def _join_streams_kernel(
    embedded_ptr, streams_ptr, position_ptr, embed_gamma_ptr, stream_gamma_ptr, joined_ptr, eps,
    STREAMS: tl.constexpr, D: tl.constexpr, RING: tl.constexpr, TILE: tl.constexpr,
    WIDE_TILE: tl.constexpr,
):  # fmt: skip
    stream = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    source = row
    if position_ptr is not None:
        source = (tl.load(position_ptr) + row) & (RING - 1)
    offs = tl.arange(0, TILE)
    mask = offs < D
    out = joined_ptr + (row * STREAMS + stream) * 2 * D + offs
    e = tl.load(embedded_ptr + row * D + offs, mask, 0.0)
    gamma = tl.load(embed_gamma_ptr + offs, mask, 0.0)
    tl.store(out, e * _inverse_rms(e, eps, D) * gamma, mask)
    wide: tl.constexpr = STREAMS * D
    offs_wide = tl.arange(0, WIDE_TILE)
    every = tl.load(streams_ptr + source * wide + offs_wide, offs_wide < wide, 0.0)
    inverse = _inverse_rms(every, eps, wide)
    x = tl.load(streams_ptr + source * wide + stream * D + offs, mask, 0.0)
    gamma = tl.load(stream_gamma_ptr + stream * D + offs, mask, 0.0)
    tl.store(out + D, x * inverse * gamma, mask)
