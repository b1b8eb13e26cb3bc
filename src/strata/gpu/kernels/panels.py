"""Panels of packed rows times a few rows of activations: the loop that all decode products share.

A thread has one row, or the same row of two panels, and every SLOTS-th group of it. Group sums are
added in ascending order by picking one slot's at a time, so a result's bits depend neither on
SLOTS nor on the number of activation rows. Words of the first round may be loaded before the
activations exist; with one panel a thread, those of the next while one is multiplied.

With IS_PAIR two panels share a thread and the matrix instruction does the integer work
(``group_pair``): for windows of some rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.group import group_sums, load_group
from strata.gpu.kernels.group_pair import pair_sums
from strata.gpu.kernels.warp import from_lane

# Words of a group that may be loaded ahead, by a warp or two and by a larger program.
_MOST_WORDS = tl.constexpr(56)
_MOST_SHARED_WORDS = tl.constexpr(40)


@triton.jit
def slot_of(thread, SLOTS: tl.constexpr, IS_PAIR: tl.constexpr):
    """The slot of each thread."""
    if IS_PAIR:
        return thread % 4
    return thread // 8 % SLOTS


@triton.jit
def row_of(thread, IS_PAIR: tl.constexpr):
    """The row of its panel that each thread has."""
    if IS_PAIR:
        return thread // 4 % 8
    return thread % 8


@triton.jit
def panels_of(first, THREADS: tl.constexpr, SLOTS: tl.constexpr, IS_PAIR: tl.constexpr):
    """The panels of each thread, from ``first`` on: one [THREADS] int32, or two."""
    number = tl.arange(0, THREADS) // (8 * SLOTS)
    if IS_PAIR:
        return first + 2 * number, first + 2 * number + 1
    else:
        return (first + number,)


@triton.jit
def clamped(panels, num_panels, IS_PAIR: tl.constexpr):
    """``panels`` with the last one for those past the end."""
    if IS_PAIR:
        return tl.minimum(panels[0], num_panels - 1), tl.minimum(panels[1], num_panels - 1)
    else:
        return (tl.minimum(panels[0], num_panels - 1),)


@triton.jit
def store_sums(
    sums, panels, out_ptr, out_stride, num_rows, N: tl.constexpr, SLOTS: tl.constexpr,
    IS_PAIR: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """out[n, row] of all rows below ``num_rows``; ``panels`` not clamped."""
    thread = tl.arange(0, THREADS)
    for i in tl.static_range(2 if IS_PAIR else 1):
        row = panels[i] * 8 + row_of(thread, IS_PAIR)
        is_stored = (row < num_rows) & (slot_of(thread, SLOTS, IS_PAIR) == 0)
        for n in tl.static_range(N):
            tl.store(out_ptr + n * out_stride + row, sums[i * N + n], mask=is_stored)


@triton.jit
def _load(
    panels_ptr, panels, thread, first, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr,
    SLOTS: tl.constexpr, IS_PAIR: tl.constexpr,
):  # fmt: skip
    """Words of the groups ``first`` and on, one a slot: for each panel of a thread."""
    group = tl.minimum(first + slot_of(thread, SLOTS, IS_PAIR), GROUPS - 1)
    row = row_of(thread, IS_PAIR)
    words = ()
    for i in tl.static_range(2 if IS_PAIR else 1):
        base = panels_ptr + panels[i].to(tl.int64) * PANEL_BYTES
        words = words + (load_group(base, row, group, PLANES, NUM_PLANES, IS_SHORT),)
    return words


@triton.jit
def first_words(
    panels_ptr, panels, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, SLOTS: tl.constexpr, IS_PAIR: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    """What ``panel_sums`` begins with. Depends on no activation."""
    thread = tl.arange(0, THREADS)
    return _load(
        panels_ptr,
        panels,
        thread,
        0,
        PLANES,
        NUM_PLANES,
        PANEL_BYTES,
        GROUPS,
        IS_SHORT,
        SLOTS,
        IS_PAIR,
    )


@triton.jit
def _add_pairs(total, sums, thread):
    """``total`` plus the sums of the four slots, ascending: in every slot the same."""
    for s in tl.static_range(4):
        total = total + from_lane(sums, thread % 32 // 4 * 4 + s)
    return total


@triton.jit
def _add_in_order(total, sums, SLOTS: tl.constexpr, TILE: tl.constexpr, NUM: tl.constexpr):
    """``total`` [TILE, 8] plus the sums of the first NUM slots, ascending.

    A slot is picked by a sum over all, the others zero, which is exact in any order. That is right
    in whatever way Triton lays threads out, and callers may reshape what comes of it. ``from_lane``
    would take fewer instructions and is not; ``tl.gather`` wants a layout of its own, and Triton
    then unpacks the weights in both.
    """
    by_slot = tl.reshape(sums, (TILE, SLOTS, 8))
    slots = tl.arange(0, SLOTS)[None, :, None]
    for s in tl.static_range(NUM):
        total = total + tl.sum(tl.where(slots == s, by_slot, 0.0), axis=1)
    return total


@triton.jit
def panel_sums(
    words,
    panels_ptr,
    panels,
    x,
    table,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr,
    N: tl.constexpr,
    SLOTS: tl.constexpr,
    IS_PAIR: tl.constexpr,
    THREADS: tl.constexpr,
):
    """Products of each thread's rows, [THREADS] float32, in every slot the same.

    N tensors for rows of the first panel, then N for those of the second where there are two. With
    IS_PAIR they may not be reshaped: lanes could then be other ones (``warp``).

    Args:
        words: of ``first_words``.
        panels: [THREADS] int32, the panel of each thread, or two of these.
        x: pointers of the fields of ``Codes`` at the first row.
        table: of ``tables.points_of``.
        SLOTS: 1, 2 or 4; 4 with IS_PAIR.
        THREADS: threads of the program; SLOTS * 8 have a panel (or two) in common.
    """
    LAST: tl.constexpr = (GROUPS - 1) // SLOTS * SLOTS
    NUM_WORDS: tl.constexpr = PANEL_BYTES // (32 * GROUPS)
    # Registers of a program of several warps bound how many a multiprocessor holds.
    IS_AHEAD: tl.constexpr = (_MOST_WORDS if THREADS <= 64 else _MOST_SHARED_WORDS) >= NUM_WORDS
    thread = tl.arange(0, THREADS)
    slot = slot_of(thread, SLOTS, IS_PAIR)
    TILE: tl.constexpr = THREADS // (8 * SLOTS)
    totals = ()
    for _ in tl.static_range(2 * N if IS_PAIR else N):
        zero = tl.zeros((THREADS,), tl.float32) if IS_PAIR else tl.zeros((TILE, 8), tl.float32)
        totals = totals + (zero,)
    # A loop of the machine, not unrolled: the code of eight rows would outgrow its cache.
    if IS_PAIR:
        for first in range(0, GROUPS, SLOTS):
            # Keeps loads ahead of the arithmetic; else they are issued one by one.
            tl.debug_barrier()
            group = tl.minimum(first + slot, GROUPS - 1)
            sums = pair_sums(words[0], words[1], x, thread, group, table, FORMAT, TRAITS, GROUPS, N)
            added = ()
            for n in tl.static_range(2 * N):
                live = tl.where(first + slot < GROUPS, sums[n], 0.0)
                added = added + (_add_pairs(totals[n], live, thread),)
            totals = added
            words = _load(
                panels_ptr, panels, thread, first + SLOTS, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS,
                IS_SHORT, SLOTS, True,
            )  # fmt: skip
        return totals
    else:
        for first in range(0, LAST, SLOTS):
            coming = words
            if IS_AHEAD:
                coming = _load(
                    panels_ptr, panels, thread, first + SLOTS, PLANES, NUM_PLANES, PANEL_BYTES,
                    GROUPS, IS_SHORT, SLOTS, False,
                )  # fmt: skip
            tl.debug_barrier()
            sums = group_sums(words[0], x, first + slot, table, FORMAT, TRAITS, GROUPS, N)
            added = ()
            for n in tl.static_range(N):
                added = added + (_add_in_order(totals[n], sums[n], SLOTS, TILE, SLOTS),)
            totals = added
            if IS_AHEAD:
                words = coming
            else:
                words = _load(
                    panels_ptr, panels, thread, first + SLOTS, PLANES, NUM_PLANES, PANEL_BYTES,
                    GROUPS, IS_SHORT, SLOTS, False,
                )  # fmt: skip
        tl.debug_barrier()
        group = tl.minimum(LAST + slot, GROUPS - 1)
        sums = group_sums(words[0], x, group, table, FORMAT, TRAITS, GROUPS, N)
        added = ()
        for n in tl.static_range(N):
            total = _add_in_order(totals[n], sums[n], SLOTS, TILE, GROUPS - LAST)
            total = tl.broadcast_to(total[:, None, :], (TILE, SLOTS, 8))
            added = added + (tl.reshape(total, (THREADS,)),)
        return added
