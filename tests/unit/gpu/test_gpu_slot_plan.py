"""Slots of a card: how many fit, how they are divided, what a plan with them says.

Checked against sums written down by hand.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.test_gpu_memory_plan import entries_of

from strata.errors import PlanError
from strata.formats.synth import GEOMETRIES, MIXES, uniform_mix
from strata.gpu.loan_plan import slots_for
from strata.gpu.memory_plan import Wishes, plan_memory
from strata.gpu.model_layout import model_layout
from strata.gpu.slot_plan import (
    SlotWishes,
    most_lent,
    plan_card,
    plan_with_slots,
    planned_slots,
    with_slots,
)
from strata.gpu.stream_plan import NUM_STREAMED, StreamShape
from strata.settings import EXPERT_POLICIES
from strata.tiers.policy_table import DEFAULT_POLICY, POLICIES
from strata.tiers.share import NUM_STAGES
from strata.tiers.slots import layer_slots, shared_slots
from strata.units import GiB


@pytest.fixture(scope="module")
def even():
    """All experts of one size."""
    spec, entries = entries_of(GEOMETRIES["bench"], uniform_mix("Q4_0"))
    return spec, entries, model_layout(entries, spec)


@pytest.fixture(scope="module")
def mixed():
    """Layers whose experts differ in size."""
    spec, entries = entries_of(GEOMETRIES["bench"], MIXES["q4_k"])
    return spec, entries, model_layout(entries, spec)


def test_slots_of_one_size_are_shared_and_fill_the_room(even) -> None:
    spec, _, layout = even
    blob = layout.layers[0].experts.blob_bytes
    slots = planned_slots(layout, spec, 100 * blob + 99, SlotWishes())
    assert (slots.num_slots, len(slots.pools)) == (100, 1)
    # As many as are wished for, and no more than fit.
    assert planned_slots(layout, spec, 100 * blob, SlotWishes(40)).num_slots == 40
    assert planned_slots(layout, spec, 100 * blob, SlotWishes(400)).num_slots == 100
    assert planned_slots(layout, spec, 5000 * blob, SlotWishes()).num_slots == 12 * 64
    assert planned_slots(layout, spec, -1, SlotWishes()).num_slots == 0


def test_slots_by_layer_are_as_many_for_each(mixed) -> None:
    spec, _, layout = mixed
    blobs = [layer.experts.blob_bytes for layer in layout.layers]
    assert len(set(blobs)) > 1
    slots = planned_slots(layout, spec, 7 * sum(blobs) + 1, SlotWishes())
    assert [len(pool) for pool in slots.pools] == [7] * 12
    assert slots.num_bytes == 7 * sum(blobs)
    with pytest.raises(PlanError, match="an expert of each layer takes"):
        planned_slots(layout, spec, sum(blobs) - 1, SlotWishes())
    with pytest.raises(PlanError, match="a slot for each layer: 12, not 11"):
        planned_slots(layout, spec, 7 * sum(blobs), SlotWishes(11))


def test_a_plan_counts_slots_and_what_experts_pass_through(even) -> None:
    spec, entries, layout = even
    wishes = Wishes(4096, "f16", 1024)
    whole = plan_memory(entries, spec, wishes)
    slots = layer_slots(spec.num_layers, spec.num_experts, 12 * 8)
    plan = plan_with_slots(entries, layout, spec, wishes, slots)
    blob = layout.layers[0].experts.blob_bytes
    # A slot: its blob and three factors; a layer: a number for each expert.
    assert plan.weights["routed experts"] == 12 * (8 * blob + 256 + 256)
    # A ring of three parts and a step's places for prompts, and their factors, which fit a page.
    num_places, pages = 3 * NUM_STAGES + 4 * NUM_STREAMED, -(-blob // 4096)
    assert plan.weights["experts on their way"] == (num_places * pages + 1) * 4096
    assert plan.weights["dense weights"] == whole.weights["dense weights"]
    assert dict(plan.session) == dict(whole.session)
    assert plan.total_bytes < whole.total_bytes < 100 * GiB


def test_slots_of_a_pool_lie_in_its_first_layer(even) -> None:
    spec, _, layout = even
    changed = with_slots(layout, shared_slots(spec.num_layers, spec.num_experts, 30))
    assert [layer.experts.num_slots for layer in changed.layers] == [30] + [0] * 11
    divided = with_slots(layout, layer_slots(spec.num_layers, spec.num_experts, 26))
    assert [layer.experts.num_slots for layer in divided.layers] == [2] * 11 + [4]


def test_the_policies_that_can_be_wished_for_are_those_there_are() -> None:
    assert set(EXPERT_POLICIES) == set(POLICIES)
    assert DEFAULT_POLICY == "ema"


def test_prompts_borrow_where_slots_are_shared_and_enough(even, mixed) -> None:
    spec, entries, layout = even
    wishes = Wishes(4096, "f16", 8192)
    whole = plan_memory(entries, spec, wishes)
    blob = layout.layers[0].experts.blob_bytes
    room = whole.total_bytes - 500 * blob
    own, few = plan_card(entries, layout, spec, wishes, SlotWishes(has_loans=False), room)
    lent, more = plan_card(entries, layout, spec, wishes, SlotWishes(), room)
    assert few is not None
    assert more is not None
    assert lent.wishes == Wishes(4096, "f16", 8192, has_loans=True)
    assert not own.wishes.has_loans
    # What prompts no longer have for good is slots; it is all used.
    assert more.num_slots > few.num_slots + 100
    assert "prompt buffers" not in lent.session
    assert 0 <= room - lent.total_bytes < blob
    num = most_lent(layout, spec, 4096, more, None)
    needed = [
        slots_for(spec, layout, 4096, chunk, stream_of(blob).num_bytes)
        for chunk in (4096, 3072, 2048, 1024, 512, 256)
    ]
    assert num == max(n for n in needed if n + 128 <= more.num_slots and n <= 0.9 * more.num_slots)

    # Slots that are divided, or too few, lend nothing.
    divided = SlotWishes(is_per_layer=True)
    plan, _ = plan_card(entries, layout, spec, wishes, divided, room)
    assert not plan.wishes.has_loans
    plan, slots = plan_card(entries, layout, spec, wishes, SlotWishes(130), room)
    assert slots is not None
    assert (slots.num_slots, plan.wishes.has_loans) == (130, False)
    spec, entries, layout = mixed
    whole = plan_memory(entries, spec, wishes)
    plan, slots = plan_card(
        entries, layout, spec, wishes, SlotWishes(), int(whole.total_bytes * 0.7)
    )
    assert slots is not None
    assert not plan.wishes.has_loans


def stream_of(blob: int) -> StreamShape:
    page_bytes = -(-blob // 4096) * 4096
    return StreamShape(NUM_STREAMED, page_bytes, page_bytes)
