"""What a model and one conversation take on a card, known before anything is allocated.

Pure numbers: no torch, no card. The figures are those of the very shapes that ``weights``,
``state`` and ``buffers`` allocate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strata.errors import PlanError
from strata.gpu.draft_layout import draft_shapes
from strata.gpu.model_layout import model_layout
from strata.gpu.prompt_layout import CUT_TOKENS, MAX_CHUNK, MIN_CHUNK, prompt_shapes
from strata.gpu.session_layout import state_shapes, window_shapes
from strata.gpu.shapes import Shape, total_bytes
from strata.model_spec import LayerKind
from strata.units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from strata.formats.tensor_index import TensorEntry
    from strata.gpu.model_layout import DraftLayout, ExpertsLayout, ModelLayout
    from strata.model_spec import ModelSpec

# Stored bytes are re-laid some at a time on the card; it is done before a session's memory is
# taken, so only the larger of the two counts.
LOADING_BYTES = 640 * MiB
# What a driver takes for its context and the machine code of kernels; a limit includes it.
DRIVER_BYTES = 512 * MiB
# Scores a program of the selection holds, cells of a part of the attention: ``indexer.SELECT_TILE``
# and the tile of ``attention``, which cannot be imported without triton.
SELECT_TILE = 8192
PART_CELLS = 32
_CONTEXT_STEP = 256


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the size of a conversation follows from.

    Attributes:
        capacity: tokens.
        kv_format: of keys and values.
        chunk: prompt rows at a time.
        has_loans: prompts borrow the memory of slots, so their buffers take none of their own.
    """

    capacity: int
    kv_format: str
    chunk: int = MAX_CHUNK
    has_loans: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on the card.

    Attributes:
        weights: by what holds them.
        session: by what holds them.
        wishes: what the session was planned for.
    """

    weights: Mapping[str, int]
    session: Mapping[str, int]
    wishes: Wishes

    @property
    def total_bytes(self) -> int:
        """Most bytes held at a time."""
        return sum(self.weights.values()) + max(sum(self.session.values()), self._loading_bytes)

    @property
    def _loading_bytes(self) -> int:
        # A model smaller than the buffers of loading is re-laid in smaller pieces.
        return min(LOADING_BYTES, 16 * sum(self.weights.values()))

    def table(self) -> str:
        """The plan as lines of text."""
        rows = [*self.weights.items(), *self.session.items()]
        extra = self.total_bytes - sum(size for _, size in rows)
        if extra:
            rows.append(("while loading", extra))
        rows.append(("in all", self.total_bytes))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {format_bytes(size):>12}" for name, size in rows)


def plan_memory(
    entries: Mapping[str, TensorEntry],
    spec: ModelSpec,
    wishes: Wishes,
    *,
    has_draft: bool = False,
) -> MemoryPlan:
    """The plan of a file with these tensors; ``has_draft``: with its draft layer.

    Raises:
        PlanError: cells of this format are not possible.
        UnsupportedError: a block format the card has no kernels for.
    """
    layout = model_layout(entries, spec, has_draft=has_draft)
    return MemoryPlan(weight_bytes(layout, entries), session_bytes(layout, spec, wishes), wishes)


def weight_bytes(layout: ModelLayout, entries: Mapping[str, TensorEntry]) -> dict[str, int]:
    """Bytes of the weights by what holds them."""
    sizes = {
        "dense weights": dense_bytes(layout, entries),
        "shared experts": _expert_bytes(layer.shared for layer in layout.layers),
        "routed experts": _expert_bytes(layer.experts for layer in layout.layers),
    }
    draft = layout.draft
    if draft is not None:
        experts = _expert_bytes((draft.experts, draft.shared))
        sizes["draft layer"] = dense_bytes(draft, entries) + experts
    return sizes


def dense_bytes(layout: ModelLayout | DraftLayout, entries: Mapping[str, TensorEntry]) -> int:
    """Bytes of everything outside the experts."""
    panels = (
        Shape((launch.num_panels, launch.panel_bytes), "uint8")
        for bundle in layout.bundles
        for launch in bundle.launches
    )
    floats = (Shape(entries[name].shape) for name in layout.floats)
    return total_bytes(panels) + total_bytes(floats)


def _expert_bytes(layers: Iterable[ExpertsLayout]) -> int:
    return sum(total_bytes(experts.shapes().values()) for experts in layers)


def session_bytes(layout: ModelLayout, spec: ModelSpec, wishes: Wishes) -> dict[str, int]:
    """Bytes of one conversation by what holds them."""
    state = state_shapes(spec, wishes.capacity, wishes.kv_format)
    kinds = {f"layer.{i}": kind for i, kind in enumerate(spec.layer_kinds)}
    by_kind = {
        kind: sum(total_bytes(state[name].values()) for name in kinds if kinds[name] is kind)
        for kind in LayerKind
    }
    sizes = {
        "keys and values": by_kind[LayerKind.QSA],
        "recurrent state": by_kind[LayerKind.GDN] + total_bytes(state["ple"].values()),
        "buffers": total_bytes(buffer_shapes(layout, spec, wishes.capacity).values()),
    }
    if not wishes.has_loans:
        prompts = prompt_shapes(spec, layout, wishes.capacity, wishes.chunk)
        sizes["prompt buffers"] = prompts.num_bytes
    if layout.draft is not None:
        shapes = draft_shapes(spec, wishes.capacity, wishes.kv_format)
        sizes["draft cells"] = total_bytes(shapes.values())
    return sizes


def buffer_shapes(layout: ModelLayout, spec: ModelSpec, capacity: int) -> dict[str, Shape]:
    """Buffers of a decode window."""
    return window_shapes(spec, layout, capacity, select_tile=SELECT_TILE, part_cells=PART_CELLS)


def room_bytes(free_bytes: int, limit_bytes: int | None) -> int:
    """What may be taken: ``--vram-limit`` counts the driver's share too; None: all that is free."""
    if limit_bytes is None:
        return free_bytes
    return min(free_bytes, max(0, limit_bytes - DRIVER_BYTES))


