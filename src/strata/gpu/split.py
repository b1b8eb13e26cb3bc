"""Which of a layer's misses are copied for a window, and which the processor computes.

Owns the table a window's kernels look the number up in, and what is learned from windows about
costs. The arithmetic is ``tiers.share`` and ``tiers.rates``.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.gpu.graphs import captured
from strata.gpu.profile import card_seconds
from strata.tiers.rates import Average, CostMeter
from strata.tiers.share import Cost, balanced, fixed_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from strata.gpu.kernels.hand_off import HandOff
    from strata.gpu.layer_tier import LayerTier

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Products of staged experts are three more launches.
_STAGED_LAUNCHES = 9e-6
# Before a processor's rate was measured, or where it cannot be.
_UNKNOWN = Cost(2e-5, 5e-5)
# Of a measurement at the start: experts copied at once, and how often while the processor is busy.
_MEASURED_COPIES, _MOST_COPIES = 8, 400
# Windows between two looks at the costs.
_LOOK_EVERY = 32
# Copying begins, or ends, where layers then take this much less: windows are captured once more.
_WORTH = 0.9


class Split:
    """The division of misses of one model.

    Args:
        hand_off: whose table is written.
        layers: told whether windows copy anything.
        measured: what the processor takes; called where the division is to be balanced.
        is_card: whether there is a card whose copies can be measured.

    Attributes:
        counts: how many of 0, 1, ... distinct misses of a layer are copied; never changed, but
            replaced.
        has_staging: whether windows copy any.
        asked: what the processor takes for a layer of which nothing is copied, as learned.
        beside: the same of layers of which some are copied. Both read the same memory: where the
            processor takes all that it gives, copies gain nothing, and only this cost tells.
        staged: what copies take; includes what the card does anyway.
    """

    def __init__(
        self,
        hand_off: HandOff,
        layers: Sequence[LayerTier],
        measured: Callable[[], Cost],
        *,
        is_card: bool,
    ) -> None:
        self._hand_off, self._layers, self._measured = hand_off, layers, measured
        self._is_card = is_card
        self._most = len(hand_off.share) - 1
        self.num_stages = len(hand_off.sources)
        self._top_k = hand_off.layout.top_k
        self._is_balanced = self._is_measured = False
        self.counts: Ints = np.zeros(self._most + 1, np.int64)
        self.has_staging = False
        self.asked, self.beside = CostMeter(_UNKNOWN), CostMeter(_UNKNOWN)
        self.staged = CostMeter(_UNKNOWN)
        self.idle, self.misses = Average(0.0), Average()
        self._windows = 0
        size = self._most + 1
        self._host_share = torch.zeros(size, dtype=torch.int32, pin_memory=is_card)

    def set(self, share: float | None) -> None:
        """What part of a layer's misses is copied, from 0 to 1; None for what ends together.

        Raises:
            SettingsError: not a share.
        """
        # Where the card reaches nothing, in files or in memory that is not page-locked, nothing is
        # copied, and to find that out would cost every layer the launches.
        self._is_balanced = share is None and self._is_card and self._best_reached.num_reachable > 0
        if share is not None:
            self._take(np.array(fixed_counts(self._most, share)))
        elif self._is_balanced:
            self._measure()
            counts, seconds = self._balanced()
            self._take(np.zeros_like(counts))
            if self._is_worth(counts, seconds, max(1, self._top_k // 2)):
                self._take(counts)
        else:
            self._take(np.zeros(self._most + 1, np.int64))
        self.send()

    def learn(
        self,
        asked: tuple[Ints, Floats],
        beside: tuple[Ints, Floats],
        staged: tuple[Ints, Floats],
        idle: Floats,
        misses: Floats,
    ) -> None:
        """What a window's layers took.

        Args:
            asked: numbers of experts the processor was asked for where nothing was copied, and
                seconds until its answer.
            beside: the same where some were copied.
            staged: numbers of experts copied, and seconds until the card had computed them.
            idle: seconds until the card had computed the hits, where it copied none.
            misses: of each layer that may have any.
        """
        self._windows += 1
        self.misses.add(misses)
        for meter, seen in ((self.asked, asked), (self.beside, beside), (self.staged, staged)):
            if len(seen[0]):
                meter.add(*seen)
        self.idle.add(idle)

    def refresh(self) -> None:
        """Looks at the costs again, from time to time. Only between windows: the table changes."""
        if not self._is_balanced or self._windows < _LOOK_EVERY:
            return
        self._windows = 0
        counts, seconds = self._balanced()
        is_staging = bool(counts[: self._top_k + 1].any())
        typical = min(self._most, max(1, round(self.misses.value or 0.0)))
        if is_staging != self.has_staging and not self._is_worth(counts, seconds, typical):
            return
        self._take(counts)
        self.send()

    def send(self) -> None:
        """Brings the card's table up to date, in the order of its launches."""
        self._host_share.numpy()[:] = self.counts
        self._hand_off.share.copy_(self._host_share, non_blocking=True)

    def _is_worth(self, counts: Ints, seconds: Floats, misses: int) -> bool:
        """Whether layers take clearly less with this division than with the one there is."""
        copied = int(self.counts[misses])
        alone, beside = self._processor_costs()
        asked = alone if beside is None or not copied else beside
        by_card = self.staged_cost.of(copied) or (self.idle.value or 0.0)
        now = max(asked.of(misses - copied), by_card)
        return float(seconds[misses]) < _WORTH * now and int(counts[misses]) != copied

    def _balanced(self) -> tuple[Ints, Floats]:
        return balanced(
            self._most, self.asked_cost, self.staged_cost, beside=self.beside_cost,
            idle=self.idle.value or 0.0, max_staged=self.num_stages,
        )  # fmt: skip

    @property
    def asked_cost(self) -> Cost:
        """What the processor takes by itself; beside copies where only that was seen, or less."""
        return self._processor_costs()[0]

    @property
    def beside_cost(self) -> Cost | None:
        """What it takes beside copies, no less than by itself; None where nobody knows."""
        return self._processor_costs()[1]

    def _processor_costs(self) -> tuple[Cost, Cost | None]:
        """What it takes by itself, and beside copies.

        By itself it cannot take longer. Where it seems to, one of the two was measured while
        something else went on, and the one that windows do not show would never be found out.
        """
        alone, beside = self.asked.cost, self.beside.cost
        if not (self._is_measured or self.beside.weight):
            return alone, None
        is_known = self._is_measured or self.asked.weight > 0
        typical = max(1, self._top_k // 2)
        if is_known and alone.of(typical) <= beside.of(typical):
            return alone, beside
        shows_alone = self.asked.weight > 0 and not self.has_staging
        return (alone, alone) if shows_alone else (beside, beside)

    @property
    def staged_cost(self) -> Cost:
        """What copies cost, hits beside them included; as measured at the start before any were
        seen."""
        cost = self.staged.cost
        if self.staged.weight:
            return cost
        return Cost(max(cost.once, self.idle.value or 0.0), cost.each)

    def _take(self, counts: Ints) -> None:
        self.has_staging = bool(counts[: self._top_k + 1].any())
        # Launches of copies are left out, then, of wide windows as well.
        self.counts = counts if self.has_staging else np.zeros_like(counts)
        for tier in self._layers:
            tier.has_staging = self.has_staging

    @property
    def _best_reached(self) -> LayerTier:
        """The layer of which the card can read most experts where they are."""
        return max(self._layers, key=lambda tier: tier.num_reachable)

    def _measure(self) -> None:
        """What each side takes by itself, and what both take at once, which is what is divided."""
        begun_s = time.perf_counter()
        alone = self._measured()
        seconds = time.perf_counter() - begun_s
        tier = self._best_reached
        many = min(_MEASURED_COPIES, self.num_stages, tier.num_reachable)
        # As a graph: launched one by one they would take as long as the host takes to launch.
        graph, copy_s = captured(tier.rehearse), {}
        for num in (1, many):
            tier.name_first(num)
            copy_s[num] = card_seconds(graph.replay, 8)
        # Copies enough to outlast the processor's measuring.
        times = min(_MOST_COPIES, 1 + math.ceil(seconds / copy_s[many]))
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()
        for _ in range(times):
            graph.replay()
        last.record()
        beside = self._measured()
        last.synchronize()
        slower = max(1.0, first.elapsed_time(last) / 1e3 / times / copy_s[many])
        each = max(1e-7, (copy_s[many] - copy_s[1]) / max(1, many - 1))
        once = max(0.0, copy_s[1] - each) + _STAGED_LAUNCHES
        self._is_measured = True
        self.asked = CostMeter(alone, self._top_k)
        self.beside = CostMeter(beside, self._top_k)
        self.staged = CostMeter(Cost(once, each * slower), many)
