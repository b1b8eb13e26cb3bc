"""Panels of packed rows times a few rows of activations: the loop that all decode products share.

A program has the groups of UNITS panels, number ``unit * GROUPS + group`` each. Its threads take
them in rounds, eight threads (one a row) for each; every group's sum goes to shared memory, and
behind a barrier the sums of a row are added in ascending order by one thread. So a result's bits
depend neither on the threads, nor on UNITS, nor on the number of activation rows. Words of the
first round may be loaded before the activations exist; those of the next while one is multiplied.

With IS_PAIR a unit is two panels, whose same rows share a thread, and the matrix instruction does
the integer work (``group_pair``): for windows of some rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.group import group_sums, load_group
from strata.gpu.kernels.group_pair import pair_sums
from strata.gpu.kernels.shared_words import load_shared, store_shared
from strata.gpu.kernels.tables import copy_of

# Words of a group that may be loaded ahead.
_MOST_WORDS = tl.constexpr(56)


@triton.constexpr_function
def num_rounds(units, groups, threads):
    """Rounds in which the threads take all groups."""
    return -(-units * groups * 8 // threads)


@triton.constexpr_function
def scratch_words(num_rows, panels, groups):
    """Words of shared memory that hold the sums of all groups of ``panels`` panels."""
    return num_rows * panels * groups * 8


@triton.jit
def _numbers(
    r, UNITS: tl.constexpr, GROUPS: tl.constexpr, IS_PAIR: tl.constexpr, THREADS: tl.constexpr
):
    """The number and the row of each thread in round r; past the end the last number again."""
    thread = tl.arange(0, THREADS)
    if IS_PAIR:
        place = thread // 32 * 4 + thread % 4
        row = thread // 4 % 8
    else:
        place = thread // 8
        row = thread % 8
    number = r * (THREADS // 8) + place
    if UNITS * GROUPS * 8 % THREADS != 0:
        number = tl.minimum(number, UNITS * GROUPS - 1)
    return number, row


@triton.jit
def round_words(
    r, panels_ptr, first, jump, num_panels, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, UNITS: tl.constexpr,
    RUN: tl.constexpr, IS_PAIR: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Words of each thread's groups in round r, for each of its panels. Needs no activation.

    Units are panels (or pairs) from ``first`` on, RUN of them neighbours; each further RUN begins
    ``jump`` panels after the last. Past the end the last panel stands in.
    """
    number, row = _numbers(r, UNITS, GROUPS, IS_PAIR, THREADS)
    group = number % GROUPS
    panel = number // GROUPS
    if RUN < UNITS:
        panel = panel // RUN * jump + panel % RUN
    words = ()
    for i in tl.static_range(2 if IS_PAIR else 1):
        at = first + (2 * panel + i if IS_PAIR else panel)
        base = panels_ptr + tl.minimum(at, num_panels - 1).to(tl.int64) * PANEL_BYTES
        words = words + (load_group(base, row, group, PLANES, NUM_PLANES, IS_SHORT),)
    return words


