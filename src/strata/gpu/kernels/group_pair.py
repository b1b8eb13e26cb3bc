"""The sums of one group of two rows at once, on the matrix instruction: for windows of some rows.

The instruction multiplies 16 rows by 8 columns over 32 bytes, of which each of four neighbouring
threads gives 8. Here every thread gives a quarter of a block of its own group, and the columns are
two rows of activations for each of the four groups, zero against the other three: so a thread gets
back the integer sums of its own group, which four instructions complete to a block. Three quarters
of the products are zeros; the instruction still does in 1 what takes 16 of ``dp4a``. The sums are
exact, so bits are those of ``group``.

Threads: element i is lane i % 32, whose group is slot i % 4 and whose rows are number i // 4 % 8 of
two panels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.group import add_block, block_start, four_blocks
from strata.gpu.kernels.unpack import block_codes, block_scales
from strata.gpu.kernels.warp import load_four_where, multiply_words


@triton.jit
def _half_block(codes0, codes1, x_words, c, K: tl.constexpr):
    """``c`` plus the products of code words K to K + 3 of both rows."""
    c = multiply_words(
        codes0[K], codes1[K], codes0[K + 1], codes1[K + 1], x_words[0], x_words[1], c[0], c[1],
        c[2], c[3],
    )  # fmt: skip
    return multiply_words(
        codes0[K + 2], codes1[K + 2], codes0[K + 3], codes1[K + 3], x_words[2], x_words[3], c[0],
        c[1], c[2], c[3],
    )  # fmt: skip


@triton.jit
def _two_rows(
    totals, codes, weights, x_ptr, is_live, loaded, GROUPS: tl.constexpr, B: tl.constexpr,
    TRAITS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """``totals`` of one or two (N) rows of activations, twice, plus the terms of block B."""
    low = load_four_where(x_ptr, is_live)
    high = load_four_where(x_ptr + GROUPS * 16, is_live)
    zero = codes[0][0] & 0
    c0 = block_start(zero, loaded[0][1], B, TRAITS)
    c1 = block_start(zero, loaded[N - 1][1], B, TRAITS)
    start = (c0, c1, c0, c1)
    first = _half_block(codes[0], codes[1], low, start, 0)
    second = start if TRAITS[1] + TRAITS[2] == 2 else first
    second = _half_block(codes[0], codes[1], high, second, 4)
    added = ()
    for i in tl.static_range(2 * N):
        a, sums = loaded[i % N]
        added = added + (
            add_block(
                totals[i], first[i // N * 2 + i % N], second[i // N * 2 + i % N], weights[i // N],
                a[B % 4].to(tl.float32, bitcast=True), sums, B, TRAITS,
            ),
        )  # fmt: skip
    return added


@triton.jit
def pair_sums(
    words0,
    words1,
    x,
    thread,
    group,
    table,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    GROUPS: tl.constexpr,
    N: tl.constexpr,
):
    """2 N tensors: each thread's group of its first row against N rows of activations, then N more
    of its second.

    Args:
        words0, words1: of ``load_group``, one for each row.
        x: pointers of the fields of ``Codes`` at the first row.
        thread: [threads] int32, their numbers.
        group: [threads] int32, the group of each, the same for equal ``thread % 4`` of a warp.
        table: as ``block_codes`` takes it.
    """
    # Column 2 t + s has row s of a pair of rows for the group of slot t, zero for the others.
    is_second = thread // 4 % 2
    is_own = (thread % 4 == thread % 32 // 8).to(tl.int32)
    x_ptr = x[0] + group * 16 + is_second * (GROUPS * 256)
    zero = (group * 0).to(tl.float32)
    totals = ()
    for _ in tl.static_range(2 * N):
        totals = totals + (zero,)
    for half in tl.static_range(2):
        loaded = ()
        for n in tl.static_range(N):
            loaded = loaded + (four_blocks(x, n, group, GROUPS, half, TRAITS),)
        for b in tl.static_range(4 * half, 4 * half + 4):
            codes = (
                block_codes(FORMAT, words0, b, table, TRAITS[5]),
                block_codes(FORMAT, words1, b, table, TRAITS[5]),
            )
            weights = (block_scales(FORMAT, words0, b), block_scales(FORMAT, words1, b))
            at = x_ptr + 2 * b * GROUPS * 16
            summed = ()
            for pair in tl.static_range(N // 2):
                summed = summed + _two_rows(
                    totals[4 * pair : 4 * pair + 4], codes, weights, at + pair * GROUPS * 512,
                    is_own, loaded[2 * pair : 2 * pair + 2], GROUPS, b, TRAITS, 2,
                )  # fmt: skip
            if N % 2 == 1:
                is_live = is_own * (1 - is_second)
                summed = summed + _two_rows(
                    totals[2 * N - 2 :], codes, weights, at + N // 2 * GROUPS * 512, is_live,
                    loaded[N - 1 :], GROUPS, b, TRAITS, 1,
                )  # fmt: skip
            totals = summed
    first = ()
    second = ()
    for pair in tl.static_range(N // 2):
        first = first + totals[4 * pair : 4 * pair + 2]
        second = second + totals[4 * pair + 2 : 4 * pair + 4]
    if N % 2 == 1:
        first = first + totals[2 * N - 2 : 2 * N - 1]
        second = second + totals[2 * N - 1 :]
    return first + second
