"""Packed matrices times a few rows of quantised activations: the dense products of decoding.

A thread has one row of the matrix and every SLOTS-th group of it. Group sums are added in
ascending order by picking one slot's value at a time: a sum in which all but one are zero is exact
in any order. So a result's bits depend neither on SLOTS nor on the number of activation rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from strata.gpu.kernels import arith
from strata.gpu.kernels.group import group_sums, load_group
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.unpack import traits
from strata.gpu.packing import PackedMatrix, panel_bytes, places_of

if TYPE_CHECKING:
    from strata.gpu.kernels.quantize import Codes

MAX_ROWS = 8


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
    N: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
):
    """N tensors [TILE, 8]: rows of TILE panels times N rows of activations."""
    thread = tl.arange(0, TILE * SLOTS * 8)
    row = thread % 8
    slot = thread // 8 % SLOTS
    panel = tl.minimum(first_panel + thread // (8 * SLOTS), num_panels - 1)
    base = panels_ptr + panel.to(tl.int64) * PANEL_BYTES
    slots = tl.arange(0, SLOTS)[None, :, None]
    totals = ()
    for _ in tl.static_range(N):
        totals = totals + (tl.zeros((TILE, 8), tl.float32),)
    for first in tl.static_range(0, GROUPS, SLOTS):
        # Codes of a row that ends inside a group are clamped at their last load.
        is_short: tl.constexpr = first + SLOTS >= GROUPS
        group = first + slot
        if is_short:
            group = tl.minimum(group, GROUPS - 1)
        words = load_group(base, row, group, PLANES, NUM_PLANES, is_short)
        sums = group_sums(words, x, group, grid_ptr, FORMAT, TRAITS, GROUPS, N)
        added = ()
        for n in tl.static_range(N):
            total = totals[n]
            by_slot = tl.reshape(sums[n], (TILE, SLOTS, 8))
            for s in tl.static_range(SLOTS):
                if first + s < GROUPS:
                    total = total + tl.sum(tl.where(slots == s, by_slot, 0.0), axis=1)
            added = added + (total,)
        totals = added
    return totals


@triton.jit
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
    N: tl.constexpr,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
):
    first = tl.program_id(0) * TILE
    x = (codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr)
    totals = matrix_sums(
        panels_ptr, first, num_panels, x, grid_ptr, FORMAT, TRAITS, PLANES, NUM_PLANES,
        PANEL_BYTES, GROUPS, N, SLOTS, TILE,
    )  # fmt: skip
    rows = (first + tl.arange(0, TILE))[:, None] * 8 + tl.arange(0, 8)[None, :]
    for n in tl.static_range(N):
        tl.store(out_ptr + n * out_stride + rows, totals[n], mask=rows < num_rows)


def shape_of(format_name: str, inner: int) -> dict[str, object]:
    """The compile-time arguments that a format and an inner size decide."""
    places = places_of(format_name, inner)
    return {
        "FORMAT": format_name,
        "TRAITS": traits(format_name),
        "PLANES": tuple((p.offset, p.load_bytes, p.loads, p.total_loads) for p in places),
        "NUM_PLANES": len(places),
        "PANEL_BYTES": panel_bytes(format_name, inner),
        "GROUPS": -(-inner // 256),
    }


def tiling(num_panels: int, groups: int) -> tuple[int, int, int]:
    """(SLOTS, TILE, warps) of a product; any choice gives the same bits."""
    slots = 4
    tile = 1 if num_panels * groups < 4096 else 2
    return slots, tile, max(1, slots * tile * 8 // 32)


def product(weights: PackedMatrix, x: Codes, out: Tensor) -> None:
    """out[n] = weights x[n] for every row of ``x``; a row's bits do not depend on the others.

    Args:
        weights: a packed quantised matrix of ``inner`` columns.
        x: codes of 1 to 8 rows of this inner size.
        out: [N, num_rows] float32, rows of any stride.
    """
    slots, tile, num_warps = tiling(weights.num_panels, x.num_groups)
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
        SLOTS=slots,
        TILE=tile,
        num_warps=num_warps,
        **arith.LAUNCH,
    )
