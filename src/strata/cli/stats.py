"""What a run asked of the experts' places, as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from strata.units import format_bytes, format_rate

if TYPE_CHECKING:
    from rich.console import Console

    from strata.tiers.counters import TierCounts
    from strata.tiers.rates import TierRates


def print_stats(console: Console, counts: TierCounts | None, rates: TierRates | None) -> None:
    """Everything; says so where there is nothing to tell."""
    if counts is None:
        console.print("experts: all of them in one place; nothing to count.")
        return
    lookups, hit_rate = counts.total("lookups"), counts.hit_rate
    hits = "none" if hit_rate is None else f"{100 * hit_rate:.1f} %"
    console.print(
        f"experts: {hits} of {lookups} looked up by {counts.windows} windows were in slots"
    )
    console.print(_place_table(counts))
    if counts.windows and counts.total("answers"):
        wait_ms = counts.total("wait_ns") / 1e6 / counts.windows
        answer_ms = counts.total("answer_ns") / 1e6 / counts.windows
        console.print(
            f"a window waited {wait_ms:.2f} ms for the processor, which computed {answer_ms:.2f} ms"
        )
    if rates is not None:
        console.print(describe_rates(rates))
    console.print(_layer_table(counts))


def describe_rates(rates: TierRates) -> str:
    """Rates in one line."""
    parts = [
        f"an expert costs the processor {1e6 * rates.asked.each:.0f} us "
        f"({format_rate(rates.pool_bytes_per_s)}), a copy {1e6 * rates.staged.each:.0f} us "
        f"({format_rate(rates.copy_bytes_per_s)})",
        f"a window without misses takes {1e3 * rates.window_s:.2f} ms",
    ]
    if rates.link_bytes_per_s is not None:
        parts.append(f"moves beside windows {format_rate(rates.link_bytes_per_s)}")
    if rates.disk_bytes_per_s is not None:
        parts.append(f"reads from the file {format_rate(rates.disk_bytes_per_s)}")
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
        ("of these read from the file", "from_file", windows),
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
    for heading in ("layer", "in slots", "computed", "copied", "from file", "waited, us a window"):
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
