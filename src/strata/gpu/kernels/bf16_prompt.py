"""BF16 matrices times the rows of a prompt, on tensor cores.

A float32 activation is the exact sum of three bfloat16 (8 bits each), so three products of a matrix
instruction lose nothing but the rounding of sums; that is seven times as fast as the fixed order of
``float_prompt``, which plain matrices have in decode windows. Where a prompt is cut changes no bit,
since a row's sums do not depend on the others.

Reference: a product in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED, LAUNCH

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix

PARTS = 3
"""Parts of an activation."""

# Rows of activations and of weights of a tile; values of a step: one load of the packed matrix.
_TOKENS, _ROWS, _WARPS, _STAGES = 128, 128, 8, 3
_STEP = tl.constexpr(32)
_SPLIT_ROWS, _SPLIT_COLUMNS = 8, 256
_UNPACK_LOADS = 8


def split_rows(x: Tensor, parts: Tensor) -> None:
    """parts = the high, middle and low bfloat16 of ``x``, values in the order of packed matrices.

    Bytes a row: 10 for each value. Grid: (tiles of 8 rows, tiles of 256 columns).

    Args:
        x: [T, inner] float32, rows of any stride; inner a multiple of 32.
        parts: [3, at least T, inner] bfloat16.
    """
    num_rows, inner = x.shape
    grid = (triton.cdiv(num_rows, _SPLIT_ROWS), triton.cdiv(inner, _SPLIT_COLUMNS))
    _split_kernel[grid](
        x, x.stride(0), parts, parts.stride(0), num_rows, INNER=inner, ROWS=_SPLIT_ROWS,
        COLUMNS=_SPLIT_COLUMNS, num_warps=4, **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _split_kernel(
    x_ptr, x_stride, parts_ptr, plane, num_rows, INNER: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    place = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    mask = (row < num_rows) & (place < INNER)
    # A load of a packed row has the values of each of four sums side by side.
    column = place // 32 * 32 + place % 8 * 4 + place % 32 // 8
    x = tl.load(x_ptr + row * x_stride + column, mask, 0.0)
    at = parts_ptr + row * INNER + place
    high, middle, low = cut_value(x)
    tl.store(at, high, mask)
    tl.store(at + plane, middle, mask)
    tl.store(at + 2 * plane, low, mask)


def unpack_bf16(weights: FloatMatrix, out: Tensor) -> None:
    """out = the matrix as its file has it; a product that reads rows as they lie needs it so.

    Bytes: those of the matrix, twice. Grid: (panels, loads / 8).

    Args:
        weights: a BF16 matrix of ``inner`` columns, a multiple of 32.
        out: [num_rows, inner] bfloat16, contiguous.
    """
    loads = weights.inner // 32
    _unpack_kernel[(weights.num_panels, triton.cdiv(loads, _UNPACK_LOADS))](
        weights.panels.view(torch.int16), out.view(torch.int16), weights.num_rows,
        INNER=weights.inner, LOADS=weights.panels.shape[1] // 512, TILE=_UNPACK_LOADS, num_warps=4,
        **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _unpack_kernel(
    panels_ptr, out_ptr, num_rows, INNER: tl.constexpr, LOADS: tl.constexpr, TILE: tl.constexpr
):
    panel = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, TILE * 256)
    load = tl.program_id(1) * TILE + offs // 256
    row, place = panel * 8 + offs % 256 // 32, offs % 32
    mask = (load < INNER // 32) & (row < num_rows)
    values = tl.load(panels_ptr + (panel * LOADS + load) * 256 + offs % 256, mask, 0)
    tl.store(out_ptr + row * INNER + load * 32 + place % 8 * 4 + place // 8, values, mask)


def bf16_prompt_product(weights: FloatMatrix, parts: Tensor, num_tokens: int, out: Tensor) -> None:
    """out[t] = weights x[t] for every row that was split.

    Grid: tiles of 128 rows of activations times tiles of 128 weight rows, neighbours share
    activations.

    Args:
        weights: a BF16 matrix of ``inner`` columns, a multiple of 32.
        parts: of ``split_rows``.
        num_tokens: T.
        out: [T, num_rows] float32, rows of any stride.
    """
    rows = min(_ROWS, max(16, triton.next_power_of_2(weights.num_rows)))
    tiles = triton.cdiv(num_tokens, _TOKENS) * triton.cdiv(weights.num_rows, rows)
    _bf16_kernel[(tiles,)](
        weights.panels.view(parts.dtype), weights.num_panels, parts, parts.stride(0), num_tokens,
        out, weights.num_rows, out.stride(0), INNER=weights.inner,
        LOADS=weights.panels.shape[1] // 512, TOKENS=_TOKENS, ROWS=rows, STAGES=_STAGES,
        num_warps=_WARPS, **LAUNCH,
    )  # fmt: skip


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


@triton.jit(do_not_specialize=["num_panels", "num_tokens", "num_rows"])
def _bf16_kernel(
    panels_ptr, num_panels, parts_ptr, plane, num_tokens, out_ptr, num_rows, out_stride,
    INNER: tl.constexpr, LOADS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    row_tiles = (num_rows + ROWS - 1) // ROWS
    token = tl.program_id(0) // row_tiles * TOKENS + tl.arange(0, TOKENS)
    row = tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS)
    offs = tl.arange(0, _STEP)
    panel = tl.minimum(row // 8, num_panels - 1).to(tl.int64)
    # Bytes of a load, 512 for eight rows, as bfloat16.
    weights = panels_ptr + (panel * (LOADS * 256) + row % 8 * 32)[None, :] + offs[:, None]
    source = tl.minimum(token, num_tokens - 1).to(tl.int64) * INNER
    x = parts_ptr + source[:, None] + offs[None, :]
    total = tl.zeros([TOKENS, ROWS], tl.float32)
    for step in tl.range(0, INNER // _STEP, num_stages=STAGES):
        w = tl.load(weights + step * 256)
        low = tl.load(x + 2 * plane + step * _STEP)
        middle = tl.load(x + plane + step * _STEP)
        high = tl.load(x + step * _STEP)
        total = tile_dot(low, w, total)
        total = tile_dot(middle, w, total)
        total = tile_dot(high, w, total)
    at = token.to(tl.int64)[:, None] * out_stride + row[None, :]
    tl.store(out_ptr + at, total, (token < num_tokens)[:, None] & (row < num_rows)[None, :])
