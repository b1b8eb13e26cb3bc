"""The split of misses between copies and the processor, against trying every split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import SettingsError
from strata.tiers.share import Cost, balanced, fixed_counts


def counts_of(most: int, asked: Cost, staged: Cost) -> list[int]:
    return balanced(most, asked, staged)[0].tolist()


def test_equal_rates_halve_the_misses():
    assert counts_of(6, Cost(0.0, 1.0), Cost(0.0, 1.0)) == [0, 0, 1, 1, 2, 2, 3]


def test_what_a_copy_costs_once_is_paid_only_where_it_gains():
    # Two misses by the processor: 2; one copied: 3. Of five, one copied: 4 against 5.
    assert counts_of(5, Cost(0.0, 1.0), Cost(2.5, 0.5)) == [0, 0, 0, 0, 1, 2]


def test_a_way_that_is_far_too_slow_is_not_taken():
    assert counts_of(10, Cost(1e-6, 1e-6), Cost(1.0, 1.0)) == [0] * 11
    assert counts_of(3, Cost(1.0, 1.0), Cost(1e-6, 1e-6)) == [0, 1, 2, 3]


def test_copies_that_take_the_processors_memory_gain_nothing():
    # Of two, one copied leaves it one that takes as long as both; of three, two copied gain.
    asked, staged = Cost(0.0, 1.0), Cost(0.0, 1.0)
    assert balanced(4, asked, staged, beside=Cost(0.0, 2.0))[0].tolist() == [0, 0, 0, 2, 3]
    assert balanced(4, asked, staged, beside=Cost(1.0, 4.0))[0].tolist() == [0] * 5


@given(
    st.tuples(*[st.floats(0, 3)] * 7),
    st.integers(0, 16),
)
def test_of_all_splits_that_end_first_the_one_with_fewest_copies_is_taken(
    costs: tuple[float, ...], most: int
) -> None:
    asked, staged, idle = Cost(*costs[:2]), Cost(*costs[2:4]), costs[4]
    beside = Cost(*costs[5:])
    counts, seconds = balanced(12, asked, staged, beside=beside, idle=idle, max_staged=most)
    for misses in range(13):
        best, ends_first = 0, float("inf")
        for copied in range(min(misses, most) + 1):
            left = misses - copied
            by_host = (beside if copied else asked).of(left)
            by_card = staged.once + staged.each * copied if copied else idle
            ends = max(by_host, by_card)
            if ends < ends_first:
                best, ends_first = copied, ends
        assert counts[misses] == best
        assert seconds[misses] == ends_first


def test_a_share_is_taken_in_256ths():
    assert fixed_counts(4, 0.5) == [0, 1, 1, 2, 2]
    assert fixed_counts(10, 0.55)[10] == 6  # 141 / 256 of ten
    assert fixed_counts(3, 0.0) == [0, 0, 0, 0]
    assert fixed_counts(3, 1.0) == [0, 1, 2, 3]
    with pytest.raises(SettingsError, match=r"between 0 and 1, not 1\.5"):
        fixed_counts(3, 1.5)
