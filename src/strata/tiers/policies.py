"""Who gets a slot and who gives one up: the protocol, and the policies that score experts.

A policy is one table of integers, the worth of each expert; what is worth least goes first, and of
equals the lower key. Everything is integer arithmetic, so a policy decides the same everywhere.
Owns no slots: it reads a ``Residency`` that its caller changes as told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from strata.tiers.slots import EMPTY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.tiers.slots import Residency

    Keys = NDArray[np.int64]

_LAST = np.iinfo(np.int64).max
_FIRST = np.iinfo(np.int64).min
# Worth times the number of keys has to fit 63 bits.
MAX_WORTH = 1 << 40


class Admission(NamedTuple):
    """An expert that is to lie in a slot; who is there now gives it up."""

    key: int
    slot: int


class Policy(Protocol):
    """Decides for one cache. Called in the order the model runs.

    After each call the caller carries the admissions out on the residency, in their order, before
    it calls again. A window's experts are never asked to give up their slots while it needs them.
    """

    def ask(self, layer: int, rows: Keys, *, is_prompt: bool) -> list[Admission]:
        """A layer is about to run: which of its misses are to be fetched, and to where.

        Args:
            layer: the layer.
            rows: [T, K] int64 expert ids of the window, each row in routing order.
            is_prompt: the rows are a chunk of a prompt, which passes the cache by: it uses what is
                resident, and the best of what it brought along may stay.
        """

    def settle(self, num_kept: int) -> list[Admission]:
        """The window has been verified and its first ``num_kept`` rows accepted: swaps now."""

    def heat(self) -> Keys:
        """[L, E] what each expert is worth now, for the profile that a run leaves."""


def distinct(rows: Keys) -> Keys:
    """The ids of rows [T, K] without repetition, in routing order."""
    flat = rows.reshape(-1)
    if rows.shape[0] == 1:
        return flat
    _, first = np.unique(flat, return_index=True)
    return flat[np.sort(first)]


class ScoredPolicy(ABC):
    """Admits misses into the slots of those that are worth least; subclasses give the worth.

    Args:
        residency: of the cache; read only.
        max_admissions: most misses of a layer that one decode window admits; None for all. The
            first in routing order are taken.
        has_filter: admit a miss only where it has been asked for more often, of late, than the one
            that would go.
    """

    def __init__(
        self,
        residency: Residency,
        *,
        max_admissions: int | None = None,
        has_filter: bool = False,
    ) -> None:
        layout = residency.layout
        self.residency = residency
        self.num_layers = layout.num_layers
        self.num_experts = layout.num_experts
        self.num_keys = layout.num_layers * layout.num_experts
        self.max_admissions = max_admissions
        self._filter = RecentUses(self.num_keys) if has_filter else None
        self._is_held = np.zeros(self.num_keys, bool)
        self._window: list[Keys] = []

    def ask(self, layer: int, rows: Keys, *, is_prompt: bool) -> list[Admission]:
        """Which misses are to be fetched; see ``Policy``."""
        keys = rows + layer * self.num_experts
        asked = distinct(keys)
        self.touch(layer, keys)
        if self._filter is not None:
            self._filter.add(asked)
        if is_prompt:
            self.count(layer, keys)
            return self.exchange(layer, asked[self.residency.slot_of[asked] == EMPTY])
        self._window.append(keys)
        misses = asked[self.residency.slot_of[asked] == EMPTY][: self.max_admissions]
        if not len(misses):
            return []
        self._is_held[asked] = True
        slots = self.cheapest(layer, len(misses), self._is_held)
        self._is_held[asked] = False
        pairs = zip(misses[: len(slots)].tolist(), slots.tolist(), strict=True)
        return [Admission(key, slot) for key, slot in pairs if self._is_admitted(key, slot)]

    def settle(self, num_kept: int) -> list[Admission]:
        """Counts the rows that were kept; see ``Policy``."""
        for keys in self._window:
            self.count(int(keys[0, 0]) // self.num_experts, keys[:num_kept])
        self._window.clear()
        if self._filter is not None:
            self._filter.settle()
        return []

    def heat(self) -> Keys:
        """[L, E] the worth of every expert."""
        every = np.arange(self.num_keys)
        return self.worth(0, every).reshape(self.num_layers, self.num_experts)

    def touch(self, layer: int, keys: Keys) -> None:  # noqa: B027 - most learn nothing here
        """Learns that rows [T, K] of keys are needed now."""

    def count(self, layer: int, keys: Keys) -> None:  # noqa: B027 - likewise
        """Learns that rows [T, K] of keys became part of the text."""

    @abstractmethod
    def worth(self, layer: int, keys: Keys) -> Keys:
        """How much each key is worth while ``layer`` runs, 0 to ``MAX_WORTH``."""

    def cheapest(self, layer: int, num_wanted: int, is_held: NDArray[np.bool_]) -> Keys:
        """Up to ``num_wanted`` slots of the layer's pool: free ones, then those worth least.

        Args:
            layer: the layer that runs.
            num_wanted: most slots.
            is_held: [L * E], keys that must stay.
        """
        slots, order = self._priced(layer)
        residents = self.residency.key_in[slots]
        order[(residents != EMPTY) & is_held[residents]] = _LAST
        if num_wanted < len(slots):
            best = np.argpartition(order, num_wanted)[:num_wanted]
        else:
            best = np.arange(len(slots))
        best = best[np.argsort(order[best], kind="stable")]
        chosen: Keys = slots[best[order[best] != _LAST]]
        return chosen

    def exchange(self, layer: int, candidates: Keys) -> list[Admission]:
        """Admits the best candidates in place of those worth less, and nobody for nothing.

        Args:
            layer: the layer that runs.
            candidates: keys without a slot.
        """
        slots, order = self._priced(layer)
        if not len(candidates):
            return []
        worth = self.worth(layer, candidates)
        best = np.lexsort((candidates, -worth))[: len(slots)]
        # Prices differ from each other, so the choice does not hang on how they are sorted.
        num_wanted = len(best)
        if num_wanted < len(slots):
            by_price = np.argpartition(order, num_wanted)[:num_wanted]
            by_price = by_price[np.argsort(order[by_price], kind="stable")]
        else:
            by_price = np.argsort(order, kind="stable")
        victims = self.residency.key_in[slots[by_price]]
        is_free = victims == EMPTY
        is_better = is_free | (worth[best] > self.worth(layer, np.where(is_free, 0, victims)))
        return [
            Admission(int(candidates[b]), int(slots[s]))
            for b, s in zip(best[is_better], by_price[is_better], strict=True)
        ]

    def _priced(self, layer: int) -> tuple[Keys, Keys]:
        """The slots of the layer's pool, and a number for each by which they go: free ones first.

        Numbers differ from each other: of two of the same worth the lower key goes first.
        """
        layout = self.residency.layout
        slots = layout.pools[layout.pool_of_layer[layer]]
        residents = self.residency.key_in[slots]
        prices = self.worth(layer, residents) * self.num_keys + residents
        is_free = residents == EMPTY
        if is_free.any():
            prices[is_free] = _FIRST + np.flatnonzero(is_free)
        return slots, prices

    def _is_admitted(self, key: int, slot: int) -> bool:
        victim = int(self.residency.key_in[slot])
        if self._filter is None or victim == EMPTY:
            return True
        return bool(self._filter.uses[key] > self._filter.uses[victim])


class RecentUses:
    """How often each key was asked for of late: counts that are halved every few windows."""

    HALVED_AFTER = 64

    def __init__(self, num_keys: int) -> None:
        self.uses = np.zeros(num_keys, np.int64)
        self._num_windows = 0

    def add(self, keys: Keys) -> None:
        """Distinct keys that a window asked for."""
        self.uses[keys] += 1

    def settle(self) -> None:
        """A window has ended."""
        self._num_windows += 1
        if self._num_windows % self.HALVED_AFTER == 0:
            self.uses >>= 1


class LeastRecent(ScoredPolicy):
    """LRU: worth is the number of the last row that asked."""

    def __init__(self, residency: Residency, **options: int | bool | None) -> None:
        super().__init__(residency, **options)  # type: ignore[arg-type]
        self._last_row = np.zeros(self.num_keys, np.int64)
        self._num_rows = np.zeros(self.num_layers, np.int64)

    def touch(self, layer: int, keys: Keys) -> None:
        """Later rows of a window count as more recent."""
        numbers = self._num_rows[layer] + 1 + np.arange(len(keys))
        self._last_row[keys.reshape(-1)] = np.repeat(numbers, keys.shape[1])
        self._num_rows[layer] += len(keys)

    def worth(self, layer: int, keys: Keys) -> Keys:  # noqa: ARG002
        """Number of the last row, 0 where none asked."""
        return self._last_row[keys]


class LeastFrequent(ScoredPolicy):
    """LFU: worth is the number of accepted rows that chose the expert, since the start."""

    def __init__(self, residency: Residency, **options: int | bool | None) -> None:
        super().__init__(residency, **options)  # type: ignore[arg-type]
        self._uses = np.zeros(self.num_keys, np.int64)

    def count(self, layer: int, keys: Keys) -> None:  # noqa: ARG002
        """Adds one for each row."""
        np.add.at(self._uses, keys.reshape(-1), 1)

    def worth(self, layer: int, keys: Keys) -> Keys:  # noqa: ARG002
        """Uses so far."""
        return self._uses[keys]


class LeastStale(ScoredPolicy):
    """What went unused in most of its layer's last passes goes first.

    Of equals the one whose layer comes round last: layers run in turn, so an expert of the layer
    just passed has the longest to wait. Within one layer's pool this is LRU by windows.
    """

    def __init__(self, residency: Residency, **options: int | bool | None) -> None:
        super().__init__(residency, **options)  # type: ignore[arg-type]
        self._last_pass = np.zeros(self.num_keys, np.int64)
        self._passes = np.zeros(self.num_layers, np.int64)

    def touch(self, layer: int, keys: Keys) -> None:
        """A pass of the layer begins."""
        self._passes[layer] += 1
        self._last_pass[keys.reshape(-1)] = self._passes[layer]

    def worth(self, layer: int, keys: Keys) -> Keys:
        """Passes since it was used, and layers until its own runs again; both count downwards."""
        layers = keys // self.num_experts
        stale = self._passes[layers] - self._last_pass[keys]
        until = (layers - layer - 1) % self.num_layers
        return (MAX_WORTH // 2) - stale * self.num_layers - until
