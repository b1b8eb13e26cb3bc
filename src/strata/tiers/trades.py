"""The trades of all layers at once: which misses take whose slots, best gain first.

Owns no worth and no slots: both are its caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.tiers.policies import Admission
from strata.tiers.slots import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from strata.tiers.slots import Residency, SlotLayout

    Keys = NDArray[np.int64]

_LAST = np.iinfo(np.int64).max
# What an empty slot is worth: less than any expert.
_NOTHING = -1


class Trades:
    """Finds trades for one cache.

    Args:
        residency: of the cache; read only.
    """

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        self._layout: SlotLayout | None = None
        self._slots = np.empty((0, 0), np.int64)
        self._pool_of_layer = np.empty(0, np.int64)

    def best(
        self, candidates: Keys, worth: Callable[[Keys], Keys], most: int | None
    ) -> list[Admission]:
        """Pairs the best candidates of each pool with its cheapest slots, where that gains.

        Free slots go first. Of candidates and of residents that are worth the same the lower key
        goes first, and of trades that gain the same.

        Args:
            candidates: distinct keys without a slot.
            worth: of keys, 0 to ``MAX_WORTH``.
            most: most trades, of all pools together; None for all that gain.

        Returns:
            The trades, the one that gains most first.
        """
        self._follow_layout()
        width = self._slots.shape[1]
        if not len(candidates) or not width:
            return []
        values = worth(candidates)
        pools = self._pool_of_layer[candidates // self._residency.layout.num_experts]
        order = np.lexsort((candidates, -values, pools))
        candidates, values, pools = candidates[order], values[order], pools[order]
        places = np.arange(len(pools)) - np.searchsorted(pools, pools)
        is_placed = places < width
        candidates, values = candidates[is_placed], values[is_placed]
        pools, places = pools[is_placed], places[is_placed]
        slots, prices = self._cheapest(int(places.max()) + 1, worth)
        gains = values - prices[pools, places]
        chosen = np.flatnonzero(gains > 0)
        chosen = chosen[np.lexsort((candidates[chosen], -gains[chosen]))][:most]
        found = slots[pools, places][chosen]
        pairs = zip(candidates[chosen].tolist(), found.tolist(), strict=True)
        return [Admission(key, slot) for key, slot in pairs]

    def _cheapest(self, num: int, worth: Callable[[Keys], Keys]) -> tuple[Keys, Keys]:
        """[pools, num] slots that are worth least, in order, and what they are worth."""
        num_keys = len(self._residency.slot_of)
        residents = np.where(self._slots == EMPTY, EMPTY, self._residency.key_in[self._slots])
        is_empty = residents == EMPTY
        prices = np.where(is_empty, _NOTHING, worth(np.where(is_empty, 0, residents)))
        # Numbers differ from each other, so the choice does not hang on how they are sorted.
        order = prices * num_keys + np.where(is_empty, self._slots, residents)
        closed = self._slots == EMPTY
        order[closed], prices[closed] = _LAST, _LAST
        if num < order.shape[1]:
            first = np.argpartition(order, num, axis=1)[:, :num]
            by_price = np.argsort(np.take_along_axis(order, first, axis=1), axis=1, kind="stable")
            first = np.take_along_axis(first, by_price, axis=1)
        else:
            first = np.argsort(order, axis=1, kind="stable")
        return (
            np.take_along_axis(self._slots, first, axis=1),
            np.take_along_axis(prices, first, axis=1),
        )

    def _follow_layout(self) -> None:
        """[pools, slots of the largest] slots of each pool, EMPTY behind those of smaller ones."""
        layout = self._residency.layout
        if layout is self._layout:
            return
        self._layout = layout
        width = max(map(len, layout.pools), default=0)
        self._slots = np.full((len(layout.pools), width), EMPTY, np.int64)
        for number, pool in enumerate(layout.pools):
            self._slots[number, : len(pool)] = pool
        self._pool_of_layer = np.array(layout.pool_of_layer, np.int64)
