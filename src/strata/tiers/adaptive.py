"""Policies that weigh use by age: swaps between windows, and averages whose memory adapts.

Both are integer arithmetic; the protocol is ``tiers.policies``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.tiers.policies import Admission, ScoredPolicy
from strata.tiers.slots import EMPTY
from strata.tiers.trades import Trades

if TYPE_CHECKING:
    from strata.tiers.policies import Keys
    from strata.tiers.slots import Residency, SlotLayout

# One use, in the fixed point of decayed counts.
ONE_USE = 1 << 16


class DecayedSwaps(ScoredPolicy):
    """Fetches nothing while a layer runs; every few windows it swaps the cold for the hot.

    A candidate is used at least twice and has no slot; it takes a free slot of its pool, or that of
    an expert of its own layer that is used less by one and a half. Of all layers' swaps those that
    gain most are taken. Then every count fades.

    Args:
        residency: of the cache; read only.
        every: windows between swaps.
        most: swaps at a time.
        decay: what remains of a count after each swap, in 65,536ths.
    """

    CANDIDATE_USES = 2 * ONE_USE
    ADVANTAGE = ONE_USE * 3 // 2

    def __init__(
        self, residency: Residency, *, every: int = 4, most: int = 96, decay: int = 45875
    ) -> None:
        super().__init__(residency)
        self._every, self._most, self._decay = every, most, decay
        self._uses = np.zeros(self.num_keys, np.int64)
        self._num_windows = 0

    def ask(self, layer: int, rows: Keys, *, is_prompt: bool) -> list[Admission]:
        """Only a prompt leaves experts behind; misses of a window are computed elsewhere."""
        if is_prompt:
            return super().ask(layer, rows, is_prompt=True)
        self._window.append(rows + layer * self.num_experts)
        return []

    def settle(self, num_kept: int) -> list[Admission]:
        """Counts the rows that were kept; every few windows the swaps."""
        super().settle(num_kept)
        self._num_windows += 1
        if self._num_windows % self._every:
            return []
        swaps = self._swaps()
        self._uses = self._uses * self._decay >> 16
        return swaps

    def count(self, layer: int, keys: Keys) -> None:  # noqa: ARG002
        """Adds one for each row."""
        np.add.at(self._uses, keys.reshape(-1), ONE_USE)

    def worth(self, layer: int, keys: Keys) -> Keys:  # noqa: ARG002
        """Uses, faded."""
        return self._uses[keys]

    def _swaps(self) -> list[Admission]:
        layout = self.residency.layout
        wanted = (self._uses >= self.CANDIDATE_USES) & (self.residency.slot_of == EMPTY)
        candidates = np.flatnonzero(wanted)
        # Most used first; of equals the lower key, which the stable sort keeps.
        candidates = candidates[np.argsort(-self._uses[candidates], kind="stable")]
        pools = np.array(layout.pool_of_layer)[candidates // self.num_experts]
        found: list[tuple[int, int, int]] = []
        placed = np.zeros(len(candidates), bool)
        for pool in np.unique(pools).tolist():
            slots = layout.pools[pool]
            free = slots[self.residency.key_in[slots] == EMPTY]
            of_pool = np.flatnonzero(pools == pool)[: len(free)]
            placed[of_pool] = True
            for index, slot in zip(of_pool, free, strict=False):
                key = int(candidates[index])
                found.append((int(self._uses[key]), key, int(slot)))
        rest = candidates[~placed]
        for layer in np.unique(rest // self.num_experts).tolist():
            found += self._layer_swaps(layer, rest[rest // self.num_experts == layer])
        found.sort(key=lambda swap: (-swap[0], swap[1]))
        return [Admission(key, slot) for _, key, slot in found[: self._most]]

    def _layer_swaps(self, layer: int, candidates: Keys) -> list[tuple[int, int, int]]:
        """(gain, key, slot) of a layer's candidates, best first, against its residents."""
        first = layer * self.num_experts
        slot_of = self.residency.slot_of[first : first + self.num_experts]
        residents = first + np.flatnonzero(slot_of != EMPTY)
        residents = residents[np.argsort(self._uses[residents], kind="stable")]
        num_pairs = min(len(candidates), len(residents))
        gains = self._uses[candidates[:num_pairs]] - self._uses[residents[:num_pairs]]
        return [
            (int(gain), int(key), int(self.residency.slot_of[victim]))
            for gain, key, victim in zip(gains, candidates, residents, strict=False)
            if gain >= self.ADVANTAGE
        ]


