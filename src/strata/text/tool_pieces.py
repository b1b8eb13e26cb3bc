"""What a text with tool calls is parted into.

Owns the pieces and nothing else; ``tool_calls`` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Prose:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of the tool ``name``; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the call's arguments; all of a call joined are one JSON object."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call's arguments are whole."""


Piece = Prose | CallBegun | Arguments | CallEnded


def joined(pieces: Iterable[Piece]) -> Iterable[Piece]:
    """The same with neighbours of one kind as one."""
    last: Piece | None = None
    for piece in pieces:
        if isinstance(piece, Prose) and isinstance(last, Prose):
            last = Prose(last.text + piece.text)
        elif isinstance(piece, Arguments) and isinstance(last, Arguments):
            last = Arguments(last.text + piece.text)
        else:
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last
