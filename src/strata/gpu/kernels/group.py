"""The sum of one group of 256 weights of one row, for several rows of activations.

The terms and their order are those of docs/numerics.md, "C1". A thread has one group of one row at
a time, so the additions inside a group need no other thread. Used by the products of matrices and
of experts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import dot4
from strata.gpu.kernels.unpack import block_codes, block_scales
from strata.gpu.kernels.words import integer_sum, load_plane, load_words

_MAGIC_BITS = tl.constexpr(0x4B400000)
_CACHED = tl.constexpr("ld.global")


@triton.jit
def load_group(
    base, row, group, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr, IS_SHORT: tl.constexpr
):
    """All words of a group, planes one after another."""
    words = ()
    for p in tl.static_range(NUM_PLANES):
        words = words + load_plane(
            base,
            row,
            group,
            PLANES[4 * p],
            PLANES[4 * p + 1],
            PLANES[4 * p + 2],
            PLANES[4 * p + 3],
            IS_SHORT,
        )
    return words


@triton.jit
def block_start(zero, sums, B: tl.constexpr, TRAITS: tl.constexpr):
    """What the integer sums of block B start from; ``zero`` holds zeros."""
    if TRAITS[2] == 1:
        return zero
    start = zero + _MAGIC_BITS
    if TRAITS[4] != 0:
        start = start + TRAITS[4] * sums[B % 4]
    return start


@triton.jit
def _dots(codes, x_ptr, start, GROUPS: tl.constexpr, B: tl.constexpr, IS_SPLIT: tl.constexpr):
    """Integer sums of a block's two halves, or of all of it in the second; from ``start`` on."""
    low = load_words(x_ptr + 2 * B * GROUPS * 16, 4, _CACHED)
    high = load_words(x_ptr + (2 * B + 1) * GROUPS * 16, 4, _CACHED)
    first = start
    for k in tl.static_range(4):
        first = dot4(codes[k], low[k], first)
    second = start if IS_SPLIT else first
    for k in tl.static_range(4):
        second = dot4(codes[4 + k], high[k], second)
    return first, second


@triton.jit
def add_block(total, first, second, weights, a, sums, B: tl.constexpr, TRAITS: tl.constexpr):
    """``total`` plus the terms of block B.

    ``first`` and ``second`` are integer sums of its halves, or ``second`` that of all of it, from
    ``block_start`` on; ``a`` and ``sums`` are those of ``four_blocks``.
    """
    scales, subs, minima = weights
    if TRAITS[2] == 1:
        whole = (subs[0] * first + subs[1] * second) >> TRAITS[0]
        total = total + whole.to(tl.float32) * (scales[0] * a)
    elif TRAITS[1] == 2:
        total = total + integer_sum(first, TRAITS[0]) * (scales[0] * a)
        total = total + integer_sum(second, TRAITS[0]) * (scales[1] * a)
    else:
        total = total + integer_sum(second, TRAITS[0]) * (scales[0] * a)
    if TRAITS[3] == 1:
        total = total + minima[0] * sums[B % 4].to(tl.float32, bitcast=True)
    if TRAITS[3] == 2:
        total = total + minima[0] * sums[B % 4 * 2].to(tl.float32, bitcast=True)
        total = total + minima[1] * sums[B % 4 * 2 + 1].to(tl.float32, bitcast=True)
    return total


@triton.jit
def four_blocks(
    x, n: tl.constexpr, group, GROUPS: tl.constexpr, HALF: tl.constexpr, TRAITS: tl.constexpr
):
    """Words of the scales of four blocks of activation row n, and of the sums the format needs."""
    codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr = x
    at = (n * GROUPS + group) * 8 + 4 * HALF
    scales = load_words(scales_ptr + at, 4, _CACHED)
    sums = ()
    if TRAITS[4] != 0:
        sums = load_words(sums_ptr + at, 4, _CACHED)
    if TRAITS[3] == 1:
        sums = load_words(scaled_ptr + at, 4, _CACHED)
    if TRAITS[3] == 2:
        sums = load_words(halves_ptr + 2 * at, 4, _CACHED)
        sums = sums + load_words(halves_ptr + 2 * at + 4, 4, _CACHED)
    return scales, sums


@triton.jit
def group_sums(
    words,
    x,
    group,
    table,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    GROUPS: tl.constexpr,
    N: tl.constexpr,
):
    """N tensors: each thread's group summed against N rows of activations.

    Args:
        words: of ``load_group``.
        x: pointers of the fields of ``Codes`` at the first row.
        group: [threads] int32, number of each thread's group, below GROUPS.
        table: as ``block_codes`` takes it.
    """
    IS_HALVED: tl.constexpr = TRAITS[1] + TRAITS[2] == 2
    totals = ()
    for _ in tl.static_range(N):
        totals = totals + ((group * 0).to(tl.float32),)
    for half in tl.static_range(2):
        loaded = ()
        for n in tl.static_range(N):
            loaded = loaded + (four_blocks(x, n, group, GROUPS, half, TRAITS),)
        for b in tl.static_range(4 * half, 4 * half + 4):
            codes = block_codes(FORMAT, words, b, table, TRAITS[5])
            weights = block_scales(FORMAT, words, b)
            summed = ()
            for n in tl.static_range(N):
                x_ptr = x[0] + n * GROUPS * 256 + group * 16
                a, sums = loaded[n]
                a = a[b % 4].to(tl.float32, bitcast=True)
                start = block_start(codes[0] & 0, sums, b, TRAITS)
                first, second = _dots(codes, x_ptr, start, GROUPS, b, IS_HALVED)
                total = add_block(totals[n], first, second, weights, a, sums, b, TRAITS)
                summed = summed + (total,)
            totals = summed
    return totals
