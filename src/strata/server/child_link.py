"""One child process and the two ends of its pipe, without any policy.

Owns the process, a thread that reads and a thread that writes, so that nobody waits for the pipe.
``engine_process`` decides when there is a new one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from strata.server import child, protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.server.child import OpenEngine

# The pipe's end comes a moment before the process's own.
_EXIT_WAIT_S: Final = 5.0


class ChildLink:
    """A child that was just started.

    Args:
        open_engine: what it opens.
        on_message: called from a thread with this link and each message, and with None, once,
            when the child is gone.
    """

    def __init__(
        self,
        open_engine: OpenEngine,
        on_message: Callable[[ChildLink, protocol.Up | None], object],
    ) -> None:
        # A fresh interpreter: no thread, lock or socket of this process is inherited.
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=child.main, args=(theirs, open_engine), name="strata-engine", daemon=True
        )
        self._process.start()
        theirs.close()
        self._on_message = on_message
        self._outbox: queue.SimpleQueue[protocol.Down | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="engine-out", daemon=True)
        self._writer.start()
        threading.Thread(target=self._read, name="engine-in", daemon=True).start()

    def send(self, message: protocol.Down) -> None:
        """Sends, some time; a child that is gone gets nothing."""
        self._outbox.put(message)

    def kill(self) -> None:
        """Ends the child at once."""
        self._process.kill()

    def close(self, wait_s: float) -> None:
        """Asks the child to end, and ends it when it does not within ``wait_s``. Blocks."""
        self.send(protocol.Shutdown())
        self._process.join(wait_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_EXIT_WAIT_S)

    def describe_exit(self) -> str:
        """How the process ended, for people."""
        code = self._process.exitcode
        if code is None:
            return "its pipe closed"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _read(self) -> None:
        try:
            while True:
                self._on_message(self, protocol.decode_up(self._connection.recv_bytes()))
        except (EOFError, OSError):
            pass
        except msgspec.MsgspecError:
            # Another version of the package: the supervisor has said so at its first message.
            self._process.kill()
        except RuntimeError:
            self._process.kill()  # the event loop is closed: nobody listens any more
        self._outbox.put(None)
        self._process.join(_EXIT_WAIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_EXIT_WAIT_S)
        self._writer.join()
        self._connection.close()
        with contextlib.suppress(RuntimeError):
            self._on_message(self, None)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.send_bytes(protocol.encode(message))
