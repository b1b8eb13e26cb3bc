"""Policies that weigh use by age: swaps between windows, and averages whose memory adapts.

Both are integer arithmetic; the protocol and the choice of slots are ``tiers.policies``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.tiers.policies import Admission, ScoredPolicy, distinct
from strata.tiers.slots import EMPTY

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


class AdaptiveAverage(ScoredPolicy):
    """Averages of use with short and long memories; the mix that foresees best gives the worth.

    Each memory keeps x := x - (x >> shift) + uses for every expert and window; x >> shift is then a
    rate. A mix is a weighted sum of rates. Before a window is learned each mix is asked how many of
    its experts are among the best that the layer's share of the slots could hold; the answers are
    averaged over about 16 windows, and the highest wins.

    Rows count when they are asked for. A miss is admitted where it is worth more, this use
    included, than the one that would go.
    """

    SHIFTS = (3, 4, 5, 7)
    # Weights of the rates. The last one is for favourites that come back after a long while.
    MIXES = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 0, 0, 4))
    JUDGED_OVER = 4
    # Rows of a prompt that fade the averages once, as many as a window can have.
    PROMPT_ROWS = 8
    _UNIT = 1 << 20

    def __init__(self, residency: Residency, *, max_admissions: int | None = None) -> None:
        super().__init__(residency, max_admissions=max_admissions)
        shape = (len(self.SHIFTS), self.num_layers, self.num_experts)
        self._averages = np.zeros(shape, np.int64)
        self._shifts = np.array(self.SHIFTS, np.int64)[:, None]
        self._mixes = np.array(self.MIXES, np.int64)
        self._foreseen = np.zeros(len(self.MIXES), np.int64)
        self._this_window = np.zeros(len(self.MIXES), np.int64)
        self._best = 0
        self._layout, self._rooms = residency.layout, _rooms(residency.layout)
        self._lower_first = np.arange(self.num_experts)[::-1]

    @property
    def mix(self) -> tuple[int, ...]:
        """The weights in use."""
        return self.MIXES[self._best]

    def ask(self, layer: int, rows: Keys, *, is_prompt: bool) -> list[Admission]:
        """Judges the mixes by the rows, learns them, and trades; see ``Policy``."""
        asked = distinct(rows)
        keys = asked + layer * self.num_experts
        misses = keys[self.residency.slot_of[keys] == EMPTY]
        if not is_prompt:
            self._judge(layer, asked)
        self._learn(layer, rows)
        if is_prompt:
            return self.exchange(layer, misses)
        return self.exchange(layer, misses, held=keys, most=self.max_admissions)

    def settle(self, num_kept: int) -> list[Admission]:  # noqa: ARG002
        """Chooses the mix for the next window."""
        self._foreseen += (self._this_window << 16) - (self._foreseen >> self.JUDGED_OVER)
        self._this_window[:] = 0
        self._best = int(np.argmax(self._foreseen))
        return []

    def worth(self, layer: int, keys: Keys) -> Keys:  # noqa: ARG002
        """The rates of the best mix."""
        rates = self._averages.reshape(len(self.SHIFTS), -1)[:, keys] >> self._shifts
        worth: Keys = (rates * self._mixes[self._best][:, None]).sum(axis=0)
        return worth

    def _learn(self, layer: int, rows: Keys) -> None:
        """Fades the layer's averages and adds the rows, in groups of up to eight."""
        averages = self._averages[:, layer]
        for start in range(0, len(rows), self.PROMPT_ROWS):
            group = rows[start : start + self.PROMPT_ROWS].reshape(-1)
            averages -= averages >> self._shifts
            averages += np.bincount(group, minlength=self.num_experts) * self._UNIT

    def _judge(self, layer: int, asked: Keys) -> None:
        """Adds, for each mix, how many of the window's experts it would have kept."""
        if self._layout is not self.residency.layout:
            self._layout = self.residency.layout
            self._rooms = _rooms(self._layout)
        room = self._rooms[layer]
        if room >= self.num_experts:
            self._this_window += len(asked)
        elif room > 0:
            worth = self._mixes @ (self._averages[:, layer] >> self._shifts)
            # Of equals the lower expert is kept.
            ranks = worth * self.num_experts + self._lower_first
            least = np.partition(ranks, self.num_experts - room, axis=1)
            is_kept = ranks[:, asked] >= least[:, self.num_experts - room, None]
            self._this_window += is_kept.sum(axis=1)


def _rooms(layout: SlotLayout) -> list[int]:
    """[L] each layer's share of the slots of its pool."""
    sharing = np.bincount(layout.pool_of_layer, minlength=len(layout.pools))
    return [len(layout.pools[pool]) // int(sharing[pool]) for pool in layout.pool_of_layer]
