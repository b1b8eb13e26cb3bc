"""Whose turn is next: callers one after the other, and each caller's requests likewise.

Owns the order and how many are begun at a time. Knows nothing of what a turn is.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Rota(Generic[Item]):
    """Requests that have not ended. New ones come before those that had a turn.

    Args:
        most_begun: that may be begun at a time, since each of them holds a state. A caller that
            has none of them may begin one more.
    """

    def __init__(self, most_begun: int) -> None:
        self._most_begun = most_begun
        self._new: list[tuple[str, Item]] = []
        self._begun: deque[tuple[str, Item]] = deque()
        self._last_caller: str | None = None

    def __len__(self) -> int:
        return len(self._new) + len(self._begun)

    @property
    def has_others(self) -> bool:
        """Whether anything but the one whose turn it is could have the next turn."""
        return len(self._begun) > 1 or self.has_new

    @property
    def has_new(self) -> bool:
        """Whether one that had no turn yet may have the next."""
        return self._next_new() is not None

    def add(self, caller: str, item: Item) -> None:
        """A request has come."""
        self._new.append((caller, item))

    def next(self) -> Item:
        """The one whose turn it is; it stays, behind the others."""
        place = self._next_new()
        if place is not None:
            chosen = self._new.pop(place)
        else:
            others = (entry for entry in self._begun if entry[0] != self._last_caller)
            chosen = next(others, self._begun[0])
            self._begun.remove(chosen)
        self._begun.append(chosen)
        self._last_caller = chosen[0]
        return chosen[1]

    def remove(self, item: Item) -> None:
        """A request has ended."""
        self._begun = deque(entry for entry in self._begun if entry[1] != item)

    def _next_new(self) -> int | None:
        """Place of the new request that may begin: of the caller with the fewest begun."""
        if not self._new:
            return None
        begun = Counter(caller for caller, _ in self._begun)
        place = min(range(len(self._new)), key=lambda at: begun[self._new[at][0]])
        is_room = len(self._begun) < self._most_begun
        return place if is_room or begun[self._new[place][0]] == 0 else None
