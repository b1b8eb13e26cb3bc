"""What experts cost in each place, from what happened in windows: the newest count most.

Owns the averages, not the clocks. ``share`` divides misses by these costs, ``plan`` foretells speed
from them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.errors import CheckpointError
from strata.result_files import write_whole
from strata.tiers.share import Cost

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# An observation has lost half of its weight after 45 windows.
_KEPT = 1 - 1 / 64
# What was measured at the start counts as much as this many layers of one window, for ever: it
# decides where windows do not tell one number of experts from another.
_PRIOR_WEIGHT = 1.0
_LEAST = 1e-8
# An interrupted thread makes one layer a hundred times as long, and says nothing of the rate.
_MOST_OFF = 4.0
# A disk of which nothing is known; and a read of a few megabytes that was not foreseen: the
# request, the disk, the wake-up.
_DISK_BYTES_PER_S, _READ_ONCE_S = 1e9, 2e-4


def unknown_read(expert_bytes: float) -> Cost:
    """What a layer's reads of experts from a disk cost as long as none was measured."""
    return Cost(_READ_ONCE_S, expert_bytes / _DISK_BYTES_PER_S)


class CostMeter:
    """Seconds for n experts at a time, once + each * n: a line through what was observed.

    Args:
        prior: what was measured at the start, or is believed.
        most: experts at a time that it was believed for.
    """

    def __init__(self, prior: Cost, most: int = 8) -> None:
        self._prior, self._points = prior, np.array([1.0, max(2.0, float(most))])
        # Weight, n, n squared, seconds, n times seconds, seconds believed.
        self._sums = np.zeros(6)

    def add(self, nums: NDArray[np.integer[Any]], seconds: Floats) -> None:
        """Observations of one window: so many experts took so long; only n of 1 and more."""
        n = nums.astype(np.float64)
        now = self.cost
        t = np.minimum(seconds, _MOST_OFF * (now.once + now.each * n))
        believed = self._prior.once + self._prior.each * n
        self._sums = self._sums * _KEPT + [
            len(n), n.sum(), (n * n).sum(), t.sum(), (n * t).sum(), believed.sum()
        ]  # fmt: skip

    @property
    def weight(self) -> float:
        """Observations that still count, in layers."""
        return float(self._sums[0])

    @property
    def cost(self) -> Cost:
        """The line now."""
        w, n, nn, t, nt, believed = self._sums.tolist()
        if w < _LEAST:
            return self._prior
        # Where only one number was seen, both parts have become faster or slower alike.
        ratio = max(_LEAST, t) / max(_LEAST, believed)
        at = self._points
        line = ratio * (self._prior.once + self._prior.each * at)
        w += _PRIOR_WEIGHT * len(at)
        n += _PRIOR_WEIGHT * at.sum()
        nn += _PRIOR_WEIGHT * (at * at).sum()
        t += _PRIOR_WEIGHT * line.sum()
        nt += _PRIOR_WEIGHT * (at * line).sum()
        each = (w * nt - n * t) / (w * nn - n * n)
        once = (t - each * n) / w
        if once < 0:
            return Cost(0.0, max(_LEAST, nt / nn))
        if each < _LEAST:
            return Cost(max(0.0, t / w - _LEAST * n / w), _LEAST)
        return Cost(float(once), float(each))


class Average:
    """A mean that forgets; None before the first value."""

    def __init__(self, first: float | None = None) -> None:
        self._first, self._weight, self._sum = first, 0.0, 0.0

    def add(self, values: Floats) -> None:
        """Values of one window."""
        if not len(values):
            return
        now = self.value
        if now:
            values = np.minimum(values, _MOST_OFF * now)
        self._weight = self._weight * _KEPT + len(values)
        self._sum = self._sum * _KEPT + float(values.sum())

    @property
    def value(self) -> float | None:
        """The mean now, or what was believed at first."""
        return self._sum / self._weight if self._weight else self._first


