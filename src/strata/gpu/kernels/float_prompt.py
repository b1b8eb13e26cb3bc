"""Matrices of plain types times the rows of a prompt: routers and small projections.

The order is that of docs/numerics.md, "F32, F16, BF16 weights", so a row has the bits of
``float_product``: four sums by k modulo 4, which no matrix unit can do. A thread has one weight row
and sixteen rows of activations with their four sums each; what bounds it are a multiplication and
an addition for each product, half the card's float32 rate. Grid: (tiles of rows of activations
times tiles of weight rows), neighbours share activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH
from strata.gpu.kernels.float_product import weight_value
from strata.gpu.kernels.words import load_words

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix

_CACHED = tl.constexpr("ld.global")
_TOKENS, _ROWS = 64, 32


@triton.jit
def _load_four(ptr, k, INNER: tl.constexpr):
    """Four neighbouring activations from number ``k`` on, a multiple of 4; zero past the end."""
    words = load_words(ptr + tl.minimum(k, INNER - 4), 4, _CACHED)
    values = ()
    for j in tl.static_range(4):
        value = words[j].to(tl.float32, bitcast=True)
        if INNER % 32 != 0:
            value = tl.where(k < INNER, value, 0.0)
        values += (value,)
    return values


@triton.jit(do_not_specialize=["num_panels", "num_tokens", "num_rows"])
def _float_prompt_kernel(
    panels_ptr, num_panels, x_ptr, x_stride, num_tokens, out_ptr, num_rows, out_stride,
    FORMAT: tl.constexpr, INNER: tl.constexpr, LOADS: tl.constexpr, VALUES: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row_tiles = (num_rows + ROWS - 1) // ROWS
    token = (tl.program_id(0) // row_tiles * TOKENS + tl.arange(0, TOKENS))[:, None]
    row = (tl.program_id(0) % row_tiles * ROWS + tl.arange(0, ROWS))[None, :]
    panel = tl.minimum(row // 8, num_panels - 1).to(tl.int64)
    weights = panels_ptr + panel * (LOADS * 512) + row % 8 * 64
    # Pointers of the whole tile, so that each thread loads what it multiplies and nothing moves.
    source = tl.minimum(token, num_tokens - 1).to(tl.int64) * x_stride + row * 0
    zero = tl.zeros((TOKENS, ROWS), tl.float32)
    sums = (zero, zero, zero, zero)
    for load in range(LOADS):
        words = ()
        for j in tl.static_range(4):
            words += load_words(weights + load * 512 + j * 16, 4, _CACHED)
        for i in tl.static_range(VALUES):
            values = _load_four(x_ptr + source, (load * VALUES + i) * 4, INNER)
            added = ()
            for j in tl.static_range(4):
                word = words[4 * j + i * 4 // VALUES]
                added += (sums[j] + weight_value(word, i % (VALUES // 4), FORMAT) * values[j],)
            sums = added
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    at = token.to(tl.int64) * out_stride + row
    tl.store(out_ptr + at, total, mask=(token < num_tokens) & (row < num_rows))


def float_prompt_product(weights: FloatMatrix, x: Tensor, out: Tensor) -> None:
    """out[t] = weights x[t] for every row of ``x``.

    Args:
        weights: a matrix of ``inner`` columns, a multiple of 4.
        x: [T, inner] float32, rows a multiple of 16 bytes apart.
        out: [T, num_rows] float32, rows of any stride.
    """
    values = 4 if weights.format_name == "F32" else 8
    tiles = triton.cdiv(len(x), _TOKENS) * triton.cdiv(weights.num_rows, _ROWS)
    _float_prompt_kernel[(tiles,)](
        weights.panels, weights.num_panels, x, x.stride(0), len(x), out, weights.num_rows,
        out.stride(0), FORMAT=weights.format_name, INNER=weights.inner,
        LOADS=weights.panels.shape[1] // 512, VALUES=values, TOKENS=_TOKENS, ROWS=_ROWS,
        num_warps=4, **LAUNCH,
    )  # fmt: skip
