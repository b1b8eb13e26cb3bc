"""Block scores of the sparse attention and the exact choice of the best blocks.

Owns scoring and selection. Pooled keys come from ``qsa_append``; which cells are read follows in
``attention``. Scores are float32 sums in one order, so equal keys give equal scores; selection is
exact: higher score first, lower block first among equals, the chosen ones ascending.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.ordering import take_largest

if TYPE_CHECKING:
    from torch import Tensor

# Blocks that lie beside one another in the pooled keys: the lanes of a score tile.
INDEX_GROUP = 64
# Scores one program of the selection holds in registers, 16 a thread.
SELECT_TILE = 8192
# Warps of a selection among few scores: its rounds wait for the slowest.
_SELECT_WARPS = 4
# Programs of the scoring, for each row; each takes every so-many-th part of a group, so that no
# bound is in the graph.
SCORE_PROGRAMS = 1056
# Blocks of one program: a warp's sums then need no other warp.
_SCORED = INDEX_GROUP if INTERPRETED else 16


def score_blocks(
    queries: Tensor, pooled: Tensor, position: Tensor, budget: int, block: int, scores: Tensor
) -> None:
    """scores[n, b] = sum over heads of max(0, q[n] . key[b]) for every block row n can see.

    Nothing is written where all blocks are taken anyway (complete blocks <= budget / block).

    Bytes: the visible pooled keys, 512 a block: 16.8 MB at 128K cells, 4 us; rows find them in the
    second level cache. Grid: (up to 1,056, N), one warp.

    Args:
        queries: [N, index heads, index_dim] float32, normed and rotated.
        pooled: [groups, index_dim, INDEX_GROUP] float32.
        position: [1] int64, cells before row 0; row n sees position + n + 1 cells.
        budget: cells chosen from complete blocks.
        block: cells in a block.
        scores: [at least N, groups * INDEX_GROUP] float32; other places keep what they hold.
    """
    num_rows, heads, dim = queries.shape
    parts = pooled.shape[0] * (INDEX_GROUP // _SCORED)
    _score_kernel[(min(SCORE_PROGRAMS, parts), num_rows)](
        queries, pooled, position, scores, scores.stride(0), num_rows, budget // block,
        BLOCK=block, HEADS=heads, DIM=dim, DIM_TILE=triton.next_power_of_2(dim),
        GROUP=INDEX_GROUP, TILE=_SCORED, num_warps=1, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _score_kernel(
    q_ptr, pooled_ptr, position_ptr, scores_ptr, score_stride, num_rows, budget_blocks,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    part = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1)
    complete = (tl.load(position_ptr) + num_rows) // BLOCK
    if complete <= budget_blocks:
        complete = complete * 0
    offs_d = tl.arange(0, DIM_TILE)
    offs_b = tl.arange(0, TILE)
    is_d = offs_d < DIM
    queries = ()
    for head in tl.static_range(HEADS):
        offs_q = (row * HEADS + head) * DIM + offs_d
        queries = queries + (tl.load(q_ptr + offs_q, mask=is_d, other=0.0),)
    while part * TILE < complete:
        group = part // (GROUP // TILE)
        column = part % (GROUP // TILE) * TILE + offs_b
        at = (group * DIM + offs_d[:, None]) * GROUP + column[None, :]
        keys = tl.load(pooled_ptr + at, mask=is_d[:, None], other=0.0)
        total = tl.zeros([TILE], tl.float32)
        for head in tl.static_range(HEADS):
            total += tl.maximum(tl.sum(keys * queries[head][:, None], axis=0), 0.0)
        tl.store(scores_ptr + row * score_stride + group * GROUP + column, total)
        part += tl.num_programs(0)


def num_select_tiles(score_width: int, tile: int = SELECT_TILE) -> int:
    """Programs a row of the first selection launch has for this many scores."""
    return -(-score_width // tile)


def candidate_shape(num_rows: int, score_width: int, budget_blocks: int) -> tuple[int, ...]:
    """Shape of ``candidates`` of ``select_blocks``, int32."""
    return (2, num_rows, num_select_tiles(score_width) * budget_blocks)


def select_blocks(
    scores: Tensor,
    position: Tensor,
    num_rows: int,
    budget_blocks: int,
    block: int,
    candidates: Tensor,
    chosen: Tensor,
    *,
    tile: int = SELECT_TILE,
) -> None:
    """chosen[n] = the ``budget_blocks`` best blocks of row n, ascending.

    Nothing is written where all blocks are taken anyway. One launch up to ``tile`` scores (32K
    cells), two beyond: the best of every tile, then the best of those. A launch bisects the bits
    of its scores (non-negative floats order like integers) until the count is met.

    Bytes: scores once, 4 a block. Grid: (tiles, N), then (N).

    Args:
        scores: [at least N, S] float32, none negative or -0.
        position: [1] int64, cells before row 0.
        num_rows: N.
        budget_blocks: blocks to choose.
        block: cells in a block.
        candidates: [2, at least N, tiles * budget_blocks] int32 scratch; unused with one tile.
        chosen: [at least N, budget_blocks] int32.
        tile: scores a program holds, a power of two; for tests.
    """
    width = scores.shape[1]
    tiles = num_select_tiles(width, tile)
    bits, ids = candidates[0], candidates[1]
    tile = min(tile, triton.next_power_of_2(width))
    args = (scores, bits, ids, chosen, position, scores.stride(0), bits.stride(0), budget_blocks)
    _select_kernel[(tiles, num_rows)](
        *args, BLOCK=block, TILE=tile, SOURCE_TILE=tile, IS_FIRST=True, IS_LAST=tiles == 1,
        num_warps=_SELECT_WARPS if tile <= 2048 else 16, **LAUNCH_AFTER,
    )  # fmt: skip
    if tiles > 1:
        _select_kernel[(1, num_rows)](
            *args, BLOCK=block, TILE=triton.next_power_of_2(tiles * budget_blocks),
            SOURCE_TILE=tile, IS_FIRST=False, IS_LAST=True, num_warps=16, **LAUNCH_AFTER,
        )  # fmt: skip


@triton.jit
def _select_kernel(
    scores_ptr, bits_ptr, ids_ptr, chosen_ptr, position_ptr, score_stride, candidate_stride,
    budget_blocks, BLOCK: tl.constexpr, TILE: tl.constexpr, SOURCE_TILE: tl.constexpr,
    IS_FIRST: tl.constexpr, IS_LAST: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    tile = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    complete = ((tl.load(position_ptr) + row + 1) // BLOCK).to(tl.int32)
    if complete <= budget_blocks:
        return
    offs = tl.arange(0, TILE)
    if IS_FIRST:
        num_keys = tl.minimum(tl.maximum(complete - tile * TILE, 0), TILE)
        at = row * score_stride + tile * TILE + offs
        keys = tl.load(scores_ptr + at, mask=offs < num_keys, other=0.0).to(tl.int32, bitcast=True)
    else:
        # Every tile but the last that has any is full and has left budget_blocks candidates.
        full = complete // SOURCE_TILE
        rest = tl.minimum(complete % SOURCE_TILE, budget_blocks)
        num_keys = full * tl.minimum(budget_blocks, SOURCE_TILE) + rest
        keys = tl.load(bits_ptr + row * candidate_stride + offs, mask=offs < num_keys, other=0)
    keys = tl.where(offs < num_keys, keys, -1)
    wanted = tl.minimum(num_keys, budget_blocks)
    is_taken, place = take_largest(keys, offs < num_keys, wanted, 0, 30)
    if IS_FIRST:
        ids = tile * TILE + offs
    else:
        ids = tl.load(ids_ptr + row * candidate_stride + offs, mask=is_taken, other=0)
    if IS_LAST:
        tl.store(chosen_ptr + row * budget_blocks + place, ids, mask=is_taken)
    else:
        out = row * candidate_stride + tile * tl.minimum(budget_blocks, TILE) + place
        tl.store(bits_ptr + out, keys, mask=is_taken)
        tl.store(ids_ptr + out, ids, mask=is_taken)
