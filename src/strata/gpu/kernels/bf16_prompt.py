"""BF16 matrices times the rows of a prompt, on tensor cores.

A float32 activation is the exact sum of three bfloat16 (8 bits each), so three products of a matrix
instruction lose nothing but the rounding of sums; that is seven times as fast as the fixed order of
``float_prompt``, which plain matrices have in decode windows. Activations are read as they are and
cut in the registers, once for all weight rows of a program. Where a prompt is cut changes no bit,
since a row's sums do not depend on the others; nor does the tile, since a result is the same chain
of matrix instructions in any.

Reference: a product in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED, LAUNCH
from strata.gpu.kernels.sizes import cdiv

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix

PARTS = 3
"""Parts of an activation."""


class Tiling(NamedTuple):
    """Rows of activations, tiles of 64 weight rows at most, warps, and steps under way."""

    tokens: int
    count: int
    warps: int
    stages: int


# The large one reads activations once for 320 weight rows; with few rows of activations it would
# leave most of a card idle. The fastest tried on an H200 for 324 rows of 4 x 2560 and 8,192 rows,
# 2026-11-30 (mixer_variants_on_card.py): 0.60 ms, 0.63 with 128 weight rows of four warps, 0.67
# with 256 activations and 128 weight rows; 30 words of a thread are spilled.
LARGE, SMALL = Tiling(128, 5, 8, 3), Tiling(64, 1, 4, 3)
# The large one is taken from so many programs on: a chunk of 4,096 rows has them.
_LEAST_PROGRAMS = 128
_ROWS, _TAIL = 64, 16  # weight rows of a tile, and of the last where no more are left
_STEP = tl.constexpr(32)  # values of a step
_UNPACK_LOADS = 8


def unpack_bf16(weights: FloatMatrix, out: Tensor) -> None:
    """out = the matrix as its file has it, whose rows lie as those of activations do.

    Bytes: those of the matrix, twice. Grid: (panels, loads / 8).

    Args:
        weights: a BF16 matrix of ``inner`` columns, a multiple of 32.
        out: [num_rows, inner] bfloat16, contiguous.
    """
    loads = weights.inner // 32
    _unpack_kernel[(weights.num_panels, cdiv(loads, _UNPACK_LOADS))](
        weights.panels.view(torch.int16), out.view(torch.int16), weights.num_rows,
        INNER=weights.inner, LOADS=weights.panels.shape[1] // 512, TILE=_UNPACK_LOADS, num_warps=4,
        **LAUNCH,
    )  # fmt: skip


def bf16_prompt_product(weights: FloatMatrix, x: Tensor, room: Tensor, out: Tensor) -> None:
    """out[t] = weights x[t].

    Bytes a row: 4 for each value, once for each group of tiles of weight rows. Grid: tiles of
    activations times groups, neighbours share activations.

    Args:
        weights: a BF16 matrix of ``inner`` columns, a multiple of 32.
        x: [T, inner] float32, rows of any stride.
        room: flat bfloat16 of at least the matrix's size, scratch.
        out: [T, num_rows] float32, rows of any stride.
    """
    rows = room[: weights.num_rows * weights.inner].view(weights.num_rows, weights.inner)
    unpack_bf16(weights, rows)
    launch_product(x, None, None, rows, out[None], 1)


def launch_product(
    x: Tensor,
    gamma: Tensor | None,
    inverse: Tensor | None,
    weights: Tensor,
    out: Tensor,
    num_streams: int,
    tiling: Tiling | None = None,
) -> None:
    """out[s, t] = inverse[t, s] * (weights of s . (gamma of s * x[t] of s)) for streams s.

    Args:
        x: [T, S * D] float32, rows of any stride; D a multiple of 32.
        gamma: [S * D] float32; None is one.
        inverse: [T, S] float32; None is one.
        weights: [R, S * D] bfloat16, contiguous.
        out: [S, T, R] float32, columns side by side.
        num_streams: S.
        tiling: LARGE or SMALL by the size if None.
    """
    num_tokens, num_rows = len(x), len(weights)
    if tiling is None:
        _, _, groups = tiles_of_rows(num_rows, LARGE.count)
        programs = cdiv(num_tokens, LARGE.tokens) * groups * num_streams
        tiling = LARGE if programs >= _LEAST_PROGRAMS else SMALL
    count, tail, groups = tiles_of_rows(num_rows, tiling.count)
    _bf16_kernel[(cdiv(num_tokens, tiling.tokens) * groups, num_streams)](
        x, x.stride(0), gamma, inverse, weights, out, out.stride(0), out.stride(1), num_tokens,
        num_rows, INNER=x.shape[1] // num_streams, STREAMS=num_streams,
        TOKENS=tiling.tokens, ROWS=_ROWS, COUNT=count, TAIL=tail, STAGES=tiling.stages,
        num_warps=tiling.warps, **LAUNCH,
    )  # fmt: skip


def tiles_of_rows(num_rows: int, most: int) -> tuple[int, int, int]:
    """Tiles of a program, rows of a narrow one behind them or 0, and programs for all rows."""
    tiles, rest = divmod(num_rows, _ROWS)
    if 0 < tiles <= most and 0 < rest <= _TAIL:
        return tiles, _TAIL, 1
    tiles += rest > 0
    count = cdiv(tiles, cdiv(tiles, most))
    return count, 0, cdiv(tiles, count)


@triton.jit(do_not_specialize=["num_rows"])
def _unpack_kernel(
    panels_ptr, out_ptr, num_rows, INNER: tl.constexpr, LOADS: tl.constexpr, TILE: tl.constexpr
):
    panel = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, TILE * 256)
    load = tl.program_id(1) * TILE + offs // 256
    # A load of a packed row has the values of each of four sums side by side.
    row, place = panel * 8 + offs % 256 // 32, offs % 32
    mask = (load < INNER // 32) & (row < num_rows)
    values = tl.load(panels_ptr + (panel * LOADS + load) * 256 + offs % 256, mask, 0)
    tl.store(out_ptr + row * INNER + load * 32 + place % 8 * 4 + place // 8, values, mask)


@triton.jit
def _top_half(x):
    """x without the lower half of its bits, and the upper half as bfloat16."""
    bits = x.to(tl.int32, bitcast=True)
    top = (bits & -65536).to(tl.float32, bitcast=True)
    return top, (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def cut_value(x):
    """x as a sum of three bfloat16, the lowest first.

    Cut and not rounded: a card rounds to bfloat16 an eighth as fast as it cuts.
    """
    top, high = _top_half(x)
    x -= top
    top, middle = _top_half(x)
    _, low = _top_half(x - top)
    return low, middle, high


@triton.jit
def tile_dot(a, b, total):
    """total + a @ b of bfloat16 in float32."""
    if INTERPRETED:  # numpy has no bfloat16
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        total = tl.dot(a, b, total)
    return total


@triton.jit
def add_parts(parts, w, total):
    """total + sum of parts @ w; parts and w of bfloat16."""
    for p in tl.static_range(len(parts)):
        total = tile_dot(parts[p], w, total)
    return total


@triton.jit
def _store_sums(
    total, out_ptr, out_stride, scale_ptr, token, row, num_tokens, num_rows, HAS_SCALE: tl.constexpr
):
    if HAS_SCALE:
        total *= tl.load(scale_ptr)[:, None]
    at = out_ptr + token.to(tl.int64)[:, None] * out_stride + row[None, :]
    tl.store(at, total, (token < num_tokens)[:, None] & (row < num_rows)[None, :])


@triton.jit(do_not_specialize=["num_tokens", "num_rows"])
def _bf16_kernel(
    x_ptr, x_stride, gamma_ptr, inverse_ptr, weights_ptr, out_ptr, plane, out_stride, num_tokens,
    num_rows, INNER: tl.constexpr, STREAMS: tl.constexpr, TOKENS: tl.constexpr,
    ROWS: tl.constexpr, COUNT: tl.constexpr, TAIL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = TAIL if TAIL > 0 else 16  # without a tail nothing is computed there
    groups = (num_rows + COUNT * ROWS + TAIL - 1) // (COUNT * ROWS + TAIL)
    token = tl.program_id(0) // groups * TOKENS + tl.arange(0, TOKENS)
    first = tl.program_id(0) % groups * (COUNT * ROWS)
    stream = tl.program_id(1)
    column = tl.arange(0, _STEP)
    weights_ptr += stream * INNER
    last = num_rows - 1
    source = tl.minimum(token, num_tokens - 1).to(tl.int64)
    x_at = x_ptr + (source * x_stride + stream * INNER)[:, None] + column[None, :]
    totals, at = (), ()
    for t in tl.static_range(COUNT):
        row = tl.minimum(first + t * ROWS + tl.arange(0, ROWS), last)
        at += (weights_ptr + row[None, :] * (STREAMS * INNER) + column[:, None],)
        totals += (tl.zeros([TOKENS, ROWS], tl.float32),)
    tail_row = first + COUNT * ROWS + tl.arange(0, WIDTH)
    tail_at = tl.minimum(tail_row, last)[None, :] * (STREAMS * INNER) + column[:, None]
    tail = tl.zeros([TOKENS, WIDTH], tl.float32)
    for step in tl.range(0, INNER // _STEP, num_stages=STAGES):
        x = tl.load(x_at + step * _STEP)
        if gamma_ptr is not None:
            x *= tl.load(gamma_ptr + stream * INNER + step * _STEP + column)[None, :]
        parts = cut_value(x)
        added = ()
        for t in tl.static_range(COUNT):
            added += (add_parts(parts, tl.load(at[t] + step * _STEP), totals[t]),)
        totals = added
        if TAIL > 0:
            tail = add_parts(parts, tl.load(weights_ptr + tail_at + step * _STEP), tail)
    out_ptr += stream.to(tl.int64) * plane
    scale_ptr = inverse_ptr + source * STREAMS + stream if inverse_ptr is not None else None
    for t in tl.static_range(COUNT):
        row = first + t * ROWS + tl.arange(0, ROWS)
        _store_sums(
            totals[t], out_ptr, out_stride, scale_ptr, token, row, num_tokens, num_rows,
            inverse_ptr is not None,
        )  # fmt: skip
    if TAIL > 0:
        _store_sums(
            tail, out_ptr, out_stride, scale_ptr, token, tail_row, num_tokens, num_rows,
            inverse_ptr is not None,
        )  # fmt: skip
