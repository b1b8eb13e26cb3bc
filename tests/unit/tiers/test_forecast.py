"""Speed foretold from misses and costs, against the same layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strata.tiers.forecast import LIMITS, Demand, Places, demands, faster, forecast
from strata.tiers.policy_table import PolicyOptions
from strata.tiers.rates import TierRates
from strata.tiers.replay import replay
from strata.tiers.share import Cost, balanced, fixed_counts
from strata.tiers.slots import layer_slots, spread_keys
from strata.tiers.synthetic import SyntheticText, synthetic_trace

RATES = TierRates(1000, Cost(1e-5, 2e-5), Cost(3e-5, 4e-5), 5e-6, 4e-3, 2e10, 1e8)


def random_demand(seed: int, num: int = 200) -> Demand:
    rng = np.random.default_rng(seed)
    misses = rng.integers(0, 11, num)
    return Demand(np.full(num, 10), misses, np.minimum(misses, rng.integers(0, 3, num)))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, None])
@pytest.mark.parametrize("size", [1000, 500])
def test_a_window_takes_what_its_layers_take(share: float | None, size: int) -> None:
    demand, layers, scale = random_demand(1), 48, size / 1000
    asked, staged = Cost(1e-5, 2e-5 * scale), Cost(3e-5, 4e-5 * scale)
    counts = (
        balanced(10, asked, staged, idle=5e-6, max_staged=16)[0].tolist()
        if share is None
        else fixed_counts(10, share)
    )
    late = 0.0
    for misses, read in zip(demand.misses.tolist(), demand.from_file.tolist(), strict=True):
        copied = counts[misses]
        host = asked.of(misses - copied) + (2e-4 + read * size / 1e8 if read else 0.0)
        card = staged.of(copied) if copied else 5e-6
        late += max(0.0, max(host, card) - 5e-6) if misses else 0.0
    found = forecast(demand, layers, size, RATES, share)
    assert found.window_s == pytest.approx(4e-3 + layers * late / len(demand.misses), rel=1e-12)
    assert sum(found.limits.values()) == pytest.approx(found.window_s)
    assert found.binding == max(LIMITS, key=lambda name: found.limits[name])
    assert found.hit_rate == pytest.approx(1 - demand.misses.sum() / 2000)


def test_the_disk_s_rate_bounds_a_token() -> None:
    demand = random_demand(1)
    found = forecast(demand, 48, 500, RATES.with_reads(Cost(3e-4, 1e-5)), 0.0)
    reads = 48 * demand.from_file.sum() / len(demand.misses)
    assert found.file_bytes == pytest.approx(500 * reads)
    assert found.file_bytes_per_s == pytest.approx(1e8)
    assert found.disk_bound == pytest.approx(1e8 / (500 * reads))
    assert found.tokens_per_s < found.disk_bound
    # Half of the bytes take half of each read's time, and as long besides.
    layers = 48 / len(demand.misses)
    least = layers * (3e-4 * (demand.from_file > 0).sum() + 5e-6 * demand.from_file.sum())
    assert found.window_s >= 4e-3 + 0.5 * least
    zeros = np.zeros(10, np.int64)
    assert forecast(Demand(zeros, zeros, zeros), 48, 500, RATES, 0.0).disk_bound is None


def test_a_processor_alone_waits_for_the_disk_and_for_nothing_else() -> None:
    demand = random_demand(3)
    rates = replace(RATES.with_reads(Cost(3e-4, 1e-5)), is_divided=False)
    found = forecast(demand, 48, 1000, rates, None)
    layers = 48 / len(demand.misses)
    reads = layers * (3e-4 * (demand.from_file > 0).sum() + 1e-5 * demand.from_file.sum())
    assert found.limits == pytest.approx(
        {"card": 0.0, "processor": 4e-3, "link": 0.0, "disk": reads}
    )
    assert found.window_s == pytest.approx(4e-3 + reads)


def test_without_slots_all_look_ups_miss_and_a_cache_reads_the_rest() -> None:
    trace = synthetic_trace(SyntheticText(4, 32, 4, 60))
    for is_cold in (True, False):
        places = Places(4, 32, 0, 64, is_per_layer=True, is_cold=is_cold)
        (found,) = demands(trace, places, ((0, None),))
        assert found.hit_rate == 0.0
        order = [] if is_cold else spread_keys(4, 32).tolist()
        behind = replay(trace, layer_slots(4, 32, 64), "lru", ranking=order)
        assert found.from_file.sum() == (behind.lookups - behind.hits).sum()


def test_without_misses_only_the_card_counts() -> None:
    zeros = np.zeros(10, np.int64)
    found = forecast(Demand(np.full(10, 10), zeros, zeros), 48, 1000, RATES, None)
    assert (found.window_s, found.binding, found.hit_rate) == (4e-3, "card", 1.0)


@pytest.mark.parametrize("what", LIMITS)
def test_nothing_that_gets_faster_makes_a_window_longer(what: str) -> None:
    demand = random_demand(2)
    for share in (0.0, 0.5, None):
        now = forecast(demand, 48, 1000, RATES, share).window_s
        assert forecast(demand, 48, 1000, faster(RATES, what, 2.0), share).window_s <= now
    assert faster(replace(RATES, disk_bytes_per_s=None), "disk", 2.0).disk_bytes_per_s == 2e9


def test_demands_are_those_of_the_replay() -> None:
    trace = synthetic_trace(SyntheticText(4, 32, 4, 60), seed=3)
    # Twice the layers of the trace: it stands for all of them.
    places = Places(8, 32, in_vram=8 * 8, in_ram=8 * 8, is_per_layer=True)
    cold, warm = demands(trace, places, ((0, 30), (30, None)), max_admissions=1)
    order = np.arange(4 * 32).reshape(4, 32).T.reshape(-1).tolist()
    outcome = replay(
        trace, layer_slots(4, 32, 32), "ema", options=PolicyOptions(1), ranking=order
    )  # fmt: skip
    for part, windows in ((cold, outcome.part(0, 30)), (warm, outcome.part(30))):
        assert part.hit_rate == pytest.approx(outcome.hit_rate(windows))
        assert (part.from_file <= part.misses).all()
        assert part.from_file.sum() > 0
    whole = demands(trace, replace(places, in_ram=8 * 24), ((0, None),))[0]
    assert whole.from_file.sum() == 0
