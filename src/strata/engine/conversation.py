"""Which tokens the session has read, from where to go on, and what becomes of other conversations.

Owns the session and the rule that a continued conversation gives the bits of a fresh one. Knows
token ids only; not what they mean, nor who picks them. What is kept where: decisions/0008.

The rule. A recurrent state cannot be rewound, so going on needs a state taken earlier, and that
state must be the one a fresh read passes through. Where the session says that it does not matter
how tokens were read (``cut_tokens`` of 1), the live end is such a state. Elsewhere tokens produced
one by one leave other bits than when read as prompt (docs/numerics.md), and only multiples of
``cut_tokens`` inside a prompt are; what lies after the last one is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.engine.conversation_counts import ConversationCounts
from strata.engine.conversation_history import (
    Checkpoint,
    History,
    Live,
    Suspended,
    common_prefix,
    last_usable,
    new_key,
)
from strata.engine.conversation_pages import SessionPages
from strata.engine.conversation_points import Keeping, PointKind, points_of
from strata.engine.conversation_ram import Parked

if TYPE_CHECKING:
    from strata.engine.conversation_disk import ConversationFiles
    from strata.engine.session import (
        Drafter,
        Logits,
        OnProgress,
        Picker,
        Session,
        ShouldStop,
        Tokens,
    )


class Conversation:
    """One session, the conversation in it, and those it can go back to.

    Args:
        session: empty; owned from here on.
        keeping: how much is kept.
        files: where conversations outlive the process; owned from here on.
    """

    def __init__(
        self,
        session: Session,
        keeping: Keeping | None = None,
        files: ConversationFiles | None = None,
    ) -> None:
        self._session = session
        self._keeping = keeping or Keeping()
        self._files = files
        self._live = Live()
        self._pages = SessionPages(session)
        self._parked = Parked(self._keeping.ram_bytes)
        self._stamp = 0
        self.counts = ConversationCounts()

    @property
    def capacity(self) -> int:
        """Tokens the conversation can hold."""
        return self._session.capacity

    @property
    def position(self) -> int:
        """Tokens in the live state."""
        return len(self._live.tokens)

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
        """Host memory of kept states: the live conversation's, what is parked or read ahead."""
        ahead = 0 if self._files is None else self._files.held_bytes
        return self._live.num_bytes + self._parked.num_bytes + ahead

    def report(self) -> dict[str, int]:
        """Counts since the start, and what is held now; from any thread."""
        report = self.counts.as_dict()
        report["parked"] = len(self._parked)
        report["parked_bytes"] = self._parked.num_bytes
        report["evicted"] = self._parked.num_evicted
        if self._files is not None:
            report |= self._files.report()
        return report

    def resume(self, prompt: Tokens) -> int:
        """Puts the session at the longest usable prefix of ``prompt``; its length in tokens.

        It may be the whole prompt, if that was read before. The conversation that was live is
        parked if it is another one.
        """
        self._stamp += 1
        live, num_prompt = self._live, len(prompt)
        tokens = np.asarray(live.tokens, np.int32)
        num_common = common_prefix(tokens, prompt)
        # Of the live state the logits are gone, so a token must be left to read.
        is_end_usable = self._is_fresh_read() and num_common == len(tokens) < num_prompt
        num_end = len(tokens) if is_end_usable else 0
        earlier = last_usable(live.checkpoints, num_common, num_prompt)
        num_here = max(num_end, 0 if earlier is None else earlier.position)
        found = self._elsewhere(prompt, num_here)
        if found is not None:
            self._leave()
            self._enter(*found)
        elif num_here == 0:
            self._leave()
            self.reset()
        elif earlier is not None and earlier.position > num_end:
            self._rewind(earlier)
            self.counts.count_live()
        else:
            self.counts.count_live()
        self.counts.count(num_prompt, self.position)
        return self.position

    def read(
        self,
        prompt: Tokens,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Logits | None:
        """Logits [V] of the last prompt token; None when ``should_stop`` ended the reading.

        Reads what ``resume`` left of the prompt, and keeps states on the way.
        ``on_progress`` gets (tokens of the prompt in the session, tokens of the prompt).
        """
        live, num_total = self._live, len(prompt)
        points: dict[int, PointKind] = {}
        if self._keeping.max_checkpoints:
            grid = self._session.cut_tokens
            points = points_of(prompt, len(live.tokens), grid, self._keeping)
        for stop in sorted({*points, num_total}):
            start = len(live.tokens)
            if stop <= start:
                continue
            self._pages.written(start, stop)
            live.logits = self._session.prefill(
                prompt[start:stop],
                on_progress=_shifted(on_progress, start, num_total),
                should_stop=should_stop,
            )
            live.tokens.extend(prompt[start : self._session.position].tolist())
            live.num_read_as_prompt = len(live.tokens)
            if len(live.tokens) in points:
                self._keep(points[len(live.tokens)])
            is_stopped = should_stop is not None and should_stop()
            if len(live.tokens) < stop or (is_stopped and stop < num_total):
                return None
        return live.logits

    def decode(self, window: Tokens) -> Logits:
        """Logits [rows, V] of a window of 1..8 rows after the live state."""
        return self._session.decode(window)

    def commit(self, window: Tokens, num_rows: int) -> None:
        """Accepts the first ``num_rows`` rows of that window."""
        start = len(self._live.tokens)
        self._pages.written(start, start + len(window))
        self._session.commit(num_rows)
        self._live.logits = None
        self._live.tokens.extend(window[:num_rows].tolist())

    def suspend(self) -> Suspended:
        """Puts the live conversation aside as it is, in the middle of a prompt or of an answer.

        What of it others may begin with is parked too, at no cost: they share it.
        """
        snapshot = self._session.snapshot(with_cells=False)
        live = self._live
        live.pages = self._pages.save(live.pages, len(live.tokens))
        if self._keeping.ram_bytes and (history := self._history(with_end=False)) is not None:
            self._add_parked(history)
        self._live = Live()
        return Suspended(live, snapshot)

    def go_on(self, suspended: Suspended) -> None:
        """Puts it back, bit for bit. The conversation that is live is let go."""
        live = suspended.live
        self._pages.load(live.pages, len(live.tokens))
        self._session.restore(suspended.snapshot)
        self._live = live

    def settle(self) -> None:
        """An answer is complete: what of it should outlive the process is handed to the files."""
        if self._files is not None and (history := self._history()) is not None:
            self._save(history)

    def close(self) -> None:
        """Saves what should outlive the process, and ends the writing."""
        if self._files is not None:
            self.settle()
            self._files.close()

    def reset(self) -> None:
        """Forgets the live conversation; parked ones stay."""
        self._session.reset()
        self._live = Live()

    def forget(self) -> None:
        """Forgets the live conversation, and trusts nothing in the session; for after a failure."""
        self._pages.forget()
        self.reset()

    def _elsewhere(self, prompt: Tokens, num_here: int) -> tuple[History, Checkpoint] | None:
        """A parked or saved conversation that has more of ``prompt`` than ``num_here`` tokens."""
        best: tuple[History, Checkpoint] | None = None
        for history in sorted(self._parked, key=lambda item: -item.stamp):
            checkpoint = history.usable(prompt)
            if checkpoint is not None and checkpoint.position > num_here:
                best, num_here = (history, checkpoint), checkpoint.position
        if self._files is None:
            return best
        while (saved := self._files.find(prompt, num_here)) is not None:
            checkpoint = saved.usable(prompt)
            if checkpoint is not None and self._pages.fit(saved):
                self.counts.count_disk()
                return saved, checkpoint
            self._files.refuse(saved.key, "its states do not fit this session")
        return best

    def _rewind(self, checkpoint: Checkpoint) -> None:
        """Goes back to a state of the live conversation; what followed is parked if it is much."""
        if self._is_worth_keeping(self._live.checkpoints, checkpoint):
            self._park()
            self._live.key = new_key()
        self._mount(checkpoint)

    def _enter(self, history: History, checkpoint: Checkpoint) -> None:
        """Makes a parked conversation the live one, or one that begins like it."""
        is_other = self._is_worth_keeping(history.checkpoints, checkpoint)
        is_parked = any(item is history for item in self._parked)
        if is_parked:
            self.counts.count_parked()
            history.stamp = self._stamp
            if not is_other:
                self._parked.take(history)
        self._live = Live(
            key=new_key() if is_other else history.key,
            tokens=history.tokens.tolist(),
            checkpoints=list(history.checkpoints),
            pages=self._pages.load(history.pages, checkpoint.position),
        )
        self._mount(checkpoint)

    def _is_worth_keeping(self, states: list[Checkpoint], checkpoint: Checkpoint) -> bool:
        """Whether much was read between a state and those after it.

        An answer is not: whoever goes back before it, to ask again, will not return to it.
        """
        lasts = [item.position for item in states if item.kind is not PointKind.END]
        num_lost = max(lasts, default=0) - checkpoint.position
        return num_lost >= self._keeping.worth_tokens

    def _mount(self, checkpoint: Checkpoint) -> None:
        """Puts the session at a state of the live conversation, whose cells it has."""
        live = self._live
        self._session.restore(checkpoint.snapshot)
        checkpoint.stamp = self._stamp
        live.cut(checkpoint.position)
        del live.tokens[checkpoint.position :]
        live.num_read_as_prompt = checkpoint.position
        live.logits = checkpoint.logits

    def _leave(self) -> None:
        """The live conversation makes room for another."""
        if self._keeping.ram_bytes or self._files is not None:
            self._park()
        self._live = Live()

    def _park(self) -> None:
        if (history := self._history()) is None:
            return
        self._add_parked(history)
        self._save(history)

    def _add_parked(self, history: History) -> None:
        """What was read ahead makes room for what was used."""
        self._parked.add(history)
        if self._files is not None:
            held_bytes = self._files.held_bytes
            if held_bytes and self._parked.num_bytes + held_bytes > self._keeping.ram_bytes:
                self._files.forget_ahead()

    def _save(self, history: History) -> None:
        """Hands the live conversation to the files, unless they have it."""
        newest = history.checkpoints[-1]
        if self._files is not None and newest is not self._live.saved:
            self._files.save(history)
            self._live.saved = newest

    def _history(self, *, with_end: bool = True) -> History | None:
        """The live conversation as it can be kept; None if it is too short for that."""
        live = self._live
        if with_end and self._keeping.max_checkpoints and live.tokens and self._is_fresh_read():
            is_new = not live.checkpoints or live.checkpoints[-1].position < len(live.tokens)
            if is_new and len(live.tokens) >= self._keeping.worth_tokens:
                self._keep(PointKind.END)
        num_tokens = live.checkpoints[-1].position if live.checkpoints else 0
        if num_tokens < self._keeping.worth_tokens:
            return None
        live.pages = self._pages.save(live.pages, num_tokens)
        return History(
            key=live.key,
            tokens=np.array(live.tokens[:num_tokens], np.int32),
            checkpoints=list(live.checkpoints),
            pages=[page for page in live.pages if page.start < num_tokens],
            stamp=self._stamp,
        )

    def _is_fresh_read(self) -> bool:
        """Whether a fresh read of the live tokens would pass through the live state."""
        grid, num_tokens = self._session.cut_tokens, len(self._live.tokens)
        is_prompt = self._live.num_read_as_prompt == num_tokens
        return grid == 1 or (is_prompt and num_tokens % grid == 0)

    def _keep(self, kind: PointKind) -> None:
        """Takes the live state as a checkpoint."""
        snapshot = self._session.snapshot(with_cells=False)
        checkpoint = Checkpoint(snapshot, kind, self._stamp, self._live.logits)
        self._live.keep(checkpoint, self._keeping.max_checkpoints)


def _shifted(on_progress: OnProgress | None, start: int, num_total: int) -> OnProgress | None:
    if on_progress is None:
        return None

    def report(num_read: int, _num_to_read: int) -> None:
        on_progress(start + num_read, num_total)

    return report
