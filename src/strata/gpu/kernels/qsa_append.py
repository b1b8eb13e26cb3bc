"""What a sparse attention layer makes of its projections: queries, cells, index queries and keys.

One launch norms and rotates every head of a window's rows, writes their cells as halves or int8
codes, notes raw index keys and pools each block that a row completes. Cells and pooled blocks of
rows that are not kept are written over; raw keys lie in a ring by position.

Reference: ``strata.reference.sparse_attention``; format of int8 cells: one half scale for 64 codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import div, rint
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.indexer import INDEX_GROUP
from strata.gpu.kernels.sizes import next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

CELL_GROUP = 64
"""Codes of an int8 cell that share a scale."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Keys and values of one layer by position, for each key/value head.

    Attributes:
        keys, values: [Hkv, capacity, Dh] float16, or int8 codes.
        key_scales, value_scales: [Hkv, capacity, Dh / CELL_GROUP] float16 of int8 codes, else None.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def is_int8(self) -> bool:
        """Whether cells are codes with scales."""
        return self.key_scales is not None


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """What the indexer keeps of a layer; float32.

    Attributes:
        ring: [R, index_dim], raw key of position p in row p % R; R of ``ring_rows(block)``.
        pooled: [groups, index_dim, INDEX_GROUP], key of block b at [b // 64, :, b % 64].
    """

    ring: Tensor
    pooled: Tensor


@dataclass(frozen=True, slots=True)
class IndexInputs:
    """Projections and weights of the indexer, and where its queries go; float32.

    Attributes:
        queries: [N, index_heads, index_dim]; may be rows of a wider tensor.
        keys: [N, index_dim]; likewise.
        query_gamma, key_gamma: [index_dim].
        out: [N, index_heads, index_dim], normed and rotated queries.
        block: cells in a block.
    """

    queries: Tensor
    keys: Tensor
    query_gamma: Tensor
    key_gamma: Tensor
    out: Tensor
    block: int


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosine and sine of every position, [capacity, pairs] float32 each."""

    cos: Tensor
    sin: Tensor


def append(
    q_gate: Tensor,
    k: Tensor,
    v: Tensor,
    q_gamma: Tensor,
    k_gamma: Tensor,
    rope: RopeTable,
    position: Tensor,
    eps: float,
    cells: Cells,
    queries: Tensor,
    index: tuple[IndexInputs, IndexKeys] | None = None,
) -> None:
    """Rows become the cells from ``position`` on; queries come out normed, rotated, over sqrt(Dh).

    Bytes a row: projections 55 KB read, queries 26 KB and cells 2 KB written. Grid: heads of all
    kinds and one for the index key (33), by rows.

    Args:
        q_gate: [N, H, 2 * Dh] float32: query and gate of a head side by side.
        k: [N, Hkv, Dh] float32.
        v: [N, Hkv, Dh] float32.
        q_gamma: [Dh].
        k_gamma: [Dh].
        rope: of all positions.
        position: [1] int64, cells before row 0.
        eps: of the norms.
        cells: of the layer.
        queries: [N, H, Dh] float32.
        index: None in a layer without an indexer.
    """
    num_rows, heads, head_dim = queries.shape
    kv_heads = k.shape[1]
    inputs, keys = (None, None) if index is None else index
    index_args: tuple[Tensor | int | None, ...] = (None,) * 7 + (0, 0)
    index_heads, index_dim, block, ring = 0, 1, 1, 1
    if inputs is not None and keys is not None:
        _, index_heads, index_dim = inputs.out.shape
        block, ring = inputs.block, len(keys.ring)
        index_args = (
            inputs.queries, inputs.keys, inputs.query_gamma, inputs.key_gamma, inputs.out,
            keys.ring, keys.pooled, inputs.queries.stride(0), inputs.keys.stride(0),
        )  # fmt: skip
    programs = heads + 2 * kv_heads + (index_heads + 1 if index is not None else 0)
    _append_kernel[(programs, num_rows)](
        q_gate, k, v, q_gamma, k_gamma, rope.cos, rope.sin, position, cells.keys, cells.values,
        cells.key_scales, cells.value_scales, queries, *index_args, q_gate.stride(0), k.stride(0),
        v.stride(0), cells.keys.stride(0), eps, head_dim**-0.5,
        HEADS=heads, KV_HEADS=kv_heads, DH=head_dim, DH_TILE=next_power_of_2(head_dim),
        PAIRS=rope.cos.shape[1], IS_INT8=cells.is_int8, CELL_GROUP=CELL_GROUP,
        INDEX_HEADS=index_heads, DI=index_dim, DI_TILE=next_power_of_2(index_dim),
        BLOCK=block, RING=ring, INDEX_GROUP=INDEX_GROUP, num_warps=2, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _partner(offs, PAIRS: tl.constexpr):
    """Half-split pairs: value i turns with i + PAIRS; the rest stand still."""
    other = tl.where(offs < PAIRS, offs + PAIRS, offs - PAIRS)
    return tl.where(offs < 2 * PAIRS, other, offs)


@triton.jit
def _norm_and_turn(
    x, other, gamma_ptr, cos_ptr, sin_ptr, table_row, offs, eps, WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """rms norm of x, rotated; ``other`` is x at each value's partner."""
    mask = offs < WIDTH
    inverse = div(1.0, tl.sqrt_rn(div(tl.sum(x * x, axis=0), WIDTH) + eps))
    x = x * inverse * tl.load(gamma_ptr + offs, mask, 0.0)
    other = other * inverse * tl.load(gamma_ptr + _partner(offs, PAIRS), mask, 0.0)
    is_turned = offs < 2 * PAIRS
    at = table_row * PAIRS + offs % PAIRS
    cos = tl.load(cos_ptr + at, is_turned, 1.0)
    sin = tl.load(sin_ptr + at, is_turned, 0.0)
    turned = x * cos + tl.where(offs < PAIRS, -other, other) * sin
    return tl.where(is_turned, turned, x)


