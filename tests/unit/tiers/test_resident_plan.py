"""Which experts are copied into memory: exact sets.

Checked against sets worked out by hand, and against a second version that looks at every slot.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import PlanError
from strata.tiers.resident_plan import (
    HEADROOM_BYTES,
    PlanWalk,
    complement,
    first_filling,
    lend_region,
    lent_slots,
    ram_budget,
    region_slots,
    resident_plan,
)
from strata.tiers.slots import Residency, layer_slots, shared_slots
from strata.units import GiB, MiB

LAYERS, EXPERTS = 3, 4
NUM_KEYS = LAYERS * EXPERTS
SIZES = [10, 20, 30]


def cache_of(*keys: int) -> Residency:
    """A cache with these keys in its slots, the first in slot 0."""
    residency = Residency(shared_slots(LAYERS, EXPERTS, len(keys)))
    for slot, key in enumerate(keys):
        residency.place(key, slot)
    return residency


def size_of(keys) -> int:
    return sum(SIZES[key // EXPERTS] for key in keys)


def test_the_plan_of_one_stage_is_what_no_slot_holds():  # B1
    plan = resident_plan([cache_of(0, 5, 11)], [0], SIZES, 10**9)
    assert plan.keys.tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert plan.num_bytes == size_of(plan.keys.tolist())
    assert (plan.num_complement, plan.num_lent, plan.num_wanted) == (9, 0, 0)


def test_every_stage_s_slots_count_as_held():  # B1
    plan = resident_plan([cache_of(0, 5, 11), cache_of(1, 2)], [0, 0], SIZES, 10**9)
    assert plan.keys.tolist() == [3, 4, 6, 7, 8, 9, 10]


def test_lend_regions_go_from_the_last_slot_down_stage_by_stage():  # B2
    stages = [cache_of(0, 5, 11), cache_of(1, 2, 6)]
    plan = resident_plan(stages, [2, 1], SIZES, 10**9)
    rest = [3, 4, 7, 8, 9, 10]
    assert plan.keys.tolist() == [*rest, 11, 5, 6]
    assert (plan.num_lent, plan.num_wanted) == (3, 3)


def test_what_two_stages_hold_is_kept_once():  # B2
    plan = resident_plan([cache_of(0, 5), cache_of(5, 0)], [2, 2], SIZES, 10**9)
    assert sorted(plan.keys.tolist()) == list(range(NUM_KEYS))
    assert plan.num_bytes == size_of(range(NUM_KEYS))
    assert plan.num_lent == 4


def test_a_stage_stops_at_the_first_that_does_not_fit_and_the_next_goes_on():  # B2, B3
    # Keys of layer 2 take 30, of layer 0 take 10: the first stage stops at its second slot.
    stages = [cache_of(1, 0, 11, 2), cache_of(9, 3)]
    held = {0, 1, 2, 3, 9, 11}
    rest = [key for key in range(NUM_KEYS) if key not in held]
    budget = size_of(rest) + 25
    plan = resident_plan(stages, [4, 2], SIZES, budget)
    # 2 fits, 11 does not, and ends the walk although 0 and 1 would fit; the next stage takes 3.
    assert plan.keys.tolist() == [*rest, 2, 3]
    assert plan.num_bytes <= budget
    assert (plan.num_lent, plan.num_wanted) == (2, 6)


def test_without_regions_nothing_of_the_slots_is_kept():
    plan = resident_plan([cache_of(*range(NUM_KEYS))], [0], SIZES, 10**9)
    assert plan.keys.tolist() == []
    assert plan.num_bytes == 0


def test_a_complement_that_does_not_fit_leaves_the_best():
    ranking = np.array([7, 3, 0, 8])
    plan = resident_plan([cache_of(0)], [0], SIZES, 55, ranking)
    # 7 and 3 are ranked, 0 is in a slot, 8 no longer fits; nor is anything after it tried.
    assert plan.keys.tolist() == [7, 3]


@pytest.mark.parametrize("bad", [-1, NUM_KEYS])
def test_a_walk_with_a_key_of_no_expert_leaves_the_plan_as_it_was(bad: int):  # B6
    walk = PlanWalk(SIZES, EXPERTS, 10**9)
    walk.add([4, 1])
    before = walk.keys.tolist(), walk.num_bytes
    with pytest.raises(PlanError, match=f"there is no expert {bad} among {NUM_KEYS}"):
        walk.add([2, bad])
    assert (walk.keys.tolist(), walk.num_bytes) == before
    assert walk.add([1, 2]) == 2
    assert walk.keys.tolist() == [4, 1, 2]


def test_the_region_is_as_large_as_what_is_really_borrowed():  # B7, the case of #1600
    # A larger ring takes more slots for each chunk; the region has to know of it.
    num_slots, percent = 6000, 90
    ladder = {96: [4100, 3000, 900], 384: [5396, 4662, 1400]}
    for needed in ladder.values():
        kept = region_slots(num_slots, needed, percent)
        borrowed = max(lent_slots(num_slots, need, percent) for need in needed)
        assert borrowed == kept
    assert region_slots(num_slots, ladder[384], percent) == 5396
    assert region_slots(num_slots, ladder[96], percent) == 4100
    assert region_slots(num_slots, ladder[384], percent, has_own_room=True) == 0


def test_a_prompt_leaves_slots_and_takes_no_more_than_its_share():
    assert lent_slots(1000, 872, 90) == 872
    assert lent_slots(1000, 873, 100) == 0  # 127 would be left
    assert lent_slots(2000, 1800, 90) == 1800
    assert lent_slots(2000, 1801, 90) == 0
    assert region_slots(2000, [1801, 500], 90) == 500


def test_a_region_passes_over_slots_without_an_expert():
    residency = Residency(shared_slots(LAYERS, EXPERTS, 4))
    residency.place(7, 1)
    assert lend_region(residency, 3) == [7]
    assert lend_region(residency, 2) == []


def test_memory_of_the_three_ways():  # B9
    cache = cache_of(0, 1, 5, 6, 9)
    whole = size_of(range(NUM_KEYS))
    resident = resident_plan([cache], [0], SIZES, 10**9).num_bytes
    with_regions = resident_plan([cache], [2], SIZES, 10**9).num_bytes
    assert resident < with_regions < whole


def test_the_budget_leaves_a_headroom_and_clamps_a_wish():
    assert ram_budget(58 * GiB, None) == 58 * GiB - HEADROOM_BYTES
    assert ram_budget(8 * GiB, None) == 7 * GiB
    assert ram_budget(58 * GiB, 20 * GiB) == 20 * GiB
    assert ram_budget(58 * GiB, 100 * GiB) == 58 * GiB - HEADROOM_BYTES - 256 * MiB


def test_slots_fill_from_the_ranking_and_then_layer_by_layer():
    ranking = np.array([9, 2])
    assert first_filling(shared_slots(LAYERS, EXPERTS, 5), ranking).key_in.tolist() == [
        9,
        2,
        0,
        4,
        8,
    ]
    own = first_filling(layer_slots(LAYERS, EXPERTS, 6), ranking)
    assert own.key_in.tolist() == [2, 0, 4, 5, 9, 8]


def looked_at_one_by_one(stages, lent, budget) -> list[int]:
    """The plan by the rules as they are written, one key after the other."""
    taken: list[int] = []

    def fits(key: int) -> bool:
        return size_of(taken) + SIZES[key // EXPERTS] <= budget

    for key in range(NUM_KEYS):
        if any(key in stage for stage in stages):
            continue
        if not fits(key):
            break
        taken.append(key)
    for stage, num in zip(stages, lent, strict=True):
        for slot in range(len(stage) - 1, max(-1, len(stage) - 1 - num), -1):
            key = stage[slot]
            if key in taken:
                continue
            if not fits(key):
                break
            taken.append(key)
    return taken


@given(st.data())
def test_the_plan_is_that_of_the_written_rules(data):
    keys = st.permutations(range(NUM_KEYS))
    stages = [data.draw(keys)[: data.draw(st.integers(1, NUM_KEYS))] for _ in range(2)]
    lent = [data.draw(st.integers(0, NUM_KEYS)) for _ in range(2)]
    budget = data.draw(st.integers(0, size_of(range(NUM_KEYS))))
    caches = [cache_of(*stage) for stage in stages]
    plan = resident_plan(caches, lent, SIZES, budget)
    assert plan.keys.tolist() == looked_at_one_by_one(stages, lent, budget)
    assert plan.num_bytes == size_of(plan.keys.tolist()) <= budget
    held = {key for stage in stages for key in stage}
    assert set(complement(caches).tolist()) == set(range(NUM_KEYS)) - held
