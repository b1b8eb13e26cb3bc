"""What windows of the processor take and wait, from counts and clocks that are made up."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.cpu.expert_tier import FOUND
from strata.cpu.window_times import WindowTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

LAYERS, EXPERT_BYTES = 4, 1 << 20
ONCE_S, EACH_S = 2e-4, 5e-4
COMPUTED_S = 8e-3


class CountingTier:
    """Reads nothing; its layers wait as long as is said."""

    blob_bytes = (EXPERT_BYTES,) * LAYERS

    def __init__(self) -> None:
        self.table = np.zeros((LAYERS, len(FOUND)), np.int64)

    def disk_bytes_per_s(self) -> float:
        return 3e9

    def counts_by_layer(self) -> NDArray[np.int64]:
        return self.table.copy()

    def read(self, num: NDArray[np.int64]) -> float:
        """So many experts of each layer; seconds that were waited."""
        waited = np.where(num > 0, ONCE_S + EACH_S * num, 0.0)
        self.table[:, FOUND.index("read")] += num
        self.table[:, FOUND.index("wait_ns")] += (1e9 * waited).astype(np.int64)
        return float(waited.sum())


def test_reads_and_computing_are_told_apart(monkeypatch) -> None:
    tier, now, rng = CountingTier(), [0.0], np.random.default_rng(1)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    times = WindowTimes(tier)
    assert times.rates() is None
    for _ in range(100):
        for num_rows, computed in ((1, COMPUTED_S), (3, 3 * COMPUTED_S)):
            times.begins()
            now[0] += computed + tier.read(rng.integers(0, 4, LAYERS))
            times.ends(num_rows)
            now[0] += 0.5
    rates = times.rates()
    assert not rates.is_divided
    assert rates.window_s == pytest.approx(COMPUTED_S, rel=1e-6)
    # A line from the first, wrong belief keeps a little weight.
    assert rates.read_once_s == pytest.approx(ONCE_S, rel=0.2)
    assert rates.read_each_s == pytest.approx(EACH_S, rel=0.03)
    assert rates.disk_bytes_per_s == 3e9
    assert rates.read.of(2) == pytest.approx(ONCE_S + 2 * EACH_S, rel=0.01)


def test_windows_without_reads_say_nothing_of_the_disk(monkeypatch) -> None:
    times = WindowTimes(CountingTier())
    times.ends(1)
    assert times.rates() is None
    times.begins()
    times.ends(1)
    assert times.rates().disk_bytes_per_s is None
