"""The live conversation: which tokens the session has read, and from where to go on.

Owns the checkpoints and the rule that a continued conversation gives the bits of a fresh one.
Knows token ids only; not what they mean, nor who picks them.

The rule. A recurrent state cannot be rewound, so going on needs a state taken earlier, and that
state must be the one a fresh read passes through. Where the session says that it does not matter
how tokens were read (``cut_tokens`` of 1), the live end and the end of every prompt are such
states. Elsewhere tokens produced one by one leave other bits than when read as prompt
(docs/numerics.md), and only multiples of ``cut_tokens`` inside a prompt are; what lies after the
last one is read again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from strata.engine.session import (
        Drafter,
        Logits,
        OnProgress,
        Picker,
        Session,
        ShouldStop,
        Snapshot,
        Tokens,
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state of the session, the tokens that lead to it, and the logits [V] after them."""

    tokens: Tokens
    snapshot: Snapshot
    logits: Logits


class Conversation:
    """One session with the tokens in it.

    Args:
        session: empty; owned from here on.
        max_checkpoints: states kept besides the live one; the oldest goes first.
    """

    def __init__(self, session: Session, *, max_checkpoints: int) -> None:
        self._session = session
        self._max_checkpoints = max_checkpoints
        self._tokens: list[int] = []
        self._num_read_as_prompt = 0
        self._logits: Logits | None = None  # after the last token read, until a window is accepted
        self._checkpoints: list[Checkpoint] = []

    @property
    def capacity(self) -> int:
        """Tokens the conversation can hold."""
        return self._session.capacity

    @property
    def position(self) -> int:
        """Tokens in the live state."""
        return len(self._tokens)

    @property
    def drafter(self) -> Drafter | None:
        """The session's draft layer, if it has one."""
        return self._session.drafter

    @property
    def picker(self) -> Picker | None:
        """The session's own way of picking tokens, if it has one."""
        return self._session.picker

    @property
    def checkpoint_bytes(self) -> int:
        """Host memory of the checkpoints."""
        return sum(checkpoint.snapshot.num_bytes for checkpoint in self._checkpoints)

    def resume(self, prompt: Tokens) -> int:
        """Puts the session at the longest usable prefix of ``prompt``; its length in tokens.

        It may be the whole prompt, if that was read before.
        """
        live = np.asarray(self._tokens, dtype=np.int32)
        # Of the live state the logits are gone, so a token must be left to read.
        is_usable = self._is_fresh_read() and len(live) < len(prompt) and _is_prefix(live, prompt)
        num_live = len(live) if is_usable else 0
        usable = [kept for kept in self._checkpoints if _is_prefix(kept.tokens, prompt)]
        best = max(usable, key=lambda kept: len(kept.tokens), default=None)
        if best is None or num_live >= len(best.tokens):
            if num_live == 0:
                self.reset()
            return num_live
        self._session.restore(best.snapshot)
        self._tokens = best.tokens.tolist()
        self._num_read_as_prompt = len(self._tokens)
        self._logits = best.logits
        return len(self._tokens)

    def read(
        self,
        prompt: Tokens,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Logits | None:
        """Logits [V] of the last prompt token; None when ``should_stop`` ended the reading.

        Reads what ``resume`` left of the prompt, and takes a checkpoint at its last cut.
        ``on_progress`` gets (tokens of the prompt in the session, tokens of the prompt).
        """
        num_total = len(prompt)
        grid = self._session.cut_tokens
        cut = num_total // grid * grid
        for stop in (cut, num_total):
            start = len(self._tokens)
            if stop <= start:
                continue
            self._logits = self._session.prefill(
                prompt[start:stop],
                on_progress=_shifted(on_progress, start, num_total),
                should_stop=should_stop,
            )
            self._tokens.extend(prompt[start : self._session.position].tolist())
            self._num_read_as_prompt = len(self._tokens)
            if len(self._tokens) == cut:
                self._keep_checkpoint(self._logits)
            is_stopped = should_stop is not None and should_stop()
            if len(self._tokens) < stop or (is_stopped and stop < num_total):
                return None
        return self._logits

    def decode(self, window: Tokens) -> Logits:
        """Logits [rows, V] of a window of 1..8 rows after the live state."""
        return self._session.decode(window)

    def commit(self, window: Tokens, num_rows: int) -> None:
        """Accepts the first ``num_rows`` rows of that window."""
        self._session.commit(num_rows)
        self._logits = None
        self._tokens.extend(window[:num_rows].tolist())

    def reset(self) -> None:
        """Forgets the live state; checkpoints stay."""
        self._session.reset()
        self._tokens = []
        self._num_read_as_prompt = 0
        self._logits = None

    def forget(self) -> None:
        """Forgets everything; for use after a failure."""
        self._checkpoints.clear()
        self.reset()

    def _is_fresh_read(self) -> bool:
        """Whether a fresh read of the live tokens would pass through the live state."""
        grid = self._session.cut_tokens
        num_tokens = len(self._tokens)
        return grid == 1 or (self._num_read_as_prompt == num_tokens and num_tokens % grid == 0)

    def _keep_checkpoint(self, logits: Logits) -> None:
        if self._max_checkpoints == 0:
            return
        tokens = np.asarray(self._tokens, dtype=np.int32)
        kept = [item for item in self._checkpoints if not np.array_equal(item.tokens, tokens)]
        kept.append(Checkpoint(tokens, self._session.snapshot(), logits))
        self._checkpoints = kept[-self._max_checkpoints :]


def _is_prefix(head: Tokens, whole: Tokens) -> bool:
    return len(head) <= len(whole) and bool(np.array_equal(head, whole[: len(head)]))


def _shifted(on_progress: OnProgress | None, start: int, num_total: int) -> OnProgress | None:
    if on_progress is None:
        return None

    def report(num_read: int, _num_to_read: int) -> None:
        on_progress(start + num_read, num_total)

    return report