@dataclass(frozen=True, slots=True)
class TierRates:
    """Costs of one machine and model as measured; seconds, and bytes a second.

    Attributes:
        expert_bytes: of an expert, where costs were measured; others cost in proportion.
        asked: the processor computes n experts of a layer: from the card's request to its answer.
        staged: the card copies n experts of a layer and computes them, hits included.
        idle_s: what the card takes for the hits of a layer.
        window_s: a token's window without what layers wait for, host's part included.
        link_bytes_per_s: of copies beside windows; None where none were seen.
        disk_bytes_per_s: of reads of experts from a file; None where none were seen.
        read_once_s: what a layer waits for its reads, however few they are.
        read_each_s: what it waits for each besides; less than the disk takes where reads overlap
            with products, or began before. None: what the disk takes.
        is_divided: there is a card, which asks and copies. Otherwise ``window_s`` has products of
            experts in it, and ``asked`` and ``staged`` mean nothing.
        beside: as ``asked``, of layers of which the card copies some; None: no other than that.
    """

    expert_bytes: int
    asked: Cost
    staged: Cost
    idle_s: float
    window_s: float
    link_bytes_per_s: float | None = None
    disk_bytes_per_s: float | None = None
    read_once_s: float | None = None
    read_each_s: float | None = None
    is_divided: bool = True
    beside: Cost | None = None

    @property
    def read(self) -> Cost:
        """What n experts of a layer cost that are read from a file."""
        unknown = unknown_read(self.expert_bytes)
        per_s, once, each = self.disk_bytes_per_s, self.read_once_s, self.read_each_s
        if each is None:
            each = unknown.each if per_s is None else self.expert_bytes / per_s
        return Cost(unknown.once if once is None else once, each)

    def with_reads(self, read: Cost | None, disk_bytes_per_s: float | None = None) -> TierRates:
        """The same with what reads cost, and the disk's own rate, where these are known."""
        if read is None:
            return self
        per_s = self.expert_bytes / read.each if disk_bytes_per_s is None else disk_bytes_per_s
        return replace(
            self, disk_bytes_per_s=float(per_s), read_once_s=float(read.once),
            read_each_s=float(read.each),
        )  # fmt: skip

    @property
    def pool_bytes_per_s(self) -> float:
        """The processor's rate where many experts are asked for."""
        return self.expert_bytes / self.asked.each

    @property
    def copy_bytes_per_s(self) -> float:
        """The rate at which a window's experts are copied and computed on the card."""
        return self.expert_bytes / self.staged.each

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = asdict(self)
        for name in ("asked", "staged", "beside"):
            cost = getattr(self, name)
            told[name] = None if cost is None else cost._asdict()
        return told


_KIND = "strata rates"
_VERSION = 1


def write_rates(path: Path, rates: TierRates) -> None:
    """Writes the file whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    told = {"kind": _KIND, "version": _VERSION, **rates.as_dict()}
    write_whole(path, (json.dumps(told, indent=1) + "\n").encode())


def read_rates(path: Path) -> TierRates:
    """The rates of a file.

    Raises:
        CheckpointError: it is no such file, or a number of it makes no sense.
        OSError: it cannot be read.
    """
    try:
        told = json.loads(path.read_bytes())
        if (told["kind"], told["version"]) != (_KIND, _VERSION):
            raise ValueError(f"kind {told['kind']!r}, version {told['version']!r}")
        asked, staged = _cost(told["asked"]), _cost(told["staged"])
        beside = None if told.get("beside") is None else _cost(told["beside"])
        link, disk, once, each = (_optional(told.get(name)) for name in _OPTIONAL)
        rates = TierRates(
            int(told["expert_bytes"]), asked, staged, float(told["idle_s"]),
            float(told["window_s"]), link, disk, once, each,
            bool(told.get("is_divided", True)), beside,
        )  # fmt: skip
        _check(rates)
    except (ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the file of rates cannot be used: {type(error).__name__}: {error}.\n"
            f"  file: {path}\n  Try: write it again with strata bench --rates."
        ) from None
    return rates


_OPTIONAL = ("link_bytes_per_s", "disk_bytes_per_s", "read_once_s", "read_each_s")


def _cost(told: Any) -> Cost:
    return Cost(float(told["once"]), float(told["each"]))


def _optional(value: object) -> float | None:
    return None if value is None else float(str(value))


def _check(rates: TierRates) -> None:
    positive = [rates.expert_bytes, rates.asked.each, rates.staged.each, rates.window_s]
    positive += [x for x in (rates.link_bytes_per_s, rates.disk_bytes_per_s) if x is not None]
    positive += [] if rates.read_each_s is None else [rates.read_each_s]
    others = [rates.asked.once, rates.staged.once, rates.idle_s, rates.read_once_s or 0.0]
    if rates.beside is not None:
        positive.append(rates.beside.each)
        others.append(rates.beside.once)
    if not all(0 < x < 1e18 for x in positive) or not all(0 <= x < 1e3 for x in others):
        raise ValueError("a rate is zero, negative or not a number")
