"""What windows and prompts asked of the experts' places: counts by layer, and their sums.

Owns the counting and the names; who shows them is ``cli``. What a window asked for is known to the
host anyway, so nothing is counted on a card but the time that it waits. A window that ran to be
captured is never counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

COUNTED = (
    "lookups", "hits", "computed", "copied", "from_file", "moved", "prompt_lookups", "prompt_hits",
    "prompt_copied", "answers", "answer_ns", "wait_ns", "file_bytes", "ahead", "ahead_used",
    "ahead_dropped", "ahead_bytes",
)  # fmt: skip
"""For each layer. Of windows: distinct experts looked up, hits in slots, misses computed by the
processor, misses copied to the card; of these misses, read from a file first. Experts moved to
slots that stay. Of prompt chunks: looked up, in slots, copied. Layers of windows that the processor
answered, how long it computed, how long the card waited. Bytes read from a file. Reads of experts
that began before anybody asked for them, those that were taken (which are counted as read), those
that were given up, bytes read in vain."""
_NUMBER = {name: number for number, name in enumerate(COUNTED)}


@dataclass(frozen=True, slots=True, eq=False)
class TierCounts:
    """Counts from one moment to another.

    Attributes:
        windows: that were counted.
        table: [L, ``COUNTED``].
        expert_bytes: [L], of an expert of each layer.
    """

    windows: int
    table: Counts
    expert_bytes: Counts

    def __add__(self, other: TierCounts) -> TierCounts:
        """What was counted in two stretches of time."""
        return TierCounts(self.windows + other.windows, self.table + other.table, self.expert_bytes)

    def __sub__(self, earlier: TierCounts) -> TierCounts:
        """What was counted since."""
        return TierCounts(
            self.windows - earlier.windows, self.table - earlier.table, self.expert_bytes
        )

    def of(self, name: str) -> Counts:
        """[L] one of ``COUNTED``."""
        return self.table[:, _NUMBER[name]]

    def total(self, name: str) -> int:
        """The same of all layers together."""
        return int(self.of(name).sum())

    def bytes_of(self, *names: str) -> int:
        """Bytes of the experts that these counts counted."""
        return sum(int((self.of(name) * self.expert_bytes).sum()) for name in names)

    @property
    def hit_rate(self) -> float | None:
        """Hits of all that windows looked up; None where they looked up nothing."""
        lookups = self.total("lookups")
        return self.total("hits") / lookups if lookups else None

    @property
    def window_file_bytes(self) -> int:
        """Bytes that windows, not prompts, read from a file."""
        return self.bytes_of("from_file")

    @property
    def tier_bytes(self) -> dict[str, int]:
        """Bytes of experts read in each place, and over the link between two of them."""
        return {
            "vram": self.bytes_of("hits", "copied", "prompt_hits", "prompt_copied"),
            "ram": self.bytes_of("computed"),
            "link": self.bytes_of("copied", "moved", "prompt_copied"),
            "disk": self.total("file_bytes") + self.total("ahead_bytes"),
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON; times in seconds."""
        return {
            "windows": self.windows,
            "hit_rate": self.hit_rate,
            **{name: self.total(name) for name in COUNTED if not name.endswith(("_ns", "_bytes"))},
            "answer_s": self.total("answer_ns") / 1e9,
            "wait_s": self.total("wait_ns") / 1e9,
            "bytes": self.tier_bytes,
            "layers": {
                name: self.of(name).tolist()
                for name in ("lookups", "hits", "computed", "copied", "from_file", "wait_ns")
            },
        }


class TierTally:
    """Counts windows as they are accepted. One thread at a time.

    Args:
        expert_bytes: [L].
    """

    def __init__(self, expert_bytes: Counts) -> None:
        self._expert_bytes = expert_bytes
        self._windows = 0
        self._table = np.zeros((len(expert_bytes), len(COUNTED)), np.int64)

    def add(self, name: str, counts: Counts) -> None:
        """Adds [L] to one of ``COUNTED``."""
        self._table[:, _NUMBER[name]] += counts

    def add_window(self, lookups: Counts, hits: Counts, copied: Counts) -> None:
        """A window: [L] distinct experts, those in slots, those copied for it."""
        self._windows += 1
        self.add("lookups", lookups)
        self.add("hits", hits)
        self.add("copied", copied)
        self.add("computed", lookups - hits - copied)

    def counts(self) -> TierCounts:
        """All so far; a copy."""
        return TierCounts(self._windows, self._table.copy(), self._expert_bytes)


def add_ahead(counts: TierCounts, ahead: Counts) -> TierCounts:
    """Takes over [L, 4] of the reads that nobody had asked for: the last four of ``COUNTED``."""
    counts.table[:, -ahead.shape[1] :] = ahead
    return counts


def first_mentions(ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """[L, N] where ids [L, N] name an expert for the first time in their layer."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, axis=1)
    is_first = np.ones(ids.shape, bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    found = np.empty(ids.shape, bool)
    np.put_along_axis(found, order, is_first, axis=1)
    return found
