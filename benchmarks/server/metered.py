"""``strata serve`` with a watch on it: how long a token is on its way through the server.

    python -m benchmarks.server.metered REPORT.json [flags of strata serve]

A token's way begins when the engine's process has made it, before it is sent, and ends when the
event with it has been handed to the client's socket: every wait of either process for a processor
is in it. The product has no such watch: it is put in here, at the end.
The report is written when the server ends.
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


class Watch:
    """The times of tokens between the two ends."""

    def __init__(self) -> None:
        self._answer: contextvars.ContextVar[list[float]] = contextvars.ContextVar("answer")
        self.overheads_s: list[float] = []
        self._started_cpu_s = 0.0

    def start(self) -> None:
        self._started_cpu_s = time.process_time()
        following, build = Messages.__anext__, server_app.Guard

        async def follow(messages: Messages) -> Any:
            message = await following(messages)
            if (
                isinstance(message, protocol.Tokens)
                and (made := self._answer.get(None)) is not None
            ):
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
                    self.overheads_s.append(time.monotonic() - made[0])
                    made.clear()

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
