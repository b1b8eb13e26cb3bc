"""One child process and this side of the socket to it, without any policy.

Owns the process and the messages as they come and go, all in the event loop: a token comes from
the socket to whoever waits for it with no thread between. ``engine_process`` decides when there is
a new child.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import socket
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Final, cast

import msgspec

from strata.server import child, protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from strata.server.child import OpenEngine

# The socket's end comes a moment before the process's own.
_EXIT_WAIT_S: Final = 5.0


class ChildLink(asyncio.Protocol):
    """A child that was just started. Made, and used, in a running event loop.

    Args:
        open_engine: what it opens.
        on_message: called with this link and each message, and with None, once, when the child is
            gone.
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        on_message: Callable[[ChildLink, protocol.Up | None], object],
    ) -> None:
        self._on_message = on_message
        self._frames = protocol.Frames()
        self._transport: asyncio.Transport | None = None
        self._unsent = b""  # what was to be sent before there was a transport
        self._refusal: OSError | None = None  # of the system, to start one
        self._process: multiprocessing.process.BaseProcess
        loop = asyncio.get_running_loop()
        try:
            ours = self._start(open_engine)
        except OSError as error:
            self._refusal = error
            loop.call_soon(on_message, self, None)
            return
        self._task: asyncio.Task[object] = loop.create_task(
            loop.create_connection(lambda: self, sock=ours)
        )

    def _start(self, open_engine: OpenEngine) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            # A fresh interpreter: no thread, lock or socket of this process is inherited.
            self._process = multiprocessing.get_context("spawn").Process(
                target=child.main, args=(theirs, open_engine), name="strata-engine", daemon=True
            )
            with _endings_wait():
                self._process.start()
            undo.pop_all()
        return ours

    def send(self, message: protocol.Down) -> None:
        """Sends, some time; a child that is gone gets nothing."""
        frame = protocol.encode(message)
        if self._transport is None:
            self._unsent += frame
        else:
            self._transport.write(frame)

    def kill(self) -> None:
        """Ends the child at once."""
        if self._refusal is None:
            self._process.kill()

    async def close(self, wait_s: float) -> None:
        """Asks the child to end, and ends it when it does not within ``wait_s``."""
        self.send(protocol.Shutdown())
        await asyncio.to_thread(self._reap, wait_s)

    def describe_exit(self) -> str:
        """How the process ended, for people."""
        if self._refusal is not None:
            return f"it could not be started ({self._refusal.strerror})"
        code = self._process.exitcode
        if code is None:
            return "its socket closed"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport = cast("asyncio.Transport", transport)  # of a socket: it can write
        self._transport.write(self._unsent)
        self._unsent = b""

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        try:
            for frame in self._frames.feed(data):
                self._on_message(self, protocol.decode_up(frame))
        except msgspec.MsgspecError:
            # Another version of the package: the supervisor has said so at its first message.
            self._process.kill()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See ``asyncio.Protocol``."""
        self._task = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        await asyncio.to_thread(self._reap, _EXIT_WAIT_S)
        self._on_message(self, None)

    def _reap(self, wait_s: float) -> None:
        """Returns when the process is over."""
        if self._refusal is not None:
            return
        self._process.join(wait_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_EXIT_WAIT_S)


@contextlib.contextmanager
def _endings_wait() -> Iterator[None]:
    """Signals that end this process come afterwards; what is started meanwhile has them blocked."""
    resource_tracker.ensure_running()  # or it starts with the process, and lets them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child.ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
