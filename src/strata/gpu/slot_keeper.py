"""Slots that windows may give to experts they copy for themselves: named before, read afterwards.

Owns the names, and that residents and bytes agree with what the card has written, whatever became
of the window. Who is worth what is the policy's; the card's side is ``kernels.keep``. What is named
stays where it is, and is found there, until it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.gpu.kernels.keep import Keeping
from strata.tiers.slots import EMPTY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.gpu.slot_table import SlotTable
    from strata.tiers.slots import Residency, SlotLayout

    Ints = NDArray[np.int64]

_MAX_WORTH = (1 << 31) - 1


class SlotKeeper:
    """What the windows of one model keep.

    Args:
        residency: who is meant to be where.
        table: who is where.
        num_stages: S, most experts of a layer that are copied for a window.

    Attributes:
        keeping: for the card.
        num_kept: [L] experts that the last window left in slots.
    """

    def __init__(self, residency: Residency, table: SlotTable, num_stages: int) -> None:
        self._residency, self._table = residency, table
        device, (num_layers, num_experts) = table.on_card.device, table.on_card.shape
        is_card, named = device.type == "cuda", num_layers * num_stages
        self._shape = num_layers, num_stages
        size = 2 * named + num_layers * num_experts
        self._on_host = torch.zeros(size, dtype=torch.int32, pin_memory=is_card)
        self._on_card = torch.zeros(size, dtype=torch.int32, device=device)
        self._kept = torch.full(self._shape, EMPTY, dtype=torch.int32, pin_memory=is_card)
        self._on_host[: 2 * named] = EMPTY
        self._on_card.copy_(self._on_host)
        columns = self._on_host.numpy()
        self._places = columns[:named].reshape(self._shape)
        self._holders = columns[named : 2 * named].reshape(self._shape)
        self._worth = columns[2 * named :].reshape(num_layers, num_experts)
        zeros = torch.zeros((3, num_stages), dtype=torch.int64, device=device)
        places, holders = (self._on_card[i * named : (i + 1) * named] for i in range(2))
        self.keeping = Keeping(
            places.view(self._shape), holders.view(self._shape),
            self._on_card[2 * named :].view(num_layers, num_experts),
            zeros[0].to(torch.int32), zeros[1], zeros[2], table.on_card, self._kept.data_ptr(),
        )  # fmt: skip
        self.num_kept: Ints = np.zeros(num_layers, np.int64)
        self._layout: SlotLayout | None = None
        self._ranks = np.full(self._shape, EMPTY, np.int64)
        self._pool_of_slot: Ints = np.empty(0, np.int64)
        self._wished = self._wished_holders = self._named = self._ranks
        self._next_worth: NDArray[np.int32] | None = None

    def choose(self, heat: Ints) -> None:
        """Who is to go in the next window; nothing of it is launched, so a window may be running.

        Args:
            heat: [L, E] what each expert is worth.
        """
        residency = self._residency
        if residency.layout is not self._layout:
            self._layout = residency.layout
            self._ranks = ranks_of_layers(self._layout, self._shape[1])
            self._pool_of_slot = np.full(self._layout.num_slots, EMPTY, np.int64)
            for number, pool in enumerate(self._layout.pools):
                self._pool_of_slot[pool] = number
        keys = residency.key_in
        worth = np.where(keys == EMPTY, np.iinfo(np.int64).min, heat.reshape(-1)[keys])
        order = np.lexsort((worth, ~self._table.at_rest(), self._pool_of_slot))
        self._wished = np.append(order, EMPTY)[self._ranks]  # -1 of the ranks is the last one
        self._wished_holders = np.append(self._table.held, EMPTY)[self._wished]
        above = heat - heat.min()
        above >>= max(0, int(above.max()).bit_length() - _MAX_WORTH.bit_length())
        self._next_worth = above.astype(np.int32)

    def name(self) -> None:
        """Tells the card who is to go in the window that is launched next."""
        slots = self._wished
        if self._residency.layout is not self._layout:
            slots = np.full(self._shape, EMPTY, np.int64)  # some may be closed
        holders = np.append(self._table.held, EMPTY)[slots]
        # What was taken since they were chosen, or is meant for somebody else, stays: who has just
        # come is worth more than is known yet.
        is_there = np.append(self._table.at_rest(), np.False_)[slots]
        is_there &= holders == self._wished_holders
        self._named = slots
        firsts = self._table.first_slots[:, None]
        self._places[:] = np.where(is_there, slots - firsts, EMPTY)
        self._holders[:] = np.where(is_there, holders, EMPTY)
        if self._next_worth is not None:
            self._worth[:] = self._next_worth
            self._next_worth = None
        self._on_card.copy_(self._on_host, non_blocking=True)

    def learn(self) -> None:
        """A window is done: who was left in which slot. The card's table is to be sent again."""
        kept: NDArray[np.int32] = self._kept.numpy()
        is_kept = kept != EMPTY
        self.num_kept = is_kept.sum(axis=1)
        if not is_kept.any():
            return
        slots, keys = self._named[is_kept], kept[is_kept].astype(np.int64)
        holders = self._holders[is_kept].astype(np.int64)
        kept[:] = EMPTY
        self._table.enter(slots, keys)
        residency = self._residency
        is_new = residency.slot_of[keys] == EMPTY
        residency.place_all(keys[is_new], slots[is_new])
        for at in np.flatnonzero(~is_new).tolist():
            self._enter(int(keys[at]), int(slots[at]), int(holders[at]))

    def lose(self) -> None:
        """A window broke off: who was left where is learned, and the other slots that were named
        hold nobody, since a copy may have been launched to them and its entry in the table not.
        """
        if self._on_card.is_cuda:
            torch.cuda.synchronize(self._on_card.device)
        is_lost = (self._places != EMPTY) & (self._kept.numpy() == EMPTY)
        self.learn()
        self._table.give_up(self._named[is_lost])
        self._places[:] = EMPTY

    def _enter(self, key: int, slot: int, holder: int) -> None:
        """An expert lies in a slot that was meant to come to another one, or was, until now."""
        residency, held = self._residency, self._table.held
        meant = int(residency.slot_of[key])
        if meant == slot:
            return
        if meant != EMPTY and held[meant] == EMPTY:
            # Its copy is on the way there. Here nobody is missed but who was here before.
            if residency.key_in[slot] == holder:
                residency.clear(slot)
            return
        if meant != EMPTY:
            residency.clear(meant)
        residency.place(key, slot)
        if meant != EMPTY and residency.slot_of[held[meant]] == EMPTY:
            residency.place(int(held[meant]), meant)  # nobody comes to take its place any more


def ranks_of_layers(layout: SlotLayout, num_stages: int) -> Ints:
    """[L, S] which of all slots, by pool and then by worth, each layer may give away; -1 for none.

    Layers of a pool take turns, so that no slot is named twice. A pool with room for all its
    experts gives none away. Closed slots come before the first pool.
    """
    ranks = np.full((layout.num_layers, num_stages), EMPTY, np.int64)
    begin = layout.num_slots - sum(map(len, layout.pools))
    pools = np.array(layout.pool_of_layer)
    for number, pool in enumerate(layout.pools):
        layers = np.flatnonzero(pools == number)
        turns = np.arange(num_stages)[None, :] * len(layers) + np.arange(len(layers))[:, None]
        if len(pool) < len(layers) * layout.num_experts:
            ranks[layers] = np.where(turns < len(pool), begin + turns, EMPTY)
        begin += len(pool)
    return ranks
