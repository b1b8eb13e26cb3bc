"""Figures of the server, its engine and the machine, gathered for people and for Prometheus.

Owns which figures there are and what they are called. Where they come from is ``requests_log``,
``telemetry_*`` and the engine's own ``Status``; how they are sent is ``monitor_api``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

from strata import __version__
from strata.server.metrics import Exposition
from strata.server.requests_log import Phase
from strata.server.telemetry_cards import CardReading, Cards, as_one
from strata.server.telemetry_host import Host, HostReading, facts_of_host
from strata.server.telemetry_sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from strata.server.engine_process import EngineProcess
    from strata.server.protocol import Status
    from strata.server.requests_log import Record

# A scrape and a page that ask at the same time are one question to the engine.
_STATUS_KEPT_S: Final = 0.5
_POLL_S: Final = 1.0
SHOWN_REQUESTS: Final = 12


class Monitor:
    """Watches one engine and this machine.

    Args:
        engine: the supervised process.
        model_name: what the model is called.
        cards: this machine's; tests give others.
        host: likewise.
    """

    def __init__(
        self,
        engine: EngineProcess,
        model_name: str,
        cards: Cards | None = None,
        host: Host | None = None,
    ) -> None:
        self._engine = engine
        self._model_name = model_name
        self._cards = cards
        self._host = host or Host()
        self._card_readings: list[CardReading] = []
        self._host_reading = HostReading()
        self._status: Status | None = None
        self._status_at_s = float("-inf")
        self._before: Mapping[str, int] = {}
        self._sampler = Sampler(self._read)
        self._poll: asyncio.Task[None] | None = None
        self._started_s = time.monotonic()
        self.facts = facts_of_host()

    def start(self) -> None:
        """Begins to read, a thread for the machine and a task for the engine."""
        self._sampler.start()
        self._poll = asyncio.get_running_loop().create_task(self._poll_engine())

    async def close(self) -> None:
        """Reads no more."""
        self._sampler.close()
        if self._poll is not None:
            self._poll.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poll

    async def status(self) -> Status | None:
        """What the engine's process tells of itself, at most half a second old."""
        if time.monotonic() - self._status_at_s > _STATUS_KEPT_S:
            self._status = await self._engine.status()
            self._status_at_s = time.monotonic()
        return self._status

    async def brief(self) -> dict[str, Any]:
        """What the engine is doing, in a few words."""
        told = await self.status()
        engine = self._engine
        num_done, num_total = engine.loaded
        return {
            "state": str(engine.state),
            "version": __version__,
            "model": self._model_name,
            "loaded_bytes": num_done,
            "total_bytes": num_total,
            "context_len": None if engine.ready is None else engine.ready.context_len,
            "open_requests": engine.num_open,
            "answered_requests": None if told is None else told.num_answered,
            "memory_bytes": None if told is None else told.memory_bytes,
            "conversations": None if told is None else told.conversations,
            "engine_pid": engine.pid,
            "engine_restarts": engine.num_restarts,
        }

    async def whole(self, most_requests: int | None = SHOWN_REQUESTS) -> dict[str, Any]:
        """Everything the page shows. A figure nothing tells is None."""
        told = await self.status()
        log = self._engine.log
        totals = log.totals
        return {
            "engine": {**await self.brief(), "uptime_s": time.monotonic() - self._started_s},
            "live": {
                "state": self._phase(),
                "waiting": sum(record.phase is Phase.WAITING for record in log.open),
                "tokens_per_s": log.tokens_per_s(),
                "requests": [record_as_json(record) for record in log.open],
            },
            "requests": [record_as_json(record) for record in log.ended(most_requests)],
            "totals": {
                "requests": {str(key): count for key, count in totals.outcomes.items()},
                "prompt_tokens": totals.prompt_tokens,
                "reused_tokens": totals.reused_tokens,
                "output_tokens": totals.output_tokens,
                "prompt_s": totals.prompt_s,
                "decode_s": totals.decode_s,
                "drafts_proposed": totals.drafts_proposed,
                "drafts_accepted": totals.drafts_accepted,
            },
            "tiers": tiers_of({} if told is None else told.counters),
            "conversations": {} if told is None else told.conversations,
            "host": dataclasses.asdict(self._host_reading),
            "gpu": dataclasses.asdict(as_one(self._card_readings)),
            "gpus": [dataclasses.asdict(card) for card in self._card_readings],
            "machine": dataclasses.asdict(self.facts),
            "history": self._sampler.history(),
        }

    async def metrics(self) -> str:
        """The same figures as Prometheus reads them."""
        told = await self.status()
        out = Exposition()
        self._tell_engine(out, told)
        self._tell_requests(out)
        self._tell_machine(out)
        return out.text()

    def _phase(self) -> str:
        phases = {record.phase for record in self._engine.log.open}
        if Phase.WRITING in phases:
            return str(Phase.WRITING)
        return str(Phase.READING) if phases else "idle"

    async def _poll_engine(self) -> None:
        """Keeps the counters fresh for the history while anything is answered."""
        while True:
            await asyncio.sleep(_POLL_S)
            if self._engine.num_open:
                await self.status()

    def _read(self) -> dict[str, float | None]:
        """One sample; in the sampler's thread."""
        if self._cards is None:
            self._cards = Cards.of_machine()
        self._card_readings = self._cards.read()
        self._host_reading = self._host.read(self._engine.pid)
        gpu, host = as_one(self._card_readings), self._host_reading
        return {
            "tokens_per_s": self._engine.log.tokens_per_s(),
            "hit_rate": self._hit_rate_since(),
            "gpu_load": gpu.load,
            "gpu_mem_used": gpu.mem_used,
            "gpu_temperature_c": gpu.temperature_c,
            "gpu_power_w": gpu.power_w,
            "gpu_received_bytes_per_s": gpu.received_bytes_per_s,
            "cpu_load": host.cpu_load,
            "ram_used": host.ram_used,
            "disk_read_bytes_per_s": host.disk_read_bytes_per_s,
        }

    def _hit_rate_since(self) -> float | None:
        """Share of hits among the experts asked for since the sample before; None: none were."""
        now = {} if self._status is None else self._status.counters
        before, self._before = self._before, now
        asked = now.get("lookups", 0) - before.get("lookups", 0)
        hits = now.get("hits", 0) - before.get("hits", 0)
        # A new engine's process counts from zero.
        return hits / asked if asked > 0 and hits >= 0 else None

    def _tell_engine(self, out: Exposition, told: Status | None) -> None:
        engine = self._engine
        labels = {"version": __version__, "model": self._model_name}
        out.gauge("strata_info", "Version and model.", 1, labels)
        is_ready = engine.ready is not None and engine.state == "ready"
        out.gauge("strata_engine_ready", "Whether requests are answered now.", int(is_ready))
        num_done, num_total = engine.loaded
        out.gauge("strata_loaded_bytes", "Bytes of the model loaded so far.", num_done)
        out.gauge("strata_model_bytes", "Bytes of the model to load.", num_total)
        out.counter(
            "strata_engine_restarts_total",
            "Times the engine's process was started again.",
            engine.num_restarts,
        )
        if told is None:
            return
        out.gauges(
            "strata_engine_memory_bytes",
            "Memory the engine has taken, by what holds it.",
            told.memory_bytes,
            "holder",
        )
        out.counters(
            "strata_conversations_continued_total",
            "Requests whose prompt was partly read before, by where its state was.",
            {
                place: told.conversations.get(f"from_{place}")
                for place in ("live", "parked", "disk")
            },
            "place",
        )
        out.counters(
            "strata_expert_lookups_total",
            "Active experts, by where they were found.",
            tiers_of(told.counters),
            "tier",
        )

    def _tell_requests(self, out: Exposition) -> None:
        log = self._engine.log
        totals = log.totals
        out.gauge("strata_requests_open", "Requests under way or waiting.", len(log.open))
        waiting = sum(record.phase is Phase.WAITING for record in log.open)
        out.gauge("strata_requests_waiting", "Requests nothing was done for yet.", waiting)
        out.counters(
            "strata_requests_total",
            "Requests that ended, by how.",
            {str(key): count for key, count in totals.outcomes.items()},
            "outcome",
        )
        counts = (
            ("prompt_tokens", "Prompt tokens of answered requests.", totals.prompt_tokens),
            ("reused_tokens", "Prompt tokens that were not read again.", totals.reused_tokens),
            ("output_tokens", "Tokens written.", totals.output_tokens),
            ("prompt_seconds", "Time spent reading prompts.", totals.prompt_s),
            ("decode_seconds", "Time spent writing tokens.", totals.decode_s),
            ("drafts_proposed", "Tokens guessed ahead.", totals.drafts_proposed),
            ("drafts_accepted", "Tokens guessed ahead that were right.", totals.drafts_accepted),
        )
        for name, text, value in counts:
            out.counter(f"strata_{name}_total", text, value)
        out.gauge("strata_tokens_per_second", "Tokens written, now.", log.tokens_per_s())
        out.histogram(
            "strata_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            totals.first_token_s,
        )
        out.histogram(
            "strata_request_duration_seconds",
            "From a request's arrival to its end.",
            totals.duration_s,
        )
        out.histogram("strata_time_per_token_seconds", "Mean of each request.", totals.token_s)

    def _tell_machine(self, out: Exposition) -> None:
        host = self._host_reading
        out.gauge("strata_cpu_load_ratio", "Load of all cores.", host.cpu_load)
        out.gauge("strata_ram_used_bytes", "Memory in use on this machine.", host.ram_used)
        out.gauge("strata_ram_total_bytes", "Memory of this machine.", host.ram_total)
        out.gauges(
            "strata_process_resident_bytes",
            "Memory of the server's processes.",
            {"server": host.server_bytes, "engine": host.engine_bytes},
            "process",
        )
        out.gauge(
            "strata_disk_read_bytes_per_second", "Read from drives.", host.disk_read_bytes_per_s
        )
        for name, text, value_of in _CARD_GAUGES:
            for card in self._card_readings:
                labels = {"gpu": str(card.index), "name": card.name or ""}
                out.gauge(f"strata_gpu_{name}", text, value_of(card), labels)


