"""Products of a prompt: rows sorted by expert times expanded weights, and dense matrices.

Owns the launch: which program computes which tile, where its rows come from and where its results
go. The arithmetic is ``prompt_tile``. Everything that depends on the routing is read on the device;
the grid is as large as the worst routing needs, programs without a tile end at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.async_copy import store_four
from strata.gpu.kernels.prompt_codes import BLOCK
from strata.gpu.kernels.prompt_tile import tile_sums
from strata.gpu.kernels.prompt_tilings import (
    DENSE_TILING,
    EXPERT_TILING,
    Tiling,
    WarpTiling,
    plain_tiling,
    warp_options,
)
from strata.gpu.kernels.prompt_warps import stage_words, warp_sums
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.kernels.sizes import cdiv

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.expand import Expanded
    from strata.gpu.kernels.expert_sort import ExpertPlan
    from strata.gpu.kernels.prompt_codes import PromptCodes


@triton.jit
def matrix_at(
    weights,
    matrix,
    KIND: tl.constexpr,
    MINIMA: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Pointers of matrix number ``matrix`` of ``Expanded``."""
    codes_ptr, scales_ptr, minima_ptr = weights
    size = tl.cast(matrix, tl.int64) * (BLOCKS * ROWS)
    planes: tl.constexpr = 1 if KIND == 0 else 2
    terms: tl.constexpr = 2 if KIND == 2 else 1
    return (
        codes_ptr + size * (32 * planes),
        scales_ptr + size * terms,
        minima_ptr + size * MINIMA,
    )


