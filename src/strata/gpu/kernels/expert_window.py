"""Routed experts and the shared one of a decode window in two launches.

The first makes gate and up of 32 columns side by side, so that silu, product and codes follow where
the sums are; the second multiplies those codes by down. Each of a row's entries has programs of its
own, the shared expert being one entry more. Bits are those of ``experts``, which does the same in
four launches for each, and also where gate and up differ in format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.panels import keep_sums, round_words, row_sums, scratch_words
from strata.gpu.kernels.product import shape_of, tiling_options
from strata.gpu.kernels.quantize_tail import store_tail, tail_args
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.kernels.tables import points_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.experts import ExpertRows
    from strata.gpu.kernels.product import Tiling
    from strata.gpu.kernels.quantize import Codes

# Panels of gate and of up that make one block of codes.
_PANELS = tl.constexpr(4)

GATE_UP_TILING = (4, 128)
"""Warps of a program of gate and up, and the most registers of a thread."""

DOWN_TILING: Tiling = (4, 5, False)
# Where another is the faster, by the formats of routed and shared experts. H200, ten experts,
# 2026-11-30 (tilings_on_card.py): 4.7 us in the place of 5.4 for one row, 16.9 of 17.5 for four.
_DOWN_TILINGS: dict[tuple[str, str], Tiling] = {("IQ4_NL", "Q6_K"): (2, 5, False)}


def is_fusible(slots: ExpertSlots) -> bool:
    """Whether gate and up are one launch: they have one format."""
    formats = slots.layout.formats
    return formats[0] == formats[1]


def _numbered(shape: dict[str, object], letter: str) -> dict[str, object]:
    return {f"{letter}_{name}": value for name, value in shape.items()}


def gate_up_codes(
    routed: ExpertSlots,
    shared: ExpertSlots,
    x: Codes,
    expert_ids: Tensor,
    rows: ExpertRows,
    shared_rows: ExpertRows,
    bad: Tensor,
    tiling: tuple[int, int] | None = None,
) -> None:
    """``h`` of both: codes of silu(gate) * up for each chosen expert and the shared one.

    Bytes: gate and up of every distinct expert, 1.4 MB each at 3.4 bits. Grid: (F / 32,
    N (K + 1)), 20 by 11 for a row.

    Args:
        routed, shared: slots of the layer that are ``is_fusible``; the shared one in slot 0.
        x: codes of N rows of D values.
        expert_ids: [N, K] int32, contiguous. Entries whose expert is in no slot are left out.
        rows, shared_rows: room for N K and N entries, codes zero past a row's end.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
        tiling: as GATE_UP_TILING; the bits are the same.
    """
    num_rows, top_k = expert_ids.shape
    layout = routed.layout
    sizes = (layout.expert_size, shared.layout.expert_size)
    formats = (layout.formats[0], shared.layout.formats[0])
    num_warps, most_registers = tiling or GATE_UP_TILING
    if arith.INTERPRETED:
        num_warps = triton.next_power_of_2(2 * x.num_groups)
    *routed_tail, routed_groups = tail_args(rows.h, bad)
    *shared_tail, shared_groups = tail_args(shared_rows.h, bad)
    _gate_up_kernel[(max(sizes) // 32, num_rows * (top_k + 1))](
        x.codes, x.scales, x.sums, x.scaled_sums, x.scaled_half_sums, expert_ids, routed.slot_of,
        routed.blobs, layout.blob_bytes, routed.scales, lattice(formats[0], bad.device),
        shared.blobs, shared.scales, lattice(formats[1], bad.device),
        *routed_tail, *shared_tail[:5],
        TOP_K=top_k, R_SIZE=sizes[0], S_SIZE=sizes[1], R_OUT_GROUPS=routed_groups,
        S_OUT_GROUPS=shared_groups, THREADS=32 * num_warps,
        **_numbered(shape_of(formats[0], layout.hidden_size), "R"),
        **_numbered(shape_of(formats[1], layout.hidden_size), "S"),
        num_warps=num_warps, maxnreg=most_registers, **LAUNCH_AFTER,
    )  # fmt: skip


def down_outputs(
    routed: ExpertSlots,
    shared: ExpertSlots,
    expert_ids: Tensor,
    rows: ExpertRows,
    shared_rows: ExpertRows,
    tiling: Tiling | None = None,
) -> None:
    """``y`` of both from ``h``; arguments as of ``gate_up_codes``, ``tiling`` as of ``product``.

    Bytes: down of every distinct expert, 0.9 MB each at 4.5 bits. Grid: (D / 40, N (K + 1)), 64
    by 11 for a row.
    """
    num_rows, top_k = expert_ids.shape
    layout = routed.layout
    formats = (layout.formats[2], shared.layout.formats[2])
    num_panels = layout.hidden_size // 8
    h, shared_h = rows.h, shared_rows.h
    num_groups = max(h.num_groups, shared_h.num_groups)
    if tiling is None and not arith.INTERPRETED:
        tiling = _DOWN_TILINGS.get(formats, DOWN_TILING)
    tile, options = tiling_options(tiling, num_panels, num_groups)
    del options["IS_PAIR"]
    _down_kernel[(triton.cdiv(num_panels, tile), num_rows * (top_k + 1))](
        expert_ids, routed.slot_of, num_panels,
        routed.blobs.view(-1)[layout.offset_of(2) :], layout.blob_bytes, routed.scales,
        lattice(formats[0], rows.y.device), h.codes, h.scales, h.sums, h.scaled_sums,
        h.scaled_half_sums, rows.y,
        shared.blobs.view(-1)[shared.layout.offset_of(2) :], shared.scales,
        lattice(formats[1], rows.y.device), shared_h.codes, shared_h.scales, shared_h.sums,
        shared_h.scaled_sums, shared_h.scaled_half_sums, shared_rows.y,
        TOP_K=top_k, **_numbered(shape_of(formats[0], layout.expert_size), "R"),
        **_numbered(shape_of(formats[1], shared.layout.expert_size), "S"), **options,
        SCRATCH=scratch_words(1, tile, num_groups),
        **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _block_of_codes(
    blob_ptr, factors_ptr, x, table, scratch, entry, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
    halves_ptr, bad_ptr, SIZE: tl.constexpr, OUT_GROUPS: tl.constexpr, FORMAT: tl.constexpr,
    TRAITS: tl.constexpr, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Codes of 32 columns of one entry."""
    block = tl.program_id(0)
    UNITS: tl.constexpr = 2 * _PANELS
    first = block * _PANELS
    words = round_words(
        0, blob_ptr, first, SIZE // 8, SIZE // 4, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS,
        IS_SHORT, UNITS, _PANELS, False, THREADS,
    )  # fmt: skip
    keep_sums(
        words, blob_ptr, first, SIZE // 8, SIZE // 4, x, table, scratch, FORMAT, TRAITS, PLANES,
        NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, 1, UNITS, _PANELS, False, THREADS,
    )  # fmt: skip
    column = tl.arange(0, 32)
    gate = row_sums(scratch, column, GROUPS) * tl.load(factors_ptr)
    up = row_sums(scratch, 32 + column, GROUPS) * tl.load(factors_ptr + 1)
    store_tail(
        arith.silu(gate) * up, entry, block, 1, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
        halves_ptr, bad_ptr, OUT_GROUPS, 1,
    )  # fmt: skip


