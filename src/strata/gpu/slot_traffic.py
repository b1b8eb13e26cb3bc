"""Experts on their way to slots: who sets out, departs and arrives, in an order that is right.

A slot is given up in the card's table before anybody writes there, and entered when its expert is
there. Whatever breaks off in between leaves slots that hold nobody, and is begun again. Who is
meant to be where is ``tiers.slots.Residency``; the copies are ``expert_mover``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.gpu.expert_mover import Move

if TYPE_CHECKING:
    from strata.gpu.expert_mover import ExpertMover
    from strata.gpu.slot_table import SlotTable
    from strata.tiers.slots import Residency


class SlotTraffic:
    """The traffic of one model.

    Args:
        residency: who is meant to be where.
        table: who is where.
        mover: copies experts.

    Attributes:
        mover: likewise.
    """

    def __init__(self, residency: Residency, table: SlotTable, mover: ExpertMover) -> None:
        self._residency, self._table, self.mover = residency, table, mover
        self._leaving = np.empty(0, np.int64)  # slots whose experts have yet to depart

    def move(self, most: int | None) -> None:
        """Some of those that are not yet in the slot meant for them set out and depart."""
        self.set_out(most)
        self.mover.mark()
        self.depart()

    def set_out(self, most: int | None) -> None:
        """Empties some of the slots that wait for somebody, who is brought in by ``depart``."""
        slots = self._table.wanting()[:most]
        if not len(slots):
            return
        self._table.give_up(slots)
        self._table.send()
        self._leaving = slots

    def depart(self) -> None:
        """Begins the copies of those that have set out."""
        slots, self._leaving = self._leaving, self._leaving[:0]
        if len(slots):
            num_experts = self._residency.layout.num_experts
            layers, experts = np.divmod(self._residency.key_in[slots], num_experts)
            places = slots - self._table.first_slots[layers]
            columns = (layers.tolist(), experts.tolist(), places.tolist(), slots.tolist())
            self.mover.start([Move(*fields) for fields in zip(*columns, strict=True)])

    def receive(self, *, is_waiting: bool = False) -> list[int]:
        """Enters experts that have arrived; the layer of each."""
        self.depart()
        landed = self.mover.landed(is_waiting=is_waiting)
        if landed:
            num_experts = self._residency.layout.num_experts
            keys = [move.layer * num_experts + move.expert for move in landed]
            self._table.enter([move.slot for move in landed], keys)
        return [move.layer for move in landed]
