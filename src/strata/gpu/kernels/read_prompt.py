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

from typing import TYPE_CHECKING, NamedTuple

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, near_sigmoid, silu
from strata.gpu.kernels.bf16_prompt import (
    PARTS,
    add_parts,
    cut_value,
    launch_product,
    unpack_bf16,
)
from strata.gpu.kernels.prompt_codes import store_prompt_codes
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix
    from strata.gpu.kernels.bf16_prompt import Tiling
    from strata.gpu.kernels.prompt_codes import PromptCodes


class MixTiling(NamedTuple):
    """Rows of activations, blocks of 32 columns (of every stream), warps, and steps under way."""

    tokens: int
    blocks: int
    warps: int
    stages: int


# The fastest tried on an H200 with 8,192 rows, 2026-11-30 (mixer_variants_on_card.py), with what
# lies between the products: 0.56 ms; 0.63 with 128 rows of one block, 0.65 with 64; with eight
# warps, whose loop is unrolled, up to 1.4.
MIX_TILING = MixTiling(32, 2, 4, 3)
_STEP = tl.constexpr(32)


def down_prompt(
    streams: Tensor, inverse: Tensor, gamma: Tensor, weights: FloatMatrix, room: Tensor,
    sums: Tensor, tiling: Tiling | None = None,
) -> None:  # fmt: skip
    """sums[s] = weights (stream s * inverse * gamma), columns of stream s only.

    Operations: 3 * 6.6 MFLOP a row at 324 x 10240. Bytes a row: 41 KB, read once for each group of
    tiles of weight rows. Grid: (tiles of activations times groups, streams).

    Args:
        streams: [N, S, D] float32; D a multiple of 32.
        inverse: [N, S] float32 of ``write_prompt``.
        gamma: [S * D] float32.
        weights: a BF16 matrix of S * D columns.
        room: flat bfloat16 of at least the matrix's size, scratch.
        sums: [S, N, weight rows] float32, columns side by side.
        tiling: of the product; by the size if None.
    """
    num_rows, num_streams, _ = streams.shape
    rows = room[: weights.num_rows * weights.inner].view(weights.num_rows, weights.inner)
    unpack_bf16(weights, rows)
    launch_product(streams.view(num_rows, -1), gamma, inverse, rows, sums, num_streams, tiling)


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
        STREAM_TILE=next_power_of_2(num_streams), PARTS=PARTS, num_warps=2, **LAUNCH,
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
    tiling: MixTiling = MIX_TILING,
) -> None:
    """x = mean over the streams of normed stream * sigmoid(up . low), and its codes.

    Operations: 3 * 6.6 MFLOP a row at rank 320, 10,240 gates. Bytes a row: streams 41 KB, x and
    codes 13 KB. Grid: tiles of 32 rows times blocks of 64 columns, neighbours share activations.
    Gates are a card's own approximations (``arith.near_sigmoid``): the promised sequence took
    longer than the product.

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
    blocks = tiling.blocks if width % (32 * tiling.blocks) == 0 else 1
    _up_mix_kernel[(cdiv(num_rows, tiling.tokens) * (width // (32 * blocks)),)](
        parts, parts.stride(0), weights.panels.view(parts.dtype), streams, inverse, gamma, x,
        codes.codes, codes.scales, codes.scaled_sums, codes.scaled_half_sums, bad, num_rows,
        INNER=weights.inner, LOADS=weights.panels.shape[1] // 512, D=width, STREAMS=num_streams,
        PARTS=PARTS, TOKENS=tiling.tokens, BLOCKS=blocks, STAGES=tiling.stages,
        num_warps=tiling.warps, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _between_kernel(
    sums_ptr, plane, stride, first, first_inject, parts_ptr, parts_plane, inject_ptr,
    RANK: tl.constexpr, RANK_TILE: tl.constexpr, STREAMS: tl.constexpr, STREAM_TILE: tl.constexpr,
    PARTS: tl.constexpr,
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
    parts = cut_value(silu(div(low, float(STREAMS))))
    for part in tl.static_range(PARTS):
        tl.store(parts_ptr + part * parts_plane + row * RANK + place, parts[part], mask)


@triton.jit(do_not_specialize=["num_tokens"])
def _up_mix_kernel(
    parts_ptr, plane, panels_ptr, streams_ptr, inverse_ptr, gamma_ptr, x_ptr, codes_ptr, scales_ptr,
    scaled_ptr, halves_ptr, bad_ptr, num_tokens, INNER: tl.constexpr, LOADS: tl.constexpr,
    D: tl.constexpr, STREAMS: tl.constexpr, PARTS: tl.constexpr, TOKENS: tl.constexpr,
    BLOCKS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    COLUMNS: tl.constexpr = 32 * BLOCKS
    first = tl.program_id(0) % (D // COLUMNS) * BLOCKS
    token = (tl.program_id(0) // (D // COLUMNS) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    source = tl.minimum(token, num_tokens - 1)
    place = tl.arange(0, _STEP)
    low_at = parts_ptr + source[:, None] * INNER + place[None, :]
    column = tl.arange(0, COLUMNS)
    at, gates = (), ()
    for stream in tl.static_range(STREAMS):
        # Rows come by block of 32 columns, then by stream: ``read_order``.
        row = (first + column // 32) * (32 * STREAMS) + stream * 32 + column % 32
        at += (panels_ptr + (row // 8 * (LOADS * 256) + row % 8 * 32)[None, :] + place[:, None],)
        gates += (tl.zeros([TOKENS, COLUMNS], tl.float32),)
    for step in tl.range(0, INNER // _STEP, num_stages=STAGES):
        low = ()
        for part in tl.static_range(PARTS):
            low += (tl.load(low_at + part * plane + step * _STEP),)
        added = ()
        for stream in tl.static_range(STREAMS):
            added += (add_parts(low, tl.load(at[stream] + step * 256), gates[stream]),)
        gates = added
    column += first * 32
    at_stream = streams_ptr + source[:, None] * (STREAMS * D) + column[None, :]
    mixed = tl.zeros([TOKENS, COLUMNS], tl.float32)
    for stream in tl.static_range(STREAMS):
        normed = tl.load(at_stream + stream * D)
        normed *= tl.load(inverse_ptr + source * STREAMS + stream)[:, None]
        gamma = tl.load(gamma_ptr + stream * D + column)[None, :]
        mixed += normed * gamma * near_sigmoid(gates[stream])
    mixed *= 1.0 / STREAMS  # a power of two
    is_row = token < num_tokens
    tl.store(x_ptr + token[:, None] * D + column[None, :], mixed, is_row[:, None])
    store_prompt_codes(
        mixed, token, is_row, first, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr,
        D // 32, TOKENS, BLOCKS,
    )  # fmt: skip
