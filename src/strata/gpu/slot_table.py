"""Which expert's bytes lie in each slot, and the table a card looks experts up in.

Owns what is true of the bytes. Who is meant to be where is ``tiers.slots.Residency``; the two
differ while experts are on their way, and where a move broke off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.tiers.slots import EMPTY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from strata.tiers.slots import Residency


class SlotTable:
    """The slots of a card as they are.

    Args:
        residency: who is meant to be where.
        device: of the card.

    Attributes:
        on_card: [L, E] int32, the place of an expert among its layer's slots, or -1.
        first_slots: [L] the slot that is place 0 of a layer.
    """

    def __init__(self, residency: Residency, device: torch.device) -> None:
        self._residency = residency
        layout = residency.layout
        shape = (layout.num_layers, layout.num_experts)
        firsts = [layout.first_slot(layer) for layer in range(layout.num_layers)]
        self.first_slots = np.array(firsts, np.int64)
        # The key whose bytes a slot holds, EMPTY while others are written there.
        self._held = np.full(layout.num_slots, EMPTY, np.int64)
        self._is_lent = np.zeros(layout.num_slots, bool)
        self._is_sent = True
        self.on_card = torch.full(shape, -1, dtype=torch.int32, device=device)
        is_card = device.type == "cuda"
        self._on_host = torch.zeros(shape, dtype=torch.int32, pin_memory=is_card)
        self._on_host.fill_(-1)
        self._layers = np.arange(layout.num_layers)[:, None]
        # The table as it is to be sent next, followed change by change: most of it stays.
        self._places = np.full(shape, -1, np.int32)

    @property
    def on_host(self) -> NDArray[np.int32]:
        """[L, E] the table that was sent last; a view."""
        table: NDArray[np.int32] = self._on_host.numpy()
        return table

    def wanting(self) -> NDArray[np.int64]:
        """Slots that do not hold the expert they are meant to hold, and could.

        An expert that is there and not found is missing as well: of two slots that it lay in, it
        was found in the one that was given up.
        """
        meant = self._residency.key_in
        is_found = (meant == self._held) & (self._places.reshape(-1)[meant] >= 0)
        return np.flatnonzero((meant != EMPTY) & ~is_found & ~self._is_lent)

    @property
    def held(self) -> NDArray[np.int64]:
        """[C] the key whose bytes a slot holds, EMPTY where others are on the way; a view."""
        return self._held

    def at_rest(self) -> NDArray[np.bool_]:
        """[C] slots that nobody is meant to come to, and whose memory is not lent."""
        meant = self._residency.key_in
        found: NDArray[np.bool_] = ((meant == EMPTY) | (meant == self._held)) & ~self._is_lent
        return found

    def lend(self, slots: NDArray[np.int64]) -> None:
        """The memory of these slots is used for something else from now on; they hold nobody."""
        self.give_up(slots)
        self._is_lent[slots] = True

    def take_back(self) -> None:
        """All slots are slots again; those that were lent hold nobody yet."""
        self._is_lent[:] = False

    def num_held(self) -> list[int]:
        """[L] experts whose bytes lie in slots."""
        found: list[int] = np.count_nonzero(self._places >= 0, axis=1).tolist()
        return found

    def give_up(self, slots: NDArray[np.int64]) -> None:
        """These slots are about to be written: nobody is found there any more."""
        self._is_sent = False
        self._leave(slots)
        self._held[slots] = EMPTY

    def enter(
        self, slots: Sequence[int] | NDArray[np.int64], keys: Sequence[int] | NDArray[np.int64]
    ) -> None:
        """The bytes of these experts are in these slots."""
        self._is_sent = False
        slots, keys = np.asarray(slots, np.int64), np.asarray(keys, np.int64)
        self._leave(slots)
        self._held[slots] = keys
        self._places.reshape(-1)[keys] = self._place_of(slots, keys)

    def _leave(self, slots: NDArray[np.int64]) -> None:
        """Whoever is in these slots is found there no more."""
        is_held = self._held[slots] != EMPTY
        slots = slots[is_held]
        keys = self._held[slots]
        places = self._places.reshape(-1)
        places[keys[places[keys] == self._place_of(slots, keys)]] = -1

    def _place_of(self, slots: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places of slots among those of the layers that the keys belong to."""
        found: NDArray[np.int64] = slots - self.first_slots[keys // self.on_card.shape[1]]
        return found

    def has(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[L, N] whether experts ids [L, N] of each layer are in the table that was sent last."""
        found: NDArray[np.bool_] = self._on_host.numpy()[self._layers, ids] >= 0
        return found

    def send(self) -> None:
        """Brings the card's table up to date, in the order of its launches.

        Who has given a slot up and still lies there is found until somebody else is on the way.
        """
        if self._is_sent:
            return
        self._on_host.numpy()[:] = self._places
        self.on_card.copy_(self._on_host, non_blocking=True)
        self._is_sent = True
