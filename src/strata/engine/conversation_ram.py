"""Conversations parked in host memory, under a budget.

Owns which of them goes. Knows no session and no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.engine.conversation_history import History, bytes_of, common_prefix, new_key

if TYPE_CHECKING:
    from collections.abc import Iterator


class Parked:
    """Histories, least recently used first to go.

    Args:
        budget_bytes: that they may take together; what they share counts once.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._histories: list[History] = []
        self.num_bytes = 0
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._histories)

    def __iter__(self) -> Iterator[History]:
        return iter(self._histories)

    def add(self, history: History) -> None:
        """Parks a history; those it supersedes go, then others as the budget asks.

        One that is larger than the budget is not kept.
        """
        kept = [item for item in self._histories if not _supersedes(history, item)]
        self.num_evicted += len(self._histories) - len(kept)
        self._histories = [*kept, history]
        self._shrink()

    def take(self, history: History) -> None:
        """Lets go of a history that is being continued."""
        self._histories = [item for item in self._histories if item is not history]
        self.num_bytes = bytes_of(self._histories)

    def clear(self) -> None:
        """Lets go of all."""
        self._histories = []
        self.num_bytes = 0

    def _shrink(self) -> None:
        while (size := bytes_of(self._histories)) > self._budget_bytes:
            self._evict(min(self._histories, key=lambda item: (_is_root_only(item), item.stamp)))
        self.num_bytes = size

    def _evict(self, history: History) -> None:
        """Drops a history, or all of it but what other conversations may begin with."""
        self.num_evicted += 1
        rest = [item for item in self._histories if item is not history]
        root = history.root
        if root is not None and not _is_root_only(history):
            is_shared = any(root in item.checkpoints for item in rest)
            if not is_shared:
                rest.append(_root_of(history))
        self._histories = rest


def _is_root_only(history: History) -> bool:
    return history.root is not None and len(history.checkpoints) == 1


def _root_of(history: History) -> History:
    """The first message of a history, as a conversation of its own."""
    root = history.root
    assert root is not None  # noqa: S101 - the caller asked
    return History(
        key=new_key(),
        tokens=history.tokens[: root.position].copy(),
        checkpoints=[root],
        pages=[page for page in history.pages if page.start < root.position],
        stamp=history.stamp,
    )


def _supersedes(newer: History, older: History) -> bool:
    """Whether ``older`` is an earlier turn of ``newer``, or the same again."""
    return common_prefix(newer.tokens, older.tokens) == len(older.tokens)
