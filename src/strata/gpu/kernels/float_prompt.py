"""Matrices of plain types times the rows of a prompt: routers and small projections.

The order is that of docs/numerics.md, "F32, F16, BF16 weights", so a row has the bits of
``float_product``: four sums by k modulo 4 in segments, which no matrix unit can do. A thread has
two weight rows and eight rows of activations with four sums for each pair; what bounds it are a
multiplication and an addition for each product, half the card's float32 rate. Grid: (tiles of rows
of activations times tiles of weight rows), neighbours share activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH
from strata.gpu.kernels.float_product import weight_value
from strata.gpu.kernels.words import load_words
from strata.gpu.weight_layout import PANEL_ROWS
from strata.reference.expert_numerics import SEGMENT_COLUMNS

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix

_CACHED = tl.constexpr("ld.global")
# Rows of activations of a tile; weight rows, one for each lane, that many times.
_TOKENS, _LANES, _TIMES = 32, 32, 2


@triton.jit
def _load_four(ptr, k, INNER: tl.constexpr):
    """Four neighbouring activations from number ``k`` on, a multiple of 4; zero past the end."""
    at = k if INNER % 32 == 0 else tl.minimum(k, INNER - 4)
    words = load_words(ptr + at, 4, _CACHED)
    values = ()
    for j in tl.static_range(4):
        value = words[j].to(tl.float32, bitcast=True)
        if INNER % 32 != 0:
            value = tl.where(k < INNER, value, 0.0)
        values += (value,)
    return values


@triton.jit
def _load_weights(weights, load):
    """One load of the four sums of every weight row."""
    words = ()
    for t in tl.static_range(len(weights)):
        for j in tl.static_range(4):
            words += load_words(weights[t] + load * 512 + j * 16, 4, _CACHED)
    return words


@triton.jit
def _add_segment(
    totals, words, values, weights, x_ptr, first, FORMAT: tl.constexpr, INNER: tl.constexpr,
    LOADS: tl.constexpr, VALUES: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Totals plus a segment of COUNT loads from ``first`` on; what the next one takes first.

    ``words`` and ``values`` are those of load ``first``: nothing waits for what was just asked for.
    """
    TIMES: tl.constexpr = len(weights)
    sums = (tl.zeros_like(totals[0]),) * (4 * TIMES)
    for step in range(COUNT):
        load = first + step
        following = tl.minimum(load + 1, LOADS - 1)
        next_words = _load_weights(weights, following)
        next_values = _load_four(x_ptr, following * (4 * VALUES), INNER)
        for i in tl.static_range(VALUES):
            if i > 0:
                values = _load_four(x_ptr, (load * VALUES + i) * 4, INNER)
            added = ()
            for t in tl.static_range(TIMES):
                for j in tl.static_range(4):
                    word = words[16 * t + 4 * j + i * 4 // VALUES]
                    weight = weight_value(word, i % (VALUES // 4), FORMAT)
                    added += (sums[4 * t + j] + weight * values[j],)
            sums = added
        words = next_words
        values = next_values
    added = ()
    for t in tl.static_range(TIMES):
        low, high = sums[4 * t] + sums[4 * t + 1], sums[4 * t + 2] + sums[4 * t + 3]
        added += (totals[t] + (low + high),)
    return added, words, values


@triton.jit(do_not_specialize=["num_panels", "num_tokens", "num_rows"])
def _float_prompt_kernel(
    panels_ptr, num_panels, x_ptr, x_stride, num_tokens, out_ptr, num_rows, out_stride,
    FORMAT: tl.constexpr, INNER: tl.constexpr, LOADS: tl.constexpr, VALUES: tl.constexpr,
    STEPS: tl.constexpr, TOKENS: tl.constexpr, LANES: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    REST: tl.constexpr = LOADS % STEPS
    row_tiles = (num_rows + LANES * TIMES - 1) // (LANES * TIMES)
    token = (tl.program_id(0) // row_tiles * TOKENS + tl.arange(0, TOKENS))[:, None]
    first = tl.program_id(0) % row_tiles * (LANES * TIMES)
    lane = tl.arange(0, LANES)[None, :]
    zero = tl.zeros((TOKENS, LANES), tl.float32)
    weights, totals = (), ()
    for t in tl.static_range(TIMES):
        row = first + t * LANES + lane
        panel = tl.minimum(row // 8, num_panels - 1).to(tl.int64)
        weights += (panels_ptr + panel * (LOADS * 512) + row % 8 * 64,)
        totals += (zero,)
    # Pointers of the whole tile, so that each thread loads what it multiplies and nothing moves.
    source = tl.minimum(token, num_tokens - 1).to(tl.int64) * x_stride + lane * 0
    words = _load_weights(weights, 0)
    values = _load_four(x_ptr + source, 0, INNER)
    for segment in range(LOADS // STEPS):
        totals, words, values = _add_segment(
            totals, words, values, weights, x_ptr + source, segment * STEPS, FORMAT, INNER, LOADS,
            VALUES, STEPS,
        )  # fmt: skip
    if REST > 0:
        totals, words, values = _add_segment(
            totals, words, values, weights, x_ptr + source, LOADS - REST, FORMAT, INNER, LOADS,
            VALUES, REST,
        )  # fmt: skip
    for t in tl.static_range(TIMES):
        row = first + t * LANES + lane
        at = token.to(tl.int64) * out_stride + row
        tl.store(out_ptr + at, totals[t], mask=(token < num_tokens) & (row < num_rows))


def float_prompt_product(weights: FloatMatrix, x: Tensor, out: Tensor) -> None:
    """out[t] = weights x[t] for every row of ``x``.

    Args:
        weights: a matrix of ``inner`` columns, a multiple of 4.
        x: [T, inner] float32, rows a multiple of 16 bytes apart.
        out: [T, num_rows] float32, rows of any stride.
    """
    whole = weights.num_rows // (_LANES * _TIMES) * (_LANES * _TIMES)
    if weights.num_rows - whole > _LANES:
        whole = weights.num_rows
    values = 4 if weights.format_name == "F32" else 8
    # A last tile of few rows would have every second row past the end.
    for begin, end, times in ((0, whole, _TIMES), (whole, weights.num_rows, 1)):
        if begin == end:
            continue
        panels = weights.panels[begin // PANEL_ROWS : triton.cdiv(end, PANEL_ROWS)]
        columns = out[:, begin:end]
        tiles = triton.cdiv(len(x), _TOKENS) * triton.cdiv(end - begin, _LANES * times)
        _float_prompt_kernel[(tiles,)](
            panels, len(panels), x, x.stride(0), len(x), columns, end - begin, out.stride(0),
            FORMAT=weights.format_name, INNER=weights.inner,
            LOADS=weights.panels.shape[1] // 512, VALUES=values,
            STEPS=SEGMENT_COLUMNS // (4 * values), TOKENS=_TOKENS, LANES=_LANES, TIMES=times,
            num_warps=4, **LAUNCH,
        )  # fmt: skip
