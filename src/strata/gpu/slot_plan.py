"""How many slots of experts a card has room for, and a model's layout with so many.

Numbers only: no torch, nothing is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strata.errors import PlanError
from strata.gpu.loan_plan import (
    LEAST_PERCENT,
    MOST_PERCENT,
    LoanRules,
    best_loan,
    chunks_to_try,
    slots_for,
)
from strata.gpu.memory_plan import MemoryPlan, session_bytes, weight_bytes, with_fitting_chunk
from strata.gpu.prompt_layout import MAX_CHUNK
from strata.gpu.stream_plan import NUM_STREAMED, StreamShape
from strata.tiers.resident_plan import region_slots
from strata.tiers.share import NUM_STAGES
from strata.tiers.slots import layer_slots, shared_slots
from strata.units import format_bytes, whole_pages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.formats.tensor_index import TensorEntry
    from strata.gpu.memory_plan import Wishes
    from strata.gpu.model_layout import ModelLayout
    from strata.model_spec import ModelSpec
    from strata.tiers.slots import SlotLayout

ADMISSIONS = 1
"""Misses of a layer that one window brings into slots: more would take the link from its needs."""

# Prompt tokens of a step where experts are brought to the card: room is better spent on slots.
TIERED_CHUNK = 2048
# Below this, memory of their own serves prompts better than what slots can spare.
_LEAST_LENT_CHUNK = 1024
# Of each stage: the bytes as the host has them, twice, and as products want them.
_STAGE_COPIES = 3


@dataclass(frozen=True, slots=True)
class SlotWishes:
    """What a user asks of the expert cache.

    Attributes:
        num_slots: of all layers together; None for as many as fit.
        is_per_layer: slots are divided by layer, not shared.
        reserve_bytes: left free by slots, for what no plan counts: code of kernels, graphs, tables.
        has_own_chunk: the steps of prompts were wished for, so slots do not shorten them.
        has_loans: prompts may borrow the memory of slots.
    """

    num_slots: int | None = None
    is_per_layer: bool = False
    reserve_bytes: int = 0
    has_own_chunk: bool = False
    has_loans: bool = True


def with_slots(layout: ModelLayout, slots: SlotLayout) -> ModelLayout:
    """The layout whose routed experts take these slots; those of a pool lie in its first layer."""
    layers = []
    is_taken = [False] * len(slots.pools)
    for layer, pool in zip(layout.layers, slots.pool_of_layer, strict=True):
        num_slots = 0 if is_taken[pool] else len(slots.pools[pool])
        is_taken[pool] = True
        layers.append(replace(layer, experts=replace(layer.experts, num_slots=num_slots)))
    return replace(layout, layers=tuple(layers))


def way_bytes(
    blob_bytes: int, num_stages: int = NUM_STAGES, num_streamed: int = NUM_STREAMED
) -> int:
    """Bytes on the card that experts of so many bytes pass through."""
    page_bytes = whole_pages(blob_bytes)
    stream = StreamShape(num_streamed, page_bytes, page_bytes)
    return _STAGE_COPIES * num_stages * page_bytes + stream.num_bytes


def planned_slots(
    layout: ModelLayout, spec: ModelSpec, room_bytes: int, wishes: SlotWishes
) -> SlotLayout:
    """The slots that fit ``room_bytes``, or those wished for where they are fewer.

    Slots of one size are shared by all layers unless that is not wished; where the experts of
    layers differ in size they are divided, as many for each.

    Raises:
        PlanError: fewer slots than layers are wished for, where each layer has its own.
    """
    blobs = [layer.experts.blob_bytes for layer in layout.layers]
    num_layers, num_experts = spec.num_layers, spec.num_experts
    if len(set(blobs)) == 1 and not wishes.is_per_layer:
        fit = max(0, room_bytes) // blobs[0]
        wanted = fit if wishes.num_slots is None else min(wishes.num_slots, fit)
        return shared_slots(num_layers, num_experts, wanted, blobs[0])
    quota = max(0, room_bytes) // sum(blobs)
    fit = min(quota, num_experts) * num_layers
    if fit == 0:
        raise PlanError(
            f"an expert of each layer takes {format_bytes(sum(blobs))} on the card, and there are "
            f"{format_bytes(max(0, room_bytes))} left.\n  Try: a larger --vram-limit, a smaller "
            "--context or --chunk, or --device cpu."
        )
    wanted = fit if wishes.num_slots is None else min(wishes.num_slots, fit)
    return layer_slots(num_layers, num_experts, wanted, blobs)


def plan_card(
    entries: Mapping[str, TensorEntry],
    layout: ModelLayout,
    spec: ModelSpec,
    wishes: Wishes,
    wished: SlotWishes,
    room_bytes: int,
) -> tuple[MemoryPlan, SlotLayout | None]:
    """What a model and a conversation take, and the slots where not every expert has one.

    The plan may be larger than the room: ``memory_plan.check_plan``.

    Raises:
        PlanError: not even an expert of each layer fits, where each layer has its own slots.
    """
    plan = MemoryPlan(weight_bytes(layout, entries), session_bytes(layout, spec, wishes), wishes)
    if wished.num_slots is None and plan.total_bytes <= room_bytes:
        return with_fitting_chunk(plan, layout, spec, room_bytes), None
    wished_chunk = wishes.chunk if wished.has_own_chunk else None
    own = wishes if wished_chunk else replace(wishes, chunk=min(wishes.chunk, TIERED_CHUNK))
    slots = _slots_beside(entries, layout, spec, own, wished, room_bytes)
    if wished.num_slots is None and slots.num_slots == spec.num_layers * spec.num_experts:
        # With shorter steps everything fits: nothing has to lie in memory as well.
        plan = replace(plan, session=session_bytes(layout, spec, own), wishes=own)
        return with_fitting_chunk(plan, layout, spec, room_bytes), None
    if wished.has_loans:
        borrowing = replace(wishes, has_loans=True)
        more = _slots_beside(entries, layout, spec, borrowing, wished, room_bytes)
        if can_lend(layout, spec, wishes.capacity, more, wished_chunk):
            return plan_with_slots(entries, layout, spec, borrowing, more), more
    plan = plan_with_slots(entries, layout, spec, own, slots)
    return with_fitting_chunk(plan, layout, spec, room_bytes), slots


def can_lend(
    layout: ModelLayout, spec: ModelSpec, capacity: int, slots: SlotLayout, wished_chunk: int | None
) -> bool:
    """Whether prompts of some length find slots enough to borrow, and their chunks are not short.

    Args:
        layout: of the model.
        spec: its geometry.
        capacity: tokens of a conversation.
        slots: there are.
        wished_chunk: rows of a chunk asked for, or None.
    """
    if len(slots.pools) != 1 or not slots.num_slots:
        return False
    rows, stream = min(capacity, MAX_CHUNK), _stream_bytes(layout)
    loan = best_loan(
        rows,
        LoanRules(wished_chunk),
        lambda chunk: slots_for(spec, layout, capacity, chunk, stream),
        num_slots=slots.num_slots,
        num_pairs=spec.num_layers * spec.num_experts,
        percent=LEAST_PERCENT,
    )
    return loan is not None and loan.chunk >= min(rows, wished_chunk or rows, _LEAST_LENT_CHUNK)


def most_lent(
    layout: ModelLayout, spec: ModelSpec, capacity: int, slots: SlotLayout, wished_chunk: int | None
) -> int:
    """Slots that prompts of a conversation ever borrow at a time; see ``can_lend``."""
    needed = [
        slots_for(spec, layout, capacity, chunk, _stream_bytes(layout))
        for chunk in chunks_to_try(capacity, wished_chunk)
    ]
    return region_slots(slots.num_slots, needed, MOST_PERCENT)


def _stream_bytes(layout: ModelLayout) -> int:
    page_bytes = whole_pages(layout.layers[0].experts.blob_bytes)
    return StreamShape(NUM_STREAMED, page_bytes, page_bytes).num_bytes


def _slots_beside(
    entries: Mapping[str, TensorEntry],
    layout: ModelLayout,
    spec: ModelSpec,
    wishes: Wishes,
    wished: SlotWishes,
    room_bytes: int,
) -> SlotLayout:
    """Slots that fit beside everything else."""
    none = shared_slots(spec.num_layers, spec.num_experts, 0)
    bare = plan_with_slots(entries, layout, spec, wishes, none)
    return planned_slots(layout, spec, room_bytes - wished.reserve_bytes - bare.total_bytes, wished)


def plan_with_slots(
    entries: Mapping[str, TensorEntry],
    layout: ModelLayout,
    spec: ModelSpec,
    wishes: Wishes,
    slots: SlotLayout,
) -> MemoryPlan:
    """What a model with these slots and one conversation take on the card."""
    weights = weight_bytes(with_slots(layout, slots), entries)
    blob = max(layer.experts.blob_bytes for layer in layout.layers)
    num_streamed = 0 if wishes.has_loans else NUM_STREAMED
    weights["experts on their way"] = way_bytes(blob, NUM_STAGES, num_streamed)
    return MemoryPlan(weights, session_bytes(layout, spec, wishes), wishes)
