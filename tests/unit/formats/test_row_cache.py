"""Rows kept in memory against a dictionary, and against a readable clock for who goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import _native

ROW_BYTES = 7
NUM_ROWS = 90


def stored(rows: np.ndarray) -> np.ndarray:
    """[N, ROW_BYTES]: what the table holds; every row differs from every other."""
    return (rows[:, None] * np.arange(1, ROW_BYTES + 1) % 251).astype(np.uint8)


class Clock:
    """The same policy: new rows unmarked, a hit marks, the hand spares the marked once."""

    def __init__(self, capacity: int) -> None:
        self.slots: list[list[int]] = []
        self.capacity, self.hand = capacity, 0

    def has(self, row: int) -> bool:
        for slot in self.slots:
            if slot[0] == row:
                slot[1] = 1
                return True
        return False

    def put(self, row: int) -> None:
        if any(slot[0] == row for slot in self.slots) or self.capacity == 0:
            return
        if len(self.slots) < self.capacity:
            self.slots.append([row, 0])
            return
        while self.slots[self.hand][1]:
            self.slots[self.hand][1] = 0
            self.hand = (self.hand + 1) % self.capacity
        self.slots[self.hand] = [row, 0]
        self.hand = (self.hand + 1) % self.capacity


@settings(deadline=None, max_examples=150)
@given(
    limit=st.integers(0, 700),
    requests=st.lists(st.lists(st.integers(0, NUM_ROWS - 1), max_size=30), max_size=40),
)
def test_hits_are_right_and_the_rest_is_asked_for_once(
    limit: int, requests: list[list[int]]
) -> None:
    cache = _native.RowCache(ROW_BYTES, limit)
    clock = Clock(cache.capacity)
    assert cache.num_bytes <= limit
    asked = found = 0
    for request in requests:
        rows = np.array(request, np.int64)
        out = np.full((len(rows), ROW_BYTES), 255, np.uint8)
        hits = [clock.has(row) for row in request]
        first = {row: i for i, row in reversed(list(enumerate(request)))}
        expected = [i for i, row in enumerate(request) if not hits[i] and first[row] == i]
        taken = cache.take(rows, NUM_ROWS, 1000, out)
        np.testing.assert_array_equal(out[hits], stored(rows[hits]))
        assert (out[np.logical_not(hits)] == 255).all()
        asked, found = asked + len(rows), found + sum(hits)
        assert (cache.num_asked, cache.num_found) == (asked, found)
        if taken is None:
            assert expected == []
            continue
        missing, offsets, sizes, places, repeats = taken
        assert missing.tolist() == expected
        np.testing.assert_array_equal(offsets, 1000 + rows[missing] * ROW_BYTES)
        np.testing.assert_array_equal(places, missing * ROW_BYTES)
        assert (sizes == ROW_BYTES).all()
        out[missing] = stored(rows[missing])
        if repeats is not None:
            out[repeats[::2]] = out[repeats[1::2]]
        np.testing.assert_array_equal(out, stored(rows))
        cache.put(rows, out, missing)
        for i in missing:
            clock.put(request[i])
        assert len(cache) == len(clock.slots)


def test_the_limit_is_used() -> None:
    cache = _native.RowCache(90, 64 << 20)
    assert 0.9 * (64 << 20) < cache.num_bytes <= 64 << 20
    assert _native.RowCache(90, 0).capacity == 0


def test_rows_the_table_does_not_have() -> None:
    cache = _native.RowCache(ROW_BYTES, 1000)
    out = np.zeros((1, ROW_BYTES), np.uint8)
    for row in (-1, NUM_ROWS):
        with pytest.raises(IndexError, match=f"no row {row}"):
            cache.take(np.array([row]), NUM_ROWS, 0, out)
    with pytest.raises(ValueError, match="are not 2 rows"):
        cache.take(np.array([1, 2]), NUM_ROWS, 0, out)
    for which in (-1, 1):
        with pytest.raises(ValueError, match="outside the rows"):
            cache.put(np.array([1]), out, np.array([which]))
    with pytest.raises(ValueError, match="at least one byte"):
        _native.RowCache(0, 100)
