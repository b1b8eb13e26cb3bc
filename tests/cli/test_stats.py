"""What ``--stats`` says: of counts made by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from rich.console import Console

from strata.cli.stats import compare, describe_rates, stats_parts
from strata.engine.request import Timings
from strata.tiers.counters import TierTally, add_ahead
from strata.tiers.forecast import Forecast
from strata.tiers.rates import TierRates
from strata.tiers.share import Cost


def shown(parts) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200)
    for part in parts:
        console.print(part)
    return out.getvalue()


def counts():
    tally = TierTally(np.array([1 << 20, 1 << 20]))
    tally.add_window(np.array([10, 10]), np.array([6, 9]), np.array([1, 0]))
    tally.add("answers", np.array([1, 1]))
    tally.add("answer_ns", np.array([3_000_000, 1_000_000]))
    tally.add("wait_ns", np.array([1_500_000, 0]))
    tally.add("moved", np.array([0, 2]))
    return tally.counts()


def test_places_waits_and_layers_are_told() -> None:
    rates = TierRates(1000, Cost(0, 1e-5), Cost(0, 2e-5), 0.0, 4e-3, 2e10, 3e9)
    text = shown(stats_parts(counts(), rates))
    for line in (
        "75.0 % of 20 looked up by 1 windows were in slots",
        "waited 1.50 ms for the processor, which computed 4.00 ms",
        "a window without misses takes 4.00 ms",
        "reads from the disk 3.0 GB/s",
    ):
        assert line in text
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["in slots"][-4:] == ["75.0", "%", "15.00", "MiB"]
    assert rows["computed by the processor"][-5:] == ["4", "20.0", "%", "4.00", "MiB"][-5:]
    assert rows["moved to slots"][-3:] == ["2", "2.00", "MiB"]
    assert "prompts: in slots" not in rows
    layers = [line.split() for line in text.splitlines()[-2:]]
    assert layers[0] == ["0", "60.0", "%", "3", "1", "0", "1500"]
    assert layers[1] == ["1", "90.0", "%", "1", "0", "0", "0"]


def test_without_slots_it_is_memory_that_is_told() -> None:
    tally = TierTally(np.array([1 << 20]))
    tally.add_window(np.array([8]), np.array([0]), np.array([0]))
    tally.add("from_file", np.array([2]))
    told = add_ahead(tally.counts(), np.array([[3, 1, 2, 2 << 20]]))
    text = shown(stats_parts(told, None))
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert rows["of these before they were asked for"][-5:] == ["1", "12.5", "%", "1.00", "MiB"]
    assert rows["read from the disk in vain"][-3:] == ["2", "2.00", "MiB"]
    assert told.tier_bytes["disk"] == 2 << 20
    assert "75.0 % of 8 looked up by 1 windows were in RAM" in text
    assert "of these read from the disk" in text


def test_without_an_expert_cache_one_line_is_enough() -> None:
    assert shown(stats_parts(None, None)).strip() == (
        "experts: all of them in one place; nothing to count."
    )


def test_what_the_disk_allows_stands_beside_what_was_read() -> None:
    tally = TierTally(np.array([1 << 20]))
    for _ in range(2):
        tally.add_window(np.array([8]), np.array([0]), np.array([0]))
    tally.add("from_file", np.array([4]))
    timings = Timings(5, 0, 11, 0.1, 0.1, 0.1, experts=tally.counts())
    limits = {"card": 0.0, "processor": 0.01, "link": 0.0, "disk": 0.01}
    told = compare(Forecast(0.0, 0.1, 0.02, limits, 1 << 20, 50 << 20), timings)
    assert told.splitlines()[1] == (
        "from the disk, at 0.1 GB/s: foretold 1.00 MiB a token, which allows at most 50.0 "
        "tokens/s; it was 2.00 MiB, which allows 25.0"
    )


def test_rates_of_a_processor_alone_speak_of_no_card() -> None:
    rates = TierRates(1000, Cost(0, 1e-9), Cost(0, 1e-9), 0.0, 4e-3, None, 3e9, 1e-4, 2e-3, False)
    told = describe_rates(rates)
    assert told == (
        "a window without reads takes 4.00 ms; reads from the disk 3.0 GB/s; a layer waits "
        "0.10 ms for its reads and 2.00 ms for each"
    )


def test_what_copies_cost_the_processor_is_told() -> None:
    rates = TierRates(1 << 20, Cost(1e-5, 2e-5), Cost(3e-5, 4e-5), 5e-6, 4e-3)
    begin, end = "an expert costs the processor 20 us (52.4 GB/s)", ", a copy 40 us (26.2 GB/s)"
    assert describe_rates(rates).startswith(begin + end)
    told = describe_rates(replace(rates, beside=Cost(1e-5, 3e-5)))
    assert told.startswith(f"{begin}, beside copies 30 us{end}")


def test_what_was_foretold_stands_beside_what_was() -> None:
    timings = Timings(5, 0, 11, 0.1, 0.1, 0.1, experts=counts())
    limits = {"card": 0.02, "processor": 0.0, "link": 0.0, "disk": 0.0}
    told = compare(Forecast(0.5, 0.0, 0.02, limits), timings)
    assert told == (
        "foretold for made-up routing: 50.0 % in slots, 50.0 tokens/s; it was 75.0 %, "
        "100.0 tokens/s (+100 %)"
    )
    assert "it was -, 0.0 tokens/s" in compare(
        Forecast(0.5, 0.0, 0.02, limits), replace(timings, generated_tokens=1, experts=None)
    )
