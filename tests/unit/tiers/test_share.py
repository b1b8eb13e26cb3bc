"""The split of misses between copies and the processor, against trying every split."""

from __future__ import annotations

import numpy as np
import pytest

from strata.errors import SettingsError
from strata.tiers.share import Cost, balanced_counts, fixed_counts


def test_equal_rates_halve_the_misses():
    assert balanced_counts(6, Cost(0.0, 1.0), Cost(0.0, 1.0)) == [0, 0, 1, 1, 2, 2, 3]


def test_what_a_copy_costs_once_is_paid_only_where_it_gains():
    # Two misses by the processor: 2; one copied: 3. Of five, one copied: 4 against 5.
    assert balanced_counts(5, Cost(0.0, 1.0), Cost(2.5, 0.5)) == [0, 0, 0, 0, 1, 2]


def test_a_way_that_is_far_too_slow_is_not_taken():
    assert balanced_counts(10, Cost(1e-6, 1e-6), Cost(1.0, 1.0)) == [0] * 11
    assert balanced_counts(3, Cost(1.0, 1.0), Cost(1e-6, 1e-6)) == [0, 1, 2, 3]


def test_no_other_split_ends_earlier():
    rng = np.random.default_rng(5)
    for _ in range(50):
        asked, staged = (Cost(*rng.uniform(0, 3, 2).tolist()) for _ in range(2))
        for misses, count in enumerate(balanced_counts(12, asked, staged)):
            ends = [max(asked.of(misses - n), staged.of(n)) for n in range(misses + 1)]
            assert ends[count] == min(ends)


def test_a_share_is_taken_in_256ths():
    assert fixed_counts(4, 0.5) == [0, 1, 1, 2, 2]
    assert fixed_counts(10, 0.55)[10] == 6  # 141 / 256 of ten
    assert fixed_counts(3, 0.0) == [0, 0, 0, 0]
    assert fixed_counts(3, 1.0) == [0, 1, 2, 3]
    with pytest.raises(SettingsError, match=r"between 0 and 1, not 1\.5"):
        fixed_counts(3, 1.5)
