"""How fast tokens will be decoded with so many experts in each place, before anything is loaded.

Owns the arithmetic: misses of a replayed trace times the costs of ``rates``. What fits where is
``engine.plan``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.tiers.policy_table import DEFAULT_POLICY, PolicyOptions
from strata.tiers.replay import replay
from strata.tiers.share import NUM_STAGES, Cost, balanced, fixed_counts, processor_seconds
from strata.tiers.slots import layer_slots, shared_slots, spread_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from strata.tiers.rates import TierRates
    from strata.tiers.replay import Outcome
    from strata.tiers.routing_trace import RoutingTrace

    Ints = NDArray[np.int64]

LIMITS = ("card", "processor", "link", "disk")
"""What may hold a window up: the card itself, or experts computed, copied or read."""


@dataclass(frozen=True, slots=True)
class Places:
    """How many experts have room, of all layers together.

    Attributes:
        num_layers: L.
        num_experts: E of a layer.
        in_vram: slots.
        in_ram: experts that are in no slot; the others are on the disk.
        is_per_layer: slots are divided by layer.
        is_cold: without slots, whether RAM is empty at first.
    """

    num_layers: int
    num_experts: int
    in_vram: int
    in_ram: int
    is_per_layer: bool = False
    is_cold: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What layers of decode windows look up; N layers of windows.

    Attributes:
        lookups: [N] distinct experts.
        misses: [N] those in no slot.
        from_file: [N] those that are not in RAM either.
    """

    lookups: Ints
    misses: Ints
    from_file: Ints

    @property
    def hit_rate(self) -> float:
        """Hits of all look-ups."""
        return 1.0 - float(self.misses.sum()) / max(1, int(self.lookups.sum()))

    @property
    def file_rate(self) -> float:
        """Look-ups that read a file, of all."""
        return float(self.from_file.sum()) / max(1, int(self.lookups.sum()))


@dataclass(frozen=True, slots=True)
class Forecast:
    """Of one place in a text.

    Attributes:
        hit_rate: of look-ups.
        file_rate: of look-ups, those that read a file.
        window_s: of a token.
        limits: seconds of it that each of ``LIMITS`` holds it up.
        file_bytes: read from a file for a token.
        file_bytes_per_s: at which they are read.
    """

    hit_rate: float
    file_rate: float
    window_s: float
    limits: dict[str, float]
    file_bytes: float = 0.0
    file_bytes_per_s: float = 0.0

    @property
    def disk_bound(self) -> float | None:
        """Tokens a second that the disk's rate allows; None where nothing is read from one."""
        return self.file_bytes_per_s / self.file_bytes if self.file_bytes else None

    @property
    def tokens_per_s(self) -> float:
        """One row a window."""
        return 1.0 / self.window_s

    @property
    def binding(self) -> str:
        """What holds a window up longest."""
        return max(LIMITS, key=lambda name: self.limits[name])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "hit_rate": self.hit_rate,
            "file_rate": self.file_rate,
            "window_s": self.window_s,
            "tokens_per_s": self.tokens_per_s,
            "limits_s": dict(self.limits),
            "file_bytes": self.file_bytes,
            "disk_allows_tokens_per_s": self.disk_bound,
            "binding": self.binding,
        }