@triton.jit
def find_tile(
    tiles_ptr, offsets_ptr, first_expert, num_matrices, num_tokens, IS_GROUPED: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """(matrix, first position, end of positions, first weight row) of a program's tile.

    Matrix -1: nothing to do. Tiles of TILE weight rows come one after the other for each tile of
    TOKENS positions.
    """
    row_tiles: tl.constexpr = (ROWS + TILE - 1) // TILE
    tile = tl.program_id(0) // row_tiles
    row = tl.program_id(0) % row_tiles * TILE
    if IS_GROUPED:
        expert = tl.load(tiles_ptr + 2 * tile)
        matrix = expert - first_expert
        matrix = tl.where((expert >= 0) & (matrix < num_matrices), matrix, -1)
        end = tl.load(offsets_ptr + tl.maximum(expert, 0) + 1)
        return tl.maximum(matrix, -1), tl.load(tiles_ptr + 2 * tile + 1), end, row
    return tile * 0, tile * TOKENS, num_tokens, row


@triton.jit
def positions_of(
    first,
    end,
    order_ptr,
    BY_ORDER: tl.constexpr,
    TOP_K: tl.constexpr,
    TOKENS: tl.constexpr,
    SUBS: tl.constexpr,
):
    """SUBS tensors [TOKENS] int64: the row at each position, or its pair's row, pair // TOP_K."""
    tokens = ()
    for s in tl.static_range(SUBS):
        at = tl.minimum(first + s * TOKENS + tl.arange(0, TOKENS), end - 1)
        if BY_ORDER:
            at = tl.load(order_ptr + at) // TOP_K
        tokens += (at.to(tl.int64),)
    return tokens


@triton.jit
def clamped(row, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Weight rows a tile may load. Whole tiles stay as they are, so that loads stay wide."""
    if ROWS % (2 * TILE) == 0:
        return row
    return tl.minimum(row, ROWS - 1)


@triton.jit(do_not_specialize=["first_expert", "num_matrices", "num_tokens"])
def _grouped_warps_kernel(
    x_codes, x_scales, x_scaled, w_codes, w_scales, w_minima, w_factors, order_ptr, offsets_ptr,
    tiles_ptr, first_expert, num_matrices, num_tokens, out_ptr, out_stride, MINIMA: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, IS_GROUPED: tl.constexpr, READ_TOP_K: tl.constexpr,
    SCATTER: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TOKEN_WARPS: tl.constexpr,
    ROW_WARPS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    TOKENS: tl.constexpr = 16 * M * TOKEN_WARPS
    TILE: tl.constexpr = 32 * N * ROW_WARPS
    matrix, first, end, first_row = find_tile(
        tiles_ptr, offsets_ptr, first_expert, num_matrices, num_tokens, IS_GROUPED, TOKENS, ROWS,
        TILE,
    )  # fmt: skip
    if matrix < 0:
        return
    thread = tl.arange(0, 32 * TOKEN_WARPS * ROW_WARPS)
    weights = matrix_at((w_codes, w_scales, w_minima), matrix, 0, MINIMA, BLOCKS, ROWS)
    sums = warp_sums(
        (x_codes, x_scales, x_scaled), first, end, order_ptr, (weights,), first_row,
        shared_words(stage_words(TOKENS, TILE, STEP, STAGES, MINIMA)), thread, READ_TOP_K > 0,
        READ_TOP_K, 1, MINIMA, BLOCKS, ROWS, STEP, STAGES, M, N, TOKEN_WARPS, ROW_WARPS,
    )  # fmt: skip
    factor = tl.load(w_factors + matrix)
    token = first + thread // (32 * ROW_WARPS) * (16 * M) + thread % 32 // 4
    row = first_row + thread // 32 % ROW_WARPS * (32 * N) + thread % 4 * 8
    for m in tl.static_range(2 * M):
        position = token + 8 * m
        is_token = position < end
        place = tl.minimum(position, end - 1)
        if SCATTER:
            place = tl.load(order_ptr + place)
        at = out_ptr + place.to(tl.int64) * out_stride + row
        for n in tl.static_range(N):
            for half in tl.static_range(2):
                values = ()
                for i in tl.static_range(4):
                    # j = 2 half + i // 2, e = 2 (m % 2) + i % 2
                    values += (
                        sums[(n * M + m // 2) * 16 + (2 * half + i // 2) * 4 + m % 2 * 2 + i % 2]
                        * factor,
                    )
                is_live = is_token & (row + (32 * n + 4 * half) < ROWS)
                store_four(at + (32 * n + 4 * half), values, is_live.to(tl.int32))


@triton.jit(do_not_specialize=["first_expert", "num_matrices", "num_tokens"])
def _grouped_kernel(
    x_codes,
    x_scales,
    x_scaled,
    x_halves,
    w_codes,
    w_scales,
    w_minima,
    w_factors,
    order_ptr,
    offsets_ptr,
    tiles_ptr,
    first_expert,
    num_matrices,
    num_tokens,
    out_ptr,
    out_stride,
    KIND: tl.constexpr,
    MINIMA: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    READ_TOP_K: tl.constexpr,
    SCATTER: tl.constexpr,
    TOKENS: tl.constexpr,
    SUBS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    matrix, first, end, first_row = find_tile(
        tiles_ptr, offsets_ptr, first_expert, num_matrices, num_tokens, IS_GROUPED, TOKENS * SUBS,
        ROWS, 2 * TILE,
    )  # fmt: skip
    if matrix < 0:
        return
    x = (x_codes, x_scales, x_scaled, x_halves)
    weights = matrix_at((w_codes, w_scales, w_minima), matrix, KIND, MINIMA, BLOCKS, ROWS)
    token = positions_of(first, end, order_ptr, READ_TOP_K > 0, READ_TOP_K, TOKENS, SUBS)
    row = first_row + tl.arange(0, TILE)
    totals = tile_sums(
        x, token, weights, clamped(row, ROWS, TILE), weights, clamped(row + TILE, ROWS, TILE),
        (KIND, KIND), (MINIMA, MINIMA), MINIMA, BLOCKS, (ROWS, ROWS),
        STEP, STAGES, TOKENS, SUBS, TILE,
    )  # fmt: skip
    factor = tl.load(w_factors + matrix)
    place = positions_of(first, end, order_ptr, SCATTER, 1, TOKENS, SUBS)
    for h in tl.static_range(2):
        for s in tl.static_range(SUBS):
            is_token = first + s * TOKENS + tl.arange(0, TOKENS) < end
            at = place[s][:, None] * out_stride + (row + h * TILE)[None, :]
            mask = is_token[:, None] & (row + h * TILE < ROWS)[None, :]
            tl.store(out_ptr + at, totals[h * SUBS + s] * factor, mask=mask)


def grouped_product(
    x: PromptCodes,
    weights: Expanded,
    plan: ExpertPlan,
    num_pairs: int,
    out: Tensor,
    *,
    read_top_k: int,
    scatter: bool,
    first_expert: int = 0,
    tiling: Tiling | WarpTiling = EXPERT_TILING,
) -> None:
    """Each sorted row times its expert's matrix.

    Args:
        x: rows in the order of positions, or of rows when ``read_top_k`` is K.
        weights: experts ``first_expert`` and on; pairs of others are left alone.
        plan: filled by ``sort_by_expert`` for these pairs, with ``tiling.tile_tokens``.
        num_pairs: T * K.
        out: [T * K, R] float32, rows of any stride.
        read_top_k: K when pair p reads row p // K of ``x``; 0 when position i reads row i.
        scatter: whether results go to rows of ``out`` by pair; else by position.
        first_expert: the expert of matrix 0.
        tiling: shape of a tile.
    """
    _launch(x, weights, plan.max_tiles(num_pairs), num_pairs, out, tiling, {
        "order_ptr": plan.order, "offsets_ptr": plan.offsets, "tiles_ptr": plan.tiles,
        "first_expert": first_expert, "num_matrices": weights.num_matrices,
        "IS_GROUPED": True, "READ_TOP_K": read_top_k, "SCATTER": scatter,
    })  # fmt: skip


def prompt_product(
    x: PromptCodes, weights: Expanded, out: Tensor, tiling: Tiling | WarpTiling = DENSE_TILING
) -> None:
    """out[t] = weights x[t] for every row of ``x``.

    Args:
        x: codes of T rows.
        weights: one matrix.
        out: [T, R] float32, rows of any stride.
        tiling: shape of a tile.
    """
    _launch(x, weights, cdiv(x.num_rows, tiling.tile_tokens), x.num_rows, out, tiling, {
        "order_ptr": None, "offsets_ptr": None, "tiles_ptr": None, "first_expert": 0,
        "num_matrices": 1, "IS_GROUPED": False, "READ_TOP_K": 0, "SCATTER": False,
    })  # fmt: skip


def _launch(
    x: PromptCodes,
    weights: Expanded,
    num_tiles: int,
    num_tokens: int,
    out: Tensor,
    tiling: Tiling | WarpTiling,
    routing: dict[str, object],
) -> None:
    if isinstance(tiling, WarpTiling):
        options = warp_options(tiling, x, (weights,))
        if options is not None and out.stride(0) % 4 == 0 and out.storage_offset() % 4 == 0:
            _grouped_warps_kernel[(num_tiles * cdiv(weights.num_rows, tiling.tile_rows),)](
                x_codes=x.codes, x_scales=x.scales, x_scaled=x.scaled_sums, w_codes=weights.codes,
                w_scales=weights.scales, w_minima=weights.minima, w_factors=weights.factors,
                num_tokens=num_tokens, out_ptr=out, out_stride=out.stride(0),
                BLOCKS=weights.inner // BLOCK, ROWS=weights.num_rows, **routing, **options,
                **arith.LAUNCH,
            )  # fmt: skip
            return
    _launch_plain(x, weights, num_tiles, num_tokens, out, plain_tiling(tiling), routing)


def _launch_plain(
    x: PromptCodes,
    weights: Expanded,
    num_tiles: int,
    num_tokens: int,
    out: Tensor,
    tiling: Tiling,
    routing: dict[str, object],
) -> None:
    row_tiles = cdiv(weights.num_rows, 2 * tiling.rows)
    _grouped_kernel[(num_tiles * row_tiles,)](
        x_codes=x.codes,
        x_scales=x.scales,
        x_scaled=x.scaled_sums,
        x_halves=x.scaled_half_sums,
        w_codes=weights.codes,
        w_scales=weights.scales,
        w_minima=weights.minima,
        w_factors=weights.factors,
        num_tokens=num_tokens,
        out_ptr=out,
        out_stride=out.stride(0),
        KIND=weights.kind,
        MINIMA=weights.num_minima,
        BLOCKS=weights.inner // 32,
        ROWS=weights.num_rows,
        TOKENS=tiling.tokens,
        SUBS=tiling.subs,
        TILE=tiling.rows,
        STEP=tiling.step,
        STAGES=tiling.stages,
        num_warps=tiling.warps,
        **routing,
        **arith.LAUNCH,
    )
