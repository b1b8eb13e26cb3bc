"""Whose turn is next: requests one after the other, new ones before those that had a turn.

Owns the order and how many may be begun at a time. Knows nothing of what a turn is.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Rota(Generic[Item]):
    """Requests that have not ended.

    Args:
        most_begun: that may be begun at a time, since each of them holds a state; others wait.
    """

    def __init__(self, most_begun: int) -> None:
        self._most_begun = most_begun
        self._new: deque[Item] = deque()
        self._begun: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._begun)

    @property
    def has_others(self) -> bool:
        """Whether anything but the one whose turn it is could have the next turn."""
        return len(self._begun) > 1 or self._may_begin

    @property
    def has_new(self) -> bool:
        """Whether one that had no turn yet may have the next."""
        return self._may_begin

    def add(self, item: Item) -> None:
        """A request has come."""
        self._new.append(item)

    def next(self) -> Item:
        """The one whose turn it is; it stays, behind the others."""
        item = self._new.popleft() if self._may_begin else self._begun.popleft()
        self._begun.append(item)
        return item

    def remove(self, item: Item) -> None:
        """A request has ended."""
        self._begun.remove(item)

    @property
    def _may_begin(self) -> bool:
        return bool(self._new) and len(self._begun) < self._most_begun
