"""The engine's process as the HTTP side sees it: started, watched, started again.

Owns the life of the child, the bound on open requests, and which request is given to the next
child after a death. One async iterator of messages is one answer. Used by one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from strata import telemetry
from strata.server import protocol
from strata.server.child_link import ChildLink
from strata.server.engine_state import RETRY_AFTER_S, Limits, State, not_ready
from strata.server.faults import Fault, fault_of_kind
from strata.server.questions import Questions
from strata.server.requests_log import RequestsLog
from strata.server.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from typing import Self

    from strata.server.child import OpenEngine

AnswerMessage = protocol.Progress | protocol.Tokens | protocol.Ended

# Pauses before a child that could not load is started again.
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_MAX_TRIES: Final = 2
# One that was killed and is still there hangs in the kernel; it is waited for no longer.
_KILL_WAIT_S: Final = 10.0


class _Open:
    """One request that has not ended."""

    def __init__(self, submit: protocol.Submit) -> None:
        self.submit = submit
        self.messages: asyncio.Queue[AnswerMessage | Fault] = asyncio.Queue()
        self.num_tries = 0
        self.has_begun = False  # a token was passed on


class Messages:
    """The messages of one answer, the last one ``Ended``. An async iterator."""

    def __init__(self, entry: _Open, cancel: Callable[[], None]) -> None:
        self._entry = entry
        self._has_ended = False
        self.cancel = cancel
        """Ends the answer soon; its messages still come."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnswerMessage:
        if self._has_ended:
            raise StopAsyncIteration
        message = await self._entry.messages.get()
        if isinstance(message, Fault):
            raise message
        self._has_ended = isinstance(message, protocol.Ended)
        return message


