"""BF16 matrices times the rows of a prompt, on tensor cores.

A float32 activation is the exact sum of three bfloat16 (8 bits each), so three products of a matrix
instruction lose nothing but the rounding of sums; that is seven times as fast as the fixed order of
``float_prompt``, which plain matrices have in decode windows. Activations are read as they are and
cut in the registers. Where a prompt is cut changes no bit, since a row's sums do not depend on the
others; nor does the tile, since a result is the same chain of matrix instructions in any.

Reference: a product in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

# Tiles: rows of activations and of weights, warps, steps under way. The large one makes half the
# small one's reads; with few rows, or few weights, it would leave most of a card idle. Compiled for
# sm_90 (compiled_prompt.py): 214 and 128 registers, nothing spilled, 3.0 and 4.8 instructions for
# each of the matrix unit. Not measured on a card yet.
LARGE, SMALL = (128, 128, 8, 3), (64, 64, 4, 3)
# The large one is taken from so many tiles on: two for each multiprocessor of an H200.
_LEAST_TILES = 264
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

    Bytes a row: 4 for each value, once for each tile of weight rows. Grid: tiles of activations
    times tiles of weight rows, neighbours share activations.

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
) -> None:
    """out[s, t] = inverse[t, s] * (weights of s . (gamma of s * x[t] of s)) for streams s.

    Args:
        x: [T, S * D] float32, rows of any stride; D a multiple of 32.
        gamma: [S * D] float32; None is one.
        inverse: [T, S] float32; None is one.
        weights: [R, S * D] bfloat16, contiguous.
        out: [S, T, R] float32, columns side by side.
        num_streams: S.
    """
    num_tokens, num_rows = len(x), len(weights)
    large = cdiv(num_tokens, LARGE[0]) * cdiv(num_rows, LARGE[1]) * num_streams
    tokens, tile, warps, stages = LARGE if large >= _LEAST_TILES else SMALL
    tiles = cdiv(num_tokens, tokens) * cdiv(num_rows, tile)
    _bf16_kernel[(tiles, num_streams)](
        x, x.stride(0), gamma, inverse, weights, out, out.stride(0), out.stride(1), num_tokens,
        num_rows, INNER=x.shape[1] // num_streams, STREAMS=num_streams, TOKENS=tokens, ROWS=tile,
        STAGES=stages, num_warps=warps, **LAUNCH,
    )  # fmt: skip


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
    """Eight bits of x after eight others, as three bfloat16; their sum is x.

    Cut and not rounded: a card rounds to bfloat16 an eighth as fast as it cuts.
    """
    top, high = _top_half(x)
    x -= top
    top, middle = _top_half(x)
    _, low = _top_half(x - top)
    return high, middle, low


@triton.jit
def tile_dot(a, b, total):
    """total + a @ b of bfloat16 in float32."""
    if INTERPRETED:  # numpy has no bfloat16
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        total = tl.dot(a, b, total)
    return total


@triton.jit(do_not_specialize=["num_tokens", "num_rows"])
def _bf16_kernel(
    x_ptr, x_stride, gamma_ptr, inverse_ptr, weights_ptr, out_ptr, plane, out_stride, num_tokens,
    num_rows, INNER: tl.constexpr, STREAMS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    row_tiles = (num_rows + ROWS - 1) // ROWS
    token = tl.program_id(0) // row_tiles * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    stream = tl.program_id(1)
    column = tl.arange(0, _STEP)
    w_row = tl.minimum(row, num_rows - 1) * (STREAMS * INNER) + stream * INNER
    w_at = weights_ptr + w_row[None, :] + column[:, None]
    source = tl.minimum(token, num_tokens - 1).to(tl.int64)
    x_at = x_ptr + (source * x_stride + stream * INNER)[:, None] + column[None, :]
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for step in tl.range(0, INNER // _STEP, num_stages=STAGES):
        w = tl.load(w_at + step * _STEP)
        x = tl.load(x_at + step * _STEP)
        if gamma_ptr is not None:
            x *= tl.load(gamma_ptr + stream * INNER + step * _STEP + column)[None, :]
        high, middle, low = cut_value(x)
        total = tile_dot(low, w, total)
        total = tile_dot(middle, w, total)
        total = tile_dot(high, w, total)
    if inverse_ptr is not None:
        total *= tl.load(inverse_ptr + source * STREAMS + stream)[:, None]
    at = stream.to(tl.int64) * plane + token.to(tl.int64)[:, None] * out_stride + row[None, :]
    tl.store(out_ptr + at, total, (token < num_tokens)[:, None] & (row < num_rows)[None, :])
