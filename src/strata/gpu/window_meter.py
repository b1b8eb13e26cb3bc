"""What a window asked for and what it waited for, as it left the card: counts and costs.

Owns the reading of what the host knows of a window anyway; nothing is launched. Called when a
window is accepted, and again while the next one runs, where the counting is done.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.tiers.counters import TierCounts, TierTally, first_mentions
from strata.tiers.hand_off import ROUND_TRIP_S, SERVED
from strata.tiers.rates import CostMeter, unknown_read
from strata.tiers.share import processor_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.gpu.split import Split
    from strata.tiers.share import Cost

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

_SERVED = {name: number for number, name in enumerate(SERVED)}
# Windows of one row whose time is remembered, and the longest that is one window's.
_REMEMBERED, _LONGEST_S = 64, 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A window that was accepted.

    Attributes:
        ids: [L, T, K] experts it asked for.
        is_hit: [L, T * K] which of them had a slot.
        clock: [L, 3] nanoseconds; see ``kernels.hand_off.HandOff``.
        served: [L, ``SERVED``] what the host had done by then.
        share: how many of 0, 1, ... distinct misses of a layer were copied.
        kept: [L] misses that were copied, where all of them stay in slots; else None.
    """

    ids: Ints
    is_hit: Bools
    clock: Ints
    served: Ints
    share: Ints
    kept: Ints | None = None


