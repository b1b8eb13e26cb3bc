"""What was asked of the engine's process, besides answers, and who waits for it.

Owns the waiting and the card's limit, which the next process has to be told again. Knows no
process: who asks gives the way to send.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, TypeVar

from strata import telemetry
from strata.server import protocol
from strata.server.engine_state import RETRY_AFTER_S
from strata.server.faults import Fault, fault_of_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    Send = Callable[[protocol.Down], object]

_STATUS_WAIT_S: Final = 2.0
# Slots that go may have to be copied first, and slots that come are filled.
_LIMIT_WAIT_S: Final = 60.0
_RENEWED: Final = 0


class Questions:
    """Questions to one process after the other."""

    def __init__(self) -> None:
        self._of_status: list[asyncio.Future[protocol.Status | None]] = []
        self._of_limit: dict[int, asyncio.Future[protocol.LimitSet | None]] = {}
        self._ids = itertools.count(_RENEWED + 1)
        self.vram_mib: int | None = None
        """The card's limit that holds now, if it is not that of the start."""

    async def status(self, send: Send) -> protocol.Status | None:
        """What the child is doing; None when it does not say so soon."""
        waiter: asyncio.Future[protocol.Status | None] = asyncio.Future()
        self._of_status.append(waiter)
        send(protocol.AskStatus())
        return await _answer(waiter, _STATUS_WAIT_S)

    async def limit(self, send: Send, vram_mib: int | None) -> bool:
        """Changes the card's limit; whether it is done, else the next window does it.

        Raises:
            Fault: 503 the child does not answer or is gone; 400 and 409 where it refuses.
        """
        question_id = next(self._ids)
        waiter = self._of_limit[question_id] = asyncio.Future()
        send(protocol.SetLimit(question_id, vram_mib))
        told = await _answer(waiter, _LIMIT_WAIT_S)
        self._of_limit.pop(question_id, None)
        if told is None:
            raise Fault(503, "the engine does not answer.", retry_after_s=RETRY_AFTER_S)
        if told.kind:
            raise fault_of_limit(told.kind, told.text)
        self.vram_mib = vram_mib
        return told.is_done

    def renew(self, send: Send) -> None:
        """Another child is ready: it is told the limit that held."""
        if self.vram_mib is not None:
            send(protocol.SetLimit(_RENEWED, self.vram_mib))

    def hear(self, item: protocol.Status | protocol.LimitSet) -> None:
        """The child has answered."""
        if isinstance(item, protocol.Status):
            waiters, self._of_status = self._of_status, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(item)
        elif (asked := self._of_limit.pop(item.question_id, None)) is not None:
            if not asked.done():
                asked.set_result(item)
        elif item.question_id == _RENEWED and item.kind:
            self.vram_mib = None
            telemetry.notice_each("vram-limit", f"the card's limit is lost: {item.text}")

    def drop(self) -> None:
        """The child is gone; nobody answers any more."""
        for of_status in self._of_status:
            if not of_status.done():
                of_status.set_result(None)
        for of_limit in self._of_limit.values():
            if not of_limit.done():
                of_limit.set_result(None)
        self._of_status, self._of_limit = [], {}


Told = TypeVar("Told")


async def _answer(waiter: asyncio.Future[Told | None], wait_s: float) -> Told | None:
    try:
        return await asyncio.wait_for(waiter, wait_s)
    except TimeoutError:
        return None
