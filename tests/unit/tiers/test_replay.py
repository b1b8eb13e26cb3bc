"""Replay's counts against a list kept by hand, and the default policy on recorded traces."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from training.eval_routing import lru_hits

from strata.errors import SettingsError
from strata.tiers.policy_table import DEFAULT_POLICY, POLICIES, PolicyOptions
from strata.tiers.replay import OPTIMUM, replay
from strata.tiers.routing_trace import RoutingTrace, RoutingWindow, WindowKind, read_trace
from strata.tiers.slots import layer_slots, shared_slots
from strata.tiers.synthetic import SyntheticText, synthetic_trace

RECORDED = sorted((Path(__file__).resolve().parents[3] / "benchmarks" / "routing").glob("*.strt"))
# Of 32: an eighth to nearly all. The gap to the optimum is within ten points from the second on.
SLOTS = (4, 8, 12, 16, 20, 24, 28)
CLOSE_FROM = {"stories": 16, "drafts": 16, "tasks": 20}


def trace_of(rows, num_experts, kind=WindowKind.DECODE):
    """One layer, one row a window."""
    windows = tuple(
        RoutingWindow(kind, n, 1, np.array([[row]], np.uint16)) for n, row in enumerate(rows)
    )
    return RoutingTrace("", 1, num_experts, len(rows[0]), windows)


def rate(outcome):
    return outcome.hit_rate(outcome.part(0))


def test_lru_counts_as_an_ordered_dictionary_does():
    """With one expert a row the two agree; with more, ours keeps what the row itself asks for."""
    ids = np.random.default_rng(0).integers(0, 12, (400, 1))
    trace = trace_of(ids.tolist(), 12)
    for slots in (1, 3, 7, 12):
        outcome = replay(trace, layer_slots(1, 12, slots), "lru")
        assert int(outcome.hits.sum()) == lru_hits(ids, slots)
        misses = int(outcome.lookups.sum() - outcome.hits.sum())
        assert int(outcome.admissions.sum()) == misses


def test_prompt_and_parts_are_counted_apart():
    prompt = RoutingWindow(WindowKind.PROMPT, 0, 2, np.array([[[0, 1], [1, 2]]], np.uint16))
    decode = [
        RoutingWindow(WindowKind.DECODE, 2 + n, kept, np.array([rows], np.uint16))
        for n, (kept, rows) in enumerate([(1, [[0, 3]]), (0, [[4, 5]]), (2, [[1, 2], [1, 3]])])
    ]
    outcome = replay(RoutingTrace("", 1, 6, 2, (prompt, *decode)), layer_slots(1, 6, 3), "lfu")
    # Uses of the prompt: 1 twice. Then 3 comes for 2, the least and of equals the higher stays.
    assert outcome.lookups[:, 0].tolist() == [3, 2, 2, 3]
    assert outcome.hits[0, 0] == 0
    assert outcome.hits[1, 0] == 1
    assert outcome.decoded.tolist() == [0, 1, 0, 2]
    assert outcome.is_prompt.tolist() == [True, False, False, False]
    assert outcome.part(0, 1).tolist() == [False, True, False, False]
    assert outcome.part(1).tolist() == [False, False, True, True]
    assert outcome.hit_rate(outcome.part(0, 1)) == 0.5
    assert outcome.hit_rate(outcome.part(9)) is None
    assert outcome.layer_hit_rates(outcome.part(0, 1)) == [0.5]


def test_a_profile_turns_first_misses_into_hits():
    trace = trace_of([[0], [1], [2], [0]], 4)
    assert rate(replay(trace, layer_slots(1, 4, 3), "lru")) == 0.25
    assert rate(replay(trace, layer_slots(1, 4, 3), "lru", ranking=[0, 1, 2])) == 1.0


def test_hits_rise_from_cold_to_warm():
    """Acceptance A5, at 64 slots of 512 a layer: lower when cold than later on."""
    trace = synthetic_trace(SyntheticText(num_layers=4, num_decoded=600))
    outcome = replay(trace, layer_slots(4, 512, 256), DEFAULT_POLICY)
    cold, warm = outcome.hit_rate(outcome.part(0, 300)), outcome.hit_rate(outcome.part(300))
    assert cold + 0.1 < warm


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
@pytest.mark.parametrize("slots", SLOTS)
def test_default_policy_on_recorded_traces(path: Path, slots: int):
    trace = read_trace(path)
    layout = layer_slots(trace.num_layers, trace.num_experts, slots * trace.num_layers)
    rates = {name: rate(replay(trace, layout, name)) for name in (*POLICIES, OPTIMUM)}
    ours, best = rates[DEFAULT_POLICY], rates[OPTIMUM]
    assert ours >= rates["lru"]
    # From three quarters on the policies lie within a tenth of a point of each other.
    slack = 0.0015 if slots >= 24 else 0.0
    others = [value for name, value in rates.items() if name != OPTIMUM]
    assert ours >= max(others) - slack
    if slots >= CLOSE_FROM[path.stem]:
        assert best - ours <= 0.10


def test_there_are_recorded_traces():
    assert [path.stem for path in RECORDED] == ["drafts", "stories", "tasks"]


@pytest.mark.parametrize("slots", [93, 186, 279, 372])
def test_default_policy_on_made_up_routing(slots: int):
    trace = synthetic_trace(SyntheticText(num_layers=6, num_decoded=400, num_texts=2), 1)
    layout = layer_slots(6, 512, slots * 6)
    rates = {name: rate(replay(trace, layout, name)) for name in ("lru", "lfu", "swaps", "ema")}
    # Nothing can be learned here beyond what recency tells: it equals LRU to a tenth of a point.
    assert rates["ema"] >= max(rates.values()) - 0.001


def test_only_kept_rows_count():
    ids = np.array([[[2], [1]]], np.uint16)
    windows = tuple(RoutingWindow(WindowKind.DECODE, n, 1, ids) for n in range(4))
    outcome = replay(RoutingTrace("", 1, 4, 1, windows), layer_slots(1, 4, 1), "swaps")
    assert outcome.resident.tolist() == [2]


def test_the_ranking_and_options_reach_the_policy():
    trace = synthetic_trace(SyntheticText(2, 16, 3, num_decoded=50))
    still = PolicyOptions(max_admissions=0)
    outcome = replay(
        trace, shared_slots(2, 16, 10), "lru", ranking=range(31, -1, -1), options=still
    )
    assert outcome.hits[:, 0].sum() == 0  # the ranking gave every slot to layer 1
    assert outcome.hits[:, 1].sum() > 0
    none = replay(trace, layer_slots(2, 16, 8), "lru", options=still)
    assert none.hits.sum() == none.admissions.sum() == 0


def test_another_geometry_is_refused():
    with pytest.raises(SettingsError, match="the trace has 1 layers of 4 experts") as caught:
        replay(trace_of([[0]], 4), layer_slots(1, 5, 2), "lru")
    assert "Try:" in str(caught.value)


def test_replay_takes_seconds():
    """300 tokens, 48 layers, ten of 512 experts; the limit is ten times what it takes here."""
    trace = synthetic_trace(SyntheticText(num_decoded=300))
    start = time.process_time()
    replay(trace, layer_slots(48, 512, 186 * 48), DEFAULT_POLICY)
    assert time.process_time() - start < 15