_CARD_GAUGES: Final[tuple[tuple[str, str, Callable[[CardReading], float | None]], ...]] = (
    ("load_ratio", "Load of a card.", lambda card: card.load),
    ("memory_used_bytes", "Memory in use on a card.", lambda card: card.mem_used),
    ("memory_total_bytes", "Memory of a card.", lambda card: card.mem_total),
    ("temperature_celsius", "Temperature of a card.", lambda card: card.temperature_c),
    ("power_watts", "Power a card takes.", lambda card: card.power_w),
    ("power_limit_watts", "Most power a card may take.", lambda card: card.power_limit_w),
    (
        "received_bytes_per_second",
        "Bytes a card gets over its link.",
        lambda card: card.received_bytes_per_s,
    ),
    (
        "sent_bytes_per_second",
        "Bytes a card sends over its link.",
        lambda card: card.sent_bytes_per_s,
    ),
)


def tiers_of(counters: Mapping[str, int]) -> dict[str, int | None]:
    """Active experts since the start, by the fastest place each was in; None: nothing counts them.

    Args:
        counters: sums of ``tiers.counters`` by name.
    """
    lookups = counters.get("lookups")
    if lookups is None:
        return {"vram": None, "ram": None, "disk": None}
    hits, from_file = counters.get("hits", 0), counters.get("from_file", 0)
    return {"vram": hits, "ram": lookups - hits - from_file, "disk": from_file}


def record_as_json(record: Record) -> dict[str, Any]:
    """One request for the page."""
    costs = record.costs
    return {
        "id": record.request_id,
        "time": record.began_unix_s,
        "phase": str(record.phase),
        "outcome": None if record.outcome is None else str(record.outcome),
        "duration_s": record.duration_s,
        "prompt_tokens": record.num_prompt,
        "read_tokens": record.num_read,
        "reused_tokens": None if costs is None else costs.reused_tokens,
        "output_tokens": record.num_written,
        "first_token_s": None
        if record.first_token_s is None
        else record.first_token_s - record.began_s,
        "prompt_s": None if costs is None else costs.prompt_s,
        "tokens_per_s": record.tokens_per_s,
        "hit_rate": None,
        "drafts_proposed": None if costs is None else costs.drafts_proposed,
        "drafts_accepted": None if costs is None else costs.drafts_accepted,
    }
