"""Slots that close and open while a cache is in use: nobody is lost but those who lie there."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.tiers.policy_table import POLICIES, make_policy
from strata.tiers.replay import carry_out
from strata.tiers.slots import EMPTY, Residency, layer_slots, opened, shared_slots

LAYERS, EXPERTS = 3, 6


def layout_of(*, is_shared: bool, num_slots: int):
    make = shared_slots if is_shared else layer_slots
    return make(LAYERS, EXPERTS, num_slots)


@given(st.booleans(), st.integers(3, 18), st.integers(0, 20))
def test_the_first_slots_of_each_pool_stay_open(
    is_shared: bool,  # noqa: FBT001
    num_slots: int,
    wanted: int,
) -> None:
    layout = layout_of(is_shared=is_shared, num_slots=num_slots)
    num_slots = layout.num_slots  # the last layer has no more than its experts
    fewer = opened(layout, wanted)
    assert np.array_equal(fewer.offsets, layout.offsets)
    for old, new in zip(layout.pools, fewer.pools, strict=True):
        assert np.array_equal(new, old[: len(new)])
    num_open = sum(map(len, fewer.pools))
    # By layer each pool is rounded down, and keeps one.
    assert min(num_slots, wanted) - LAYERS < num_open <= max(LAYERS, min(num_slots, wanted))
    assert sum(map(len, opened(layout, num_slots).pools)) == num_slots


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(sorted(POLICIES)))
def test_residents_are_right_through_any_row_of_limits(
    seed: int,
    is_shared: bool,  # noqa: FBT001
    name: str,
) -> None:
    rng = np.random.default_rng(seed)
    layout = layout_of(is_shared=is_shared, num_slots=9)
    residency = Residency(layout)
    residency.fill(range(LAYERS * EXPERTS))
    policy = make_policy(name, residency)
    for _ in range(30):
        if rng.random() < 0.3:
            now = opened(layout, int(rng.integers(0, 11)))
            before = {int(k): int(residency.slot_of[k]) for k in residency.resident_keys}
            lost = residency.reopen(now)
            is_open = set(np.concatenate(now.pools).tolist())
            assert set(lost) == {key for key, slot in before.items() if slot not in is_open}
            for key, slot in before.items():
                assert residency.slot_of[key] == (slot if slot in is_open else EMPTY)
        for layer in range(LAYERS):
            rows = rng.permutation(EXPERTS)[None, :2]
            carry_out(residency, policy.ask(layer, rows, is_prompt=False))
        carry_out(residency, policy.settle(1))
        is_open = set(np.concatenate(residency.layout.pools).tolist())
        for slot, key in enumerate(residency.key_in.tolist()):
            assert key == EMPTY or (slot in is_open and residency.slot_of[key] == slot)
