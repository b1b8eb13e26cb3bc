"""Whether the engine's process still lives and gets on: what it answers, and how long it may not.

Owns the judgement, no process: ``engine_process`` ends a child that is given up here.

Three ways to hang are told apart. A process that is stopped, or that holds Python's lock for ever,
does not answer at all. One whose working thread waits for what never comes answers, but neither
sends anything nor computes nor reads the disk. One that runs in circles computes, and sends
nothing. A long chunk of a prompt looks like the last for a while, and a long load for as long as it
takes, so those are given more time, or any.

Time is counted in questions asked, not by a clock: after the whole machine has slept, or this
process was stopped too, nothing has been missed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.server.protocol import Alive

# Questions within the limit: more would only notice a little sooner.
_ASKED: Final = 6
# What computes, or reads the disk, may take this many limits for one chunk of a prompt.
_PATIENCE: Final = 10
# Below this share of one core nothing is computed; answering the questions takes far less.
_LEAST_WORK: Final = 0.01


class Watchdog:
    """Watches one child.

    Args:
        limit_s: how long it may give no sign of life; 0 for ever.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._pause_s = limit_s / _ASKED
        self._num_silent = 0  # questions since it answered
        self._num_still = 0  # since it sent something, or had nothing to do
        self._num_lazy = 0  # since it sent something, computed, or moved bytes of the disk
        self._heard: Alive | None = None

    @property
    def silent_s(self) -> float | None:
        """How long there has been no answer, once that is half of what is borne; else None."""
        return self._num_silent * self._pause_s if 2 * self._num_silent > _ASKED else None

    def hear(self, alive: Alive) -> None:
        """It has answered."""
        before, self._heard = self._heard, alive
        self._num_silent = 0
        if before is None or alive.num_beats != before.num_beats or not alive.is_busy:
            self._num_still = self._num_lazy = 0
        elif (
            alive.cpu_s - before.cpu_s > _LEAST_WORK * self._pause_s
            or alive.num_blocks != before.num_blocks
        ):
            self._num_lazy = 0

    def look(self, *, is_loading: bool) -> str | None:
        """Another question is due; why the child is given up, None while it is not."""
        self._num_silent += 1
        self._num_still += 1
        self._num_lazy += 1
        if self._num_silent > _ASKED:
            return f"it had not answered for {self._limit_s:g} s"
        num_lazy = self._num_lazy if self._num_silent == 1 else 0  # what was not told is not known
        if num_lazy > (_ASKED * _PATIENCE if is_loading else _ASKED):
            span_s = self._limit_s * (_PATIENCE if is_loading else 1)
            return f"it had done nothing for {span_s:g} s, in the middle of its work"
        if not is_loading and self._num_still > _ASKED * _PATIENCE:
            return f"it had not got on for {self._limit_s * _PATIENCE:g} s"
        return None

    async def guard(self, ask: Callable[[], object], is_loading: Callable[[], bool]) -> str:
        """Asks until the child is given up; why.

        Args:
            ask: sends the question.
            is_loading: whether it has not told yet that it is ready.
        """
        if self._limit_s <= 0:
            await asyncio.Event().wait()
        while (cause := self.look(is_loading=is_loading())) is None:
            ask()
            await asyncio.sleep(self._pause_s)
        return cause
