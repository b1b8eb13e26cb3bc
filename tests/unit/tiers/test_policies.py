"""Every policy against ``history_models``, decision by decision, on random runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.tiers.history_models import HistoryModel

from strata.errors import SettingsError
from strata.tiers.adaptive import ONE_USE, DecayedSwaps
from strata.tiers.policy_table import POLICIES, PolicyOptions, make_policy
from strata.tiers.replay import carry_out, replay
from strata.tiers.slots import Residency, layer_slots, shared_slots
from strata.tiers.synthetic import SyntheticText, synthetic_trace

EXPERTS = 6


@st.composite
def runs(draw):
    """(layout, windows): each window is (is_prompt, rows kept, rows by layer)."""
    num_layers = draw(st.integers(1, 3))
    divided = draw(st.sampled_from([shared_slots, layer_slots]))
    layout = divided(num_layers, EXPERTS, draw(st.integers(num_layers, num_layers * EXPERTS)))
    top_k = draw(st.integers(1, 3))
    # A few favourites make counts reach what swaps ask for.
    row = st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5]), min_size=top_k, max_size=top_k,
                   unique=True)  # fmt: skip
    windows = []
    for _ in range(draw(st.integers(1, 12))):
        num_rows = draw(st.integers(1, 3))
        rows = st.lists(row, min_size=num_rows, max_size=num_rows)
        by_layer = [draw(rows) for _ in range(num_layers)]
        is_prompt = draw(st.integers(0, 7)) == 0
        windows.append((is_prompt, draw(st.integers(0, num_rows)), by_layer))
    return layout, windows


@pytest.mark.parametrize("name", list(POLICIES))
@settings(max_examples=60, deadline=None)
@given(run=runs(), cap=st.sampled_from([None, None, 0, 1, 2]))
def test_decisions(name, run, cap):
    layout, windows = run
    options = PolicyOptions(max_admissions=cap, swap_most=96 if cap is None else cap)
    residency = Residency(layout)
    policy = make_policy(name, residency, options)
    pools = [layout.pools[p].tolist() for p in layout.pool_of_layer]
    model = HistoryModel(name, pools, EXPERTS, cap)
    for is_prompt, num_kept, by_layer in windows:
        for layer, rows in enumerate(by_layer):
            admitted = policy.ask(layer, np.array(rows), is_prompt=is_prompt)
            told = [(*divmod(a.key, EXPERTS), a.slot) for a in admitted]
            assert told == model.ask(layer, rows, is_prompt)
            asked = {layer * EXPERTS + expert for row in rows for expert in row}
            if not is_prompt:
                given_up = {int(residency.key_in[a.slot]) for a in admitted}
                assert not given_up & asked
                assert cap is None or len(admitted) <= cap
            carry_out(residency, admitted)
        swaps = policy.settle(0 if is_prompt else num_kept)
        if name == "ema" and not is_prompt:
            assert cap is None or len(swaps) <= cap * len(by_layer)
        told = [(*divmod(a.key, EXPERTS), a.slot) for a in swaps]
        assert told == model.settle(0 if is_prompt else num_kept)
        carry_out(residency, swaps)
    assert {slot: divmod(key, EXPERTS) for slot, key in enumerate(residency.key_in.tolist())
            if key >= 0} == model.slots  # fmt: skip


@pytest.mark.parametrize("name", list(POLICIES))
def test_long_run_decides_as_the_model(name):
    """Past the 64 windows after which the filter halves, and with every mix in play."""
    rng = np.random.default_rng(5)
    layout = layer_slots(2, EXPERTS, 5)
    residency = Residency(layout)
    policy = make_policy(name, residency)
    model = HistoryModel(name, [p.tolist() for p in layout.pools], EXPERTS)
    for number in range(140):
        favourites = (
            np.array([8.0, 5, 1, 1, 1, 1]) if number < 70 else np.array([1.0, 1, 1, 9, 1, 6])
        )
        for layer in range(2):
            chances = favourites / favourites.sum()
            rows = [rng.choice(EXPERTS, 2, replace=False, p=chances).tolist()]
            admitted = policy.ask(layer, np.array(rows), is_prompt=False)
            told = [(*divmod(a.key, EXPERTS), a.slot) for a in admitted]
            assert told == model.ask(layer, rows, False)
            carry_out(residency, admitted)
        swaps = policy.settle(1)
        assert [(*divmod(a.key, EXPERTS), a.slot) for a in swaps] == model.settle(1)
        carry_out(residency, swaps)


def test_swaps_wait_for_four_windows_and_one_and_a_half_uses():
    """2.3.4 by hand: the resident 0 is used once, 1 three times; 1 takes the slot."""
    residency = Residency(layer_slots(1, 3, 1))
    residency.fill([0])
    policy = make_policy("swaps", residency)
    for row in ([0], [1], [1]):
        assert policy.ask(0, np.array([row]), is_prompt=False) == []
        assert policy.settle(1) == []
    policy.ask(0, np.array([[1]]), is_prompt=False)
    assert policy.settle(1) == [(1, 0)]
    residency.place(1, 0)
    # Now 0 has 0.7 and 1 has 2.1; after four uses of 0, 4.7 against 2.1.
    for _ in range(3):
        policy.ask(0, np.array([[0]]), is_prompt=False)
        assert policy.settle(1) == []
    policy.ask(0, np.array([[0]]), is_prompt=False)
    assert policy.settle(1) == [(0, 0)]


def test_a_gain_of_just_one_and_a_half_is_enough_and_counts_fade_by_seven_tenths():
    residency = Residency(layer_slots(1, 3, 1))
    residency.fill([0])
    policy = DecayedSwaps(residency, every=1, decay=ONE_USE // 2)
    policy.ask(0, np.array([[0]]), is_prompt=False)
    assert policy.settle(1) == []
    policy.ask(0, np.array([[1], [1]]), is_prompt=False)
    assert policy.settle(2) == [(1, 0)]  # two uses against half of one

    policy = DecayedSwaps(residency, every=1)
    policy.ask(0, np.array([[2]]), is_prompt=False)
    policy.settle(1)
    assert policy.heat().tolist() == [[0, 0, int(0.7 * ONE_USE)]]


def test_rows_that_were_not_kept_do_not_count_for_swaps():
    residency = Residency(layer_slots(1, 3, 1))
    policy = make_policy("swaps", residency)
    for _ in range(4):
        policy.ask(0, np.array([[1], [2]]), is_prompt=False)
        last = policy.settle(1)
    assert last == [(1, 0)]


def test_averages_learn_a_row_of_a_prompt_as_they_learn_a_window():
    """Fading once in eight rows, they would remember the last 64 rows alike after a prompt."""
    rows = np.random.default_rng(3).integers(0, EXPERTS, (20, 1))
    policies = [make_policy("ema", Residency(layer_slots(1, EXPERTS, 2))) for _ in range(2)]
    policies[0].ask(0, rows, is_prompt=True)
    policies[0].settle(0)
    for row in rows:
        policies[1].ask(0, row[None], is_prompt=False)
        policies[1].settle(1)
    for policy in policies:
        policy._best = 0  # which memory is read differs, for prompts judge none
    np.testing.assert_array_equal(policies[0].heat(), policies[1].heat())


@pytest.mark.parametrize("slots", [32, 64, 128])
def test_averages_are_not_below_lru_after_a_prompt(slots):
    """First 24 tokens after 64 rows of a prompt, as a card is taught; up to 5 points before."""
    trace = synthetic_trace(SyntheticText(4, 256, 10, num_decoded=24, num_prompt=1024), seed=2)
    last = trace.windows[1]
    windows = (replace(last, ids=last.ids[:, -64:], num_kept=64), *trace.windows[2:])
    trace = replace(trace, windows=windows)
    rates = {}
    for name in ("lru", "ema"):
        outcome = replay(trace, layer_slots(4, 256, 4 * slots), name, options=PolicyOptions(1))
        rates[name] = outcome.hit_rate(outcome.part(0))
    assert rates["ema"] > rates["lru"]


def test_trades_that_gain_most_share_the_cap_of_all_layers():
    """Two trades for two layers; of three misses that gain the same, both are layer 0's."""
    for cap, expected in ((1, [(2, 0), (3, 1)]), (2, [(2, 0), (3, 1), (6, 3)]), (0, [])):
        residency = Residency(layer_slots(2, 4, 4))
        residency.fill([0, 1, 4, 5])
        policy = make_policy("ema", residency, PolicyOptions(cap))
        assert policy.ask(0, np.array([[2, 3]]), is_prompt=False) == []
        assert policy.ask(1, np.array([[0, 2]]), is_prompt=False) == []
        assert policy.settle(1) == expected


def test_a_free_slot_goes_before_residents_worth_nothing():
    residency = Residency(layer_slots(1, 4, 2))
    residency.fill([0])
    policy = make_policy("ema", residency)
    policy.ask(0, np.array([[2]]), is_prompt=False)
    assert policy.settle(1) == [(2, 1)]


def test_what_is_worth_nothing_was_foreseen_by_nobody():
    """Every memory is empty before the first window, and each knows both experts by the second."""
    policy = make_policy("ema", Residency(layer_slots(1, 4, 3)))
    policy.ask(0, np.array([[0, 1]]), is_prompt=False)
    policy.settle(1)
    assert not policy._foreseen.any()
    policy.ask(0, np.array([[0, 1]]), is_prompt=False)
    policy.settle(1)
    assert (policy._foreseen == 2 << 16).all()


def test_unknown_policy_names_the_nearest():
    with pytest.raises(SettingsError, match="--policy lru"):
        make_policy("lri", Residency(layer_slots(1, 3, 1)))
