"""One conversation as it is kept in host memory: its tokens, states along them, and cells in pages.

Plain data and the questions asked of it. Pages and states are never changed, so conversations that
begin alike share them.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from strata.engine.conversation_points import PointKind, least_needed
from strata.session_rules import num_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from strata.engine.session import Logits, Tokens
    from strata.session_rules import Arrays, Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Host copy of the cells of tokens ``start`` to ``stop``."""

    start: int
    stop: int
    cells: Arrays
    is_whole: bool  # nothing will be added to it

    @property
    def num_bytes(self) -> int:
        """Host memory it holds."""
        return num_bytes(self.cells)


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A state without cells; ``logits`` [V] after its last token where they are still known."""

    snapshot: Snapshot
    kind: PointKind
    stamp: int
    logits: Logits | None = None

    @property
    def position(self) -> int:
        """Tokens before it."""
        return self.snapshot.position

    @property
    def num_bytes(self) -> int:
        """Host memory it holds."""
        return self.snapshot.num_bytes + (0 if self.logits is None else self.logits.nbytes)


@dataclass(slots=True, eq=False)
class History:
    """A conversation that is not in a session.

    Attributes:
        key: names it, on disk too.
        tokens: [N] int32, up to its last checkpoint.
        checkpoints: ascending by position.
        pages: cells of all its tokens, in order and without gaps.
        stamp: when it was used last; later is larger.
    """

    key: str
    tokens: Tokens
    checkpoints: list[Checkpoint]
    pages: list[Page]
    stamp: int = 0

    def usable(self, prompt: Tokens) -> Checkpoint | None:
        """The last checkpoint from which ``prompt`` can be read on."""
        return last_usable(self.checkpoints, common_prefix(self.tokens, prompt), len(prompt))

    @property
    def root(self) -> Checkpoint | None:
        """The state after its first message, if that is kept."""
        return next((item for item in self.checkpoints if item.kind is PointKind.ROOT), None)


@dataclass(slots=True, eq=False)
class Live:
    """The conversation in the session."""

    key: str = field(default_factory=lambda: new_key())
    tokens: list[int] = field(default_factory=list)
    num_read_as_prompt: int = 0
    logits: Logits | None = None  # after the last token read, until a window is accepted
    checkpoints: list[Checkpoint] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)  # what of its cells has been copied out
    saved: Checkpoint | None = None  # the last one that was handed to the files

    @property
    def num_bytes(self) -> int:
        """Host memory of its states and copies."""
        states = sum(item.num_bytes for item in self.checkpoints)
        return states + sum(page.num_bytes for page in self.pages)

    def cut(self, position: int) -> None:
        """Forgets states and copies of cells behind ``position``."""
        self.checkpoints = [item for item in self.checkpoints if item.position <= position]
        self.pages = [page for page in self.pages if page.stop <= position]

    def keep(self, checkpoint: Checkpoint, most: int) -> None:
        """Adds a state, in place of one at the same position, and lets go what is too much."""
        kept = [item for item in self.checkpoints if item.position != checkpoint.position]
        kept = sorted([*kept, checkpoint], key=lambda item: item.position)
        while True:
            kinds, stamps = [item.kind for item in kept], [item.stamp for item in kept]
            place = least_needed(kinds, stamps, most)
            if place is None:
                break
            del kept[place]
        self.checkpoints = kept


@dataclass(frozen=True, slots=True)
class Suspended:
    """A conversation put aside in the middle of a request; ``live.pages`` has all its cells."""

    live: Live
    snapshot: Snapshot


def new_key() -> str:
    """A name no other conversation has."""
    return secrets.token_hex(8)


def last_usable(
    checkpoints: Iterable[Checkpoint], num_common: int, num_prompt: int
) -> Checkpoint | None:
    """The last checkpoint within ``num_common`` tokens that leaves a token to read, or has logits.

    A prompt's last logits come from reading its last token.
    """
    usable = [
        item
        for item in checkpoints
        if item.position <= num_common and (item.position < num_prompt or item.logits is not None)
    ]
    return max(usable, key=lambda item: item.position, default=None)


def common_prefix(one: Tokens, other: Tokens) -> int:
    """How many tokens two conversations begin with alike."""
    num = min(len(one), len(other))
    differs = np.flatnonzero(one[:num] != other[:num])
    return int(differs[0]) if len(differs) else num


def bytes_of(histories: Iterable[History]) -> int:
    """Host memory of some conversations; what they share counts once."""
    parts: dict[int, int] = {}
    for history in histories:
        parts |= {id(item): item.num_bytes for item in history.checkpoints}
        parts |= {id(page): page.num_bytes for page in history.pages}
    return sum(parts.values())
