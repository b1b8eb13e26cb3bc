"""``strata serve`` with a watch on it: how long a token is on its way through the HTTP process.

    python -m benchmarks.server.metered REPORT.json [flags of strata serve]

A token's way begins when the message of the engine's process has been read off the pipe and ends
when the event with it has been handed to the socket. The product has no such watch: it is put in
here, at the two ends. The report is written when the server ends.
"""

from __future__ import annotations

import contextvars
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.cli import app as cli
from strata.server import app as server_app
from strata.server import protocol
from strata.server.engine_process import Messages

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_WAITING = 100_000


class Watch:
    """The times of tokens between the two ends."""

    def __init__(self) -> None:
        self._read_at: dict[int, tuple[object, float]] = {}
        self._answer: contextvars.ContextVar[list[float]] = contextvars.ContextVar("answer")
        self.overheads_s: list[float] = []
        self._started_cpu_s = 0.0

    def start(self) -> None:
        self._started_cpu_s = time.process_time()
        decode_up, following, build = protocol.decode_up, Messages.__anext__, server_app.Guard

        def decode(frame: bytes) -> protocol.Up:
            message = decode_up(frame)
            if isinstance(message, protocol.Tokens) and len(self._read_at) < MOST_WAITING:
                # Held, so that its id stays its own until it is passed on.
                self._read_at[id(message)] = (message, time.perf_counter())
            return message

        async def follow(messages: Messages) -> Any:
            message = await following(messages)
            _, read_at = self._read_at.pop(id(message), (None, None))
            if read_at is not None and (begun := self._answer.get(None)) is not None:
                begun.append(read_at)
            return message

        protocol.decode_up = decode
        Messages.__anext__ = follow
        server_app.Guard = lambda *args: self.around(build(*args))

    def around(self, app: ASGIApp) -> ASGIApp:
        async def watched(scope: Scope, receive: Receive, send: Send) -> None:
            begun: list[float] = []
            self._answer.set(begun)

            async def sent(message: Message) -> None:
                await send(message)
                if message["type"] == "http.response.body" and message.get("more_body") and begun:
                    self.overheads_s.append(time.perf_counter() - begun[0])
                    begun.clear()

            await app(scope, receive, sent)

        return watched

    def report(self) -> dict[str, float]:
        times = sorted(self.overheads_s)
        if not times:
            return {"tokens": 0}
        at = {f"p{share}_ms": share / 100 for share in (50, 90, 99)}
        found = {name: 1e3 * times[int(share * (len(times) - 1))] for name, share in at.items()}
        # Of everything this process did; unlike the times above, the same on a busy machine.
        cpu_ms = 1e3 * (time.process_time() - self._started_cpu_s) / len(times)
        return {"tokens": len(times), **found, "max_ms": 1e3 * times[-1], "cpu_ms": cpu_ms}


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
