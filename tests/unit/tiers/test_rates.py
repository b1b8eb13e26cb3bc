"""Costs learned from windows: against lines that observations were made from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.errors import CheckpointError
from strata.tiers.rates import (
    Average,
    CostMeter,
    TierRates,
    read_rates,
    unknown_read,
    write_rates,
)
from strata.tiers.share import Cost

if TYPE_CHECKING:
    from pathlib import Path

RATES = TierRates(1000, Cost(1e-5, 2e-5), Cost(3e-5, 4e-5), 5e-6, 4e-3, 2e10, None)


def observe(meter: CostMeter, cost: Cost, windows: int, seed: int = 0, lowest: int = 1) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(windows):
        nums = rng.integers(lowest, 11, 48)
        noise = rng.normal(1.0, 0.05, 48)
        meter.add(nums, (cost.once + cost.each * nums) * noise)


def test_before_anything_was_seen_the_prior_holds() -> None:
    prior = Cost(1e-5, 3e-5)
    assert CostMeter(prior).cost == prior


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_rates_that_change_are_followed(factor: float) -> None:
    meter = CostMeter(Cost(1e-5, 3e-5), 10)
    observe(meter, Cost(1e-5, 3e-5), 200)
    now = Cost(1.5e-5, factor * 3e-5)
    observe(meter, now, 300, seed=1)
    assert meter.cost.each == pytest.approx(now.each, rel=0.05)
    assert meter.cost.of(5) == pytest.approx(now.of(5), rel=0.03)


def test_where_one_number_is_seen_both_parts_change_alike() -> None:
    meter = CostMeter(Cost(1e-5, 2e-5), 10)
    for _ in range(50):
        meter.add(np.full(48, 5), np.full(48, 2 * 1.1e-4))
    assert meter.cost.once == pytest.approx(2e-5, rel=0.02)
    assert meter.cost.each == pytest.approx(4e-5, rel=0.02)


def test_an_interrupted_thread_says_little() -> None:
    meter, cost = CostMeter(Cost(1e-5, 3e-5), 10), Cost(1e-5, 3e-5)
    observe(meter, cost, 100)
    nums = np.arange(1, 11)
    seconds = cost.once + cost.each * nums
    seconds[3] = 0.5
    meter.add(nums, seconds)
    assert meter.cost.of(6) == pytest.approx(cost.of(6), rel=0.05)


def test_no_part_of_a_cost_becomes_negative() -> None:
    meter = CostMeter(Cost(1e-5, 3e-5), 10)
    for _ in range(300):
        meter.add(np.array([1, 10]), np.array([3e-4, 1e-4]))
    falling = meter.cost
    assert falling.once >= 0
    assert falling.each > 0
    meter = CostMeter(Cost(1e-5, 3e-5), 10)
    for _ in range(300):
        meter.add(np.array([1, 10]), np.array([1e-6, 1e-3]))
    assert meter.cost.once == 0
    assert meter.cost.each > 0


def test_an_average_forgets() -> None:
    average = Average()
    assert average.value is None
    assert Average(3.0).value == 3.0
    average.add(np.full(48, 1.0))
    average.add(np.array([]))
    assert average.value == 1.0
    for _ in range(400):
        average.add(np.full(48, 2.0))
    assert average.value == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    "rates",
    [
        RATES,
        RATES.with_reads(Cost(1e-4, 5e-7)),
        replace(RATES, is_divided=False),
        replace(RATES, beside=Cost(2e-5, 5e-5)),
    ],
)
def test_a_file_of_rates_comes_back(tmp_path: Path, rates: TierRates) -> None:
    path = tmp_path / "rates.json"
    write_rates(path, rates)
    assert read_rates(path) == rates


def test_reads_cost_what_was_measured_or_is_believed() -> None:
    assert RATES.read == unknown_read(1000)
    measured = RATES.with_reads(Cost(1e-4, 5e-7))
    assert measured.disk_bytes_per_s == pytest.approx(2e9)
    assert measured.read.of(3) == pytest.approx(1e-4 + 3 * 5e-7)
    assert RATES.with_reads(None) is RATES
    overlapping = RATES.with_reads(Cost(1e-4, 5e-7), 1e9)
    assert overlapping.disk_bytes_per_s == 1e9
    assert overlapping.read == measured.read
    # Of a file written before anybody measured what a read costs besides.
    assert replace(RATES, disk_bytes_per_s=1e8).read == Cost(2e-4, 1e-5)


def test_a_file_of_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    write_rates(path, RATES)
    told = json.loads(path.read_text())
    for name in ("read_once_s", "read_each_s", "is_divided", "beside"):
        del told[name]
    path.write_text(json.dumps(told))
    assert read_rates(path) == RATES
    assert RATES.pool_bytes_per_s == pytest.approx(5e7)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"kind": "other"}, "kind 'other'"),
        ({"version": 2}, "version 2"),
        ({"window_s": 0}, "a rate is zero"),
        ({"asked": {"once": 0.0, "each": -1.0}}, "a rate is zero"),
        ({"asked": None}, "TypeError"),
        ({"disk_bytes_per_s": "fast"}, "ValueError"),
        ({"read_once_s": -1.0}, "a rate is zero"),
        ({"read_each_s": 0.0}, "a rate is zero"),
        ({"idle_s": float("nan")}, "a rate is zero"),
        ({"expert_bytes": float("inf")}, "OverflowError"),
        ({"beside": {"once": 0.0, "each": 0.0}}, "a rate is zero"),
        ({"beside": {"once": -1.0, "each": 1e-5}}, "a rate is zero"),
        ({"beside": {"once": 0.0}}, "KeyError"),
        ({"beside": [1.0, 2.0]}, "TypeError"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, change: dict[str, object], what: str
) -> None:
    path = tmp_path / "rates.json"
    write_rates(path, RATES)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=what):
        read_rates(path)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_bytes(b"\x80 no")
    with pytest.raises(CheckpointError, match="cannot be used"):
        read_rates(path)
