"""Attention of a prompt chunk: every cell while there are few, then each query's own choice.

Products of halves on tensor cores in one pass with a running maximum, turned so that cells are the
rows (64 of them fill an instruction; the twelve heads of a query would not). Cells are halves or
int8 codes (exact as halves) whose scales are applied in float32; queries and weights are pairs of
halves, so nothing that matters in float32 is lost. A query's tiles are its cells in ascending order
whatever the chunk, so cuts of the prompt leave no trace.

Reference: ``strata.reference.sparse_attention.attend``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED, LAUNCH, div, near_exp, sigmoid
from strata.gpu.kernels.halves import halves_of, split
from strata.gpu.kernels.index_prompt import num_dense_rows
from strata.gpu.kernels.qsa_append import CELL_GROUP
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.qsa_append import Cells

# Cells of a tile, stages of the loop, warps and most registers of a thread, for one query's own
# cells: of halves, then of int8. A tile's cells come by way of its blocks, so with three stages the
# blocks come one tile earlier, and with five the cells two tiles ahead.
# The fastest tried on an H200 for 8,192 rows behind 24,576, 2026-11-30 (mixer_variants_on_card.py):
# halves 6.77 ms a layer (64 cells of four warps 7.87 with three stages, 8.82 with two), int8 10.54.
_Sparse = tuple[int, int, int, int | None]
SPARSE_HALVES: _Sparse = (32, 3, 2, None)
SPARSE_INT8: _Sparse = (32, 2, 2, None)
# Of a tile that sees all cells: 0.86 ms for the first 2,048 rows of a prompt, 1.17 with 64 cells.
DENSE_CELLS, DENSE_ROWS = 128, 32
# Powers of two that keep low halves from vanishing: of queries, and of weights times code scales.
_QUERY_UNIT = tl.constexpr(16.0)
_PER_QUERY_UNIT = tl.constexpr(1 / 16)
_WEIGHT_UNIT = 256.0


def attend_prompt(
    queries: Tensor,
    gate: Tensor,
    cells: Cells,
    chosen: Tensor | None,
    block: int,
    position: int,
    out: Tensor,
) -> None:
    """out = softmax(q . k) v * sigmoid(gate); row n sees position + n + 1 cells.

    Operations a row beyond the budget: 2,051 cells * 24 heads * 256 * 4, twice. Bytes: as many
    cells for each key/value head, 2.1 MB (half) or 1 MB (int8), most of it from the second level
    cache. Grids: tiles of 32 heads of neighbouring rows, then rows, by key/value heads.

    Args:
        queries: [N, H, Dh] float32, with the factor 1 / sqrt(Dh) in them.
        gate: [N, H, Dh] float32, strides free but for the last.
        cells: of the layer, the chunk's own included.
        chosen: [N, budget_blocks] int32 of ``select_prompt``; None if every row sees every cell.
        block: cells in a block.
        position: cells before row 0.
        out: [N, H * Dh] float32.
    """
    num_rows, heads, head_dim = queries.shape
    kv_heads, capacity = cells.keys.shape[:2]
    per_kv = heads // kv_heads
    budget_blocks = 0 if chosen is None else chosen.shape[1]
    dense = num_rows
    if chosen is not None:
        dense = num_dense_rows(position, num_rows, budget_blocks, block)
    groups = head_dim // CELL_GROUP if cells.is_int8 else 1
    shape = {
        "HEADS": heads, "KV_HEADS": kv_heads, "DH": head_dim, "GROUPS": groups,
        "WIDTH": max(16, next_power_of_2(head_dim // groups)), "IS_INT8": cells.is_int8,
        "WEIGHT_UNIT": _WEIGHT_UNIT if cells.is_int8 else 1.0, "BLOCK": block,
        "BUDGET_BLOCKS": budget_blocks,
    }  # fmt: skip
    args = (
        queries, cells.keys, cells.values, cells.key_scales, cells.value_scales, chosen, gate, out,
        gate.stride(0), gate.stride(1), capacity, position,
    )  # fmt: skip
    if dense > 0:
        _attend_kernel[(cdiv(dense * per_kv, DENSE_ROWS), kv_heads)](
            *args, 0, dense, **shape, IS_DENSE=True, ROWS=DENSE_ROWS, TILE=DENSE_CELLS,
            num_warps=8, num_stages=1, **LAUNCH,
        )  # fmt: skip
    if dense < num_rows:
        tile, stages, warps, registers = SPARSE_INT8 if cells.is_int8 else SPARSE_HALVES
        _attend_kernel[(num_rows - dense, kv_heads)](
            *args, dense, num_rows, **shape, IS_DENSE=False,
            ROWS=max(16, next_power_of_2(per_kv)), TILE=tile, num_warps=warps,
            num_stages=stages, maxnreg=registers, **LAUNCH,
        )  # fmt: skip


@triton.jit(do_not_specialize=["position", "first_row", "end_row"])
def _attend_kernel(
    q_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, chosen_ptr, gate_ptr, out_ptr,
    gate_row_stride, gate_head_stride, capacity, position, first_row, end_row,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DH: tl.constexpr, GROUPS: tl.constexpr,
    WIDTH: tl.constexpr, IS_INT8: tl.constexpr, WEIGHT_UNIT: tl.constexpr, BLOCK: tl.constexpr,
    BUDGET_BLOCKS: tl.constexpr, IS_DENSE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    PER_KV: tl.constexpr = HEADS // KV_HEADS
    kv = tl.program_id(1)
    # Columns of every product: heads of one query, or of neighbouring queries one after another.
    offs_n = tl.arange(0, ROWS)
    if IS_DENSE:
        flat = tl.program_id(0) * ROWS + offs_n
        query, head = first_row + flat // PER_KV, flat % PER_KV
        is_n = query < end_row
        last = tl.minimum(first_row + (tl.program_id(0) * ROWS + ROWS - 1) // PER_KV, end_row - 1)
        num_cells = position + last + 1
        end = num_cells
        # A column that is not there sees one cell, since a softmax of nothing is undefined.
        seen = tl.where(is_n, position + query + 1, 1)
    else:
        row = first_row + tl.program_id(0)
        query, head = row + offs_n * 0, offs_n
        is_n = offs_n < PER_KV
        num_cells = position + row + 1
        end = BUDGET_BLOCKS * BLOCK + num_cells % BLOCK
        seen = offs_n * 0 + end
        chosen_ptr += row.to(tl.int64) * BUDGET_BLOCKS
    PART: tl.constexpr = DH // GROUPS  # values of a head that share a scale
    offs_w = tl.arange(0, WIDTH)
    at_head = (query.to(tl.int64) * HEADS + kv * PER_KV + head) * DH
    q_hi, q_lo, acc = _split_queries(q_ptr, at_head, is_n, offs_w, PART, GROUPS)
    cells_at = kv.to(tl.int64) * capacity
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    shape: tl.constexpr = (PART, GROUPS, IS_INT8, WEIGHT_UNIT, BLOCK, BUDGET_BLOCKS, IS_DENSE, TILE)
    if INTERPRETED:
        first = 0
        while first < end:
            acc, largest, total = _attend_tile(
                acc, largest, total, q_hi, q_lo, keys_ptr, values_ptr, key_scales_ptr,
                value_scales_ptr, chosen_ptr, cells_at, offs_w, first, end, num_cells, seen, shape,
            )  # fmt: skip
            first += TILE
    else:
        for first in range(0, end, TILE):
            acc, largest, total = _attend_tile(
                acc, largest, total, q_hi, q_lo, keys_ptr, values_ptr, key_scales_ptr,
                value_scales_ptr, chosen_ptr, cells_at, offs_w, first, end, num_cells, seen, shape,
            )  # fmt: skip
    inverse = div(1.0 / WEIGHT_UNIT, total)[None, :]
    at_gate = query.to(tl.int64) * gate_row_stride + (kv * PER_KV + head) * gate_head_stride
    is_out = is_n[None, :] & (offs_w < PART)[:, None]
    for group in tl.static_range(GROUPS):
        offs = group * PART + offs_w[:, None]
        gate = tl.load(gate_ptr + at_gate[None, :] + offs, is_out, 0.0)
        tl.store(out_ptr + at_head[None, :] + offs, acc[group] * inverse * sigmoid(gate), is_out)


@triton.jit
def _split_queries(q_ptr, at_head, is_n, offs_w, PART: tl.constexpr, GROUPS: tl.constexpr):
    """Groups of [width, columns]: high and low halves of the queries, and zeros to add up in."""
    is_q = is_n[:, None] & (offs_w < PART)[None, :]
    q_hi, q_lo, acc = (), (), ()
    for group in tl.static_range(GROUPS):
        q = tl.load(q_ptr + at_head[:, None] + group * PART + offs_w[None, :], is_q, 0.0)
        high, low = split(q * _QUERY_UNIT)
        q_hi = q_hi + (tl.trans(high),)
        q_lo = q_lo + (tl.trans(low),)
        acc = acc + (tl.zeros([offs_w.shape[0], is_n.shape[0]], tl.float32),)
    return q_hi, q_lo, acc


@triton.jit
def _attend_tile(
    acc, largest, total, q_hi, q_lo, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr,
    chosen_ptr, cells_at, offs_w, first, end, num_cells, seen, SHAPE: tl.constexpr,
):  # fmt: skip
    """Takes in TILE cells: values [groups of [width, columns]], largest scores, sums of weights."""
    PART: tl.constexpr = SHAPE[0]
    GROUPS: tl.constexpr = SHAPE[1]
    IS_INT8: tl.constexpr = SHAPE[2]
    BLOCK: tl.constexpr = SHAPE[4]
    BUDGET_BLOCKS: tl.constexpr = SHAPE[5]
    index = first + tl.arange(0, SHAPE[7])
    is_cell = index < end
    if SHAPE[6]:
        cell = index
    else:
        in_blocks = index < BUDGET_BLOCKS * BLOCK
        chosen = tl.load(chosen_ptr + index // BLOCK, in_blocks, 0)
        tail = num_cells - num_cells % BLOCK + index - BUDGET_BLOCKS * BLOCK
        cell = tl.where(in_blocks, chosen * BLOCK + index % BLOCK, tail)
    place = cells_at + tl.where(is_cell, cell, 0)
    at = place[:, None] * (PART * GROUPS) + offs_w[None, :]
    # Cells past the end read cell 0, which exists; their weights are zero.
    is_value = (offs_w < PART)[None, :]
    keys, values = (), ()
    for group in tl.static_range(GROUPS):
        keys = keys + (halves_of(tl.load(keys_ptr + at + group * PART, is_value, 0)),)
    # Asked for before the scores are known, so that both wait for memory at once. As columns,
    # halves come into shared memory without a register in between.
    if not IS_INT8:
        at = place[None, :] * PART + offs_w[:, None]
        values = (tl.load(values_ptr + at, (offs_w < PART)[:, None], 0),)
    else:
        for group in tl.static_range(GROUPS):
            stored = tl.load(values_ptr + at + group * PART, is_value, 0)
            values = values + (tl.trans(halves_of(stored)),)
    score = tl.dot(keys[0], q_hi[0], tl.dot(keys[0], q_lo[0]))  # type: ignore[misc]
    if IS_INT8:
        at_scale = place * GROUPS
        score *= tl.load(key_scales_ptr + at_scale, is_cell, 0.0).to(tl.float32)[:, None]
        for group in tl.static_range(1, GROUPS):
            part = tl.dot(keys[group], q_hi[group], tl.dot(keys[group], q_lo[group]))
            scale = tl.load(key_scales_ptr + at_scale + group, is_cell, 0.0).to(tl.float32)
            score += part * scale[:, None]
    is_seen = index[:, None] < seen[None, :]
    score = tl.where(is_seen, score * _PER_QUERY_UNIT, float("-inf"))
    new_largest = tl.maximum(largest, tl.max(score, axis=0))
    weights = tl.where(is_seen, near_exp(score - new_largest[None, :]), 0.0)
    shrink = near_exp(largest - new_largest)
    total = total * shrink + tl.sum(weights, axis=0)
    new_acc = ()
    if IS_INT8:
        for group in tl.static_range(GROUPS):
            scale = tl.load(value_scales_ptr + at_scale + group, is_cell, 0.0).to(tl.float32)
            w_hi, w_lo = split(weights * (scale * SHAPE[3])[:, None])
            part = tl.dot(values[group], w_lo, acc[group] * shrink[None, :])
            new_acc = new_acc + (tl.dot(values[group], w_hi, part),)
    else:
        w_hi, w_lo = split(weights)
        part = tl.dot(values[0], w_lo, acc[0] * shrink[None, :])  # type: ignore[misc]
        new_acc = (tl.dot(values[0], w_hi, part),)  # type: ignore[misc]
    return new_acc, new_largest, total
