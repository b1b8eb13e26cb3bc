"""Figures of the server, its engine and the machine, gathered for people and for Prometheus.

Owns which figures there are and what they are called. Where they come from is ``requests_log``,
``telemetry_*`` and the engine's own ``Status``; how they are sent is ``monitor_api``.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

from strata import __version__
from strata.server.requests_log import Phase
from strata.server.telemetry_cards import CardReading, Cards, as_one
from strata.server.telemetry_host import Host, HostReading, facts_of_host
from strata.server.telemetry_sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.server.engine_process import EngineProcess
    from strata.server.protocol import Status
    from strata.server.requests_log import Record

# A scrape and a page that ask at the same time are one question to the engine.
_STATUS_KEPT_S: Final = 0.5
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
        self.engine = engine
        self.model_name = model_name
        self._cards = cards
        self._host = host or Host()
        self._card_readings: list[CardReading] = []
        self._host_reading = HostReading()
        self._status: Status | None = None
        self._status_at_s = float("-inf")
        self._before: Mapping[str, int] = {}
        self._sampler = Sampler(self._read)
        self._started_s = time.monotonic()
        self.facts = facts_of_host()

    def start(self) -> None:
        """Begins to read the machine, in a thread."""
        self._sampler.start()

    def close(self) -> None:
        """Reads no more."""
        self._sampler.close()

    async def status(self) -> Status | None:
        """What the engine's process tells of itself, at most half a second old."""
        if time.monotonic() - self._status_at_s > _STATUS_KEPT_S:
            self._status = await self.engine.status()
            self._status_at_s = time.monotonic()
        return self._status

    async def brief(self) -> dict[str, Any]:
        """What the engine is doing, in a few words."""
        told = await self.status()
        engine = self.engine
        num_done, num_total = engine.loaded
        return {
            "state": str(engine.state),
            "version": __version__,
            "model": self.model_name,
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
        log = self.engine.log
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
            "tiers": tiers_of(totals.experts),
            "experts": totals.experts,
            "conversations": {} if told is None else told.conversations,
            "host": dataclasses.asdict(self._host_reading),
            "gpu": dataclasses.asdict(as_one(self._card_readings)),
            "gpus": [dataclasses.asdict(card) for card in self._card_readings],
            "machine": dataclasses.asdict(self.facts),
            "history": self._sampler.history(),
        }

    @property
    def cards(self) -> list[CardReading]:
        """Every graphics card, a second old at most."""
        return self._card_readings

    @property
    def host(self) -> HostReading:
        """The machine, a second old at most."""
        return self._host_reading

    def _phase(self) -> str:
        phases = {record.phase for record in self.engine.log.open}
        if Phase.WRITING in phases:
            return str(Phase.WRITING)
        return str(Phase.READING) if phases else "idle"

    def _read(self) -> dict[str, float | None]:
        """One sample; in the sampler's thread."""
        if self._cards is None:
            self._cards = Cards.of_machine()
        self._card_readings = self._cards.read()
        self._host_reading = self._host.read(self.engine.pid)
        gpu, host = as_one(self._card_readings), self._host_reading
        return {
            "tokens_per_s": self.engine.log.tokens_per_s(),
            "hit_rate": self._hit_rate_since(),
            "gpu_load": gpu.load,
            "gpu_mem_used": gpu.mem_used,
            "gpu_temperature_c": gpu.temperature_c,
            "gpu_power_w": gpu.power_w,
            "gpu_received_bytes_per_s": gpu.received_bytes_per_s,
            "cpu_load": host.cpu_load,
            "ram_used": host.ram_used,
            "engine_bytes": host.engine_bytes,
            "disk_read_bytes_per_s": host.disk_read_bytes_per_s,
            "disk_written_bytes_per_s": host.disk_written_bytes_per_s,
        }

    def _hit_rate_since(self) -> float | None:
        """Share of hits in the answers that ended since the sample before; None: none did."""
        now = dict(self.engine.log.totals.experts)
        before, self._before = self._before, now
        asked = now.get("lookups", 0) - before.get("lookups", 0)
        return (now["hits"] - before.get("hits", 0)) / asked if asked > 0 else None


def tiers_of(counters: Mapping[str, int]) -> dict[str, int | None]:
    """Active experts since the start, by the fastest place each was in; None: nothing counts them.

    Args:
        counters: ``Costs.experts``, or sums of them.
    """
    lookups = counters.get("lookups")
    if lookups is None:
        return {"vram": None, "ram": None, "disk": None}
    hits, from_file = counters.get("hits", 0), counters.get("from_file", 0)
    return {"vram": hits, "ram": lookups - hits - from_file, "disk": from_file}


def hit_rate_of(experts: Mapping[str, int]) -> float | None:
    """Share of the experts looked up while writing that were in VRAM, in three digits."""
    lookups = experts.get("lookups", 0)
    return round(experts["hits"] / lookups, 3) if lookups else None


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
        "hit_rate": hit_rate_of({} if costs is None else costs.experts),
        "drafts_proposed": None if costs is None else costs.drafts_proposed,
        "drafts_accepted": None if costs is None else costs.drafts_accepted,
    }
