"""One client of the load test: what it asks, how it misbehaves, what it makes of the answers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from benchmarks.server.needles import Needle, make_needle
from benchmarks.server.wire import connected, head_of, post

if TYPE_CHECKING:
    import random

ANSWER_LIMIT_S = 90.0
MODEL = "strata-demo"
NONSENSE = (
    b"{",
    b"\xff\xfe",
    b'{"model": 1}',
    b'{"model": "strata-demo", "messages": "x"}',
    b'{"model": "strata-demo", "messages": [], "mood": "bad"}',
    b"[" * 5000,
    b'{"model": "strata-demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
)
REFUSALS = (429, 503)
FAILURES = ("error", "response.failed")
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


class Outcome(StrEnum):
    """What came of one request."""

    ANSWERED = "answered"
    REFUSED = "refused"  # 429 or 503, or an error in the middle of a stream
    LEFT = "left"
    NONSENSE = "nonsense"
    KILL = "kills"


@dataclass
class Tally:
    """What came of all of them."""

    count: Counter = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: tuple = ((0, 0, 0), (0, 0, 0))


class Client:
    """Asks for its own code words until the time is over."""

    def __init__(self, address: str, index: int, rng: random.Random, tally: Tally) -> None:
        self._address = address
        self._index = index
        self._rng = rng
        self._tally = tally
        self._known: list[Needle] = []
        self._num_answered = 0

    async def learn(self, num_needles: int = 2) -> None:
        """Keeps questions that the model answers when it is asked them in peace."""
        while len(self._known) < num_needles:
            needle = make_needle(self._rng, self._rng.choice((4, 12, 40)))
            text = await self._whole(PATHS[0], needle)
            if text is None:
                await asyncio.sleep(0.5)
            elif needle.word in text:
                self._known.append(needle)

    async def run(self, end_s: float) -> None:
        """Asks until the time is over; on a slow machine until it has had an answer or two."""
        while self._is_on(end_s):
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await self._once()
            except TimeoutError:
                self._wrong("no answer and no refusal")
            except (EOFError, OSError) as error:
                self._wrong(f"the connection failed: {error!r}")

    def _is_on(self, end_s: float) -> bool:
        late_s = time.monotonic() - end_s
        return late_s < 0 or (self._num_answered < 2 and late_s < ANSWER_LIMIT_S)

    async def _once(self) -> None:
        choice = self._rng.random()
        needle = self._rng.choice(self._known)
        path = self._rng.choice(PATHS)
        if choice < 0.4:
            self._judge(await self._whole(path, needle), needle)
        elif choice < 0.75:
            self._judge(await self._streamed(path, needle), needle)
        elif choice < 0.85:
            await self._streamed(path, needle, leave_after=self._rng.randrange(6))
            self._tally.count[Outcome.LEFT] += 1
        elif choice < 0.92:
            async with connected(self._address) as (_, writer):
                writer.write(head_of(path, 500) + b"{")
                await writer.drain()
                await asyncio.sleep(self._rng.random())
            self._tally.count[Outcome.LEFT] += 1
        else:
            body = self._rng.choice(NONSENSE)
            async with post(self._address, path, body) as response:
                self._tally.count[Outcome.NONSENSE] += 1
                if not 400 <= response.status < 500:
                    self._wrong(f"nonsense got {response.status}: {body[:40]!r}")

    def _judge(self, text: str | None, needle: Needle) -> None:
        if text is None:
            self._tally.count[Outcome.REFUSED] += 1
        elif needle.word in text:
            self._tally.count[Outcome.ANSWERED] += 1
            self._num_answered += 1
        else:
            self._wrong(f"asked for {needle.word}, got {text[:80]!r}")

    def _wrong(self, text: str) -> None:
        self._tally.wrong.append(f"client {self._index}: {text}")

    async def _whole(self, path: str, needle: Needle) -> str | None:
        """The answer, or None where it was refused."""
        async with post(self._address, path, body_of(path, needle, stream=False)) as response:
            raw = await response.body()
        if response.status in REFUSALS:
            await asyncio.sleep(self._rng.random())
            return None
        if response.status != 200:
            return f"status {response.status}: {raw!r}"
        return text_of(path, json.loads(raw))

    async def _streamed(
        self, path: str, needle: Needle, leave_after: int | None = None
    ) -> str | None:
        """The same from a stream, which may be left after so many events."""
        text, is_whole, num_events = "", False, 0
        async with post(self._address, path, body_of(path, needle, stream=True)) as response:
            if response.status != 200:
                return None if response.status in REFUSALS else f"status {response.status}"
            async for line in response.lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                if num_events == leave_after:
                    return None
                num_events += 1
                event = json.loads(line[6:])
                if event.get("error") is not None or event.get("type") in FAILURES:
                    return None
                text += delta_of(path, event)
                is_whole |= is_last(path, event)
        return text if is_whole else f"a stream without an end: {text}"


def body_of(path: str, needle: Needle, *, stream: bool) -> bytes:
    common = {"model": MODEL, "stream": stream, "temperature": 0}
    messages = [{"role": "user", "content": needle.prompt}]
    if path == "/v1/responses":
        plain = {**common, "input": messages, "max_output_tokens": 60}
    else:
        plain = {**common, "messages": messages, "max_tokens": 60}
    return json.dumps(plain).encode()


def text_of(path: str, answer: dict) -> str:
    if path == "/v1/chat/completions":
        return answer["choices"][0]["message"]["content"] or ""
    if path == "/v1/messages":
        return "".join(block.get("text", "") for block in answer["content"])
    parts = [part for item in answer["output"] for part in item.get("content", ())]
    return "".join(part.get("text", "") for part in parts)


def delta_of(path: str, event: dict) -> str:
    if path == "/v1/chat/completions":
        choices = event.get("choices") or [{"delta": {}}]
        return choices[0]["delta"].get("content") or ""
    if path == "/v1/messages":
        return (event.get("delta") or {}).get("text", "") or ""
    return event["delta"] if event["type"] == "response.output_text.delta" else ""


def is_last(path: str, event: dict) -> bool:
    if path == "/v1/chat/completions":
        return bool(event.get("choices")) and event["choices"][0]["finish_reason"] is not None
    return event["type"] in ("message_stop", "response.completed", "response.incomplete")
