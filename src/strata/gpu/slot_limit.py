"""Fewer slots while a model runs, and more again: who stays, and what is done in which order.

Owns the order. Who is told what and when is ``expert_cache``'s; the bytes are ``slot_memory``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from strata.errors import DeviceError
from strata.tiers.slots import EMPTY, opened

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from strata.gpu.slot_table import SlotTable
    from strata.tiers.slots import Residency, SlotLayout

    Keys = NDArray[np.int64]


class Releasable(Protocol):
    """Memory that goes and comes; ``slot_memory.SlotMemory``."""

    def release(self, address: int, num_bytes: int, /) -> int:
        """Gives bytes back; how many."""

    def restore(self, address: int, num_bytes: int, /) -> None:
        """Takes them again, or raises ``DeviceError`` and takes none."""


class PoolRoom(NamedTuple):
    """Where the slots of a pool lie: the first one's address, and bytes from one to the next."""

    address: int
    slot_bytes: int


class SlotLimit:
    """How many of a model's slots are open.

    Args:
        residency: whose layout, as it is now, has every slot open.
        table: of the card.
        memory: of the slots.
        rooms: of each pool.
        settle: waits until nothing reads or writes slots.
    """

    def __init__(
        self,
        residency: Residency,
        table: SlotTable,
        memory: Releasable,
        rooms: Sequence[PoolRoom],
        settle: Callable[[], None],
    ) -> None:
        self._residency, self._table, self._memory = residency, table, memory
        self._whole, self._rooms, self._settle = residency.layout, rooms, settle

    @property
    def num_slots(self) -> int:
        """Slots there can be."""
        return self._whole.num_slots

    @property
    def num_open(self) -> int:
        """Slots that are open."""
        return sum(map(len, self._residency.layout.pools))

    @property
    def num_bytes(self) -> int:
        """Of all slots there can be."""
        return self._bytes_of_pools(self._whole)

    @property
    def closed_bytes(self) -> int:
        """Of those that are closed."""
        return self.num_bytes - self._bytes_of_pools(self._residency.layout)

    def change(self, num_slots: int, heat: Keys) -> None:
        """Opens and closes slots until so many are open; no expert may be on its way.

        Experts that are worth more than others keep a slot, by ``heat`` [L * E]; experts that are
        to fill what was opened are on their way afterwards.

        Raises:
            DeviceError: the card has not got the memory; slots are then as they were.
        """
        layout = opened(self._whole, num_slots)
        before = self._residency.layout
        self._restore(before, layout)
        lost = self._residency.reopen(layout)
        self._keep_best(layout, lost, heat)
        closed = np.flatnonzero(self._is_closed(layout))
        self._table.give_up(closed)
        self._table.send()
        self._settle()
        for room, old, new in zip(self._rooms, before.pools, layout.pools, strict=True):
            if len(new) < len(old):
                self._memory.release(*_bytes_of(room, len(new), len(old)))
        # Who is worth most comes first; of equals the lower key.
        self._residency.fill(np.argsort(-heat, kind="stable").tolist())

    def _bytes_of_pools(self, layout: SlotLayout) -> int:
        return sum(
            len(pool) * room.slot_bytes
            for room, pool in zip(self._rooms, layout.pools, strict=True)
        )  # fmt: skip

    def _restore(self, before: SlotLayout, layout: SlotLayout) -> None:
        """Memory for the slots that are to be opened: for all of them, or for none."""
        taken: list[tuple[int, int]] = []
        try:
            for room, old, new in zip(self._rooms, before.pools, layout.pools, strict=True):
                if len(new) > len(old):
                    piece = _bytes_of(room, len(old), len(new))
                    self._memory.restore(*piece)
                    taken.append(piece)
        except DeviceError:
            for piece in taken:
                self._memory.release(*piece)
            raise

    def _is_closed(self, layout: SlotLayout) -> NDArray[np.bool_]:
        is_closed = np.ones(layout.num_slots, bool)
        for pool in layout.pools:
            is_closed[pool] = False
        return is_closed

    def _keep_best(self, layout: SlotLayout, lost: Sequence[int], heat: Keys) -> None:
        """Of those whose slots have closed, the ones worth more than others take their slots."""
        residency = self._residency
        for number, pool in enumerate(layout.pools):
            own = [
                key for key in lost
                if layout.pool_of_layer[key // layout.num_experts] == number
            ]  # fmt: skip
            own.sort(key=lambda key: (-heat[key], key))
            keys = residency.key_in[pool]
            worth = np.where(keys == EMPTY, np.iinfo(np.int64).min, heat[keys])
            order = np.argsort(worth, kind="stable")
            for key, at in zip(own, order.tolist(), strict=False):
                if heat[key] <= worth[at]:
                    break
                residency.place(key, int(pool[at]))


def _bytes_of(room: PoolRoom, first: int, end: int) -> tuple[int, int]:
    """Address and bytes of a pool's slots from one to another."""
    return room.address + first * room.slot_bytes, (end - first) * room.slot_bytes
