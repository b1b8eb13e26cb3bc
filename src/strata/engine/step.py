"""One step of an answer: a window of 1 to 8 rows through the model, and what of it is kept.

A row's own pick decides: a draft is kept when it equals the token that would have been picked
without it, so drafts change the speed and never the text. Who picks is ``engine.picks``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from strata.engine.session import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from strata.engine.conversation import Conversation
    from strata.engine.picks import Picks
    from strata.engine.sampler import Sampled
    from strata.engine.session import Drafter

# (all tokens so far, most drafts wanted) -> proposed next tokens
Propose = Callable[[Sequence[int], int], Sequence[int]]


def propose_nothing(_tokens: Sequence[int], _num_wanted: int) -> Sequence[int]:
    """No drafts: every window has one row."""
    return ()


def drafts_of(drafter: Drafter | None, most: int) -> Propose:
    """At most ``most`` drafts a window from a draft layer; none without one."""
    if drafter is None or most == 0:
        return propose_nothing

    def propose(tokens: Sequence[int], num_wanted: int) -> Sequence[int]:
        return drafter.propose(tokens[-1], min(num_wanted, most))[0]

    return propose


@dataclass(slots=True)
class DraftCounts:
    """Drafts proposed and kept, by place in the window; place 0 is the first draft."""

    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, num_proposed: int, num_accepted: int) -> None:
        """Counts one window."""
        for place in range(num_proposed):
            if place == len(self.proposed):
                self.proposed.append(0)
                self.accepted.append(0)
            self.proposed[place] += 1
            self.accepted[place] += place < num_accepted


def advance(
    conversation: Conversation,
    tokens: list[int],
    *,
    propose: Propose,
    picks: Picks,
    counts: DraftCounts,
) -> list[Sampled]:
    """The tokens that follow ``tokens``, at least one; the last is not in the session yet.

    Args:
        conversation: holds all of ``tokens`` but the last. Afterwards it holds the last one too,
            and every token returned but the last.
        tokens: prompt and answer so far. Not modified.
        propose: source of drafts.
        picks: runs the window and says what its rows pick.
        counts: the window is added.
    """
    # The window must fit the context; drafts are the part that can be left out.
    room = min(MAX_WINDOW_ROWS, conversation.capacity - conversation.position)
    drafts = list(propose(tokens, room - 1))[: room - 1] if room > 1 else []
    window = np.array([tokens[-1], *drafts], dtype=np.int32)
    picked = picks.of_window(conversation, window, tokens)
    conversation.commit(window, len(picked))
    counts.add(len(drafts), len(picked) - 1)
    return picked