def with_fitting_chunk(
    plan: MemoryPlan, layout: ModelLayout, spec: ModelSpec, room: int
) -> MemoryPlan:
    """The plan with its chunk halved until it fits ``room`` bytes, or is as small as is of use."""
    if plan.wishes.has_loans:
        return plan
    while plan.total_bytes > room and plan.wishes.chunk >= 2 * MIN_CHUNK:
        half = plan.wishes.chunk // 2 // CUT_TOKENS * CUT_TOKENS
        wishes = replace(plan.wishes, chunk=half)
        plan = replace(plan, session=session_bytes(layout, spec, wishes), wishes=wishes)
    return plan


def check_plan(
    plan: MemoryPlan,
    layout: ModelLayout,
    spec: ModelSpec,
    *,
    free_bytes: int,
    limit_bytes: int | None,
) -> None:
    """Refuses a plan that does not fit.

    Args:
        plan: to be checked.
        layout: of the model, for the ways out.
        spec: likewise.
        free_bytes: what the card has left now.
        limit_bytes: ``--vram-limit``, or None.

    Raises:
        PlanError: it does not fit; names the three cheapest ways out.
    """
    room = room_bytes(free_bytes, limit_bytes)
    if plan.total_bytes <= room:
        return
    is_limit = room < free_bytes
    source = "--vram-limit leaves" if is_limit else "the card has free"
    ways = _ways_out(plan, layout, spec, room=room, is_limit=plan.total_bytes <= free_bytes)
    raise PlanError(
        f"the model and a conversation of {plan.wishes.capacity} tokens take "
        f"{format_bytes(plan.total_bytes)} on the card; {source} {format_bytes(room)}.\n"
        + "".join(f"  {line}\n" for line in plan.table().splitlines())
        + f"  Try: {'; or '.join(ways[:3])}"
    )


def _ways_out(
    plan: MemoryPlan, layout: ModelLayout, spec: ModelSpec, *, room: int, is_limit: bool
) -> list[str]:
    """What the user may change, cheapest first; those that are not enough by themselves are left
    out."""
    ways = []

    def total(wishes: Wishes) -> int:
        session = session_bytes(layout, spec, wishes)
        return replace(plan, session=session).total_bytes

    wishes = plan.wishes
    if wishes.kv_format != "int8" and spec.head_dim % 64 == 0:
        smaller = replace(wishes, kv_format="int8")
        if total(smaller) <= room:
            ways.append("--kv int8")
    fits, too_many = 0, wishes.capacity // _CONTEXT_STEP + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        is_fit = total(replace(wishes, capacity=middle * _CONTEXT_STEP)) <= room
        fits, too_many = (middle, too_many) if is_fit else (fits, middle)
    if fits:
        ways.append(f"--context {fits * _CONTEXT_STEP}")
    if is_limit:
        ways.append(f"--vram-limit {-(-(plan.total_bytes + DRIVER_BYTES) // MiB)}")
    weights = format_bytes(sum(plan.weights.values()))
    return [*ways, "--device cpu", f"a file with smaller weights than these {weights}",
            "close what else uses the card"]  # fmt: skip