@triton.jit
def _gate_up_kernel(
    codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, ids_ptr, slot_of_ptr, blobs_ptr,
    blob_bytes, factors_ptr, grid_ptr, shared_ptr, shared_factors_ptr, shared_grid_ptr,
    r_codes_ptr, r_scales_ptr, r_sums_ptr, r_scaled_ptr, r_halves_ptr, bad_ptr, s_codes_ptr,
    s_scales_ptr, s_sums_ptr, s_scaled_ptr, s_halves_ptr, TOP_K: tl.constexpr,
    R_SIZE: tl.constexpr, S_SIZE: tl.constexpr, R_OUT_GROUPS: tl.constexpr,
    S_OUT_GROUPS: tl.constexpr, THREADS: tl.constexpr, R_FORMAT: tl.constexpr,
    R_TRAITS: tl.constexpr, R_PLANES: tl.constexpr, R_NUM_PLANES: tl.constexpr,
    R_PANEL_BYTES: tl.constexpr, R_GROUPS: tl.constexpr, R_IS_SHORT: tl.constexpr,
    S_FORMAT: tl.constexpr, S_TRAITS: tl.constexpr, S_PLANES: tl.constexpr,
    S_NUM_PLANES: tl.constexpr, S_PANEL_BYTES: tl.constexpr, S_GROUPS: tl.constexpr,
    S_IS_SHORT: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(1) // (TOP_K + 1)).to(tl.int64)
    k = tl.program_id(1) % (TOP_K + 1)
    if (k == TOP_K) & (tl.program_id(0) * 32 < S_SIZE):
        first = tl.program_id(0) * _PANELS
        fetch_ahead(shared_ptr, first, S_SIZE // 8, S_PANEL_BYTES, _PANELS)
        fetch_ahead(shared_ptr, first + S_SIZE // 8, S_SIZE // 4, S_PANEL_BYTES, _PANELS)
    table = points_of(grid_ptr, R_FORMAT, R_TRAITS)
    # One format has one table.
    shared_table = table
    if S_FORMAT != R_FORMAT:
        shared_table = points_of(shared_grid_ptr, S_FORMAT, S_TRAITS)
    scratch = shared_words(scratch_words(1, 2 * _PANELS, R_GROUPS))
    wait_for_inputs()
    x = (
        codes_ptr + n * R_GROUPS * 256,
        scales_ptr + n * R_GROUPS * 8,
        sums_ptr + n * R_GROUPS * 8,
        scaled_ptr + n * R_GROUPS * 8,
        halves_ptr + n * R_GROUPS * 16,
    )
    if k == TOP_K:
        if tl.program_id(0) * 32 < S_SIZE:
            _block_of_codes(
                shared_ptr, shared_factors_ptr, x, shared_table, scratch, n, s_codes_ptr,
                s_scales_ptr, s_sums_ptr, s_scaled_ptr, s_halves_ptr, bad_ptr, S_SIZE,
                S_OUT_GROUPS, S_FORMAT, S_TRAITS, S_PLANES, S_NUM_PLANES, S_PANEL_BYTES, S_GROUPS,
                S_IS_SHORT, THREADS,
            )  # fmt: skip
    elif tl.program_id(0) * 32 < R_SIZE:
        entry = n * TOP_K + k
        slot = tl.load(slot_of_ptr + tl.load(ids_ptr + entry)).to(tl.int64)
        if slot >= 0:
            _block_of_codes(
                blobs_ptr + slot * blob_bytes, factors_ptr + slot * 3, x, table, scratch, entry,
                r_codes_ptr, r_scales_ptr, r_sums_ptr, r_scaled_ptr, r_halves_ptr, bad_ptr, R_SIZE,
                R_OUT_GROUPS, R_FORMAT, R_TRAITS, R_PLANES, R_NUM_PLANES, R_PANEL_BYTES, R_GROUPS,
                R_IS_SHORT, THREADS,
            )  # fmt: skip


@triton.jit
def _entry_outputs(
    blob_ptr, num_panels, factor_ptr, table, scratch, entry, codes_ptr, scales_ptr, sums_ptr,
    scaled_ptr, halves_ptr, out_ptr, FORMAT: tl.constexpr, TRAITS: tl.constexpr,
    PLANES: tl.constexpr, NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, TILE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Some columns of one entry's output; waits for its inputs."""
    first = tl.program_id(0) * TILE
    if TILE * GROUPS * 8 > THREADS:
        fetch_ahead(blob_ptr, first, num_panels, PANEL_BYTES, TILE)
    words = round_words(
        0, blob_ptr, first, 0, num_panels, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT,
        TILE, TILE, False, THREADS,
    )  # fmt: skip
    factor = tl.load(factor_ptr)
    wait_for_inputs()
    x = (
        codes_ptr + entry * GROUPS * 256,
        scales_ptr + entry * GROUPS * 8,
        sums_ptr + entry * GROUPS * 8,
        scaled_ptr + entry * GROUPS * 8,
        halves_ptr + entry * GROUPS * 16,
    )
    keep_sums(
        words, blob_ptr, first, 0, num_panels, x, table, scratch, FORMAT, TRAITS, PLANES,
        NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, 1, TILE, TILE, False, THREADS,
    )  # fmt: skip
    place = tl.arange(0, triton.next_power_of_2(TILE * 8))
    sums = row_sums(scratch, tl.minimum(place, TILE * 8 - 1), GROUPS)
    column = first * 8 + place
    is_stored = (place < TILE * 8) & (column < num_panels * 8)
    tl.store(out_ptr + entry * num_panels * 8 + column, sums * factor, mask=is_stored)


@triton.jit(do_not_specialize=["num_panels"])
def _down_kernel(
    ids_ptr, slot_of_ptr, num_panels, blobs_ptr, blob_bytes, factors_ptr, grid_ptr, r_codes_ptr,
    r_scales_ptr, r_sums_ptr, r_scaled_ptr, r_halves_ptr, y_ptr, shared_ptr, shared_factors_ptr,
    shared_grid_ptr, s_codes_ptr, s_scales_ptr, s_sums_ptr, s_scaled_ptr, s_halves_ptr,
    shared_y_ptr, TOP_K: tl.constexpr, TILE: tl.constexpr, THREADS: tl.constexpr,
    SCRATCH: tl.constexpr, R_FORMAT: tl.constexpr, R_TRAITS: tl.constexpr, R_PLANES: tl.constexpr,
    R_NUM_PLANES: tl.constexpr, R_PANEL_BYTES: tl.constexpr, R_GROUPS: tl.constexpr,
    R_IS_SHORT: tl.constexpr, S_FORMAT: tl.constexpr, S_TRAITS: tl.constexpr,
    S_PLANES: tl.constexpr, S_NUM_PLANES: tl.constexpr, S_PANEL_BYTES: tl.constexpr,
    S_GROUPS: tl.constexpr, S_IS_SHORT: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(1) // (TOP_K + 1)).to(tl.int64)
    k = tl.program_id(1) % (TOP_K + 1)
    scratch = shared_words(SCRATCH)
    if k == TOP_K:
        _entry_outputs(
            shared_ptr, num_panels, shared_factors_ptr + 2,
            points_of(shared_grid_ptr, S_FORMAT, S_TRAITS), scratch, n, s_codes_ptr, s_scales_ptr,
            s_sums_ptr, s_scaled_ptr, s_halves_ptr, shared_y_ptr, S_FORMAT, S_TRAITS, S_PLANES,
            S_NUM_PLANES, S_PANEL_BYTES, S_GROUPS, S_IS_SHORT, TILE, THREADS,
        )  # fmt: skip
    else:
        # Experts were chosen two launches ago. The one between waited for that before it let this
        # one begin, so here they may be read without waiting.
        entry = n * TOP_K + k
        slot = tl.load(slot_of_ptr + tl.load(ids_ptr + entry)).to(tl.int64)
        if slot >= 0:
            _entry_outputs(
                blobs_ptr + slot * blob_bytes, num_panels, factors_ptr + slot * 3 + 2,
                points_of(grid_ptr, R_FORMAT, R_TRAITS), scratch, entry, r_codes_ptr, r_scales_ptr,
                r_sums_ptr, r_scaled_ptr, r_halves_ptr, y_ptr, R_FORMAT, R_TRAITS, R_PLANES,
                R_NUM_PLANES, R_PANEL_BYTES, R_GROUPS, R_IS_SHORT, TILE, THREADS,
            )  # fmt: skip
        else:
            wait_for_inputs()
