"""Matrices of plain types times a few rows of float32: routers and small projections.

The order is that of docs/numerics.md, "F32, F16, BF16 weights": four sums by k modulo 4 in each
segment of columns, then the segments ascending. A thread has one of the sums of a segment of a row;
the segments of a row lie side by side in a program, so that none waits for another. A result's bits
depend neither on the grid nor on the number of activation rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import over, silu
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.float_tiling import MOST_INPUTS, FloatTiling, tiling_of
from strata.gpu.kernels.shared_words import load_shared, shared_words, store_shared
from strata.gpu.kernels.warp import from_lane
from strata.gpu.kernels.words import half_of, load_words
from strata.reference.expert_numerics import SEGMENT_COLUMNS

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix

_STREAM = tl.constexpr("ld.global.L1::no_allocate.L2::128B")
_CACHED = tl.constexpr("ld.global")
_SEGMENT = tl.constexpr(SEGMENT_COLUMNS)
# Loads of sixteen bytes a thread keeps in flight: a segment of halves, half a segment of floats.
_MOST_AHEAD = 10


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
def _load_steps(
    panels_ptr, first_row, num_panels, first, SHAPE: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Words of AHEAD loads of every row of a thread, from number ``first`` of its segment on."""
    LOADS: tl.constexpr = SHAPE[1]
    VALUES: tl.constexpr = SHAPE[2]
    SEGMENTS: tl.constexpr = SHAPE[3]
    AHEAD: tl.constexpr = SHAPE[5]
    SHARE: tl.constexpr = SHAPE[7]
    ACROSS: tl.constexpr = SHAPE[8]
    APART: tl.constexpr = ROWS // SHARE
    thread = tl.arange(0, SEGMENTS * APART * 4)
    load = thread // (4 * APART) * (_SEGMENT // (4 * VALUES)) + first
    own = thread // 4 % APART
    own = own % ACROSS * (APART // ACROSS) + own // ACROSS
    words = ()
    for share in tl.static_range(SHARE):
        row = first_row + share * APART + own
        panel = tl.minimum(row // 8, num_panels - 1)
        base = panels_ptr + panel.to(tl.int64) * (LOADS * 512) + row % 8 * 64 + thread % 4 * 16
        for i in tl.static_range(AHEAD):
            at = load + i
            # What lies past the end is not added: any load stands in for it.
            if SEGMENTS * _SEGMENT > LOADS * 4 * VALUES:
                at = tl.minimum(at, LOADS - 1)
            words = words + load_words(base + at * 512, 4, _STREAM)
    return words


@triton.jit
def float_words(panels_ptr, first_row, num_panels, SHAPE: tl.constexpr, ROWS: tl.constexpr):
    """What ``float_sums`` takes first; needs nothing that an earlier launch wrote."""
    if SHAPE[4] > SHAPE[5]:
        BYTES: tl.constexpr = SHAPE[1] * 512
        if 8 % ROWS == 0:
            # The programs of a panel ask for a share of it each.
            shares = num_panels * (8 // ROWS)
            fetch_ahead(panels_ptr, first_row // ROWS, shares, BYTES // 8 * ROWS, 1)
        else:
            fetch_ahead(panels_ptr, first_row // 8, num_panels, BYTES, (ROWS + 7) // 8)
    return _load_steps(panels_ptr, first_row, num_panels, 0, SHAPE, ROWS)


@triton.jit
def _inputs(
    x_ptr, x_stride, k, INNER: tl.constexpr, COUNT: tl.constexpr, N: tl.constexpr,
    IS_SPLIT: tl.constexpr, IS_SHORT: tl.constexpr,
):  # fmt: skip
    """Values k, k + 4, k + 8 ... of each row, COUNT in all; any values past the end."""
    values = ()
    for n in tl.static_range(N):
        if IS_SPLIT:
            for i in tl.static_range(COUNT // 4):
                at = k // 16 * 16 + 16 * i
                if IS_SHORT:
                    at = tl.minimum(at, INNER - 16)
                words = load_words(x_ptr + n * x_stride + at + k % 4 * 4, 4, _CACHED)
                for j in tl.static_range(4):
                    values = values + (words[j].to(tl.float32, bitcast=True),)
        else:
            for i in tl.static_range(COUNT):
                at = k + 4 * i
                if IS_SHORT:
                    at = tl.minimum(at, INNER - 1)
                values = values + (tl.load(x_ptr + n * x_stride + at),)
    return values


@triton.jit
def no_bits_after(values):
    """int32 zero, known only when all float32 ``values`` are: so the loads are in flight together.

    Otherwise the assembler issues each shortly before its use, to save registers.
    """
    bits = values[0].to(tl.int32, bitcast=True)
    for i in tl.static_range(1, len(values)):
        bits = bits | values[i].to(tl.int32, bitcast=True)
    # No grid here has a third dimension, which only the launch knows.
    return bits & tl.program_id(2)


@triton.jit
def dealt(parts):
    """Of every four tensors [threads] one: thread t has what it had of number t % 4 of them.

    Past the last one it stands in for what is missing.
    """
    COUNT: tl.constexpr = len(parts)
    thread = tl.arange(0, parts[0].shape[0]) % 4
    taken = ()
    for first in tl.static_range(0, COUNT, 4):
        own = parts[first]
        for i in tl.static_range(1, 4):
            if first + i < COUNT:
                own = tl.where(thread >= i, parts[first + i], own)
        taken = taken + (own,)
    return taken


@triton.jit
def _add_segments(sums, SEGMENTS: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr):
    """[ROWS]: the four sums of each segment joined, then the first COUNT segments, ascending."""
    # The sum of two is the same either way round. After ``tl.split`` here instead, Triton would
    # compute everything before it once for every later split.
    joined = tl.sum(tl.sum(tl.reshape(sums, (SEGMENTS * ROWS, 2, 2)), axis=2), axis=1)
    if SEGMENTS == 1:
        return joined
    parts = (tl.trans(tl.reshape(joined, (SEGMENTS, ROWS))),)
    for level in tl.static_range(SEGMENTS.bit_length() - 1):
        lows, highs = (), ()
        for part in tl.static_range(1 << level):
            low, high = tl.split(tl.reshape(parts[part], (ROWS, SEGMENTS >> (level + 1), 2)))
            lows = lows + (low,)
            highs = highs + (high,)
        parts = lows + highs
    total = parts[0]
    for segment in tl.static_range(1, COUNT):
        total = total + parts[segment]
    return tl.reshape(total, (ROWS,))


@triton.jit
def _quarter_sums(
    words, panels_ptr, first_row, num_panels, x_ptr, x_stride, FORMAT: tl.constexpr,
    SHAPE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """As ``segment_sums``, each thread with its own quarter of the columns."""
    INNER: tl.constexpr = SHAPE[0]
    VALUES: tl.constexpr = SHAPE[2]
    SEGMENTS: tl.constexpr = SHAPE[3]
    STEPS: tl.constexpr = SHAPE[4]
    AHEAD: tl.constexpr = SHAPE[5]
    TOGETHER: tl.constexpr = SHAPE[6]
    SHARE: tl.constexpr = SHAPE[7]
    APART: tl.constexpr = ROWS // SHARE
    IS_SHORT: tl.constexpr = SEGMENTS * _SEGMENT > INNER
    thread = tl.arange(0, SEGMENTS * APART * 4)
    for first in tl.static_range(0, STEPS, AHEAD):
        if first > 0:
            words = _load_steps(panels_ptr, first_row, num_panels, first, SHAPE, ROWS)
        k = thread // (4 * APART) * _SEGMENT + first * 4 * VALUES + thread % 4
        for i in tl.static_range(AHEAD * VALUES):
            if i % TOGETHER == 0:
                x = _inputs(x_ptr, x_stride, k + 4 * i, INNER, TOGETHER, N, IS_SPLIT, IS_SHORT)
            if first + i == 0:
                sums = (no_bits_after(x).to(tl.float32, bitcast=True),) * (N * SHARE)
            weights = ()
            for share in tl.static_range(SHARE):
                word = words[(share * AHEAD * VALUES + i) * 4 // VALUES]
                weights = weights + (weight_value(word, i % (VALUES // 4), FORMAT),)
            added = ()
            for n in tl.static_range(N):
                for share in tl.static_range(SHARE):
                    before = sums[n * SHARE + share]
                    more = before + weights[share] * x[n * TOGETHER + i % TOGETHER]
                    if IS_SHORT:
                        more = tl.where(k + 4 * i < INNER, more, before)
                    added = added + (more,)
            sums = added
    return sums


@triton.jit
def segment_sums(
    words, panels_ptr, first_row, num_panels, x_ptr, x_stride, FORMAT: tl.constexpr,
    SHAPE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """ROWS rows of the matrix from ``first_row`` on times N rows of x, by segment.

    With R rows of the matrix in a thread, N times R tensors [threads], used as they are: those of
    the first row of x first. Thread t has segment t * R / (4 * ROWS), and of each ROWS / R rows,
    divided in ACROSS parts, row t / 4 / ACROSS of part t / 4 % ACROSS.
    """
    sums = _quarter_sums(
        words, panels_ptr, first_row, num_panels, x_ptr, x_stride, FORMAT, SHAPE, N, ROWS, IS_SPLIT
    )  # fmt: skip
    lane = tl.arange(0, sums[0].shape[0]) % 32
    joined = ()
    for part in tl.static_range(len(sums)):
        # The sum of two is the same either way round, so all four threads have it.
        half = sums[part] + from_lane(sums[part], lane ^ 1)
        joined = joined + (half + from_lane(half, lane ^ 2),)
    return joined


@triton.jit
def float_sums(
    words, panels_ptr, first_row, num_panels, x_ptr, x_stride, FORMAT: tl.constexpr,
    SHAPE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    """ROWS rows of the matrix from ``first_row`` on times N rows of x: N tensors [ROWS].

    ``words`` are those of ``float_words``, of one row of the matrix a thread. With IS_SPLIT,
    value k of a row of x is at [k // 16, k % 4, k % 16 // 4].
    """
    sums = _quarter_sums(
        words, panels_ptr, first_row, num_panels, x_ptr, x_stride, FORMAT, SHAPE, N, ROWS, IS_SPLIT
    )  # fmt: skip
    COUNT: tl.constexpr = (SHAPE[0] + _SEGMENT - 1) // _SEGMENT
    joined = ()
    for n in tl.static_range(N):
        joined = joined + (_add_segments(sums[n], SHAPE[3], ROWS, COUNT),)
    return joined


@triton.jit
def _float_kernel(
    panels_ptr, num_panels, x_ptr, x_stride, out_ptr, num_rows, out_stride, low_ptr,
    FORMAT: tl.constexpr, SHAPE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
    IS_SPLIT: tl.constexpr, RANK: tl.constexpr, DIVISOR: tl.constexpr, IS_LOW_SPLIT: tl.constexpr,
):  # fmt: skip
    SEGMENTS: tl.constexpr = SHAPE[3]
    SHARE: tl.constexpr = SHAPE[7]
    # Sums of a segment: four times the rows of x by four, each for one of its four threads.
    ACROSS: tl.constexpr = ROWS // SHARE * 4
    FOURS: tl.constexpr = (N * SHARE + 3) // 4
    first = tl.program_id(0) * ROWS
    words = float_words(panels_ptr, first, num_panels, SHAPE, ROWS)
    wait_for_inputs()
    sums = dealt(
        segment_sums(
            words, panels_ptr, first, num_panels, x_ptr, x_stride, FORMAT, SHAPE, N, ROWS, IS_SPLIT
        )
    )  # fmt: skip
    room = shared_words(SEGMENTS * ACROSS * FOURS)
    place = tl.arange(0, SEGMENTS * ACROSS)
    for four in tl.static_range(FOURS):
        store_shared(room + (place + four * (SEGMENTS * ACROSS)) * 4, sums[four])
    tl.debug_barrier()
    for four in tl.static_range(FOURS):
        own = tl.arange(0, ACROSS)
        at = room + (own + four * (SEGMENTS * ACROSS)) * 4
        total = load_shared(at)
        for segment in tl.static_range(1, (SHAPE[0] + _SEGMENT - 1) // _SEGMENT):
            total = total + load_shared(at + segment * (ACROSS * 4))
        part = four * 4 + own % 4
        n = part // SHARE
        row = first + own // 4 + part % SHARE * (ROWS // SHARE)
        is_row = (part < N * SHARE) & (row < num_rows)
        tl.store(out_ptr + n * out_stride + row, total, mask=is_row)
        if low_ptr is not None:
            to = row // 16 * 16 + row % 4 * 4 + row % 16 // 4 if IS_LOW_SPLIT else row
            low = silu(over(total, DIVISOR))
            tl.store(low_ptr + n * RANK + to, low, mask=is_row & (row < RANK))


def float_shape(
    weights: FloatMatrix,
    num_inputs: int,
    most_ahead: int = _MOST_AHEAD,
    *,
    share: int = 1,
    across: int = 1,
    most_inputs: int = MOST_INPUTS,
) -> dict[str, object]:
    """The compile-time arguments that a matrix and the number of rows of x decide.

    SHAPE is columns, loads of a row's four threads, values of a load, segments (a power of two),
    loads of a segment, loads in flight for each row of a thread, values of each row of x that are
    loaded at once (over all rows at most 4 * most_inputs), rows of a thread, and parts of the
    program's rows between which neighbouring threads change. What is in flight takes registers.
    """
    loads = weights.panels.shape[1] // 512
    values = 16 // (4 if weights.format_name == "F32" else 2)
    segments = triton.next_power_of_2(triton.cdiv(weights.inner, SEGMENT_COLUMNS))
    steps = min(loads, SEGMENT_COLUMNS // (4 * values))
    ahead = max(n for n in range(1, most_ahead + 1) if steps % n == 0)
    together = max(
        n
        for n in range(4, ahead * values + 1, 4)
        if ahead * values % n == 0 and (n == 4 or n * num_inputs <= 4 * most_inputs)
    )
    shape = (weights.inner, loads, values, segments, steps, ahead, together, share, across)
    return {"FORMAT": weights.format_name, "SHAPE": shape}


def can_split(inner: int) -> bool:
    """Whether rows of this many values may be given split, for every plain format."""
    return inner % 32 == 0


def float_product(
    weights: FloatMatrix,
    x: Tensor,
    out: Tensor,
    *,
    is_split: bool = False,
    low: Tensor | None = None,
    divisor: int = 1,
    tiling: FloatTiling | None = None,
) -> None:
    """out[n] = weights x[n] for every row of ``x``; a row's bits do not depend on the others.

    Args:
        weights: a matrix of ``inner`` columns.
        x: [N, inner] float32, N from 1 to 8, rows of any stride.
        is_split: rows of x are [inner / 16, 4, 4], value k at [k // 16, k % 4, k % 16 // 4], so
            that a thread loads four at once. Where ``can_split`` says so.
        out: [N, num_rows] float32, rows of any stride.
        low: [N, r] float32, contiguous: silu(product / divisor) of the first r products, split
            where ``can_split`` says that they may be. None: nothing of it.
        divisor: see there.
        tiling: for tests and timings.
    """
    tiling = tiling or tiling_of(weights.num_rows, weights.inner, len(x))
    rows, share = tiling.rows, tiling.share
    shape = float_shape(weights, len(x), share=share, most_inputs=tiling.most_inputs)
    segments = triton.next_power_of_2(triton.cdiv(weights.inner, SEGMENT_COLUMNS))
    threads = rows // share * 4 * segments
    rank = 0 if low is None else low.shape[1]
    _float_kernel[(triton.cdiv(weights.num_rows, rows),)](
        weights.panels, weights.num_panels, x, x.stride(0), out, weights.num_rows, out.stride(0),
        low, **shape, N=len(x), ROWS=rows, IS_SPLIT=is_split, RANK=rank, DIVISOR=divisor,
        IS_LOW_SPLIT=can_split(rank), num_warps=min(16, max(1, threads // 32)), **LAUNCH_AFTER,
    )  # fmt: skip