@triton.jit
def _keep_round(
    r, words, scratch, x, table, FORMAT: tl.constexpr, TRAITS: tl.constexpr, GROUPS: tl.constexpr,
    N: tl.constexpr, UNITS: tl.constexpr, IS_PAIR: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Sums of a round's groups, into shared memory: [n, panel, group, row]."""
    number, row = _numbers(r, UNITS, GROUPS, IS_PAIR, THREADS)
    group = number % GROUPS
    if IS_PAIR:
        PLANE: tl.constexpr = UNITS * GROUPS * 64
        thread = tl.arange(0, THREADS)
        sums = pair_sums(words[0], words[1], x, thread, group, table, FORMAT, TRAITS, GROUPS, N)
        at = scratch + ((number // GROUPS * GROUPS + number) * 32 + row * 4)
        for n in tl.static_range(N):
            store_shared(at + n * PLANE, sums[n])
            store_shared(at + (n * PLANE + GROUPS * 32), sums[N + n])
    else:
        sums = group_sums(words[0], x, group, table, FORMAT, TRAITS, GROUPS, N)
        at = scratch + (number * 32 + row * 4)
        for n in tl.static_range(N):
            store_shared(at + n * (UNITS * GROUPS * 32), sums[n])


@triton.jit
def keep_sums(
    words,
    panels_ptr,
    first,
    jump,
    num_panels,
    x,
    table,
    scratch,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    N: tl.constexpr,
    UNITS: tl.constexpr,
    RUN: tl.constexpr,
    IS_PAIR: tl.constexpr,
    THREADS: tl.constexpr,
):
    """The sums of all groups, into shared memory at ``scratch``, for ``row_sums``.

    Args:
        words: ``round_words`` of round 0.
        first, jump, num_panels: as there.
        x: pointers of the fields of ``Codes`` at the first row.
        table: of ``tables.points_of``.
        scratch: address of ``scratch_words`` words.
        THREADS: of the program.
    """
    ROUNDS: tl.constexpr = num_rounds(UNITS, GROUPS, THREADS)
    NUM_WORDS: tl.constexpr = PANEL_BYTES * (2 if IS_PAIR else 1) // (32 * GROUPS)
    IS_AHEAD: tl.constexpr = NUM_WORDS <= _MOST_WORDS
    table = copy_of(table, tl.arange(0, THREADS), TRAITS)
    # A loop of the machine, not unrolled: the code of eight rows would outgrow its cache.
    for r in range(0, ROUNDS - 1):
        coming = words
        if IS_AHEAD:
            coming = round_words(
                r + 1, panels_ptr, first, jump, num_panels, PLANES, NUM_PLANES, PANEL_BYTES,
                GROUPS, IS_SHORT, UNITS, RUN, IS_PAIR, THREADS,
            )  # fmt: skip
        # Keeps loads ahead of the arithmetic; else they are issued one by one.
        tl.debug_barrier()
        _keep_round(r, words, scratch, x, table, FORMAT, TRAITS, GROUPS, N, UNITS, IS_PAIR, THREADS)
        if IS_AHEAD:
            words = coming
        else:
            words = round_words(
                r + 1, panels_ptr, first, jump, num_panels, PLANES, NUM_PLANES, PANEL_BYTES,
                GROUPS, IS_SHORT, UNITS, RUN, IS_PAIR, THREADS,
            )  # fmt: skip
    tl.debug_barrier()
    _keep_round(
        ROUNDS - 1, words, scratch, x, table, FORMAT, TRAITS, GROUPS, N, UNITS, IS_PAIR, THREADS
    )
    tl.debug_barrier()


@triton.jit
def row_sums(scratch, place, GROUPS: tl.constexpr):
    """Group sums of rows added in ascending order; any shape.

    ``place`` int32 is (n * panels + panel) * 8 + row, panels in the order of the units.
    """
    at = scratch + (place // 8 * (GROUPS * 32) + place % 8 * 4)
    total = (place * 0).to(tl.float32)
    for g in tl.static_range(GROUPS):
        total = total + load_shared(at + g * 32)
    return total


@triton.jit
def store_rows(
    scratch, first, num_rows, out_ptr, out_stride, GROUPS: tl.constexpr, N: tl.constexpr,
    PANELS: tl.constexpr,
):  # fmt: skip
    """out[n, row] of the rows of PANELS neighbouring panels, as many as there are."""
    place = tl.arange(0, triton.next_power_of_2(N * PANELS * 8))
    n = place // (PANELS * 8)
    row = first * 8 + place % (PANELS * 8)
    # Past the end any place stands in.
    sums = row_sums(scratch, tl.minimum(place, N * PANELS * 8 - 1), GROUPS)
    tl.store(out_ptr + n * out_stride + row, sums, mask=(row < num_rows) & (n < N))
