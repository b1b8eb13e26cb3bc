"""What a run asked of the experts' places, as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from strata.units import format_bytes, format_rate

if TYPE_CHECKING:
    from strata.engine.engine import Engine
    from strata.engine.request import Timings
    from strata.tiers.counters import TierCounts
    from strata.tiers.forecast import Forecast
    from strata.tiers.rates import TierRates


def stats_of(engine: Engine, timings: Timings) -> list[str | Table]:
    """What a request asked for, and what was foretold of it."""
    parts = stats_parts(timings.experts, engine.tier_rates())
    foretold = engine.foretold(timings.generated_tokens)
    if foretold is not None:
        parts.append(compare(foretold, timings))
    return parts


def stats_parts(counts: TierCounts | None, rates: TierRates | None) -> list[str | Table]:
    """Lines and tables; one line where there is nothing to tell."""
    if counts is None:
        return ["experts: all of them in one place; nothing to count."]
    lookups, hit_rate = counts.total("lookups"), counts.hit_rate
    hits = "none" if hit_rate is None else f"{100 * hit_rate:.1f} %"
    told = f"{hits} of {lookups} looked up by {counts.windows} windows were in slots"
    if lookups and not counts.bytes_of("hits", "copied", "moved"):
        # No card, or one without slots.
        share = 100 * (1 - counts.total("from_file") / lookups)
        told = f"{share:.1f} % of {lookups} looked up by {counts.windows} windows were in RAM"
    parts: list[str | Table] = [f"experts: {told}", _place_table(counts)]
    if counts.windows and counts.total("answers"):
        wait_ms = counts.total("wait_ns") / 1e6 / counts.windows
        answer_ms = counts.total("answer_ns") / 1e6 / counts.windows
        parts.append(
            f"a window waited {wait_ms:.2f} ms for the processor, which computed {answer_ms:.2f} ms"
        )
    if rates is not None:
        parts.append(describe_rates(rates))
    return [*parts, _layer_table(counts)]


def compare(foretold: Forecast, timings: Timings) -> str:
    """What the planner expects of such a run beside what it was, in one line."""
    found = timings.experts
    hit_rate = None if found is None else found.hit_rate
    hits = "-" if hit_rate is None else f"{100 * hit_rate:.1f} %"
    speed = timings.decode_tokens_per_s
    off = f" ({100 * (speed / foretold.tokens_per_s - 1):+.0f} %)" if speed else ""
    told = (
        f"foretold for made-up routing: {100 * foretold.hit_rate:.1f} % in slots, "
        f"{foretold.tokens_per_s:.1f} tokens/s; it was {hits}, {speed:.1f} tokens/s{off}"
    )
    if foretold.disk_bound is None or found is None or not found.windows:
        return told
    num_bytes = found.window_file_bytes / found.windows
    bound = f", which allows {foretold.file_bytes_per_s / num_bytes:.1f}" if num_bytes else ""
    return (
        f"{told}\nfrom the disk, at {format_rate(foretold.file_bytes_per_s)}: foretold "
        f"{format_bytes(int(foretold.file_bytes))} a token, which allows at most "
        f"{foretold.disk_bound:.1f} tokens/s; it was {format_bytes(int(num_bytes))}{bound}"
    )


def describe_rates(rates: TierRates) -> str:
    """Rates in one line."""
    parts = [f"a window without reads takes {1e3 * rates.window_s:.2f} ms"]
    if rates.is_divided:
        beside = rates.beside
        busy = "" if beside is None else f", beside copies {1e6 * beside.each:.0f} us"
        parts = [
            f"an expert costs the processor {1e6 * rates.asked.each:.0f} us "
            f"({format_rate(rates.pool_bytes_per_s)}){busy}, a copy "
            f"{1e6 * rates.staged.each:.0f} us ({format_rate(rates.copy_bytes_per_s)})",
            f"a window without misses takes {1e3 * rates.window_s:.2f} ms",
        ]
    if rates.link_bytes_per_s is not None:
        parts.append(f"moves beside windows {format_rate(rates.link_bytes_per_s)}")
    if rates.disk_bytes_per_s is not None:
        parts.append(f"reads from the disk {format_rate(rates.disk_bytes_per_s)}")
    if rates.read_once_s is not None and rates.read_each_s is not None:
        parts.append(
            f"a layer waits {1e3 * rates.read_once_s:.2f} ms for its reads and "
            f"{1e3 * rates.read_each_s:.2f} ms for each"
        )
    return "; ".join(parts)


def _place_table(counts: TierCounts) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("experts", "share", "bytes"):
        table.add_column(heading, justify="right")
    windows, prompts = counts.total("lookups"), counts.total("prompt_lookups")
    rows = (
        ("in slots", "hits", windows),
        ("computed by the processor", "computed", windows),
        ("copied for a window", "copied", windows),
        ("of these read from the disk", "from_file", windows),
        ("of these before they were asked for", "ahead_used", windows),
        ("read from the disk in vain", "ahead_dropped", 0),
        ("moved to slots", "moved", 0),
        ("prompts: in slots", "prompt_hits", prompts),
        ("prompts: copied", "prompt_copied", prompts),
    )
    for label, name, whole in rows:
        num = counts.total(name)
        if not num and name not in ("hits", "computed", "copied"):
            continue
        share = f"{100 * num / whole:.1f} %" if whole else ""
        table.add_row(label, str(num), share, format_bytes(counts.bytes_of(name)))
    return table


def _layer_table(counts: TierCounts) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "in slots", "computed", "copied", "from disk", "waited, us a window"):
        table.add_column(heading, justify="right")
    names = ("lookups", "hits", "computed", "copied", "from_file", "wait_ns")
    for layer, row in enumerate(zip(*(counts.of(name).tolist() for name in names), strict=True)):
        lookups, hits, computed, copied, from_file, wait_ns = row
        table.add_row(
            str(layer),
            f"{100 * hits / lookups:.1f} %" if lookups else "-",
            str(computed),
            str(copied),
            str(from_file),
            f"{wait_ns / 1e3 / max(1, counts.windows):.0f}",
        )
    return table
