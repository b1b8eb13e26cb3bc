"""Which experts are copied into the host's memory where not all of them are: order, budget, sets.

First the complement, what is in no slot of any card; then the lend regions, what prompts will take
slots away from, each stage's from its last slot down. One budget caps the whole copy. Numbers only:
moves no bytes. docs/decisions/0011-file-tier.md says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import PlanError
from strata.tiers.slots import EMPTY, Residency
from strata.units import GiB, MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from strata.tiers.slots import SlotLayout

    Keys = NDArray[np.int64]

HEADROOM_BYTES = 4 * GiB
"""Memory of the machine that is left alone; an eighth of what is free where that is less."""

# What an explicit budget leaves beside the headroom.
_BESIDE_BYTES = 256 * MiB

# Slots a prompt always leaves to the cache.
MIN_SLOTS_LEFT = 128


def headroom_bytes(available: int) -> int:
    """Memory that is left to the rest of the machine."""
    return min(HEADROOM_BYTES, available // 8)


def ram_budget(available: int, wished: int | None) -> int:
    """Bytes that may be taken: what is available less a headroom, or what was wished for.

    A wish is clamped, so that it cannot make the machine swap.
    """
    most = available - headroom_bytes(available)
    return most if wished is None else min(wished, most - _BESIDE_BYTES)


@dataclass(frozen=True, slots=True)
class ResidentPlan:
    """The experts that are copied into memory.

    Attributes:
        keys: [N] int64 in the order they were taken: complement, then lend regions.
        num_bytes: of all.
        num_complement: how many of the keys are the complement.
        num_lent: slots of all regions whose expert is among the keys.
        num_wanted: slots of all regions.
    """

    keys: Keys
    num_bytes: int
    num_complement: int
    num_lent: int
    num_wanted: int

    def describe(self) -> str:
        """What was kept, in one line."""
        lent = f", {self.num_lent} of {self.num_wanted} lent slots" if self.num_wanted else ""
        return (
            f"experts in RAM: {len(self.keys)} ({format_bytes(self.num_bytes)}), "
            f"{self.num_complement} that are in no slot{lent}"
        )


class PlanWalk:
    """Builds a plan by walks, each all or nothing where a key is wrong.

    Args:
        blob_bytes: [L] of each layer's experts.
        num_experts: E.
        budget: bytes of the whole copy.
    """

    def __init__(self, blob_bytes: Sequence[int], num_experts: int, budget: int) -> None:
        self._blob_bytes, self._num_experts, self._budget = tuple(blob_bytes), num_experts, budget
        self._keys: list[int] = []
        self._taken: set[int] = set()
        self.num_bytes = 0

    @property
    def keys(self) -> Keys:
        """[N] int64, in the order they were taken."""
        return np.array(self._keys, np.int64)

    def add(self, keys: Iterable[int]) -> int:
        """Takes keys in order until one does not fit; those taken before cost nothing more.

        Returns:
            how many of ``keys`` are in the plan.

        Raises:
            PlanError: a key of no expert; the plan is as it was before.
        """
        wanted = [int(key) for key in keys]
        num_keys = len(self._blob_bytes) * self._num_experts
        for key in wanted:
            if not 0 <= key < num_keys:
                raise PlanError(
                    f"there is no expert {key} among {num_keys}.\n"
                    "  Try: leave --expert-profile out; it may be another model's."
                )
        num_in = 0
        for key in wanted:
            if key not in self._taken:
                size = self._blob_bytes[key // self._num_experts]
                if self.num_bytes + size > self._budget:
                    break
                self._taken.add(key)
                self._keys.append(key)
                self.num_bytes += size
            num_in += 1
        return num_in


def first_filling(layout: SlotLayout, ranking: Keys | None) -> Residency:
    """Who is in the slots of a cache as it starts."""
    residency = Residency(layout)
    residency.fill_first(() if ranking is None else ranking.tolist())
    return residency


def complement(residencies: Sequence[Residency]) -> Keys:
    """Keys that are in no slot of any stage's cache, ascending."""
    num = len(residencies[0].slot_of)
    is_held = np.zeros(num, bool)
    for residency in residencies:
        is_held |= residency.slot_of != EMPTY
    return np.flatnonzero(~is_held)


def lend_region(residency: Residency, num_slots: int) -> list[int]:
    """Keys in the last slots of a cache, from the last one down, as prompts take them."""
    last = residency.key_in[::-1][:num_slots]
    return [int(key) for key in last if key != EMPTY]


def lent_slots(
    num_slots: int, slots_needed: int, lend_percent: int, slots_left: int = MIN_SLOTS_LEFT
) -> int:
    """How many tail slots a prompt of a size may borrow; 0 where it may not at all.

    At least ``slots_left`` stay, and no more than ``lend_percent`` go.
    """
    fits = slots_needed + slots_left <= num_slots
    return slots_needed if fits and 100 * slots_needed <= lend_percent * num_slots else 0


def region_slots(
    num_slots: int, needed_by_chunk: Sequence[int], lend_percent: int, *, has_own_room: bool = False
) -> int:
    """Slots of the region one stage needs: those of the largest chunk a prompt can ever choose.

    Args:
        num_slots: of the stage's cache.
        needed_by_chunk: slots that the buffers of each chunk of the ladder take, with the ring that
            will really be used.
        lend_percent: of the slots, at most.
        has_own_room: the card pays for the buffers from free memory, so it lends nothing.
    """
    if has_own_room:
        return 0
    return max((lent_slots(num_slots, need, lend_percent) for need in needed_by_chunk), default=0)


def resident_plan(
    residencies: Sequence[Residency],
    lent: Sequence[int],
    blob_bytes: Sequence[int],
    budget: int,
    ranking: Keys | None = None,
) -> ResidentPlan:
    """The experts to copy into memory.

    Args:
        residencies: of the cache of every stage.
        lent: for each stage the slots of its region.
        blob_bytes: [L] of each layer's experts in memory.
        budget: of the whole copy.
        ranking: keys most worth memory first, where the complement does not fit; None: in order.
    """
    num_experts = residencies[0].layout.num_experts
    walk = PlanWalk(blob_bytes, num_experts, budget)
    rest = complement(residencies)
    if ranking is not None:
        is_rest = np.zeros(len(blob_bytes) * num_experts, bool)
        is_rest[rest] = True
        ranked = ranking[is_rest[ranking]]
        is_rest[ranked] = False
        rest = np.concatenate([ranked, np.flatnonzero(is_rest)])
    num_complement = walk.add(rest.tolist())
    regions = [
        lend_region(residency, num) for residency, num in zip(residencies, lent, strict=True)
    ]
    num_lent = sum(walk.add(region) for region in regions)
    return ResidentPlan(walk.keys, walk.num_bytes, num_complement, num_lent, sum(map(len, regions)))
