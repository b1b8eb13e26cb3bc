"""A hyper-connection's read for the rows of a prompt chunk, where its matrices are BF16.

Normed streams are never written: the write before leaves one factor for each stream of a row, and
both products make what they need of it from the streams. The down product has a sum for each
stream, whatever the number of rows, so that a row's bits do not depend on it and a few rows still
fill a card.

Four launches: the down matrix as rows, its product, what lies between the products, the up product
with the mix and its codes.

Reference: ``strata.reference.hyper_connections``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, sigmoid, silu
from strata.gpu.kernels.bf16_prompt import cut_value, launch_product, tile_dot, unpack_bf16
from strata.gpu.kernels.prompt_codes import store_prompt_codes
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix
    from strata.gpu.kernels.prompt_codes import PromptCodes

MIX_TILING = (64, 8, 3)
"""Of the up product, a block of 32 columns of every stream: rows of activations, warps, stages.

With four warps a thread has twice the sums and keeps 632 bytes of them in memory; with eight, 106
registers and nothing there (compiled for sm_90). The streams are added in the order in which Triton
lays them out: in one thread, one after the other, with this and most others; 32 rows of eight warps
(and 62 % of the speed) have two streams in another warp, and so other last bits.
"""
_STEP = tl.constexpr(32)


def down_prompt(
    streams: Tensor, inverse: Tensor, gamma: Tensor, weights: FloatMatrix, room: Tensor,
    sums: Tensor,
) -> None:  # fmt: skip
    """sums[s] = weights (stream s * inverse * gamma), columns of stream s only.

    Operations: 3 * 6.6 MFLOP a row at 324 x 10240. Bytes a row: 41 KB, read once for each tile of
    weight rows. Grid: (tiles of activations times tiles of weight rows, streams).

    Args:
        streams: [N, S, D] float32; D a multiple of 32.
        inverse: [N, S] float32 of ``write_prompt``.
        gamma: [S * D] float32.
        weights: a BF16 matrix of S * D columns.
        room: flat bfloat16 of at least the matrix's size, scratch.
        sums: [S, N, weight rows] float32, columns side by side.
    """
    num_rows, num_streams, _ = streams.shape
    rows = room[: weights.num_rows * weights.inner].view(weights.num_rows, weights.inner)
    unpack_bf16(weights, rows)
    launch_product(streams.view(num_rows, -1), gamma, inverse, rows, sums, num_streams)


def between_prompt(
    sums: Tensor, columns: tuple[tuple[int, int], ...], parts: Tensor, inject: Tensor
) -> None:
    """parts = silu(low / S), split for the up product; inject = its products.

    Bytes a row: 1.3 KB for each sum, 1.9 KB. Grid: (N).

    Args:
        sums: of ``down_prompt``.
        columns: (first, end) of the low rank values and of the injection, weight rows of down.
        parts: [3, at least N, r] bfloat16; r a multiple of 32.
        inject: [N, S] float32.
    """
    (first, end), (first_inject, _) = columns
    num_streams, num_rows, _ = sums.shape
    _between_kernel[(num_rows,)](
        sums, sums.stride(0), sums.stride(1), first, first_inject, parts, parts.stride(0), inject,
        RANK=end - first, RANK_TILE=next_power_of_2(end - first), STREAMS=num_streams,
        STREAM_TILE=next_power_of_2(num_streams), num_warps=2, **LAUNCH,
    )  # fmt: skip


def up_mix_prompt(
    parts: Tensor,
    weights: FloatMatrix,
    streams: Tensor,
    inverse: Tensor,
    gamma: Tensor,
    x: Tensor,
    codes: PromptCodes,
    bad: Tensor,
    tiling: tuple[int, int, int] = MIX_TILING,
) -> None:
    """x = mean over the streams of normed stream * sigmoid(up . low), and its codes.

    Operations: 3 * 6.6 MFLOP a row at rank 320. Bytes a row: streams 41 KB, x and codes 13 KB.
    Grid: tiles of 64 rows times blocks of 32 columns, neighbours share activations.

    Args:
        parts: of ``between_prompt``.
        weights: the BF16 up matrix, rows by ``stream_read.read_order``.
        streams: [N, S, D] float32; S a power of two, D a multiple of 32.
        inverse: [N, S] float32.
        gamma: [S * D] float32.
        x: [N, D] float32.
        codes: of x.
        bad: [1] int32, becomes 1 when x is NaN or infinite.
        tiling: as MIX_TILING.
    """
    num_rows, num_streams, width = streams.shape
    tokens, warps, stages = tiling
    _up_mix_kernel[(cdiv(num_rows, tokens) * (width // 32),)](
        parts, parts.stride(0), weights.panels.view(parts.dtype), streams, inverse, gamma, x,
        codes.codes, codes.scales, codes.scaled_sums, codes.scaled_half_sums, bad, num_rows,
        INNER=weights.inner, LOADS=weights.panels.shape[1] // 512, D=width, STREAMS=num_streams,
        TOKENS=tokens, STAGES=stages, num_warps=warps, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _between_kernel(
    sums_ptr, plane, stride, first, first_inject, parts_ptr, parts_plane, inject_ptr,
    RANK: tl.constexpr, RANK_TILE: tl.constexpr, STREAMS: tl.constexpr, STREAM_TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, RANK_TILE)
    mask = place < RANK
    at = sums_ptr + row * stride + first + place // 32 * 32 + place % 8 * 4 + place % 32 // 8
    stream = tl.arange(0, STREAM_TILE)
    at_inject = sums_ptr + row * stride + first_inject + stream
    low = tl.load(at, mask, 0.0)
    inject = tl.load(at_inject, stream < STREAMS, 0.0)
    for part in tl.static_range(1, STREAMS):
        low += tl.load(at + part * plane, mask, 0.0)
        inject += tl.load(at_inject + part * plane, stream < STREAMS, 0.0)
    tl.store(inject_ptr + row * STREAMS + stream, inject, stream < STREAMS)
    high, middle, rest = cut_value(silu(div(low, float(STREAMS))))
    tl.store(parts_ptr + row * RANK + place, high, mask)
    tl.store(parts_ptr + parts_plane + row * RANK + place, middle, mask)
    tl.store(parts_ptr + 2 * parts_plane + row * RANK + place, rest, mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _up_mix_kernel(
    parts_ptr, plane, panels_ptr, streams_ptr, inverse_ptr, gamma_ptr, x_ptr, codes_ptr, scales_ptr,
    scaled_ptr, halves_ptr, bad_ptr, num_tokens, INNER: tl.constexpr, LOADS: tl.constexpr,
    D: tl.constexpr, STREAMS: tl.constexpr, TOKENS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0) % (D // 32)
    token = (tl.program_id(0) // (D // 32) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    row = block * (32 * STREAMS) + tl.arange(0, 32 * STREAMS)
    place = tl.arange(0, _STEP)
    weights = panels_ptr + (row // 8 * (LOADS * 256) + row % 8 * 32)[None, :] + place[:, None]
    source = tl.minimum(token, num_tokens - 1)
    low_ptr = parts_ptr + source[:, None] * INNER + place[None, :]
    gate = tl.zeros([TOKENS, 32 * STREAMS], tl.float32)
    for step in tl.range(0, INNER // _STEP, num_stages=STAGES):
        w = tl.load(weights + step * 256)
        low = tl.load(low_ptr + 2 * plane + step * _STEP)
        middle = tl.load(low_ptr + plane + step * _STEP)
        high = tl.load(low_ptr + step * _STEP)
        gate = tile_dot(low, w, gate)
        gate = tile_dot(middle, w, gate)
        gate = tile_dot(high, w, gate)
    # Rows of a block come by stream, then by column.
    stream = tl.arange(0, 32 * STREAMS) // 32
    column = stream * D + block * 32 + tl.arange(0, 32 * STREAMS) % 32
    normed = tl.load(streams_ptr + source[:, None] * (STREAMS * D) + column[None, :])
    normed *= tl.load(inverse_ptr + source[:, None] * STREAMS + stream[None, :])
    gated = normed * tl.load(gamma_ptr + column)[None, :] * sigmoid(gate)
    mixed = div(tl.sum(tl.reshape(gated, [TOKENS, STREAMS, 32]), axis=1), float(STREAMS))
    is_row = token < num_tokens
    at = token[:, None] * D + block * 32 + tl.arange(0, 32)[None, :]
    tl.store(x_ptr + at, mixed, is_row[:, None])
    store_prompt_codes(
        mixed, token, is_row, block, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr,
        D // 32, TOKENS, 1,
    )  # fmt: skip
