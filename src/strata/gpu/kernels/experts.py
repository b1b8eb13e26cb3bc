"""Routed experts of a few rows: four launches for all chosen experts of all rows.

An entry is one chosen expert of one row. Its arithmetic is that of one row alone, so neither the
other rows nor the slots change a bit (docs/numerics.md, "The expert and the token"). Entries whose
expert is in no slot are left out: their rows of ``ExpertRows.y`` may be filled from outside before
``combine``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.panels import keep_sums, round_words, row_sums, scratch_words
from strata.gpu.kernels.product import shape_of, tiling_options
from strata.gpu.kernels.quantize import Codes, empty_codes, store_codes
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.kernels.tables import points_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.product import Tiling

_QUANTIZE_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """What lies between the launches, for up to M entries.

    Attributes:
        gate_up: [M, 2 F] float32.
        h: codes of [M, F].
        y: [M, D] float32, outputs of experts; entry n * K + k is rank k of row n.
    """

    gate_up: Tensor
    h: Codes
    y: Tensor


def empty_rows(
    num_entries: int, hidden_size: int, expert_size: int, device: torch.device | str
) -> ExpertRows:
    """Room for this many entries; not initialised."""
    return ExpertRows(
        gate_up=torch.empty((num_entries, 2 * expert_size), dtype=torch.float32, device=device),
        h=empty_codes(num_entries, expert_size, device),
        y=torch.empty((num_entries, hidden_size), dtype=torch.float32, device=device),
    )


_SIZES = [
    "blob_bytes", "num_panels", "out_stride", "entries_of_row", "num_rows", "rows_of_role",
]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["out_ptr", "factors_ptr"])
def _entry_kernel(
    blobs_ptr, blob_bytes, num_panels, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
    grid_ptr, ids_ptr, slot_of_ptr, factors_ptr, out_ptr, out_stride, entries_of_row, num_rows,
    rows_of_role, FORMAT: tl.constexpr, TRAITS: tl.constexpr, PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr, TILE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """The first ``rows_of_role`` rows have one factor, what follows the one after it."""
    table = points_of(grid_ptr, FORMAT, TRAITS)
    wait_for_inputs()
    entry = tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_of_ptr + tl.load(ids_ptr + entry)).to(tl.int64)
    if slot >= 0:
        first = tl.program_id(0) * TILE
        n = entry // entries_of_row
        x = (
            codes_ptr + n * GROUPS * 256,
            scales_ptr + n * GROUPS * 8,
            sums_ptr + n * GROUPS * 8,
            scaled_ptr + n * GROUPS * 8,
            halves_ptr + n * GROUPS * 16,
        )
        first_factor = tl.load(factors_ptr + slot * 3)
        second_factor = tl.load(factors_ptr + slot * 3 + (num_rows > rows_of_role).to(tl.int32))
        scratch = shared_words(scratch_words(1, TILE, GROUPS))
        blob_ptr = blobs_ptr + slot * blob_bytes
        words = round_words(
            0, blob_ptr, first, 0, num_panels, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT,
            TILE, TILE, False, THREADS,
        )  # fmt: skip
        keep_sums(
            words, blob_ptr, first, 0, num_panels, x, table, scratch, FORMAT, TRAITS, PLANES,
            NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, 1, TILE, TILE, False, THREADS,
        )  # fmt: skip
        place = tl.arange(0, triton.next_power_of_2(TILE * 8))
        sums = row_sums(scratch, tl.minimum(place, TILE * 8 - 1), GROUPS)
        rows = first * 8 + place
        factor = tl.where(rows < rows_of_role, first_factor, second_factor)
        is_stored = (rows < num_rows) & (place < TILE * 8)
        tl.store(out_ptr + entry * out_stride + rows, sums * factor, mask=is_stored)


@triton.jit
def _gate_kernel(
    gate_up_ptr, ids_ptr, slot_of_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
    bad_ptr, SIZE: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    entry = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_of_ptr + tl.load(ids_ptr + entry))
    if slot >= 0:
        offs_block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        values = tl.arange(0, 2)[None, :, None] * 16 + tl.arange(0, 16)[None, None, :]
        offs = offs_block[:, None, None] * 32 + values
        at = gate_up_ptr + entry * 2 * SIZE + offs
        gate = tl.load(at, mask=offs < SIZE, other=0.0)
        up = tl.load(at + SIZE, mask=offs < SIZE, other=0.0)
        store_codes(
            arith.silu(gate) * up,
            offs_block,
            offs_block < GROUPS * 8,
            codes_ptr + entry * GROUPS * 256,
            scales_ptr + entry * GROUPS * 8,
            sums_ptr + entry * GROUPS * 8,
            scaled_ptr + entry * GROUPS * 8,
            halves_ptr + entry * GROUPS * 16,
            bad_ptr,
            GROUPS,
        )


@triton.jit
def _combine_kernel(
    y_ptr, weights_ptr, shared_ptr, shared_stride, shared_weight_ptr, out_ptr, out_stride, size,
    TOP_K: tl.constexpr, HAS_SHARED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    n = tl.program_id(0).to(tl.int64)
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = offs < size
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(TOP_K):
        weight = tl.load(weights_ptr + n * TOP_K + k)
        y = tl.load(y_ptr + (n * TOP_K + k) * size + offs, mask=is_column)
        # The first product is the sum so far; adding it to a zero would turn a minus zero over.
        total = weight * y if k == 0 else total + weight * y
    if HAS_SHARED:
        shared = tl.load(shared_ptr + n * shared_stride + offs, mask=is_column)
        total = total + tl.load(shared_weight_ptr + n) * shared
    tl.store(out_ptr + n * out_stride + offs, total, mask=is_column)


def _project(
    slots: ExpertSlots,
    roles: tuple[int, ...],
    x: Codes,
    expert_ids: Tensor,
    entries_of_row: int,
    out: Tensor,
    tiling: Tiling | None = None,
) -> None:
    """Products of neighbouring roles of one format, for every entry; ``out`` [M, columns]."""
    layout = slots.layout
    num_rows, inner = layout.shape_of(roles[0])
    format_name = layout.formats[roles[0]]
    num_panels = len(roles) * (num_rows // 8)
    tile, options = tiling_options(tiling, num_panels, x.num_groups)
    del options["IS_PAIR"]
    _entry_kernel[(triton.cdiv(num_panels, tile), expert_ids.numel())](
        slots.blobs.view(-1)[layout.offset_of(roles[0]) :],
        layout.blob_bytes,
        num_panels,
        x.codes,
        x.scales,
        x.sums,
        x.scaled_sums,
        x.scaled_half_sums,
        lattice(format_name, out.device),
        expert_ids,
        slots.slot_of,
        slots.scales.view(-1)[roles[0] :],
        out,
        out.stride(0),
        entries_of_row,
        len(roles) * num_rows,
        num_rows,
        **shape_of(format_name, inner),
        **options,
        **LAUNCH_AFTER,
    )


def gate_up(
    slots: ExpertSlots,
    x: Codes,
    expert_ids: Tensor,
    rows: ExpertRows,
    tiling: Tiling | None = None,
) -> None:
    """``rows.gate_up`` of every entry whose expert is in a slot.

    Args:
        slots: of this layer.
        x: codes of N rows of D values.
        expert_ids: [N, K] int32, contiguous.
        rows: room for at least N * K entries.
        tiling: of the launch, without pairs; None chooses. The bits are the same.
    """
    top_k, size = expert_ids.shape[1], slots.layout.expert_size
    if slots.layout.formats[0] == slots.layout.formats[1]:
        _project(slots, (0, 1), x, expert_ids, top_k, rows.gate_up, tiling)
    else:
        _project(slots, (0,), x, expert_ids, top_k, rows.gate_up, tiling)
        _project(slots, (1,), x, expert_ids, top_k, rows.gate_up[:, size:], tiling)


def gate(slots: ExpertSlots, expert_ids: Tensor, rows: ExpertRows, bad: Tensor) -> None:
    """``rows.h``: codes of silu(gate) * up; ``bad`` [1] int32 becomes 1 at a NaN or infinity."""
    size, h = slots.layout.expert_size, rows.h
    grid = (expert_ids.numel(), triton.cdiv(h.num_groups * 8, _QUANTIZE_BLOCKS))
    _gate_kernel[grid](
        rows.gate_up,
        expert_ids,
        slots.slot_of,
        h.codes,
        h.scales,
        h.sums,
        h.scaled_sums,
        h.scaled_half_sums,
        bad,
        SIZE=size,
        GROUPS=h.num_groups,
        BLOCK=_QUANTIZE_BLOCKS,
        num_warps=1,
        **LAUNCH_AFTER,
    )


def down(
    slots: ExpertSlots, expert_ids: Tensor, rows: ExpertRows, tiling: Tiling | None = None
) -> None:
    """``rows.y`` of every entry whose expert is in a slot; ``tiling`` as in ``gate_up``."""
    _project(slots, (2,), rows.h, expert_ids, 1, rows.y, tiling)


def combine(
    rows: ExpertRows,
    topk_weights: Tensor,
    shared: Tensor | None,
    shared_weight: Tensor | None,
    out: Tensor,
) -> None:
    """Each row's experts in routing order, then the shared expert, weight times output each.

    Args:
        rows: ``y`` filled for every entry.
        topk_weights: [N, K] float32, contiguous.
        shared: [N, D] float32, or None without a shared expert.
        shared_weight: [N] float32, after its sigmoid.
        out: [N, D] float32, rows of any stride.
    """
    num_rows, size = out.shape
    block = 256
    _combine_kernel[(num_rows, triton.cdiv(size, block))](
        rows.y,
        topk_weights,
        rows.y if shared is None else shared,
        0 if shared is None else shared.stride(0),
        topk_weights if shared_weight is None else shared_weight,
        out,
        out.stride(0),
        size,
        TOP_K=topk_weights.shape[1],
        HAS_SHARED=shared is not None,
        BLOCK=block,
        num_warps=2,
        **LAUNCH_AFTER,
    )
