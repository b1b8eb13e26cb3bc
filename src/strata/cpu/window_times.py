"""How long windows of a model that the processor runs take, and what they wait for reads.

Owns the averages; clocks and counts are read around a window that is run anyway.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from strata.cpu.expert_tier import FOUND
from strata.tiers.rates import CostMeter, TierRates, unknown_read
from strata.tiers.share import Cost

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.cpu.expert_tier import ExpertTier

# Windows of one row whose time is remembered.
_REMEMBERED = 64
_READ, _WAITED = FOUND.index("read"), FOUND.index("wait_ns")
# The processor computes and never copies: nothing is divided.
_NOTHING = Cost(0.0, 1e-9)


class WindowTimes:
    """Of all sessions of one model. One window at a time.

    Args:
        tier: counts what is read, and the time that is waited.
    """

    def __init__(self, tier: ExpertTier) -> None:
        self._tier = tier
        self._expert_bytes = int(np.mean(tier.blob_bytes))
        self._read = CostMeter(unknown_read(self._expert_bytes))
        self._free_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._before: tuple[float, NDArray[np.int64]] | None = None

    def begins(self) -> None:
        """A window begins."""
        self._before = time.perf_counter(), self._tier.counts_by_layer()

    def ends(self, num_rows: int) -> None:
        """It has been computed. What broke off in between is never told."""
        if self._before is None:
            return
        (begun, before), self._before = self._before, None
        since = self._tier.counts_by_layer() - before
        seconds = time.perf_counter() - begun
        waited, num = since[:, _WAITED] / 1e9, since[:, _READ]
        has_read = num > 0
        if has_read.any():
            self._read.add(num[has_read], waited[has_read])
        if num_rows == 1:
            self._free_s.append(max(1e-9, seconds - float(waited.sum())))

    def rates(self) -> TierRates | None:
        """A window without reads, and what these cost; None before a window of one row was run."""
        if not self._free_s:
            return None
        rates = TierRates(
            self._expert_bytes, _NOTHING, _NOTHING, 0.0, statistics.median(self._free_s),
            is_divided=False,
        )  # fmt: skip
        if not self._read.weight:
            return rates
        return rates.with_reads(self._read.cost, self._tier.disk_bytes_per_s())