class EngineProcess:
    """A supervised child.

    Args:
        open_engine: what the child runs to get its engine; pickled by name.
        limits: bounds.
    """

    def __init__(self, open_engine: OpenEngine, limits: Limits | None = None) -> None:
        self._open_engine = open_engine
        self._limits = limits or Limits()
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._link: ChildLink | None = None
        self._changed = asyncio.Event()
        self._failure: protocol.Failed | None = None
        self._restart: asyncio.Task[None] | None = None
        self.questions = Questions()
        """What was asked of the child besides answers."""
        self._pause_s = _FIRST_PAUSE_S
        self._was_ready = False
        self._watchdog = Watchdog(0)
        self._guarding: asyncio.Task[None] | None = None
        self.last_death = ""
        """Why the child before this one ended, until this one is ready."""
        self._last_cause = ""  # why a model that was loaded once cannot be loaded again
        self.state = State.LOADING
        self.loaded = (0, 0)
        """Bytes loaded, and of how many; zeros before the first is told."""
        self.ready: protocol.Ready | None = None
        self.pid: int | None = None
        self.num_restarts = 0
        self.log = RequestsLog()

    def start(self) -> None:
        """Starts the child; returns at once."""
        self._set_state(State.LOADING)
        self.loaded = (0, 0)
        self._failure = None
        self._link = ChildLink(self._open_engine, self._take)
        self._watchdog = Watchdog(self._limits.watchdog_s)
        self._guarding = asyncio.get_running_loop().create_task(self._guard(self._link))

    async def close(self) -> None:
        """Ends the answers under way and the child; waits for it a bounded time."""
        self._set_state(State.CLOSED)
        self._guard_no_more()
        if self._restart is not None:
            self._restart.cancel()
        for entry in list(self._open.values()):
            entry.messages.put_nowait(Fault(503, "the server is shutting down."))
        self._open.clear()
        if self._link is not None:
            await self._link.close(self._limits.close_wait_s)
            self._link = None

    async def unload(self) -> None:
        """Ends the child and gives its memory back, until ``load``.

        Raises:
            Fault: 409, it answers requests or is being loaded.
        """
        if self.state is State.UNLOADED:
            return
        if self.state is not State.READY or self._open or self._link is None:
            doing = f"{len(self._open)} requests are under way" if self._open else "it loads"
            raise Fault(409, f"the model cannot be unloaded now: {doing}.", code="busy")
        link, self._link = self._link, None
        self._guard_no_more()
        self._set_state(State.UNLOADED)
        self.pid = None
        await link.close(self._limits.close_wait_s)

    def load(self) -> None:
        """Starts a child again after ``unload``; returns at once."""
        if self.state is State.UNLOADED:
            self.start()

    async def wait_loaded(self) -> None:
        """Returns when the child has loaded.

        Raises:
            Fault: it could not; with the child's message.
        """
        while self.state is State.LOADING:
            await self._next_change()
        if self.state is not State.READY:
            raise self._not_ready()

    async def wait_ready(self) -> protocol.Ready:
        """What the child told when it had loaded; waits for it a bounded time.

        Raises:
            Fault: 503, it loads still or cannot be loaded.
        """
        try:
            async with asyncio.timeout(self._limits.ready_wait_s):
                await self.wait_loaded()
        except TimeoutError:
            raise self._not_ready() from None
        if self.ready is None:
            raise self._not_ready()
        return self.ready

    @asynccontextmanager
    async def answer(
        self, make_submit: Callable[[int], protocol.Submit]
    ) -> AsyncIterator[Messages]:
        """The messages of one answer; leaving the context before its end cancels it.

        Args:
            make_submit: the request, for a request id.

        Raises:
            Fault: 429 too many requests, 503 no engine; while iterating also what the engine
                refused, and 503 when it died after tokens had been passed on.
        """
        await self.wait_ready()
        request_id = next(self._ids)
        entry = _Open(make_submit(request_id))
        with self.log.watch(entry.submit):
            self._check_room()
            self._open[request_id] = entry
            self._hand_over(entry)
            try:
                yield Messages(entry, lambda: self._cancel(request_id))
            finally:
                if self._open.pop(request_id, None) is not None:
                    self._cancel(request_id)

    def _check_room(self) -> None:
        if len(self._open) >= self._limits.max_open:
            raise Fault(
                429,
                f"{self._limits.max_open} requests are waiting already.",
                code="too_many_requests",
                retry_after_s=RETRY_AFTER_S,
            )

    async def status(self) -> protocol.Status | None:
        """What the child is doing; None while there is none that answers."""
        if self._link is None or self.state is not State.READY:
            return None
        return await self.questions.status(self._link.send)

    async def set_vram_limit(self, mib: int | None) -> bool:
        """``Engine.set_vram_limit``, of this child and those after it.

        Raises:
            Fault: 503 no engine; 400 and 409 where the engine refuses.
        """
        await self.wait_ready()
        return self._link is not None and await self.questions.limit(self._link.send, mib)

    @property
    def num_open(self) -> int:
        """Requests under way or waiting."""
        return len(self._open)

    def _cancel(self, request_id: int) -> None:
        if self._link is not None:
            self._link.send(protocol.Cancel(request_id))

    def _hand_over(self, entry: _Open) -> None:
        if self._link is not None and self.state is State.READY:
            entry.num_tries += 1
            self._link.send(entry.submit)

    def _take(self, link: ChildLink, item: protocol.Up | None) -> None:
        """One message of the child; None when it is gone."""
        if link is not self._link or self.state is State.CLOSED:
            return
        if item is not None:
            self.log.see(item)
        match item:
            case None:
                self._on_death(link)
            case protocol.Progress() | protocol.Tokens() | protocol.Ended() | protocol.Refused():
                self._pass_on(item)
            case protocol.Notice():
                telemetry.notice(item.key, item.text)
            case protocol.Status() | protocol.LimitSet():
                self.questions.hear(item)
            case _:
                self._follow(item)

    def _pass_on(self, item: AnswerMessage | protocol.Refused) -> None:
        """A message of one answer, to whoever waits for it."""
        entry = self._open.get(item.request_id)
        if entry is None:
            return
        if isinstance(item, protocol.Tokens):
            entry.has_begun = True
        if isinstance(item, protocol.Ended | protocol.Refused):
            del self._open[item.request_id]
        if isinstance(item, protocol.Refused):
            entry.messages.put_nowait(fault_of_kind(item.kind, item.text))
        else:
            entry.messages.put_nowait(item)

    def _follow(
        self,
        item: protocol.Hello | protocol.Loading | protocol.Ready | protocol.Alive | protocol.Failed,
    ) -> None:
        """A step in the child's own life."""
        match item:
            case protocol.Alive():
                self._watchdog.hear(item)
            case protocol.Hello():
                self._greet(item)
            case protocol.Loading():
                self.loaded = (item.num_done, item.num_total)
            case protocol.Ready():
                self._on_ready(item)
            case protocol.Failed():
                self._failure = item

    def _greet(self, hello: protocol.Hello) -> None:
        self.pid = hello.pid
        if hello.version != protocol.PROTOCOL_VERSION:
            self._failure = protocol.Failed(
                "EngineStopped",
                f"the engine's process speaks protocol {hello.version}, this one "
                f"{protocol.PROTOCOL_VERSION}.\n  Try: start the server again.",
                is_loading=True,
            )
            if self._link is not None:
                self._link.kill()

    def _on_ready(self, ready: protocol.Ready) -> None:
        if self._was_ready and self.num_restarts:
            telemetry.notice_each("engine-process", "the engine is ready again.")
        self.ready = ready
        self._was_ready = True
        self.last_death = ""
        self._last_cause = ""
        self._pause_s = _FIRST_PAUSE_S
        self._set_state(State.READY)
        if self._link is not None:
            self.questions.renew(self._link.send)
        for entry in self._open.values():
            self._hand_over(entry)

    def _on_death(self, link: ChildLink) -> None:
        self._link = None
        self.pid = None
        self._guard_no_more()
        self.questions.drop()
        failure = self._failure
        if not self._was_ready:
            self._failure = failure or protocol.Failed(
                "EngineStopped",
                f"the engine's process ended while it loaded the model: {link.describe_exit()}.\n"
                "  Try: again; where memory is short, --ram-limit or a smaller --context.",
                is_loading=True,
            )
            self._set_state(State.FAILED)
            return
        is_load_failure = self.state is State.LOADING
        cause = (
            failure.text.splitlines()[0].rstrip(".")
            if failure is not None
            else link.describe_exit()
        )
        self.last_death = cause
        self._last_cause = cause if is_load_failure else ""
        telemetry.notice_each(
            "engine-process", f"the engine's process ended: {cause}. It is started again."
        )
        self._set_state(State.LOADING)
        self._fail_begun(cause)
        self.num_restarts += 1
        if is_load_failure:
            self._restart = asyncio.get_running_loop().create_task(self._start_later())
        else:
            self.start()

    async def _guard(self, link: ChildLink) -> None:
        """Ends a child that hangs; what follows is as after any death."""
        cause = await self._watchdog.guard(
            lambda: link.send(protocol.AskAlive()), lambda: self.state is State.LOADING
        )
        hint = "\n  Try: again; strata serve --watchdog-s N where that is too short."
        self._failure = protocol.Failed("EngineStopped", f"{cause}.{hint}", is_loading=False)
        link.kill()
        await asyncio.sleep(_KILL_WAIT_S)
        self._take(link, None)

    def _guard_no_more(self) -> None:
        if self._guarding is not None:
            self._guarding.cancel()
            self._guarding = None

    @property
    def silent_s(self) -> float | None:
        """How long the child has not answered, if that is worth a word."""
        return self._watchdog.silent_s

    def _fail_begun(self, cause: str) -> None:
        """Ends the requests that the next child cannot answer as if nothing had happened."""
        for request_id, entry in list(self._open.items()):
            if entry.has_begun or entry.num_tries >= _MAX_TRIES:
                when = "during this answer" if entry.has_begun else "on this request, twice"
                text = f"the engine's process ended {when}: {cause}. It is started again."
                fault = Fault(503, text, code="engine_died", retry_after_s=RETRY_AFTER_S)
                entry.messages.put_nowait(fault)
                del self._open[request_id]

    async def _start_later(self) -> None:
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self.start()

    def _set_state(self, state: State) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next_change(self) -> None:
        await self._changed.wait()

    def _not_ready(self) -> Fault:
        cause = "" if self._failure is None else self._failure.text
        return not_ready(self.state, self.loaded, cause, self._last_cause)
