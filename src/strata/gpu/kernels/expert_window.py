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
from strata.gpu.kernels.dependent import IS_DEPENDENT, LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.panels import first_words, panel_sums
from strata.gpu.kernels.product import matrix_sums, shape_of, tiling_options
from strata.gpu.kernels.quantize_tail import store_tail, tail_args
from strata.gpu.kernels.tables import points_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.experts import ExpertRows
    from strata.gpu.kernels.quantize import Codes

# Panels of gate and of up that make one block of codes.
_PANELS = tl.constexpr(4)


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
) -> None:
    """``h`` of both: codes of silu(gate) * up for each chosen expert and the shared one.

    Bytes: gate and up of every distinct expert, 1.4 MB each at 3.4 bits. Grid: (F / 32,
    N (K + 1)), 20 by 11 for a row; 8 warps.

    Args:
        routed, shared: slots of the layer that are ``is_fusible``; the shared one in slot 0.
        x: codes of N rows of D values.
        expert_ids: [N, K] int32, contiguous. Entries whose expert is in no slot are left out.
        rows, shared_rows: room for N K and N entries, codes zero past a row's end.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
    """
    num_rows, top_k = expert_ids.shape
    layout = routed.layout
    sizes = (layout.expert_size, shared.layout.expert_size)
    formats = (layout.formats[0], shared.layout.formats[0])
    slots = min(4, triton.next_power_of_2(x.num_groups))
    *routed_tail, routed_groups = tail_args(rows.h, bad)
    *shared_tail, shared_groups = tail_args(shared_rows.h, bad)
    _gate_up_kernel[(max(sizes) // 32, num_rows * (top_k + 1))](
        x.codes, x.scales, x.sums, x.scaled_sums, x.scaled_half_sums, expert_ids, routed.slot_of,
        routed.blobs, layout.blob_bytes, routed.scales, lattice(formats[0], bad.device),
        shared.blobs, shared.scales, lattice(formats[1], bad.device),
        *routed_tail, *shared_tail[:5],
        TOP_K=top_k, R_SIZE=sizes[0], S_SIZE=sizes[1], R_OUT_GROUPS=routed_groups,
        S_OUT_GROUPS=shared_groups, SLOTS=slots,
        **_numbered(shape_of(formats[0], layout.hidden_size), "R"),
        **_numbered(shape_of(formats[1], layout.hidden_size), "S"),
        # Two programs a multiprocessor, or a row's 220 would take two turns.
        num_warps=2 * slots, maxnreg=128, **LAUNCH_AFTER,
    )  # fmt: skip


def down_outputs(
    routed: ExpertSlots,
    shared: ExpertSlots,
    expert_ids: Tensor,
    rows: ExpertRows,
    shared_rows: ExpertRows,
) -> None:
    """``y`` of both from ``h``; arguments as of ``gate_up_codes``.

    Bytes: down of every distinct expert, 0.9 MB each at 4.5 bits. Grid: (D / 16, N (K + 1)), 160
    by 11 for a row; one warp.
    """
    num_rows, top_k = expert_ids.shape
    layout = routed.layout
    formats = (layout.formats[2], shared.layout.formats[2])
    num_panels = layout.hidden_size // 8
    h, shared_h = rows.h, shared_rows.h
    tile, options = tiling_options(None, num_panels, max(h.num_groups, shared_h.num_groups))
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
        **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _block_of_codes(
    blob_ptr, factors_ptr, x, table, entry, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
    halves_ptr, bad_ptr, SIZE: tl.constexpr, OUT_GROUPS: tl.constexpr, FORMAT: tl.constexpr,
    TRAITS: tl.constexpr, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Codes of 32 columns of one entry."""
    block = tl.program_id(0)
    number = tl.arange(0, 2 * _PANELS * SLOTS * 8) // (8 * SLOTS)
    panel = block * _PANELS + number % _PANELS + number // _PANELS * (SIZE // 8)
    THREADS: tl.constexpr = 2 * _PANELS * SLOTS * 8
    words = first_words(
        blob_ptr, (panel,), PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, SLOTS, False, THREADS
    )
    totals = panel_sums(
        words, blob_ptr, (panel,), x, table, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES,
        GROUPS, IS_SHORT, 1, SLOTS, False, THREADS,
    )  # fmt: skip
    sums = tl.reshape(totals[0], (2 * _PANELS, SLOTS, 8))
    # Every slot holds the same: one of them and zeros are an exact sum. So are gate and zeros.
    is_first = tl.arange(0, SLOTS)[None, :, None] == 0
    both = tl.reshape(tl.sum(tl.where(is_first, sums, 0.0), axis=1), (2, 32))
    is_gate = tl.arange(0, 2)[:, None] == 0
    gate = tl.sum(tl.where(is_gate, both, 0.0), axis=0) * tl.load(factors_ptr)
    up = tl.sum(tl.where(is_gate, 0.0, both), axis=0) * tl.load(factors_ptr + 1)
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
    S_OUT_GROUPS: tl.constexpr, SLOTS: tl.constexpr, R_FORMAT: tl.constexpr,
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
    table = points_of(grid_ptr, R_FORMAT)
    shared_table = points_of(shared_grid_ptr, S_FORMAT)
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
                shared_ptr, shared_factors_ptr, x, shared_table, n, s_codes_ptr, s_scales_ptr,
                s_sums_ptr, s_scaled_ptr, s_halves_ptr, bad_ptr, S_SIZE, S_OUT_GROUPS, S_FORMAT,
                S_TRAITS, S_PLANES, S_NUM_PLANES, S_PANEL_BYTES, S_GROUPS, S_IS_SHORT, SLOTS,
            )  # fmt: skip
    elif tl.program_id(0) * 32 < R_SIZE:
        entry = n * TOP_K + k
        slot = tl.load(slot_of_ptr + tl.load(ids_ptr + entry)).to(tl.int64)
        if slot >= 0:
            _block_of_codes(
                blobs_ptr + slot * blob_bytes, factors_ptr + slot * 3, x, table, entry,
                r_codes_ptr, r_scales_ptr, r_sums_ptr, r_scaled_ptr, r_halves_ptr, bad_ptr, R_SIZE,
                R_OUT_GROUPS, R_FORMAT, R_TRAITS, R_PLANES, R_NUM_PLANES, R_PANEL_BYTES, R_GROUPS,
                R_IS_SHORT, SLOTS,
            )  # fmt: skip


@triton.jit
def _entry_outputs(
    blob_ptr, num_panels, factor_ptr, grid_ptr, entry, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
    halves_ptr, out_ptr, FORMAT: tl.constexpr, TRAITS: tl.constexpr, PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr, SLOTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Some columns of one entry's output."""
    first = tl.program_id(0) * TILE
    x = (
        codes_ptr + entry * GROUPS * 256,
        scales_ptr + entry * GROUPS * 8,
        sums_ptr + entry * GROUPS * 8,
        scaled_ptr + entry * GROUPS * 8,
        halves_ptr + entry * GROUPS * 16,
    )
    totals = matrix_sums(
        blob_ptr, first, num_panels, x, grid_ptr, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES,
        GROUPS, IS_SHORT, 1, SLOTS, TILE,
    )  # fmt: skip
    panel = (first + tl.arange(0, TILE))[:, None, None]
    part = tl.arange(0, SLOTS)[None, :, None]
    rows = panel * 8 + part * 0 + tl.arange(0, 8)[None, None, :]
    is_stored = (panel < num_panels) & (part == 0) & (rows >= 0)
    at = out_ptr + entry * num_panels * 8 + rows
    tl.store(at, totals[0] * tl.load(factor_ptr), mask=is_stored)


@triton.jit(do_not_specialize=["num_panels"])
def _down_kernel(
    ids_ptr, slot_of_ptr, num_panels, blobs_ptr, blob_bytes, factors_ptr, grid_ptr, r_codes_ptr,
    r_scales_ptr, r_sums_ptr, r_scaled_ptr, r_halves_ptr, y_ptr, shared_ptr, shared_factors_ptr,
    shared_grid_ptr, s_codes_ptr, s_scales_ptr, s_sums_ptr, s_scaled_ptr, s_halves_ptr,
    shared_y_ptr, TOP_K: tl.constexpr, SLOTS: tl.constexpr, TILE: tl.constexpr,
    R_FORMAT: tl.constexpr, R_TRAITS: tl.constexpr, R_PLANES: tl.constexpr,
    R_NUM_PLANES: tl.constexpr, R_PANEL_BYTES: tl.constexpr, R_GROUPS: tl.constexpr,
    R_IS_SHORT: tl.constexpr, S_FORMAT: tl.constexpr, S_TRAITS: tl.constexpr,
    S_PLANES: tl.constexpr, S_NUM_PLANES: tl.constexpr, S_PANEL_BYTES: tl.constexpr,
    S_GROUPS: tl.constexpr, S_IS_SHORT: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(1) // (TOP_K + 1)).to(tl.int64)
    k = tl.program_id(1) % (TOP_K + 1)
    if IS_DEPENDENT:
        first = tl.program_id(0) * TILE
        if k == TOP_K:
            fetch_ahead(shared_ptr, first, num_panels, S_PANEL_BYTES, TILE)
        else:
            # Chosen two launches ago; past the first cache, since it is looked up again below.
            chosen = tl.load(ids_ptr + n * TOP_K + k, cache_modifier=".cg")
            slot = tl.load(slot_of_ptr + chosen, cache_modifier=".cg").to(tl.int64)
            if slot >= 0:
                blob_ptr = blobs_ptr + slot * blob_bytes
                fetch_ahead(blob_ptr, first, num_panels, R_PANEL_BYTES, TILE)
    wait_for_inputs()
    if k == TOP_K:
        _entry_outputs(
            shared_ptr, num_panels, shared_factors_ptr + 2, shared_grid_ptr, n, s_codes_ptr,
            s_scales_ptr, s_sums_ptr, s_scaled_ptr, s_halves_ptr, shared_y_ptr, S_FORMAT, S_TRAITS,
            S_PLANES, S_NUM_PLANES, S_PANEL_BYTES, S_GROUPS, S_IS_SHORT, SLOTS, TILE,
        )  # fmt: skip
    else:
        entry = n * TOP_K + k
        slot = tl.load(slot_of_ptr + tl.load(ids_ptr + entry)).to(tl.int64)
        if slot >= 0:
            _entry_outputs(
                blobs_ptr + slot * blob_bytes, num_panels, factors_ptr + slot * 3 + 2, grid_ptr,
                entry, r_codes_ptr, r_scales_ptr, r_sums_ptr, r_scaled_ptr, r_halves_ptr, y_ptr,
                R_FORMAT, R_TRAITS, R_PLANES, R_NUM_PLANES, R_PANEL_BYTES, R_GROUPS, R_IS_SHORT,
                SLOTS, TILE,
            )  # fmt: skip
