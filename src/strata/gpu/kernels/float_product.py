"""Matrices of plain types times a few rows of float32: routers and small projections.

The order is that of docs/numerics.md, "F32, F16, BF16 weights": four sums by k modulo 4, k
ascending, joined as (p0 + p1) + (p2 + p3). A thread has one of a row's four sums, so a result's
bits depend neither on the grid nor on the number of activation rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.words import half_of, load_words

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix

_STREAM = tl.constexpr("ld.global.L1::no_allocate.L2::128B")
_CACHED = tl.constexpr("ld.global")
# Loads of sixteen bytes a thread keeps in flight.
_MOST_AHEAD = 8
# Calls of an interpreted program cost the same whatever its width.
_INTERPRETED_PANELS = 64
# A sum is one chain of additions, which a few panels leave waiting on an idle card: there each row
# of activations has programs of its own. Many panels are read once for all rows instead.
_FEW_PANELS = 512


@triton.jit
def weight_value(word, INDEX: tl.constexpr, FORMAT: tl.constexpr):
    """Weight INDEX of a loaded word as float32."""
    if FORMAT == "F32":
        return word.to(tl.float32, bitcast=True)
    if FORMAT == "F16":
        return half_of(word, INDEX)
    if INDEX == 0:
        return (word << 16).to(tl.float32, bitcast=True)
    return (word & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _load_ahead(base, first, AHEAD: tl.constexpr):
    """Words of AHEAD loads from number ``first`` on."""
    words = ()
    for i in tl.static_range(AHEAD):
        words = words + load_words(base + (first + i).to(tl.int64) * 512, 4, _STREAM)
    return words


@triton.jit
def _inputs(x_ptr, x_stride, first, COUNT: tl.constexpr, N: tl.constexpr):
    """4 COUNT values of each row from ``first`` on, where a sum's values lie side by side."""
    words = ()
    for n in tl.static_range(N):
        for i in tl.static_range(COUNT):
            words = words + load_words(x_ptr + n * x_stride + first + 4 * i, 4, _CACHED)
    return words


@triton.jit
def float_sums(
    panels_ptr, first_panel, num_panels, x_ptr, x_stride, FORMAT: tl.constexpr,
    INNER: tl.constexpr, LOADS: tl.constexpr, AHEAD: tl.constexpr, VALUES: tl.constexpr,
    N: tl.constexpr, TILE: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """Rows of TILE panels times N rows of x: N tensors [TILE * 8].

    With IS_SPLIT, value k of a row of x is at [k % 4, k // 4].
    """
    thread = tl.arange(0, TILE * 32)
    part = thread % 4
    panel = tl.minimum(first_panel + thread // 32, num_panels - 1)
    base = panels_ptr + panel.to(tl.int64) * (LOADS * 512) + thread % 32 * 16
    COUNT: tl.constexpr = AHEAD * VALUES // 4
    # Of several rows there are too many to hold those of the next round.
    IS_EARLY: tl.constexpr = IS_SPLIT and N == 1
    split_ptr = x_ptr + part * (INNER // 4)
    sums = ()
    for _ in tl.static_range(N):
        sums = sums + (tl.zeros((TILE * 32,), tl.float32),)
    zero = first_panel * 0
    words = _load_ahead(base, zero, AHEAD)
    given = _inputs(split_ptr, x_stride, zero, COUNT if IS_EARLY else 0, N)
    for first in range(0, LOADS, AHEAD):
        second = tl.minimum(first + AHEAD, LOADS - AHEAD)
        following = _load_ahead(base, second, AHEAD)
        coming = _inputs(split_ptr, x_stride, second * VALUES, COUNT if IS_EARLY else 0, N)
        for i in tl.static_range(AHEAD * VALUES):
            weight = weight_value(words[i * 4 // VALUES], i % (VALUES // 4), FORMAT)
            k = (first * VALUES + i) * 4 + part
            if IS_SPLIT and not IS_EARLY and i % 4 == 0:
                near = _inputs(split_ptr, x_stride, first * VALUES + i, 1, N)
            added = ()
            for n in tl.static_range(N):
                if IS_EARLY:
                    x = given[i].to(tl.float32, bitcast=True)
                elif IS_SPLIT:
                    x = near[4 * n + i % 4].to(tl.float32, bitcast=True)
                elif INNER % (4 * VALUES) == 0:
                    x = tl.load(x_ptr + n * x_stride + k)
                else:
                    x = tl.load(x_ptr + n * x_stride + k, mask=k < INNER, other=0.0)
                added = added + (sums[n] + weight * x,)
            sums = added
        words = following
        if IS_EARLY:
            given = coming
    joined = ()
    for n in tl.static_range(N):
        even, odd = tl.split(tl.reshape(sums[n], (TILE * 8, 2, 2)))
        low, high = tl.split(even + odd)
        joined = joined + (low + high,)
    return joined


@triton.jit
def _float_kernel(
    panels_ptr, num_panels, x_ptr, x_stride, out_ptr, num_rows, out_stride, FORMAT: tl.constexpr,
    INNER: tl.constexpr, LOADS: tl.constexpr, AHEAD: tl.constexpr, VALUES: tl.constexpr,
    N: tl.constexpr, TILE: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TILE
    n_first = tl.program_id(1) * N
    fetch_ahead(panels_ptr, first, num_panels, LOADS * 512, TILE)
    wait_for_inputs()
    sums = float_sums(
        panels_ptr, first, num_panels, x_ptr + n_first * x_stride, x_stride, FORMAT, INNER, LOADS,
        AHEAD, VALUES, N, TILE, IS_SPLIT,
    )  # fmt: skip
    row = first * 8 + tl.arange(0, TILE * 8)
    for n in tl.static_range(N):
        tl.store(out_ptr + (n_first + n) * out_stride + row, sums[n], mask=row < num_rows)


def float_shape(weights: FloatMatrix, most_ahead: int = _MOST_AHEAD) -> dict[str, object]:
    """The compile-time arguments that a matrix decides; loads kept in flight take registers."""
    loads = weights.panels.shape[1] // 512
    return {
        "FORMAT": weights.format_name,
        "INNER": weights.inner,
        "LOADS": loads,
        "AHEAD": max(n for n in range(1, most_ahead + 1) if loads % n == 0),
        "VALUES": 16 // (4 if weights.format_name == "F32" else 2),
    }


def can_split(inner: int) -> bool:
    """Whether rows of this many values may be given split, for every plain format."""
    return inner % 32 == 0


def float_product(weights: FloatMatrix, x: Tensor, out: Tensor, *, is_split: bool = False) -> None:
    """out[n] = weights x[n] for every row of ``x``; a row's bits do not depend on the others.

    Args:
        weights: a matrix of ``inner`` columns.
        x: [N, inner] float32, N from 1 to 8, rows of any stride.
        is_split: rows of x are [4, inner / 4], value k at [k % 4, k // 4]: as the sums take them,
            so that a thread loads four at once. Where ``can_split`` says so.
        out: [N, num_rows] float32, rows of any stride.
    """
    tile, together = 1, len(x)
    if INTERPRETED:
        tile = min(_INTERPRETED_PANELS, triton.next_power_of_2(weights.num_panels))
    elif weights.num_panels <= _FEW_PANELS:
        together = 1
    _float_kernel[(triton.cdiv(weights.num_panels, tile), len(x) // together)](
        weights.panels, weights.num_panels, x, x.stride(0), out, weights.num_rows, out.stride(0),
        **float_shape(weights), N=together, TILE=tile, IS_SPLIT=is_split,
        num_warps=tile if tile <= 4 else 4, **LAUNCH_AFTER,
    )  # fmt: skip
