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
from strata.gpu.kernels.panels import (
    keep_sums,
    round_words,
    row_sums,
    scratch_words,
    store_rows,
)
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.kernels.tables import points_of
from strata.gpu.kernels.unpack import copies_of, traits
from strata.gpu.packing import PackedMatrix, panel_bytes, places_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

MAX_ROWS = 8
PAIR_FROM = 3
"""Rows of activations from which the matrix instruction is used (see ``panels``)."""

Tiling = tuple[int, int, bool] | tuple[int, int, bool, int]
"""WARPS, a power of two, and TILE panels of a program; IS_PAIR, with an even number of panels; most
registers of a thread, where there is a bound."""

# Microseconds on an H200 (tilings_on_card.py, 2026-11-30), first one row, then four. Eight warps
# and the tile that fills them are the fastest nearly everywhere (2560 columns: IQ3_S 6.3, next 7.5;
# Q2_0 3.7, next 4.0), and so are pairs in 128 registers (Q4_0 6.9, without a bound 7.9, plain 10.0;
# IQ3_S 8.9, 9.9, 11.1; Q2_0 5.8, 5.9, 10.2; Q5_K of 6144 columns 8.1, 13.3, 9.5). Pairs do not pay
# where a block has two sums: Q6_K of 248320 rows 172, plain 146.
_MOST_WARPS = 8
_PAIR_REGISTERS = 128
_FEWER_WARPS = 4  # IQ4_XS, in two rounds: 9.1, with eight 10.5; pairs without a bound 12.4, 13.0


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

    Every slot holds the same; TILE * SLOTS * 8 threads. ``table`` is as ``block_codes`` takes it.
    """
    THREADS: tl.constexpr = TILE * SLOTS * 8
    scratch = shared_words(scratch_words(N, TILE, GROUPS))
    words = round_words(
        0, panels_ptr, first_panel, 0, num_panels, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS,
        IS_SHORT, TILE, TILE, False, THREADS,
    )  # fmt: skip
    keep_sums(
        words, panels_ptr, first_panel, 0, num_panels, x, table, scratch, FORMAT, TRAITS, PLANES,
        NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, N, TILE, TILE, False, THREADS,
    )  # fmt: skip
    place = tl.arange(0, TILE)[:, None, None] * 8 + tl.arange(0, 8)[None, None, :]
    place = place + tl.arange(0, SLOTS)[None, :, None] * 0
    sums = ()
    for n in tl.static_range(N):
        sums = sums + (row_sums(scratch, n * TILE * 8 + place, GROUPS),)
    return sums


@triton.jit
def multiply_panels(
    first, panels_ptr, num_panels, x, grid_ptr, scratch, out_ptr, out_stride, num_rows,
    FORMAT: tl.constexpr, TRAITS: tl.constexpr, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, IS_PAIR: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """out[n, row] of the rows of TILE panels from ``first`` on; all that a program does.

    ``scratch`` is the address of ``scratch_words`` words of shared memory.
    """
    UNITS: tl.constexpr = TILE // 2 if IS_PAIR else TILE
    if UNITS * GROUPS * 8 > THREADS:
        fetch_ahead(panels_ptr, first, num_panels, PANEL_BYTES, TILE)
    words = round_words(
        0, panels_ptr, first, 0, num_panels, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT,
        UNITS, UNITS, IS_PAIR, THREADS,
    )  # fmt: skip
    table = points_of(grid_ptr, FORMAT, TRAITS)
    wait_for_inputs()
    keep_sums(
        words, panels_ptr, first, 0, num_panels, x, table, scratch, FORMAT, TRAITS, PLANES,
        NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, N, UNITS, UNITS, IS_PAIR, THREADS,
    )  # fmt: skip
    store_rows(scratch, first, num_rows, out_ptr, out_stride, GROUPS, N, TILE)


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
    TILE: tl.constexpr,
    IS_PAIR: tl.constexpr,
    THREADS: tl.constexpr,
):
    multiply_panels(
        tl.program_id(0) * TILE, panels_ptr, num_panels,
        (codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr), grid_ptr,
        shared_words(scratch_words(N, TILE, GROUPS)), out_ptr, out_stride, num_rows, FORMAT,
        TRAITS, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS, IS_SHORT, N, TILE, IS_PAIR, THREADS,
    )  # fmt: skip


def shape_of(format_name: str, inner: int) -> dict[str, object]:
    """The compile-time arguments that a format and an inner size decide."""
    places = places_of(format_name, inner)
    return {
        "FORMAT": format_name,
        "TRAITS": (*traits(format_name), copies_of(format_name)),
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
    tiling: Tiling | None,
    num_panels: int,
    num_groups: int,
    num_rows: int = 1,
    formats: tuple[str, ...] = (),
) -> tuple[int, dict[str, int]]:
    """TILE, and the options of a launch with a tiling; None chooses one by sizes and formats."""
    if tiling is None:
        tiling = _chosen(num_panels, num_groups, num_rows, formats)
    num_warps, tile, is_pair = tiling[:3]
    options = {"TILE": tile, "IS_PAIR": is_pair, "THREADS": 32 * num_warps, "num_warps": num_warps}
    return tile, options | ({"maxnreg": tiling[3]} if len(tiling) == 4 else {})


def _chosen(num_panels: int, num_groups: int, num_rows: int, formats: tuple[str, ...]) -> Tiling:
    """All groups of a program at once: its loads are all on their way before it multiplies."""
    is_pair = num_rows >= PAIR_FROM and not any(map(_has_two_sums, formats))
    run = 2 if is_pair else 1
    if arith.INTERPRETED:
        # Calls of an interpreted program cost the same whatever its width.
        units = -(-min(32, num_panels) // run)
        return triton.next_power_of_2(-(-units * num_groups // 4)), run * units, is_pair
    # As many groups as fill the warps best, the most warps of equals.
    tiles = [(4 * warps // num_groups, warps) for warps in (_MOST_WARPS, 4, 2, 1)]
    fitting = [(tile * num_groups / warps, warps, tile) for tile, warps in tiles if tile]
    _, num_warps, tile = max(fitting, default=(0, _MOST_WARPS, 1))
    if formats == ("IQ4_XS",):
        return min(num_warps, _FEWER_WARPS), run * tile, is_pair
    if is_pair:
        # Two panels take the registers of two: no second program would fit beside one.
        return num_warps, 2 * tile, True, _PAIR_REGISTERS
    return num_warps, tile, False


def _has_two_sums(format_name: str) -> bool:
    """Whether a block has a sum for each 16 weights: twice the matrix instructions."""
    _, num_scales, has_sub, *_ = traits(format_name)
    return num_scales + has_sub == 2


def product(weights: PackedMatrix, x: Codes, out: Tensor, tiling: Tiling | None = None) -> None:
    """out[n] = weights x[n] for every row of ``x``; a row's bits do not depend on the others.

    Args:
        weights: a packed quantised matrix of ``inner`` columns.
        x: codes of 1 to 8 rows of this inner size.
        out: [N, num_rows] float32, rows of any stride.
        tiling: of the launch; None chooses, the bits are the same.
    """
    tile, options = tiling_options(
        tiling, weights.num_panels, x.num_groups, x.num_rows, (weights.format_name,)
    )
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
