"""The monitor's figures as Prometheus reads them.

Owns the names of the metrics, which dashboards depend on. The figures are ``monitor``'s, the format
is ``metrics``'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from strata import __version__
from strata.server.engine_state import State
from strata.server.metrics import Exposition
from strata.server.monitor import tiers_of
from strata.server.requests_log import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.server.monitor import Monitor
    from strata.server.protocol import Status
    from strata.server.telemetry_cards import CardReading


async def scrape(monitor: Monitor) -> str:
    """The text of one scrape."""
    told = await monitor.status()
    out = Exposition()
    _tell_engine(out, monitor)
    if told is not None:
        _tell_model(out, told)
    _tell_requests(out, monitor)
    _tell_machine(out, monitor)
    return out.text()


def _tell_engine(out: Exposition, monitor: Monitor) -> None:
    engine = monitor.engine
    labels = {"version": __version__, "model": monitor.model_name}
    out.gauge("strata_info", "Version and model.", 1, labels)
    is_ready = engine.ready is not None and engine.state is State.READY
    out.gauge("strata_engine_ready", "Whether requests are answered now.", int(is_ready))
    num_done, num_total = engine.loaded
    out.gauge("strata_loaded_bytes", "Bytes of the model loaded so far.", num_done)
    out.gauge("strata_model_bytes", "Bytes of the model to load.", num_total)
    out.counter(
        "strata_engine_restarts_total",
        "Times the engine's process was started again.",
        engine.num_restarts,
    )


def _tell_model(out: Exposition, told: Status) -> None:
    out.gauges(
        "strata_engine_memory_bytes",
        "Memory the engine has taken, by what holds it.",
        told.memory_bytes,
        "holder",
    )
    out.counters(
        "strata_conversations_continued_total",
        "Requests whose prompt was partly read before, by where its state was.",
        {place: told.conversations.get(f"from_{place}") for place in ("live", "parked", "disk")},
        "place",
    )


def _tell_requests(out: Exposition, monitor: Monitor) -> None:
    log = monitor.engine.log
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
    out.counters(
        "strata_expert_lookups_total",
        "Active experts, by where they were found.",
        tiers_of(totals.experts),
        "tier",
    )
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


def _tell_machine(out: Exposition, monitor: Monitor) -> None:
    host = monitor.host
    out.gauge("strata_cpu_load_ratio", "Load of all cores.", host.cpu_load)
    out.gauge("strata_ram_used_bytes", "Memory in use on this machine.", host.ram_used)
    out.gauge("strata_ram_total_bytes", "Memory of this machine.", host.ram_total)
    out.gauges(
        "strata_process_resident_bytes",
        "Memory of the server's processes.",
        {"server": host.server_bytes, "engine": host.engine_bytes},
        "process",
    )
    out.gauge("strata_disk_read_bytes_per_second", "Read from drives.", host.disk_read_bytes_per_s)
    for name, text, value_of in _CARD_GAUGES:
        for card in monitor.cards:
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