@triton.jit
def _store_cell(
    x, cells_ptr, scales_ptr, cell, offs, DH: tl.constexpr, DH_TILE: tl.constexpr,
    IS_INT8: tl.constexpr, CELL_GROUP: tl.constexpr,
):  # fmt: skip
    if IS_INT8:
        groups = tl.reshape(x, [DH_TILE // CELL_GROUP, CELL_GROUP])
        scale = div(tl.max(tl.abs(groups), axis=1), 127.0).to(tl.float16)
        wide = scale.to(tl.float32)[:, None]
        q = div(groups, tl.where(wide == 0.0, 1.0, wide) + tl.zeros_like(groups))
        q = rint(tl.minimum(tl.maximum(q, -127.0), 127.0))
        codes = tl.reshape(tl.where(wide == 0.0, 0.0, q), [DH_TILE])
        tl.store(cells_ptr + cell * DH + offs, codes.to(tl.int8), offs < DH)
        group = tl.arange(0, DH_TILE // CELL_GROUP)
        num_groups: tl.constexpr = DH // CELL_GROUP
        tl.store(scales_ptr + cell * num_groups + group, scale, group < num_groups)
    else:
        tl.store(cells_ptr + cell * DH + offs, x.to(tl.float16), offs < DH)


@triton.jit
def _mean_key(
    keys_ptr, ring_ptr, key_stride, row, position, offs, DI: tl.constexpr, BLOCK: tl.constexpr,
    RING: tl.constexpr,
):  # fmt: skip
    """Mean of the raw keys of the block that ``row`` completes, added up in order."""
    total = tl.zeros([offs.shape[0]], tl.float32)
    for back in tl.static_range(BLOCK - 1, -1, -1):
        source = row - back
        own = tl.load(keys_ptr + source * key_stride + offs, (offs < DI) & (source >= 0), 0.0)
        slot = (position + source) & (RING - 1)
        past = tl.load(ring_ptr + slot * DI + offs, (offs < DI) & (source < 0), 0.0)
        total += own + past
    return div(total, BLOCK)


@triton.jit
def _normed_head(
    x_ptr, gamma_ptr, cos_ptr, sin_ptr, table_row, offs, eps, WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    x = tl.load(x_ptr + offs, offs < WIDTH, 0.0)
    other = tl.load(x_ptr + _partner(offs, PAIRS), offs < WIDTH, 0.0)
    return _norm_and_turn(x, other, gamma_ptr, cos_ptr, sin_ptr, table_row, offs, eps, WIDTH, PAIRS)


@triton.jit
def _pool(
    keys_ptr, ring_ptr, key_stride, gamma_ptr, cos_ptr, sin_ptr, pooled_ptr, row, position, offs,
    eps, DI: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr, RING: tl.constexpr,
    INDEX_GROUP: tl.constexpr,
):  # fmt: skip
    """The key of the block that ``row`` completes, rotated at the block's first cell."""
    mean = _mean_key(keys_ptr, ring_ptr, key_stride, row, position, offs, DI, BLOCK, RING)
    other = _mean_key(
        keys_ptr, ring_ptr, key_stride, row, position, _partner(offs, PAIRS), DI, BLOCK, RING
    )
    first = position + row + 1 - BLOCK
    key = _norm_and_turn(mean, other, gamma_ptr, cos_ptr, sin_ptr, first, offs, eps, DI, PAIRS)
    block = first // BLOCK
    at = (block // INDEX_GROUP * DI + offs) * INDEX_GROUP + block % INDEX_GROUP
    tl.store(pooled_ptr + at, key, offs < DI)


@triton.jit
def _append_kernel(
    q_ptr, k_ptr, v_ptr, q_gamma_ptr, k_gamma_ptr, cos_ptr, sin_ptr, position_ptr, key_cells_ptr,
    value_cells_ptr, key_scales_ptr, value_scales_ptr, queries_ptr, index_q_ptr, index_k_ptr,
    index_q_gamma_ptr, index_k_gamma_ptr, index_out_ptr, ring_ptr, pooled_ptr, index_q_stride,
    index_k_stride, q_stride, k_stride, v_stride, head_stride, eps, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DH: tl.constexpr, DH_TILE: tl.constexpr,
    PAIRS: tl.constexpr, IS_INT8: tl.constexpr, CELL_GROUP: tl.constexpr,
    INDEX_HEADS: tl.constexpr, DI: tl.constexpr, DI_TILE: tl.constexpr, BLOCK: tl.constexpr,
    RING: tl.constexpr, INDEX_GROUP: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    position = tl.load(position_ptr)
    cell = position + row
    offs = tl.arange(0, DH_TILE)
    kv = head - HEADS
    place = kv % KV_HEADS * (head_stride // DH) + cell
    if head < HEADS:
        q = _normed_head(
            q_ptr + row * q_stride + head * 2 * DH, q_gamma_ptr, cos_ptr, sin_ptr, cell, offs, eps,
            DH, PAIRS,
        )  # fmt: skip
        tl.store(queries_ptr + (row * HEADS + head) * DH + offs, q * scale, offs < DH)
    elif kv < KV_HEADS:
        k = _normed_head(
            k_ptr + row * k_stride + kv * DH, k_gamma_ptr, cos_ptr, sin_ptr, cell, offs, eps, DH,
            PAIRS,
        )  # fmt: skip
        _store_cell(k, key_cells_ptr, key_scales_ptr, place, offs, DH, DH_TILE, IS_INT8, CELL_GROUP)
    elif kv < 2 * KV_HEADS:
        v = tl.load(v_ptr + row * v_stride + (kv - KV_HEADS) * DH + offs, offs < DH, 0.0)
        _store_cell(
            v, value_cells_ptr, value_scales_ptr, place, offs, DH, DH_TILE, IS_INT8, CELL_GROUP
        )
    elif INDEX_HEADS > 0:
        h = kv - 2 * KV_HEADS
        offs_i = tl.arange(0, DI_TILE)
        if h < INDEX_HEADS:
            iq = _normed_head(
                index_q_ptr + row * index_q_stride + h * DI, index_q_gamma_ptr, cos_ptr, sin_ptr,
                cell, offs_i, eps, DI, PAIRS,
            )  # fmt: skip
            tl.store(index_out_ptr + (row * INDEX_HEADS + h) * DI + offs_i, iq, offs_i < DI)
        else:
            raw = tl.load(index_k_ptr + row * index_k_stride + offs_i, offs_i < DI, 0.0)
            tl.store(ring_ptr + (cell & (RING - 1)) * DI + offs_i, raw, offs_i < DI)
            if (cell + 1) % BLOCK == 0:
                _pool(
                    index_k_ptr, ring_ptr, index_k_stride, index_k_gamma_ptr, cos_ptr, sin_ptr,
                    pooled_ptr, row, position, offs_i, eps, DI, PAIRS, BLOCK, RING, INDEX_GROUP,
                )  # fmt: skip
