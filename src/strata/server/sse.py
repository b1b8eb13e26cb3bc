"""Event streams: framing, keep-alives, and what it means when a client leaves.

Owns the rule that an answer nobody reads is not made: leaving closes the events, and that cancels.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from starlette.responses import Response

from strata.server.faults import Fault

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

Result = TypeVar("Result")
Events = AsyncGenerator[bytes, None]

KEEP_ALIVE_S: Final = 10.0
_KEEP_ALIVE: Final = b": keep-alive\n\n"
# An error in this time is an answer with a status of its own; later ones are events.
_FIRST_WAIT_S: Final = 1.0


def data_event(body: object, name: str | None = None) -> bytes:
    """One event with ``body`` as JSON."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(body) + b"\n\n"


class EventStream(Response):
    """Events as they are made. Made by ``stream_events``."""

    def __init__(
        self,
        events: Events,
        first: asyncio.Task[bytes],
        event_of: Callable[[Fault], bytes],
        keep_alive: bytes,
        keep_alive_s: float,
    ) -> None:
        super().__init__(
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        # The length is not known.
        del self.headers["content-length"]
        self._events = events
        self._first = first
        self._event_of = event_of
        self._keep_alive = keep_alive
        self._keep_alive_s = keep_alive_s
        self._is_sending = False
        self._sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends until the events or the client end."""
        gone = asyncio.ensure_future(_until_gone(receive))
        # One task from where an event is made to the socket: each task between would cost a token
        # a turn of the loop.
        pump = asyncio.ensure_future(self._pump(send))
        self._sent_s = time.monotonic()
        try:
            while True:
                rest_s = self._sent_s + self._keep_alive_s - time.monotonic()
                await asyncio.wait(
                    {pump, gone}, timeout=max(0.0, rest_s), return_when=asyncio.FIRST_COMPLETED
                )
                if pump.done() or gone.done():
                    break
                if self._is_sending:  # to a client that does not read
                    self._sent_s = time.monotonic()
                elif time.monotonic() - self._sent_s >= self._keep_alive_s:
                    await self._send(send, self._keep_alive)
            if pump.done():
                pump.result()
        finally:
            await _end(gone)
            await _end(pump)
            await _end(self._first)
            await self._events.aclose()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            frame = await self._first
            while True:
                await self._send(send, frame)
                frame = await anext(self._events)
        except StopAsyncIteration:
            pass
        except Fault as fault:
            await self._send(send, self._event_of(fault))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, frame: bytes) -> None:
        self._is_sending = True
        await send({"type": "http.response.body", "body": frame, "more_body": True})
        self._is_sending = False
        self._sent_s = time.monotonic()


async def stream_events(
    events: Events,
    event_of: Callable[[Fault], bytes],
    *,
    keep_alive: bytes = _KEEP_ALIVE,
    keep_alive_s: float = KEEP_ALIVE_S,
) -> Response:
    """A response that sends ``events``.

    Args:
        events: whole frames.
        event_of: the frame of an error that comes after the stream has begun.
        keep_alive: the frame that breaks a silence.
        keep_alive_s: longest silence.

    Raises:
        Exception: what the events raised at their beginning, mostly a Fault.
    """
    first = _soon(events)
    await asyncio.wait({first}, timeout=_FIRST_WAIT_S)
    error = first.exception() if first.done() else None
    if error is not None and not isinstance(error, StopAsyncIteration):
        raise error
    return EventStream(events, first, event_of, keep_alive, keep_alive_s)


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of ``work``, which is cancelled if the client leaves.

    Raises:
        Fault: 499, nobody is there to read it.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Fault(499, "the client has left.")
        return task.result()
    finally:
        await _end(gone)
        await _end(task)


def _soon(events: Events) -> asyncio.Task[bytes]:
    async def following() -> bytes:
        return await anext(events)

    return asyncio.ensure_future(following())


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancels what still runs, and waits for it to be over."""
    if not task.done():
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Fault):
        await task
