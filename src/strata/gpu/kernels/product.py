"""Packed matrices times a few rows of quantised activations: the dense products of decoding.

Owns the launch and its tiling; the sums are those of ``panels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.panels import clamped, first_words, panel_sums, panels_of, store_sums
from strata.gpu.kernels.tables import points_of
from strata.gpu.kernels.unpack import traits
from strata.gpu.packing import PackedMatrix, panel_bytes, places_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

MAX_ROWS = 8
PAIR_FROM = 3
"""Rows of activations from which the matrix instruction is used (see ``panels``)."""

Tiling = tuple[int, int, bool]
"""SLOTS (1, 2 or 4) groups and TILE panels, powers of two, side by side in a program; IS_PAIR, with
4 slots and at least two panels."""


@triton.jit
def matrix_sums(
    panels_ptr,
    first_panel,
    num_panels,
    x,
    table,
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

    Every slot holds the same. ``table`` is as ``block_codes`` takes it.
    """
    THREADS: tl.constexpr = TILE * SLOTS * 8
    panels = clamped(panels_of(first_panel, THREADS, SLOTS, False), num_panels, False)
    words = first_words(
        panels_ptr, panels, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, SLOTS, False, THREADS
    )
    totals = panel_sums(
        words, panels_ptr, panels, x, table, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES,
        GROUPS, IS_SHORT, N, SLOTS, False, THREADS,
    )  # fmt: skip
    shaped = ()
    for n in tl.static_range(N):
        shaped = shaped + (tl.reshape(totals[n], (TILE, SLOTS, 8)),)
    return shaped


@triton.jit
def multiply_panels(
    first, panels_ptr, num_panels, x, grid_ptr, out_ptr, out_stride, num_rows,
    FORMAT: tl.constexpr, TRAITS: tl.constexpr, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, N: tl.constexpr,
    SLOTS: tl.constexpr, TILE: tl.constexpr, IS_PAIR: tl.constexpr,
):  # fmt: skip
    """out[n, row] of the rows of TILE panels from ``first`` on; all that a program does."""
    THREADS: tl.constexpr = TILE * SLOTS * 8 // (2 if IS_PAIR else 1)
    fetch_ahead(panels_ptr, first, num_panels, PANEL_BYTES, TILE)
    panels = panels_of(first, THREADS, SLOTS, IS_PAIR)
    loaded = clamped(panels, num_panels, IS_PAIR)
    words = first_words(
        panels_ptr, loaded, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, SLOTS, IS_PAIR,
        THREADS,
    )  # fmt: skip
    table = points_of(grid_ptr, FORMAT)
    wait_for_inputs()
    sums = panel_sums(
        words, panels_ptr, loaded, x, table, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES,
        GROUPS, IS_SHORT, N, SLOTS, IS_PAIR, THREADS,
    )  # fmt: skip
    store_sums(sums, panels, out_ptr, out_stride, num_rows, N, SLOTS, IS_PAIR, THREADS)


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
    IS_PAIR: tl.constexpr,
):
    multiply_panels(
        tl.program_id(0) * TILE, panels_ptr, num_panels,
        (codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr), grid_ptr, out_ptr, out_stride,
        num_rows, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, N, SLOTS,
        TILE, IS_PAIR,
    )  # fmt: skip


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
    tiling: Tiling | None, num_panels: int, num_groups: int, num_rows: int = 1
) -> tuple[int, dict[str, int]]:
    """TILE, and the options of a launch with a tiling; None chooses one by sizes."""
    if tiling is not None:
        slots, tile, is_pair = tiling
    elif arith.INTERPRETED:
        is_pair = num_rows >= PAIR_FROM
        slots, tile = 4, max(2, min(32, triton.next_power_of_2(num_panels)))
    elif num_rows >= PAIR_FROM:
        slots, tile, is_pair = 4, 2, True
    else:
        # One warp: four groups of eight rows. Of three groups, a fourth would only wait.
        slots, tile, is_pair = (2, 2, False) if num_groups <= 3 else (4, 1, False)
    num_warps = max(1, slots * tile * (4 if is_pair else 8) // 32)
    return tile, {"SLOTS": slots, "TILE": tile, "IS_PAIR": is_pair, "num_warps": num_warps}


def product(weights: PackedMatrix, x: Codes, out: Tensor, tiling: Tiling | None = None) -> None:
    """out[n] = weights x[n] for every row of ``x``; a row's bits do not depend on the others.

    Args:
        weights: a packed quantised matrix of ``inner`` columns.
        x: codes of 1 to 8 rows of this inner size.
        out: [N, num_rows] float32, rows of any stride.
        tiling: of the launch; None chooses, the bits are the same.
    """
    tile, options = tiling_options(tiling, weights.num_panels, x.num_groups, x.num_rows)
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
