"""Exact choice of the largest of many numbers, for use inside kernels.

Numbers are compared as int32 keys that order like them; ties go to the lower index. The search
bisects the bits of the keys: a fixed number of rounds, no atomics, no sort.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_KEY = tl.constexpr(-(2**31))
"""Below the key of every number: a place that takes no part."""


@triton.jit
def ordered_key(x):
    """int32 keys of float32 numbers, NaN excepted: -0 and 0 share one, minus infinity is NO_KEY."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x == float("-inf"), NO_KEY, key)


@triton.jit
def nth_largest(keys, num_keys, wanted, lowest, first_bit):
    """The largest t with at least ``wanted`` keys >= t, or one that exactly so many reach.

    Args:
        keys: int32, any shape of one axis; those that take no part are below ``lowest``, or equal
            to it where that is NO_KEY.
        num_keys: how many take part.
        wanted: at most num_keys.
        lowest: where the search begins: 0 with first_bit 30, or NO_KEY with first_bit 31.
        first_bit: see there.
    """
    threshold = tl.zeros([], tl.int32) + lowest
    count = tl.zeros([], tl.int32) + num_keys
    bit = tl.zeros([], tl.int32) + first_bit
    while (bit >= 0) & (count != wanted):
        candidate = threshold ^ (tl.full([], 1, tl.int32) << bit)
        reaching = tl.sum((keys >= candidate).to(tl.int32), axis=0)
        is_reached = reaching >= wanted
        threshold = tl.where(is_reached, candidate, threshold)
        count = tl.where(is_reached, reaching, count)
        bit -= 1
    return threshold


@triton.jit
def take_largest(keys, is_key, wanted, lowest, first_bit):
    """Which of the keys are the ``wanted`` largest, and the place of each among them by index."""
    num_keys = tl.sum(is_key.to(tl.int32), axis=0)
    threshold = nth_largest(keys, num_keys, wanted, lowest, first_bit)
    is_above = is_key & (keys > threshold)
    is_equal = is_key & (keys == threshold)
    equals_wanted = wanted - tl.sum(is_above.to(tl.int32), axis=0)
    equals_so_far = tl.cumsum(is_equal.to(tl.int32), axis=0)
    is_taken = is_above | (is_equal & (equals_so_far <= equals_wanted))
    return is_taken, tl.cumsum(is_taken.to(tl.int32), axis=0) - 1
