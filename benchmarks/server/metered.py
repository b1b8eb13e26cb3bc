"""``strata serve`` with a watch on it: how long a token is on its way through the server.

    python -m benchmarks.server.metered REPORT.json [flags of strata serve]

A token's way begins when the engine's process has made it, before it is sent, and ends when the
event with it has been handed to the client's socket. Two clocks: ``way`` is the time, every wait of
either process for a processor in it; ``own`` is what the server's thread used of a processor
meanwhile, for this token and for whatever it did before it came to it: the way on a machine where
no other process is in the way. The product has no such watch: it is put in here, at the end.
The report is written when the server ends.
"""

from __future__ import annotations

import contextvars
import json
import selectors
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.cli import app as cli
from strata.server import app as server_app
from strata.server import protocol
from strata.server.engine_process import Messages

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MARKS_KEPT = 10_000


class Clock:
    """What the event loop's thread had used of a processor, at any time of late."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque(maxlen=MARKS_KEPT)

    def start(self) -> None:
        """Marks each end of the event loop's sleep."""
        select = selectors.DefaultSelector.select
        loop_thread = threading.main_thread()

        def marked(selector: Any, timeout: float | None = None) -> Any:
            is_loop = threading.current_thread() is loop_thread
            if is_loop:
                self._marks.append((time.monotonic(), time.thread_time()))
            events = select(selector, timeout)
            if is_loop:
                self._marks.append((time.monotonic(), time.thread_time()))
            return events

        selectors.DefaultSelector.select = marked

    def used_since(self, begin_s: float) -> float:
        """Seconds of a processor from then until now; between two marks evenly spread."""
        end_s, end_used = time.monotonic(), time.thread_time()
        after = (end_s, end_used)
        for mark in reversed(self._marks):
            if mark[0] <= begin_s:
                share = (begin_s - mark[0]) / max(after[0] - mark[0], 1e-9)
                return end_used - (mark[1] + share * (after[1] - mark[1]))
            after = mark
        return end_used - after[1]


class Watch:
    """The times of tokens between the two ends."""

    def __init__(self) -> None:
        self._answer: contextvars.ContextVar[list[float]] = contextvars.ContextVar("answer")
        self._clock = Clock()
        self._way_s: list[float] = []
        self._own_s: list[float] = []
        self._started_cpu_s = 0.0

    def start(self) -> None:
        self._started_cpu_s = time.process_time()
        self._clock.start()
        following, build = Messages.__anext__, server_app.Guard

        async def follow(messages: Messages) -> Any:
            message = await following(messages)
            made = self._answer.get(None)
            if made is not None and isinstance(message, protocol.Tokens):
                made[:] = [message.made_s]  # one before it that is still here brought no event
            return message

        Messages.__anext__ = follow
        server_app.Guard = lambda *args: self.around(build(*args))

    def around(self, app: ASGIApp) -> ASGIApp:
        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            made: list[float] = []
            self._answer.set(made)

            async def sent(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.body" and message.get("more_body") and made:
                    self._way_s.append(time.monotonic() - made[0])
                    self._own_s.append(self._clock.used_since(made[0]))
                    made.clear()

            await app(scope, receive, sent)

        return watched

    def report(self) -> dict[str, Any]:
        if not self._way_s:
            return {"tokens": 0}
        cpu_ms = 1e3 * (time.process_time() - self._started_cpu_s) / len(self._way_s)
        return {
            "tokens": len(self._way_s),
            "way_ms": shares_ms(self._way_s),
            "own_ms": shares_ms(self._own_s),
            # All that this process did, answers in one piece and nonsense included.
            "cpu_ms": round(cpu_ms, 3),
        }


def shares_ms(times_s: list[float]) -> dict[str, float]:
    times_s = sorted(times_s)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    last = len(times_s) - 1
    return {name: round(1e3 * times_s[int(share * last)], 3) for name, share in shares.items()}


def main() -> None:
    report, *args = sys.argv[1:]
    watch = Watch()
    watch.start()
    sys.argv = ["strata", "serve", *args]
    try:
        cli.main()
    finally:
        Path(report).write_text(json.dumps(watch.report()), encoding="utf-8")


if __name__ == "__main__":
    main()