def demands(
    trace: RoutingTrace,
    places: Places,
    cuts: Iterable[tuple[int, int | None]],
    *,
    policy: str = DEFAULT_POLICY,
    max_admissions: int | None = None,
    ranking: Iterable[int] = (),
) -> list[Demand]:
    """What parts of a trace look up and miss.

    A trace of fewer layers than the model stands for all of them. Experts in memory are taken to
    be the ones used last that are in no slot.

    Args:
        trace: of the model's E and K.
        places: of the model.
        cuts: first decoded token of each part, and its end.
        policy: of the slots.
        max_admissions: of the policy.
        ranking: keys the slots are filled with beforehand, then the others in order of experts.
    """
    num_layers, num_experts = trace.num_layers, trace.num_experts
    whole = num_layers * num_experts
    order = list(dict.fromkeys([*ranking, *spread_keys(num_layers, num_experts).tolist()]))
    share = num_layers / places.num_layers

    def outcome(num_slots: int, name: str, admissions: int | None) -> Outcome:
        count = min(whole, round(num_slots * share))
        make = layer_slots if places.is_per_layer and count >= num_layers else shared_slots
        layout = make(num_layers, num_experts, count)
        return replay(trace, layout, name, options=PolicyOptions(admissions), ranking=order)

    near = places.in_vram + places.in_ram
    if places.in_vram:
        cached = outcome(places.in_vram, policy, max_admissions)
        misses = cached.lookups - cached.hits
    else:
        if places.is_cold:
            order = []
        cached = outcome(near, "lru", None)
        misses = cached.lookups
    from_file = np.zeros_like(misses)
    if near < places.num_layers * places.num_experts:
        behind = outcome(near, "lru", None)
        from_file = np.minimum(misses, behind.lookups - behind.hits)
    parts = [cached.part(first, end) for first, end in cuts]
    return [
        Demand(
            cached.lookups[part].reshape(-1), misses[part].reshape(-1), from_file[part].reshape(-1)
        )
        for part in parts
    ]


def forecast(
    demand: Demand, num_layers: int, expert_bytes: int, rates: TierRates, share: float | None
) -> Forecast:
    """Seconds of a token, and what takes them.

    Args:
        demand: of layers like those of the model.
        num_layers: L of the model.
        expert_bytes: of an expert of the model.
        rates: costs.
        share: part of the misses that is copied; None for what ends together.
    """
    scale = expert_bytes / rates.expert_bytes
    asked, staged, beside = (
        Cost(cost.once, cost.each * scale)
        for cost in (rates.asked, rates.staged, rates.beside or rates.asked)
    )
    idle_s = rates.idle_s if rates.is_divided else 0.0
    most = int(demand.misses.max(initial=0))
    if not rates.is_divided:
        asked, counts = Cost(0.0, 0.0), np.zeros(most + 1, np.int64)
    elif share is None:
        counts, _ = balanced(most, asked, staged, beside=beside, idle=idle_s, max_staged=NUM_STAGES)
    else:
        counts = np.minimum(fixed_counts(most, share), NUM_STAGES)
    copied = counts[demand.misses]
    left = demand.misses - copied
    by_card = np.where(copied > 0, staged.once + staged.each * copied, idle_s)
    cost = rates.read
    read = np.where(demand.from_file > 0, cost.once + demand.from_file * cost.each * scale, 0.0)
    by_host = processor_seconds(left, copied, asked, beside) + read
    ends = np.maximum(by_host, by_card)
    late = np.where(demand.misses > 0, np.maximum(0.0, ends - idle_s), 0.0)
    is_host = by_host > by_card
    host_share = np.where(is_host, late, 0.0)
    file_share = host_share * read / np.maximum(by_host, 1e-12)
    num = max(1, len(late))
    own = (rates.window_s, 0.0) if rates.is_divided else (0.0, rates.window_s)
    limits = {
        "card": own[0],
        "processor": own[1] + num_layers * float((host_share - file_share).sum()) / num,
        "link": num_layers * float(np.where(is_host, 0.0, late).sum()) / num,
        "disk": num_layers * float(file_share.sum()) / num,
    }
    file_bytes = num_layers * float(demand.from_file.sum()) / num * expert_bytes
    return Forecast(
        demand.hit_rate, demand.file_rate, sum(limits.values()), limits, file_bytes,
        rates.disk_bytes_per_s or rates.expert_bytes / cost.each,
    )  # fmt: skip


def faster(rates: TierRates, what: str, factor: float) -> TierRates:
    """The same machine with one of ``LIMITS`` so many times as fast."""
    if what == "card":
        return replace(rates, window_s=rates.window_s / factor)
    if what == "processor":
        beside = rates.beside or rates.asked
        return replace(
            rates, asked=Cost(rates.asked.once, rates.asked.each / factor),
            beside=Cost(beside.once, beside.each / factor),
        )  # fmt: skip
    if what == "link":
        return replace(rates, staged=Cost(rates.staged.once, rates.staged.each / factor))
    cost = rates.read
    per_s = rates.disk_bytes_per_s or rates.expert_bytes / cost.each
    return replace(rates, disk_bytes_per_s=per_s * factor, read_each_s=cost.each / factor)
