"""Counts of windows, against sets and loops."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.tiers.counters import COUNTED, TierTally, first_mentions


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 24), st.integers(1, 12))
def test_an_expert_is_mentioned_first_once(seed: int, layers: int, num: int, experts: int) -> None:
    ids = np.random.default_rng(seed).integers(0, experts, (layers, num))
    found = first_mentions(ids)
    for row, flags in zip(ids.tolist(), found.tolist(), strict=True):
        seen: set[int] = set()
        for expert, is_first in zip(row, flags, strict=True):
            assert is_first == (expert not in seen)
            seen.add(expert)


def test_what_is_not_a_hit_is_computed_or_copied_and_counts_are_differences() -> None:
    tally = TierTally(np.array([100, 10]))
    tally.add_window(np.array([4, 3]), np.array([1, 3]), np.array([2, 0]))
    before = tally.counts()
    assert before.windows == 1
    assert before.of("computed").tolist() == [1, 0]
    assert before.hit_rate == 4 / 7
    tally.add_window(np.array([4, 4]), np.array([0, 1]), np.array([0, 1]))
    tally.add("moved", np.array([0, 5]))
    tally.add("file_bytes", np.array([7, 8]))
    since = tally.counts() - before
    assert since.windows == 1
    assert since.hit_rate == 1 / 8
    assert since.of("computed").tolist() == [4, 2]
    assert since.tier_bytes == {
        "vram": 1 * 10 + 1 * 10,
        "ram": 4 * 100 + 2 * 10,
        "link": 1 * 10 + 5 * 10,
        "disk": 15,
    }
    # A copy: what is counted later does not change it.
    assert before.windows == 1


def test_counts_are_json() -> None:
    tally = TierTally(np.array([100, 10]))
    empty = tally.counts()
    assert empty.hit_rate is None
    assert json.loads(json.dumps(empty.as_dict()))["hit_rate"] is None
    tally.add("wait_ns", np.array([2_000_000, 0]))
    told = json.loads(json.dumps(tally.counts().as_dict()))
    assert told["wait_s"] == 0.002
    assert told["layers"]["wait_ns"] == [2_000_000, 0]
    assert {"lookups", "hits", "computed", "copied", "from_file", "moved"} <= set(told)
    assert len(COUNTED) == len(set(COUNTED))
