"""Packed matrices times a few rows of quantised activations: the dense products of decoding.

A thread has one row of the matrix and every SLOTS-th group of it. Group sums are added in
ascending order by picking one slot's value at a time: a sum in which all but one are zero is exact
in any order. So a result's bits depend neither on SLOTS nor on the number of activation rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.group import group_sums, load_group
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.unpack import traits
from strata.gpu.packing import PackedMatrix, panel_bytes, places_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

MAX_ROWS = 8
Tiling = tuple[int, int]


@triton.jit
def matrix_sums(
    panels_ptr,
    first_panel,
    num_panels,
    x,
    grid_ptr,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    N: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Rows of TILE panels times N rows of activations: N tensors [TILE, SLOTS, 8].

    Every slot holds the same.
    """
    thread = tl.arange(0, TILE * SLOTS * 8)
    panel = tl.minimum(first_panel + thread // (8 * SLOTS), num_panels - 1)
    return panel_sums(
        panels_ptr, panel, x, grid_ptr, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS,
        IS_SHORT, N, SLOTS, TILE,
    )  # fmt: skip


@triton.jit
def panel_sums(
    panels_ptr,
    panel,
    x,
    grid_ptr,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    N: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """``matrix_sums`` of any panels: ``panel`` [TILE * SLOTS * 8] is the one of each thread."""
    thread = tl.arange(0, TILE * SLOTS * 8)
    row = thread % 8
    slot = thread // 8 % SLOTS
    base = panels_ptr + panel.to(tl.int64) * PANEL_BYTES
    totals = ()
    for _ in tl.static_range(N):
        totals = totals + (tl.zeros((TILE, 8), tl.float32),)
    # A loop of the machine, not unrolled: the code of eight rows would outgrow its cache.
    for first in range(0, GROUPS, SLOTS):
        group = tl.minimum(first + slot, GROUPS - 1)
        words = load_group(base, row, group, PLANES, NUM_PLANES, IS_SHORT)
        # Keeps all loads of a round ahead of its arithmetic; else they are issued one by one.
        tl.debug_barrier()
        sums = group_sums(words, x, group, grid_ptr, FORMAT, TRAITS, GROUPS, N)
        added = ()
        for n in tl.static_range(N):
            live = tl.where(first + slot < GROUPS, sums[n], 0.0)
            added = added + (_add_in_order(totals[n], live, SLOTS, TILE),)
        totals = added
    spread = ()
    for n in tl.static_range(N):
        spread = spread + (tl.broadcast_to(totals[n][:, None, :], (TILE, SLOTS, 8)),)
    return spread


@triton.jit
def _add_in_order(total, sums, SLOTS: tl.constexpr, TILE: tl.constexpr):
    """``total`` [TILE, 8] plus the slots' sums, ascending.

    A slot is picked by a sum over all, the others zero. ``tl.gather`` would need fewer shuffles,
    but wants another distribution over threads, and Triton then unpacks the weights in both.
    """
    by_slot = tl.reshape(sums, (TILE, SLOTS, 8))
    slots = tl.arange(0, SLOTS)[None, :, None]
    for s in tl.static_range(SLOTS):
        total = total + tl.sum(tl.where(slots == s, by_slot, 0.0), axis=1)
    return total


# Sizes must not choose a compilation of their own: one kernel serves all matrices of a format.
_SIZES = ["num_panels", "num_rows", "out_stride"]


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=["out_ptr"])
def _product_kernel(
    panels_ptr,
    num_panels,
    codes_ptr,
    scales_ptr,
    sums_ptr,
    scaled_ptr,
    halves_ptr,
    grid_ptr,
    out_ptr,
    num_rows,
    out_stride,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    N: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
):
    first = tl.program_id(0) * TILE
    fetch_ahead(panels_ptr, first, num_panels, PANEL_BYTES, TILE)
    wait_for_inputs()
    x = (codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr)
    totals = matrix_sums(
        panels_ptr, first, num_panels, x, grid_ptr, FORMAT, TRAITS, PLANES, NUM_PLANES,
        PANEL_BYTES, GROUPS, IS_SHORT, N, SLOTS, TILE,
    )  # fmt: skip
    panel = (first + tl.arange(0, TILE))[:, None, None]
    slot = tl.arange(0, SLOTS)[None, :, None]
    rows = panel * 8 + slot * 0 + tl.arange(0, 8)[None, None, :]
    for n in tl.static_range(N):
        is_stored = (rows < num_rows) & (slot == 0)
        tl.store(out_ptr + n * out_stride + rows, totals[n], mask=is_stored)


def shape_of(format_name: str, inner: int) -> dict[str, object]:
    """The compile-time arguments that a format and an inner size decide."""
    places = places_of(format_name, inner)
    return {
        "FORMAT": format_name,
        "TRAITS": traits(format_name),
        # Four numbers a plane: a tuple of tuples does not survive Triton's calls.
        "PLANES": tuple(
            n for p in places for n in (p.offset, p.load_bytes, p.loads, p.total_loads)
        ),
        "NUM_PLANES": len(places),
        "PANEL_BYTES": panel_bytes(format_name, inner),
        "GROUPS": -(-inner // 256),
        "IS_SHORT": inner % 256 != 0,
    }


def tiling_options(
    tiling: Tiling | None, num_panels: int, num_groups: int
) -> tuple[int, dict[str, int]]:
    """TILE, and the options of a launch with a tiling; None chooses one."""
    if tiling is not None:
        slots, tile = tiling
    elif arith.INTERPRETED:
        slots, tile = 4, min(32, triton.next_power_of_2(num_panels))
    else:
        # One warp: four groups of eight rows. Of three groups, a fourth would only wait.
        slots, tile = (2, 2) if num_groups <= 3 else (4, 1)
    return tile, {"SLOTS": slots, "TILE": tile, "num_warps": max(1, slots * tile * 8 // 32)}


def product(weights: PackedMatrix, x: Codes, out: Tensor, tiling: Tiling | None = None) -> None:
    """out[n] = weights x[n] for every row of ``x``; a row's bits do not depend on the others.

    Args:
        weights: a packed quantised matrix of ``inner`` columns.
        x: codes of 1 to 8 rows of this inner size.
        out: [N, num_rows] float32, rows of any stride.
        tiling: (SLOTS, TILE), powers of two: groups and panels side by side in a program. None
            chooses; the bits are the same.
    """
    tile, options = tiling_options(tiling, weights.num_panels, x.num_groups)
    _product_kernel[(triton.cdiv(weights.num_panels, tile),)](
        weights.panels,
        weights.num_panels,
        x.codes,
        x.scales,
        x.sums,
        x.scaled_sums,
        x.scaled_half_sums,
        lattice(weights.format_name, out.device),
        out,
        weights.num_rows,
        out.stride(0),
        **shape_of(weights.format_name, weights.inner),
        N=x.num_rows,
        **options,
        **LAUNCH_AFTER,
    )
