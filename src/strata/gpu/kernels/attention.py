"""Attention of a decode window over chosen cells (sparse layers) or all cells (draft layer).

Two launches: parts of the cells by key/value head, then their sum with the gate. Parts are cut at
fixed numbers of cells, whatever the rows of the window. Scores and values go through tensor cores:
cells are halves, or int8 codes (exact as halves) times a scale; queries and weights are split in
two halves, high and low, so that products lose nothing that matters in float32.

Reference: ``strata.reference.sparse_attention.attend``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import div, exp, sigmoid
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.qsa_append import CELL_GROUP
from strata.gpu.kernels.quantize_tail import store_tail, tail_args

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.qsa_append import Cells
    from strata.gpu.kernels.quantize import Codes

# Cells of one tile, and tiles of a part. Sparse: 65 parts of 32 cells for 2,051. Dense: 1,024.
_TILE_CELLS = 32
_DENSE_TILES = 32
_PART_WARPS = 4
# Parts that are added up at a time, and values of a head that one program adds up.
_PART_TILE = 128
_JOIN_WIDTH, _JOIN_WARPS = 64, 4
# Keeps the low half of a weight times a scale of codes from vanishing; a power of two.
_WEIGHT_SCALE = 256.0


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cells a row sees.

    Attributes:
        chosen: [at least N, budget_blocks] int32, ascending, of rows that see more complete blocks
            than that; the incomplete tail follows. None: every cell (dense).
        block: cells in a block.
        capacity: most cells of the conversation.
    """

    chosen: Tensor | None
    block: int
    capacity: int

    @property
    def tiles(self) -> int:
        """Tiles of a part."""
        return _DENSE_TILES if self.chosen is None else 1

    @property
    def num_parts(self) -> int:
        """Parts of the longest selection."""
        cells = self.capacity
        if self.chosen is not None:
            cells = min(cells, self.chosen.shape[1] * self.block + self.block - 1)
        return -(-cells // (self.tiles * _TILE_CELLS))


@dataclass(frozen=True, slots=True)
class Parts:
    """Scratch between the launches, float32.

    Attributes:
        values: [at least N, parts, H, Dh], not yet divided by the sum of weights.
        sums: [at least N, parts, H, 2]: largest score, sum of weights.
    """

    values: Tensor
    sums: Tensor


def attend(
    queries: Tensor,
    gate: Tensor,
    cells: Cells,
    selection: Selection,
    position: Tensor,
    parts: Parts,
    out: Tensor,
    codes: Codes | None = None,
    bad: Tensor | None = None,
) -> None:
    """out = softmax(q . k) v * sigmoid(gate), and its codes; row n sees position + n + 1 cells.

    Bytes a row: 2,051 cells of 2 KB (half) or 1 KB (int8); parts 1.6 MB written and read, in the
    second level cache. Grid: (65 parts, key/value heads, N), then (heads, N, Dh / 64).

    Args:
        queries: [N, H, Dh] float32, with the factor 1 / sqrt(Dh) in them.
        gate: [N, H, Dh] float32, strides free but for the last.
        cells: of the layer, the window's own included.
        selection: which cells.
        position: [1] int64, cells before row 0.
        parts: scratch for ``selection.num_parts`` parts.
        out: [N, H * Dh] float32.
        codes: of ``out``; only where Dh is a multiple of 32.
        bad: [1] int32, becomes 1 when an output is NaN or infinite.
    """
    num_rows, heads, head_dim = queries.shape
    kv_heads = cells.keys.shape[0]
    # A warp takes a group of values; int8 codes need the cut anyway, at their scales.
    groups = head_dim // CELL_GROUP if head_dim % CELL_GROUP == 0 else 1
    per_kv = heads // kv_heads
    budget = 0 if selection.chosen is None else selection.chosen.shape[1]
    span = {
        "BLOCK": selection.block, "BUDGET_BLOCKS": budget, "IS_DENSE": selection.chosen is None,
        "TILE": _TILE_CELLS, "TILES": selection.tiles,
    }  # fmt: skip
    num_parts = selection.num_parts
    _attention_part_kernel[(num_parts, kv_heads, num_rows)](
        queries, cells.keys, cells.values, cells.key_scales, cells.value_scales, selection.chosen,
        position, parts.values, parts.sums, cells.keys.shape[1], num_parts,
        HEADS=heads, KV_HEADS=kv_heads, HEAD_TILE=max(16, triton.next_power_of_2(per_kv)),
        DH=head_dim, GROUPS=groups, WIDTH=max(16, triton.next_power_of_2(head_dim // groups)),
        IS_INT8=cells.is_int8, WEIGHT_SCALE=_WEIGHT_SCALE if cells.is_int8 else 1.0, **span,
        num_warps=_PART_WARPS, **LAUNCH_AFTER,
    )  # fmt: skip
    *tail, code_groups = tail_args(codes, bad)
    width = _JOIN_WIDTH if head_dim % _JOIN_WIDTH == 0 else head_dim
    _attention_join_kernel[(heads, num_rows, head_dim // width)](
        parts.values, parts.sums, gate, position, out, *tail, gate.stride(0), gate.stride(1),
        num_parts, HEADS=heads, DH=head_dim, WIDTH=width,
        WIDTH_TILE=max(32, triton.next_power_of_2(width)),
        PART_TILE=min(_PART_TILE, triton.next_power_of_2(num_parts)),
        HAS_CODES=codes is not None, CODE_GROUPS=code_groups, **span,
        num_warps=_JOIN_WARPS, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _num_selected(num_cells, BLOCK: tl.constexpr, BUDGET_BLOCKS: tl.constexpr,
                  IS_DENSE: tl.constexpr):  # fmt: skip
    """Cells a row attends to."""
    selected = num_cells
    if not IS_DENSE and num_cells // BLOCK > BUDGET_BLOCKS:
        selected = BUDGET_BLOCKS * BLOCK + num_cells % BLOCK
    return selected


@triton.jit
def _split_dot(x, y, acc):
    """acc + x . y with x float32 as two halves and y halves."""
    high = x.to(tl.float16)
    low = (x - high.to(tl.float32)).to(tl.float16)
    return tl.dot(low, y, tl.dot(high, y, acc))


@triton.jit
def _cell_of(
    index, is_cell, num_cells, chosen_ptr, row, BLOCK: tl.constexpr, BUDGET_BLOCKS: tl.constexpr,
    IS_DENSE: tl.constexpr,
):  # fmt: skip
    """Cells by their number in the row's ascending selection: chosen blocks, then the tail."""
    cell = index
    if not IS_DENSE and num_cells // BLOCK > BUDGET_BLOCKS:
        in_blocks = is_cell & (index < BUDGET_BLOCKS * BLOCK)
        at = row * BUDGET_BLOCKS + index // BLOCK
        block = tl.load(chosen_ptr + at, in_blocks, 0).to(tl.int64)
        tail = num_cells - num_cells % BLOCK + index - BUDGET_BLOCKS * BLOCK
        cell = tl.where(in_blocks, block * BLOCK + index % BLOCK, tail)
    return cell


@triton.jit
def _attention_part_kernel(
    q_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, chosen_ptr, position_ptr,
    part_values_ptr, part_sums_ptr, capacity, num_parts,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_TILE: tl.constexpr, DH: tl.constexpr,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr, IS_INT8: tl.constexpr,
    WEIGHT_SCALE: tl.constexpr, BLOCK: tl.constexpr, BUDGET_BLOCKS: tl.constexpr,
    IS_DENSE: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    part, kv, row = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    num_cells = tl.load(position_ptr) + row + 1
    end = _num_selected(num_cells, BLOCK, BUDGET_BLOCKS, IS_DENSE)
    first = part.to(tl.int64) * (TILE * TILES)
    if first >= end:
        return
    end = tl.minimum(end, first + TILE * TILES)
    PER_KV: tl.constexpr = HEADS // KV_HEADS
    PART: tl.constexpr = DH // GROUPS  # values that share a scale
    # Axes of every tile: group of values, query head or cell, value within the group.
    offs_h = tl.arange(0, HEAD_TILE)
    offs_g = tl.arange(0, GROUPS)[:, None, None]
    offs_w = tl.arange(0, WIDTH)[None, None, :]
    is_w = offs_w < PART
    is_q = (offs_h < PER_KV)[None, :, None] & is_w
    offs_value = offs_g * PART + offs_w
    offs_q = (row * HEADS + kv * PER_KV + offs_h[None, :, None]) * DH + offs_value
    q = tl.load(q_ptr + offs_q, is_q, 0.0)
    largest = tl.full([HEAD_TILE], float("-inf"), tl.float32)
    total = tl.zeros([HEAD_TILE], tl.float32)
    acc = tl.zeros([GROUPS, HEAD_TILE, WIDTH], tl.float32)
    while first < end:
        index = first + tl.arange(0, TILE)
        is_cell = index < end
        cell = _cell_of(
            index, is_cell, num_cells, chosen_ptr, row, BLOCK, BUDGET_BLOCKS, IS_DENSE
        )  # fmt: skip
        place = kv * capacity + tl.where(is_cell, cell, 0)
        offs = place[None, :, None] * DH + offs_value
        is_value = is_cell[None, :, None] & is_w
        offs_scale = place[None, :] * GROUPS + tl.arange(0, GROUPS)[:, None]
        keys = tl.load(keys_ptr + offs, is_value, 0).to(tl.float16)
        # Asked for before the scores are known, so that both wait for memory at once.
        values = tl.load(values_ptr + offs, is_value, 0).to(tl.float16)
        scores = _split_dot(
            q, tl.permute(keys, (0, 2, 1)), tl.zeros([GROUPS, HEAD_TILE, TILE], tl.float32)
        )
        if IS_INT8:
            scale = tl.load(key_scales_ptr + offs_scale, is_cell[None, :], 0.0)
            scores = scores * scale.to(tl.float32)[:, None, :]
        score = tl.where(is_cell[None, :], tl.sum(scores, axis=0), float("-inf"))
        new_largest = tl.maximum(largest, tl.max(score, axis=1))
        weights = tl.where(is_cell[None, :], exp(score - new_largest[:, None]), 0.0)
        shrink = exp(largest - new_largest)
        total = total * shrink + tl.sum(weights, axis=1)
        spread = tl.broadcast_to(weights[None, :, :], [GROUPS, HEAD_TILE, TILE])
        if IS_INT8:
            scale = tl.load(value_scales_ptr + offs_scale, is_cell[None, :], 0.0)
            spread = spread * (scale.to(tl.float32) * WEIGHT_SCALE)[:, None, :]
        acc = _split_dot(spread, values, acc * shrink[None, :, None])
        largest = new_largest
        first += TILE
    at = (row * num_parts + part) * HEADS + kv * PER_KV + offs_h
    tl.store(
        part_values_ptr + at[None, :, None] * DH + offs_value, acc * (1.0 / WEIGHT_SCALE), is_q
    )
    tl.store(part_sums_ptr + 2 * at, largest, offs_h < PER_KV)
    tl.store(part_sums_ptr + 2 * at + 1, total, offs_h < PER_KV)


@triton.jit
def _attention_join_kernel(
    part_values_ptr, part_sums_ptr, gate_ptr, position_ptr, out_ptr, codes_ptr, scales_ptr,
    sums_ptr, scaled_ptr, halves_ptr, bad_ptr, gate_row_stride, gate_head_stride, num_parts,
    HEADS: tl.constexpr, DH: tl.constexpr, WIDTH: tl.constexpr, WIDTH_TILE: tl.constexpr,
    PART_TILE: tl.constexpr, HAS_CODES: tl.constexpr, CODE_GROUPS: tl.constexpr,
    BLOCK: tl.constexpr, BUDGET_BLOCKS: tl.constexpr, IS_DENSE: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    selected = _num_selected(tl.load(position_ptr) + row + 1, BLOCK, BUDGET_BLOCKS, IS_DENSE)
    used = ((selected + TILE * TILES - 1) // (TILE * TILES)).to(tl.int32)
    offs_p = tl.arange(0, PART_TILE)
    first_value = tl.program_id(2) * WIDTH
    offs = first_value + tl.arange(0, WIDTH_TILE)
    mask = tl.arange(0, WIDTH_TILE) < WIDTH
    gate_at = row * gate_row_stride + head * gate_head_stride + offs
    gate = tl.load(gate_ptr + gate_at, mask, 0.0)
    sums_at = part_sums_ptr + 2 * (row * num_parts * HEADS + head)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([PART_TILE], tl.float32)
    acc = tl.zeros([WIDTH_TILE], tl.float32)
    first = 0
    while first < used:
        part = first + offs_p
        is_part = part < used
        at = ((row * num_parts + part) * HEADS + head)[:, None] * DH + offs[None, :]
        y = tl.load(part_values_ptr + at, is_part[:, None] & mask[None, :], 0.0)
        sums = tl.load(sums_at + 2 * HEADS * part + 1, is_part, 0.0)
        m = tl.load(sums_at + 2 * HEADS * part, is_part, float("-inf"))
        new_top = tl.maximum(top, tl.max(m, axis=0))
        weight = tl.where(is_part, exp(m - new_top), 0.0)
        shrink = exp(top - new_top)
        total = total * shrink + weight * sums
        acc = acc * shrink + tl.sum(y * weight[:, None], axis=0)
        top = new_top
        first += PART_TILE
    y = div(acc, tl.sum(total, axis=0)) * sigmoid(gate)
    tl.store(out_ptr + (row * HEADS + head) * DH + offs, y, mask)
    if HAS_CODES:
        store_tail(
            y, row, (head * DH + first_value) // 32, WIDTH // 32, codes_ptr, scales_ptr, sums_ptr,
            scaled_ptr, halves_ptr, bad_ptr, CODE_GROUPS, WIDTH_TILE // 32,
        )  # fmt: skip
