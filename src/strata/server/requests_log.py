"""What was asked lately, and counts of everything since the start.

Owns the record of one request, from the messages of the engine's process. Bounded: the last ones
only. Holds numbers and no text, so nothing a user wrote is kept. Used by one event loop; another
thread may read the counts.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from strata.server import protocol
from strata.server.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGER: Final = logging.getLogger("strata.requests")

MAX_KEPT: Final = 500
# Tokens a second are told of the last of these.
_RATE_SPAN_S: Final = 2.0
# Requests whose client has left and whose costs are still to come.
_MAX_LEFT: Final = 64


class Phase(StrEnum):
    """What is being done for a request."""

    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"
    ENDED = "ended"


class Outcome(StrEnum):
    """How a request ended."""

    DONE = "done"
    LENGTH = "length"  # the most tokens it was allowed, or all the context holds
    STOPPED = "stopped"  # the client left, or has enough
    REFUSED = "refused"  # before any token: too many waited, or the engine could not
    ERROR = "error"


@dataclass(slots=True)
class Record:
    """One request."""

    request_id: int
    began_unix_s: float
    began_s: float  # of the monotonic clock
    num_prompt: int
    phase: Phase = Phase.WAITING
    num_read: int = 0
    num_written: int = 0
    first_token_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome | None = None
    costs: protocol.Costs | None = None

    @property
    def duration_s(self) -> float:
        """From its arrival to its end, or until now."""
        return (self.ended_s or time.monotonic()) - self.began_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens after the first, a second; None below two tokens."""
        if self.costs is not None:
            num_after, span_s = self.costs.generated_tokens - 1, self.costs.decode_s
        else:
            end_s = self.ended_s or time.monotonic()
            num_after, span_s = self.num_written - 1, end_s - (self.first_token_s or end_s)
        return num_after / span_s if num_after > 0 and span_s > 0 else None

    def __str__(self) -> str:
        """One line for a log."""
        costs, rate = self.costs, self.tokens_per_s
        reused = f" ({costs.reused_tokens} reused)" if costs is not None else ""
        parts = [
            f"request {self.request_id}: {self.outcome or self.phase}",
            f"{self.num_prompt} prompt tokens{reused}",
            f"{self.num_written} written",
        ]
        if rate is not None:
            parts.append(f"{rate:.1f} tokens/s")
        if costs is not None and (lookups := costs.experts.get("lookups", 0)):
            parts.append(f"expert cache {100 * costs.experts['hits'] / lookups:.1f}% hit")
        return ", ".join([*parts, f"{self.duration_s:.2f} s"])


@dataclass(slots=True)
class Histogram:
    """How often a value was at most each bound."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)  # one more than bounds: the rest
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        """Counts ``value``."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


@dataclass(slots=True)
class Totals:
    """Counts since the server's start."""

    outcomes: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    prompt_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    drafts_proposed: int = 0
    drafts_accepted: int = 0
    experts: dict[str, int] = field(default_factory=dict)  # as ``Costs.experts``
    first_token_s: Histogram = field(
        default_factory=lambda: Histogram((0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300))
    )
    duration_s: Histogram = field(
        default_factory=lambda: Histogram((0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800))
    )
    token_s: Histogram = field(
        default_factory=lambda: Histogram(
            (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)
        )
    )


class RequestsLog:
    """Requests under way, those that ended lately, and counts of all."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._open: dict[int, Record] = {}
        self._left: dict[int, Record] = {}
        self._ended: deque[Record] = deque(maxlen=max_kept)
        self._steps: deque[tuple[float, int]] = deque()
        self.totals = Totals()

    @contextmanager
    def watch(self, submit: protocol.Submit) -> Iterator[None]:
        """Records a request while the context is open; how it is left says how it ended."""
        now_s = time.monotonic()
        num_prompt = len(submit.prompt) // 4
        record = Record(submit.request_id, time.time(), now_s, num_prompt)
        self._open[submit.request_id] = record
        outcome = Outcome.STOPPED
        try:
            yield
        except Fault as fault:
            outcome = Outcome.REFUSED if fault.status < 500 else Outcome.ERROR
            raise
        finally:
            self._open.pop(submit.request_id, None)
            if record.outcome is None:
                self._end(record, outcome)
                self._left[submit.request_id] = record
                while len(self._left) > _MAX_LEFT:
                    del self._left[next(iter(self._left))]

    def see(self, message: protocol.Up) -> None:
        """A message of the engine's process; only those of requests matter."""
        match message:
            case protocol.Progress(request_id, num_read, _):
                if (record := self._open.get(request_id)) is not None:
                    record.phase, record.num_read = Phase.READING, num_read
            case protocol.Tokens(request_id=request_id, token_ids=token_ids):
                self._see_tokens(self._open.get(request_id), len(token_ids))
            case protocol.Ended(request_id=request_id):
                record = self._open.get(request_id) or self._left.pop(request_id, None)
                if record is not None:
                    self._see_end(record, message)

    @property
    def open(self) -> list[Record]:
        """Requests under way, oldest first."""
        return list(self._open.values())

    def ended(self, most: int | None = None) -> list[Record]:
        """Requests that ended, newest first."""
        records = list(self._ended)[::-1]
        return records if most is None else records[:most]

    def tokens_per_s(self) -> float:
        """Tokens written a second, of all requests together, over the last two seconds."""
        begin_s = time.monotonic() - _RATE_SPAN_S
        return sum(count for at_s, count in list(self._steps) if at_s >= begin_s) / _RATE_SPAN_S

    def _see_tokens(self, record: Record | None, count: int) -> None:
        if record is None or count == 0:
            return
        now_s = time.monotonic()
        if record.first_token_s is None:
            record.first_token_s = now_s
        record.phase = Phase.WRITING
        record.num_written += count
        self.totals.output_tokens += count
        self._steps.append((now_s, count))
        while self._steps[0][0] < now_s - _RATE_SPAN_S:
            self._steps.popleft()

    def _see_end(self, record: Record, ended: protocol.Ended) -> None:
        costs = record.costs = ended.costs
        outcomes = {"length": Outcome.LENGTH, "cancelled": Outcome.STOPPED, "error": Outcome.ERROR}
        totals = self.totals
        totals.prompt_tokens += costs.prompt_tokens
        totals.reused_tokens += costs.reused_tokens
        totals.prompt_s += costs.prompt_s
        totals.decode_s += costs.decode_s
        totals.drafts_proposed += costs.drafts_proposed
        totals.drafts_accepted += costs.drafts_accepted
        for name, count in costs.experts.items():
            totals.experts[name] = totals.experts.get(name, 0) + count
        if costs.generated_tokens > 1:
            totals.token_s.add(costs.decode_s / (costs.generated_tokens - 1))
        # Written after the client had left, or an end token, of which no message tells.
        totals.output_tokens += max(0, costs.generated_tokens - record.num_written)
        record.num_written = max(record.num_written, costs.generated_tokens)
        self._end(record, outcomes.get(ended.reason, Outcome.DONE))

    def _end(self, record: Record, outcome: Outcome) -> None:
        if record.outcome is not None:
            return
        record.outcome = outcome
        record.phase = Phase.ENDED
        record.ended_s = time.monotonic()
        self.totals.outcomes[outcome] += 1
        self.totals.duration_s.add(record.duration_s)
        if record.first_token_s is not None:
            self.totals.first_token_s.add(record.first_token_s - record.began_s)
        self._ended.append(record)
        LOGGER.info("%s", record)