class WindowMeter:
    """Counts of one model, and the costs its split learns from.

    Args:
        expert_bytes: [L] of an expert.
        is_whole: layers that all experts have slots of, which ask for nothing.
        split: learns.
        reachable: [L, E] whether the card can copy an expert.
        served: [L, ``SERVED``] what the host has done so far.
    """

    def __init__(
        self,
        expert_bytes: Ints,
        is_whole: Bools,
        split: Split,
        reachable: Bools,
        served: Ints,
    ) -> None:
        self._tally = TierTally(expert_bytes)
        self.is_whole = is_whole
        self._split, self._served = split, served
        self._reachable = None if reachable.all() else reachable
        self._round_trip = ROUND_TRIP_S
        self._read = CostMeter(unknown_read(float(np.mean(expert_bytes))))
        self._begun: float | None = None
        self._period: float | None = None  # of the window that is counted next
        self._free_s: deque[float] = deque(maxlen=_REMEMBERED)

    def begins(self, now_s: float, *, follows: bool) -> None:
        """A window begins; ``follows``: the one before it was the last thing that was done."""
        has_period = follows and self._begun is not None
        self._period = now_s - (self._begun or 0.0) if has_period else None
        self._begun = now_s

    def breaks(self) -> None:
        """Something else than windows was done."""
        self._begun = None

    @property
    def free_s(self) -> float | None:
        """A window of one row from one's beginning to the next's, without what layers waited for
        experts in no slot; the middle of the last ones."""
        return statistics.median(self._free_s) if self._free_s else None

    @property
    def read_cost(self) -> Cost | None:
        """What a layer's reads cost it; None before it waited for any."""
        return self._read.cost if self._read.weight else None

    def count(self, seen: Seen) -> None:
        """Adds a window."""
        num_layers = len(seen.ids)
        ids = seen.ids.reshape(num_layers, -1)
        # A router never names an expert twice for one row.
        has_one_row = seen.ids.shape[1] == 1
        is_first = np.ones(ids.shape, bool) if has_one_row else first_mentions(ids)
        is_hit = seen.is_hit | self.is_whole[:, None]
        lookups, hits = is_first.sum(axis=1), (is_first & is_hit).sum(axis=1)
        copied = self._copied(ids, is_first & ~is_hit, seen)
        self._tally.add_window(lookups, hits, copied)
        computed = lookups - hits - copied
        since, self._served = seen.served - self._served, seen.served
        # A window that was also run to be captured, or run again, was served more than once.
        is_one = (since[:, _SERVED["requests"]] == 1) & (computed > 0)
        is_one &= since[:, _SERVED["experts"]] == computed
        late_s = self._learn(seen.clock, computed, copied, since, is_one)
        period, self._period = self._period, None
        if has_one_row and period is not None and period < _LONGEST_S:
            self._free_s.append(max(0.0, period - late_s))

    def add(self, name: str, counts: Ints) -> None:
        """Adds [L] to one of ``tiers.counters.COUNTED``."""
        self._tally.add(name, counts)

    def counts(self, served: Ints) -> TierCounts:
        """All so far.

        Args:
            served: [L, ``SERVED``] of the host.
        """
        counts = self._tally.counts()
        for name in ("from_file", "file_bytes"):
            counts.of(name)[:] = served[:, _SERVED[name]]
        return counts

    def _copied(self, ids: Ints, is_miss: Bools, seen: Seen) -> Ints:
        """[L] distinct misses that were copied: what the kernel ``post`` decides."""
        if seen.kept is not None:
            return np.where(self.is_whole, 0, np.minimum(seen.kept, is_miss.sum(axis=1)))
        table = np.minimum(seen.share, self._split.num_stages)
        able = is_miss
        if self._reachable is not None:
            able = is_miss & np.take_along_axis(self._reachable, ids, axis=1)
        counts: Ints = np.minimum(table[is_miss.sum(axis=1)], able.sum(axis=1))
        return np.where(self.is_whole, 0, counts)

    def _learn(
        self, clock: Ints, computed: Ints, copied: Ints, since: Ints, is_one: Bools
    ) -> float:
        """Tells the split what layers took; gives the seconds that misses held the window up."""
        posted, begun, answered = clock.T
        busy_ns = since[:, _SERVED["nanoseconds"]]
        wait_ns = np.where(computed > 0, np.maximum(answered - begun, 0), 0)
        self._tally.add("wait_ns", wait_ns)
        self._tally.add("answers", (computed > 0).astype(np.int64))
        self._tally.add("answer_ns", np.where(is_one, busy_ns, 0))
        # Where the card waited, its clock tells when the answer came; else the host's tells enough.
        has_waited = is_one & (wait_ns > 2000)
        whole = (answered - posted) / 1e9
        if has_waited.any():
            # The shortest, of layers that waited or not. Where few wait, those that do are the ones
            # whose answer was held up, and would make the processor look slow, which has more
            # copied, so that fewer wait.
            trip = float(np.min((whole - busy_ns / 1e9)[is_one]))
            self._round_trip += (min(max(trip, 0.0), 1e-4) - self._round_trip) / 64
        asked_s = np.where(has_waited, whole, busy_ns / 1e9 + self._round_trip)
        card_s = (begun - posted) / 1e9
        is_open = ~self.is_whole
        is_copied, is_idle = is_open & (copied > 0), is_open & (copied == 0)
        has_read = is_one & (since[:, _SERVED["from_file"]] > 0)
        self._learn_disk(computed, copied, asked_s, since, has_read)
        is_plain = is_one & ~has_read
        is_alone, is_beside = is_plain & (copied == 0), is_plain & (copied > 0)
        self._split.learn(
            (computed[is_alone], asked_s[is_alone]),
            (computed[is_beside], asked_s[is_beside]),
            (copied[is_copied], card_s[is_copied]),
            card_s[is_idle],
            (computed + copied)[is_open].astype(np.float64),
        )
        ended = np.where(computed > 0, np.maximum(answered, begun), begun)
        late = (ended - posted) / 1e9 - (self._split.idle.value or 0.0)
        return float(np.maximum(late, 0.0)[is_open & (computed + copied > 0)].sum())

    def _learn_disk(
        self, computed: Ints, copied: Ints, seconds: Floats, since: Ints, has_read: Bools
    ) -> None:
        """What layers took beyond computing is what their reads took."""
        if not has_read.any():
            return
        split = self._split
        own_s = processor_seconds(computed, copied, split.asked_cost, split.beside_cost)
        beyond = np.maximum(seconds - own_s, 1e-6)
        self._read.add(since[has_read, _SERVED["from_file"]], beyond[has_read])
