"""Slots of an expert cache: how many there are, what each may hold, who is in which.

Owns the layout (uniform or sized slots, shared or divided by layer), the first filling from a
ranking, and the table of residents. Moves no bytes. Who is to be replaced is ``tiers.policies``.

A key is ``layer * E + expert``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import PlanError
from strata.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Keys = NDArray[np.int64]

SLOT_ALIGNMENT = 256
EMPTY = -1


@dataclass(frozen=True, slots=True, eq=False)
class SlotLayout:
    """C slots. A pool is a set of slots that replace each other's experts.

    Attributes:
        num_layers: L.
        num_experts: E.
        offsets: [C + 1] int64, the byte each slot begins at, and the end of the last.
        pools: for each pool its slots, ascending; every slot is in one pool.
        pool_of_layer: [L], the pool that holds a layer's experts.
    """

    num_layers: int
    num_experts: int
    offsets: NDArray[np.int64]
    pools: tuple[NDArray[np.int64], ...]
    pool_of_layer: tuple[int, ...]

    @property
    def num_slots(self) -> int:
        """C."""
        return len(self.offsets) - 1

    @property
    def num_bytes(self) -> int:
        """Of all slots."""
        return int(self.offsets[-1])

    def first_slot(self, layer: int) -> int:
        """The first slot of a layer's pool; 0 where the pool is empty."""
        pool = self.pools[self.pool_of_layer[layer]]
        return int(pool[0]) if len(pool) else 0