class AdaptiveAverage:
    """Averages of use with short and long memories; the mix that foresees best gives the worth.

    Each memory keeps x := x - (x >> shift) + uses for every expert and window; x >> shift is then a
    rate. A mix is a weighted sum of rates. Before a window is learned each mix is asked how many of
    its experts are among the best that the layer's share of the slots could hold; the answers are
    averaged over about 16 windows, and the highest wins.

    When a window has ended, its misses are traded for experts that are worth less, this use
    included, those trades first that gain most. A row of a prompt is learned like a window.

    Args:
        residency: of the cache; read only.
        max_admissions: trades of a window for each layer that it asked, on average: where they gain
            most, one layer may have several and another none. None for all; prompts have all.
    """

    SHIFTS = (3, 4, 5, 8)
    # Weights of the rates; the fourth is for favourites that come back after a long while.
    MIXES = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 4), (0, 0, 0, 1))
    JUDGED_OVER = 4
    # Rows that fade the averages once, as many as a window can have: sums then fit 31 bits.
    WINDOW_ROWS = 8
    _UNIT = 1 << 19

    def __init__(self, residency: Residency, *, max_admissions: int | None = None) -> None:
        self._residency = residency
        self._max_admissions = max_admissions
        layout = residency.layout
        shape = (len(self.SHIFTS), layout.num_layers, layout.num_experts)
        self._averages = np.zeros(shape, np.int32)
        self._shifts = np.array(self.SHIFTS, np.int32)[:, None, None]
        self._foreseen = np.zeros(len(self.MIXES), np.int64)
        self._best = 0
        self._layout, self._rooms = layout, _rooms(layout)
        self._trades = Trades(residency)
        self._asked: list[tuple[int, Keys]] = []
        self._is_prompt = False

    @property
    def mix(self) -> tuple[int, ...]:
        """The weights in use."""
        return self.MIXES[self._best]

    def ask(self, layer: int, rows: Keys, *, is_prompt: bool) -> list[Admission]:
        """Notes the rows; see ``Policy``. Whoever gains most is known when all layers have run."""
        self._asked.append((layer, rows))
        self._is_prompt = is_prompt
        return []

    def settle(self, num_kept: int) -> list[Admission]:  # noqa: ARG002
        """Judges the mixes by what was asked for, learns it, and trades."""
        if not self._asked:
            return []
        layers = np.array([layer for layer, _ in self._asked], np.int64)
        rows = np.stack([rows for _, rows in self._asked])
        self._asked.clear()
        if not self._is_prompt:
            self._judge(layers, rows)
        self._learn(layers, rows, 1 if self._is_prompt else self.WINDOW_ROWS)
        keys = np.unique(rows + (layers * self._averages.shape[2])[:, None, None])
        misses = keys[self._residency.slot_of[keys] == EMPTY]
        is_capped = self._max_admissions is not None and not self._is_prompt
        most = len(layers) * (self._max_admissions or 0) if is_capped else None
        return self._trades.best(misses, self._worth, most)

    def heat(self) -> Keys:
        """[L, E] the worth of every expert."""
        return self._worth(np.arange(self._averages[0].size)).reshape(self._averages.shape[1:])

    def _worth(self, keys: Keys) -> Keys:
        """The rates of the best mix."""
        worth = np.zeros(keys.shape, np.int64)
        for averages, shift, weight in zip(self._averages, self.SHIFTS, self.mix, strict=True):
            if weight:
                worth += (averages.reshape(-1)[keys] >> shift) * weight
        return worth

    def _learn(self, layers: Keys, rows: Keys, at_once: int) -> None:
        """Fades the layers' averages and adds rows [N, T, K], so many at once."""
        is_every = len(layers) == self._averages.shape[1]
        averages = self._averages if is_every else self._averages[:, layers]
        places = (layers if is_every else np.arange(len(layers)))[:, None]
        for first in range(0, rows.shape[1], at_once):
            averages -= averages >> self._shifts
            for row in range(first, min(first + at_once, rows.shape[1])):
                averages[:, places, rows[:, row]] += self._UNIT
        if not is_every:
            self._averages[:, layers] = averages

    def _judge(self, layers: Keys, rows: Keys) -> None:
        """Learns how many of the window's experts each mix would have kept, and takes the best."""
        if self._layout is not self._residency.layout:
            self._layout = self._residency.layout
            self._rooms = _rooms(self._layout)
        num_experts = self._averages.shape[2]
        rooms = np.minimum(self._rooms[layers], num_experts)
        is_roomy = np.flatnonzero(rooms)
        numbers = np.arange(len(is_roomy))
        asked = np.zeros((len(is_roomy), num_experts), bool)
        asked[numbers[:, None], rows.reshape(len(rows), -1)[is_roomy]] = True
        rates = self._averages[:, layers[is_roomy]] >> self._shifts
        for number, mix in enumerate(self.MIXES):
            worth = sum(rate * weight for rate, weight in zip(rates, mix, strict=True) if weight)
            least = np.sort(worth, axis=1)[numbers, num_experts - rooms[is_roomy]]
            # Nobody would have kept what is worth nothing.
            is_kept = asked & (worth >= np.maximum(least, 1)[:, None])
            foreseen = int(np.count_nonzero(is_kept)) << 16
            self._foreseen[number] += foreseen - (self._foreseen[number] >> self.JUDGED_OVER)
        self._best = int(np.argmax(self._foreseen))


def _rooms(layout: SlotLayout) -> Keys:
    """[L] each layer's share of the slots of its pool."""
    sharing = np.bincount(layout.pool_of_layer, minlength=len(layout.pools))
    rooms = [len(layout.pools[pool]) // int(sharing[pool]) for pool in layout.pool_of_layer]
    return np.array(rooms, np.int64)
