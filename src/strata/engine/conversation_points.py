"""Where in a prompt a state is kept, and which of the kept ones goes when they are too many.

Pure decisions over positions. Who takes and keeps the states is ``engine.conversation``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.engine.session import Tokens

# An end this close behind a kept turn is not worth a state of its own.
_NEAR_TOKENS = 64


class PointKind(StrEnum):
    """Why a state is kept; at one position the first of these counts."""

    ROOT = "root"  # the first message ends: where other conversations with it begin
    TURN = "turn"  # the last message of the prompt begins
    STEP = "step"  # so far apart that a long prompt is never read again as a whole
    END = "end"  # nothing follows yet


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is kept of conversations.

    Attributes:
        max_checkpoints: of one conversation, besides its live end.
        ram_bytes: for conversations that are not the live one.
        turn_id: token that begins a message, if the model has one.
        root_tokens: least length of a first message whose end is kept; 0 keeps none.
        step_tokens: distance of states within a long prompt.
        worth_tokens: shorter conversations are not parked: they are read again about as fast as
            they are put away and brought back.
    """

    max_checkpoints: int = 6
    ram_bytes: int = 0
    turn_id: int | None = None
    root_tokens: int = 2048
    step_tokens: int = 16_384
    worth_tokens: int = 256


def points_of(prompt: Tokens, start: int, grid: int, keeping: Keeping) -> dict[int, PointKind]:
    """Positions after ``start`` at which a state is kept while reading, ascending.

    Args:
        prompt: [N] int32.
        start: tokens that are in the session.
        grid: a prompt may be cut at multiples of it only, so every position is one.
        keeping: what is wished.
    """
    num_total = len(prompt)
    turns = [] if keeping.turn_id is None else np.flatnonzero(prompt == keeping.turn_id).tolist()
    turn = turns[-1] if turns else 0
    steps = range(keeping.step_tokens, num_total, keeping.step_tokens)
    wanted: list[tuple[int, PointKind]] = [(at, PointKind.STEP) for at in steps]
    if num_total - turn >= _NEAR_TOKENS or turn == 0:
        wanted.append((num_total, PointKind.END))
    wanted.append((turn, PointKind.TURN))
    if keeping.root_tokens and len(turns) > 1 and turns[1] >= keeping.root_tokens:
        wanted.append((turns[1], PointKind.ROOT))
    # Later ones count more, and take the place of earlier ones.
    cut = {at // grid * grid: kind for at, kind in wanted}
    return {at: cut[at] for at in sorted(cut) if at > start}


def least_needed(kinds: Sequence[PointKind], stamps: Sequence[int], most: int) -> int | None:
    """Which kept state goes, None while they are not too many.

    An end that has been passed goes first; then the one not used for longest. One is never let go
    unless it is the only one allowed: the root, or else the first, from which everything after it
    can be read again.

    Args:
        kinds: of the states of one conversation, ascending by position.
        stamps: when each was used last; later is larger.
        most: that may be kept.
    """
    num = len(kinds)
    if num <= most:
        return None
    passed = [place for place in range(num - 1) if kinds[place] is PointKind.END]
    if passed:
        return passed[0]
    pinned = kinds.index(PointKind.ROOT) if PointKind.ROOT in kinds else 0
    free = [place for place in range(num) if place != pinned or most < 2]
    return min(free, key=lambda place: stamps[place])