def aligned(num_bytes: int) -> int:
    """Bytes of a slot that holds a blob of ``num_bytes``."""
    return -(-num_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def shared_slots(
    num_layers: int, num_experts: int, num_slots: int, blob_bytes: int = 1
) -> SlotLayout:
    """Slots of one size; any expert of any layer may lie in any of them."""
    num_slots = _checked(num_slots, num_layers * num_experts)
    offsets = np.arange(num_slots + 1, dtype=np.int64) * aligned(blob_bytes)
    pools = (np.arange(num_slots, dtype=np.int64),)
    return SlotLayout(num_layers, num_experts, offsets, pools, (0,) * num_layers)


def layer_slots(
    num_layers: int, num_experts: int, num_slots: int, blob_bytes: int | Sequence[int] = 1
) -> SlotLayout:
    """Slots divided by layer: layer l owns [l*q, (l+1)*q), q = slots // L; the last the rest too.

    No layer gets more slots than it has experts.

    Args:
        num_layers: L.
        num_experts: E.
        num_slots: C, of all layers together; at least one for each layer.
        blob_bytes: of every expert, or of the experts of each layer.
    """
    num_slots = _checked(num_slots, num_layers * num_experts, num_layers)
    quota = num_slots // num_layers
    counts = [quota] * (num_layers - 1)
    counts.append(min(num_slots - sum(counts), num_experts))
    by_layer = [blob_bytes] * num_layers if isinstance(blob_bytes, int) else blob_bytes
    sizes = [
        aligned(blob) for blob, count in zip(by_layer, counts, strict=True) for _ in range(count)
    ]
    starts = np.cumsum([0, *counts])
    pools = tuple(
        np.arange(starts[layer], starts[layer + 1], dtype=np.int64) for layer in range(num_layers)
    )
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    return SlotLayout(num_layers, num_experts, offsets, pools, tuple(range(num_layers)))


def opened(layout: SlotLayout, num_slots: int) -> SlotLayout:
    """The layout with only its first slots open, as many of each pool as is its share.

    Slots keep their numbers and places; those that are closed are in no pool. A pool keeps at least
    one.
    """
    num_slots = min(max(0, num_slots), layout.num_slots)
    pools = []
    for pool in layout.pools:
        share = len(pool) * num_slots // max(1, layout.num_slots)
        lowest = min(len(pool), 1 if len(layout.pools) > 1 else 0)
        pools.append(pool[: max(lowest, share)])
    return replace(layout, pools=tuple(pools))


def _checked(num_slots: int, num_pairs: int, lowest: int = 0) -> int:
    """The slots there can be."""
    if num_slots < lowest:
        raise PlanError(
            f"an expert cache divided by layer needs a slot for each layer: {lowest}, not "
            f"{num_slots}.\n  Try: --expert-cache {lowest}, or leave --expert-cache-per-layer out."
        )
    return min(num_slots, num_pairs)


class Residency:
    """Which expert is in which slot; both directions always agree.

    Attributes:
        layout: the slots. Changed by ``reopen`` alone.
        slot_of: [L * E] int64 by key, EMPTY where an expert is in no slot. Read it, do not write.
        key_in: [C] int64 by slot, EMPTY where a slot holds nothing. Read it, do not write.
    """

    def __init__(self, layout: SlotLayout) -> None:
        self.layout = layout
        self.slot_of = np.full(layout.num_layers * layout.num_experts, EMPTY, np.int64)
        self.key_in = np.full(layout.num_slots, EMPTY, np.int64)
        self._pool_of_slot = _pool_of_slot(layout)

    @property
    def resident_keys(self) -> Keys:
        """Keys in slots, by slot."""
        resident: Keys = self.key_in[self.key_in != EMPTY]
        return resident

    def place(self, key: int, slot: int) -> None:
        """Puts an expert into a slot; who was there is in none any more.

        Raises:
            ValueError: the slot is not one of the expert's pool, or the expert has a slot.
        """
        layer = key // self.layout.num_experts
        if self._pool_of_slot[slot] != self.layout.pool_of_layer[layer]:
            raise ValueError(f"slot {slot} cannot hold an expert of layer {layer}")
        if self.slot_of[key] != EMPTY:
            raise ValueError(f"key {key} is in slot {self.slot_of[key]} already")
        self.clear(slot)
        self.key_in[slot] = key
        self.slot_of[key] = slot

    def place_all(self, keys: Keys, slots: Keys) -> None:
        """Puts many into slots at once, each into one of its pool; none of them has a slot.

        Raises:
            ValueError: a slot is not one of the expert's pool, or an expert has a slot.
        """
        pools = np.array(self.layout.pool_of_layer)[keys // self.layout.num_experts]
        if (self._pool_of_slot[slots] != pools).any() or (self.slot_of[keys] != EMPTY).any():
            raise ValueError("keys have slots already, or their pools have not got these slots")
        before = self.key_in[slots]
        self.slot_of[before[before != EMPTY]] = EMPTY
        self.key_in[slots] = keys
        self.slot_of[keys] = slots

    def clear(self, slot: int) -> None:
        """Empties a slot."""
        before = self.key_in[slot]
        if before != EMPTY:
            self.slot_of[before] = EMPTY
            self.key_in[slot] = EMPTY

    def reopen(self, layout: SlotLayout) -> list[int]:
        """Other slots of the same numbers are open from now on; those that closed are empty.

        Returns:
            The keys that have lost their slots, by slot.
        """
        pool_of_slot = _pool_of_slot(layout)
        lost = [
            int(self.key_in[slot])
            for slot in np.flatnonzero((pool_of_slot == EMPTY) & (self.key_in != EMPTY)).tolist()
        ]
        for key in lost:
            self.clear(int(self.slot_of[key]))
        self.layout, self._pool_of_slot = layout, pool_of_slot
        return lost

    def fill(self, ranking: Iterable[int]) -> None:
        """Gives each key of a ranking the next free slot of its pool.

        A pool that is full, or a key that has a slot, is passed over; the walk ends when every
        slot is taken. Each pool's cursor begins at the pool's own first slot.
        """
        free = [slots[self.key_in[slots] == EMPTY].tolist()[::-1] for slots in self.layout.pools]
        num_free = sum(map(len, free))
        for key in ranking:
            if num_free == 0:
                return
            pool = free[self.layout.pool_of_layer[key // self.layout.num_experts]]
            if pool and self.slot_of[key] == EMPTY:
                self.place(int(key), pool.pop())
                num_free -= 1

    def fill_first(self, ranking: Iterable[int]) -> None:
        """Fills free slots with the best of a ranking, then with what it does not name."""
        self.fill(ranking)
        self.fill(spread_keys(self.layout.num_layers, self.layout.num_experts).tolist())

    def describe(self) -> str:
        """Slots, filled slots and bytes in one line."""
        filled = int((self.key_in != EMPTY).sum())
        return (
            f"expert cache: {filled} of {len(self.key_in)} slots filled, "
            f"{format_bytes(self.layout.num_bytes)}"
        )


def spread_keys(num_layers: int, num_experts: int) -> Keys:
    """[L * E] every key, expert by expert, each of all layers, so that no layer goes short."""
    return np.arange(num_layers * num_experts).reshape(num_layers, num_experts).T.reshape(-1)


def _pool_of_slot(layout: SlotLayout) -> NDArray[np.int64]:
    """[C] the pool of each slot, EMPTY for slots that are closed."""
    pools = np.full(layout.num_slots, EMPTY, np.int64)
    for number, slots in enumerate(layout.pools):
        pools[slots] = number
    return pools
