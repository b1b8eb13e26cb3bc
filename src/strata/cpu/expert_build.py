"""Where the experts of a model will lie on this machine: all in memory, or some in files.

Owns how much memory they may take, which is one budget for all of them, and the way to a store:
opened, made, or done without.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np

from strata import telemetry
from strata.cpu.expert_arena import ExpertArena
from strata.cpu.expert_files import fingerprint, in_place
from strata.cpu.expert_host import TieredExperts
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_store import (
    SUFFIX,
    StoreDamaged,
    make_store,
    open_store,
    store_layout,
)
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.look_ahead import NO_LOOK_AHEAD, look_ahead_of, router_bytes
from strata.errors import PlanError
from strata.formats.naming import Role, tensor_name
from strata.formats.ngram_table import CACHE_BYTES
from strata.formats.shards import parse_shard_name
from strata.host_memory import available_bytes
from strata.session_rules import DEFAULT_CONTEXT_LEN
from strata.tiers.resident_plan import first_filling, ram_budget, resident_plan
from strata.units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from strata._native import Context
    from strata.cpu.expert_files import ExpertsOnDisk
    from strata.cpu.expert_layers import LayerShape
    from strata.cpu.look_ahead import LookAhead
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec
    from strata.settings import Settings
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import SlotLayout

    OnProgress = Callable[[int, int], None]

# The interpreter, its packages, buffers of a step.
_PROGRAM_BYTES = 384 * MiB
# The same with what a card needs beside it: its packages, buffers that it reads from.
_CARD_PROGRAM_BYTES = 2048 * MiB
# Experts cached for a card, at most: those that came off it, and what is on the disk alone.
_CARD_PLACES = 512
# Experts that are read at once, at most: of a window, or three runs of a prompt.
_MOST_ON_THEIR_WAY = 96
_NUM_BYTES_OF_CELL = {"f16": 2, "f32": 4}


def open_tier(
    ctx: Context,
    index: TensorIndex,
    spec: ModelSpec,
    settings: Settings,
    on_progress: OnProgress | None = None,
) -> ExpertTier | None:
    """Experts for a model that the processor runs, where not all of them may be in memory.

    Args:
        ctx: threads that pack.
        index: an open model whose layout has been checked.
        spec: its geometry.
        settings: ram_limit, expert_store and mmap_experts are used, and what says how much else is
            taken.
        on_progress: called with (bytes, bytes in all) while a store is made.

    Returns:
        None where all of them fit.

    Raises:
        PlanError: not even one token's experts of a layer fit, or a store cannot be made.
        CheckpointError: a store of another model, or a tensor that cannot be used.
    """
    shapes = layer_shapes(index, spec)
    whole = sum(shape.num_experts * shape.blob_bytes for shape in shapes)
    others = other_bytes(index, spec, settings)
    limit = None if settings.ram_limit is None else settings.ram_limit * MiB
    room = ram_budget(available_bytes(), limit) - others
    if whole <= room:
        return None
    place = max(shape.blob_bytes for shape in shapes)
    if room < spec.top_k * place:
        least = others + spec.top_k * place
        raise PlanError(
            f"this model needs {format_bytes(least)} of RAM even where its experts stay on the "
            f"disk; it may take {format_bytes(max(0, room + others))}.\n"
            f"  {format_bytes(others)} without experts + {spec.top_k} experts of "
            f"{format_bytes(place)}\n"
            "  Try: a larger --ram-limit, a smaller --context, or close other programs."
        )
    disk = experts_on_disk(ctx, index, spec, shapes, settings, on_progress)
    num_places, ahead = _division(room, place, spec, settings, is_packed=disk.is_packed)
    telemetry.notice(
        "expert-tier",
        f"experts take {format_bytes(whole)}, of which {format_bytes(num_places * place)} are kept "
        "in RAM; the others are read from the disk when they are wanted.",
    )
    none_kept = [np.zeros(0, np.int64)] * len(shapes)
    return ExpertTier(ctx, shapes, disk, none_kept, num_places, ahead)


def _division(
    room: int, place: int, spec: ModelSpec, settings: Settings, *, is_packed: bool
) -> tuple[int, LookAhead]:
    """Experts that are cached in so many bytes, and what is read ahead beside them."""
    if settings.look_ahead:
        num = cache_places(room - router_bytes(spec), place, is_packed=is_packed)
        ahead = look_ahead_of(num, spec)
        if num - ahead.num_places >= spec.top_k:
            return num - ahead.num_places, ahead
    return max(spec.top_k, cache_places(room, place, is_packed=is_packed)), NO_LOOK_AHEAD


def cache_places(room: int, place: int, *, is_packed: bool) -> int:
    """Experts that a cache of so many bytes has room for.

    What is not packed passes through memory as the file has it, up to as many as are read at once.
    """
    if is_packed:
        return room // place
    return max(room // (2 * place), room // place - _MOST_ON_THEIR_WAY)


def open_host(
    ctx: Context,
    index: TensorIndex,
    spec: ModelSpec,
    settings: Settings,
    slots: SlotLayout,
    ranking: NDArray[np.int64] | None,
    *,
    num_lent: int = 0,
    on_progress: OnProgress | None = None,
) -> ExpertHost:
    """What has every expert for a card with these slots: all in memory, or only some of them.

    Where not all fit, or that is wished, memory has what is in no slot at the start, as many of
    those whose slots prompts borrow as there is room for, and a cache for what changes places;
    where even the first do not fit, the best of them.

    Args:
        ctx: threads that pack and compute.
        index: an open model whose layout has been checked.
        spec: its geometry.
        settings: ram_limit, resident_experts, expert_store and mmap_experts are used.
        slots: of the card.
        ranking: keys, the one most worth a slot first; None for no preference.
        num_lent: most slots that a prompt borrows.
        on_progress: called with (bytes, bytes in all) while a store is made.

    Raises:
        PlanError: there is no memory even for the cache, or a store cannot be made.
        CheckpointError: a store of another model, or a tensor that cannot be used.
        DeviceError: the system refused the memory.
    """
    shapes = layer_shapes(index, spec)
    whole = sum(shape.num_experts * shape.blob_bytes for shape in shapes)
    limit = None if settings.ram_limit is None else settings.ram_limit * MiB
    room = ram_budget(available_bytes(), limit)
    if limit is not None:
        room -= _CARD_PROGRAM_BYTES
    if whole <= room and not settings.resident_experts:
        return ExpertArena(ctx, index, spec)
    place = max(shape.blob_bytes for shape in shapes)
    least = spec.top_k * place
    if room < least:
        raise PlanError(
            f"experts that are not in VRAM need at least {format_bytes(least)} of RAM, and "
            f"may take {format_bytes(max(0, room))}.\n"
            "  Try: a larger --ram-limit, or close other programs."
        )
    num_places = max(spec.top_k, min(_CARD_PLACES, room // (4 * place)))
    blob_bytes = [shape.blob_bytes for shape in shapes]
    plan = resident_plan(
        [first_filling(slots, ranking)], [num_lent], blob_bytes, room - num_places * place, ranking
    )
    telemetry.notice("expert-tier", f"{plan.describe()}; the others stay on the disk.")
    disk = experts_on_disk(ctx, index, spec, shapes, settings, on_progress)
    num_places, ahead = _division(
        int(num_places) * place, place, spec, settings, is_packed=True
    )  # fmt: skip
    keys = np.sort(plan.keys)
    kept = [keys[keys // spec.num_experts == i] % spec.num_experts for i in range(spec.num_layers)]
    return TieredExperts(ctx, spec, shapes, ExpertTier(ctx, shapes, disk, kept, num_places, ahead))


def experts_on_disk(
    ctx: Context,
    index: TensorIndex,
    spec: ModelSpec,
    shapes: Sequence[LayerShape],
    settings: Settings,
    on_progress: OnProgress | None = None,
) -> ExpertsOnDisk:
    """The store of a model, which is made where there is none, or the model's own file.

    Raises:
        PlanError: the store that was asked for cannot be made.
        CheckpointError: it is another model's, or a tensor cannot be used.
    """
    if settings.mmap_experts:
        return in_place(index, shapes)
    layout = store_layout(ctx, shapes, fingerprint(index, shapes))
    folder = settings.expert_store or index.paths[0].parent
    path = folder / store_name(index, layout.model)
    if path.exists():
        try:
            return open_store(path, layout)
        except StoreDamaged as error:
            reason = str(error).splitlines()[0]
            telemetry.notice("expert-store", f"{reason} It is made anew: {path}.")
    try:
        _check_room(path, layout.num_bytes)
        telemetry.notice(
            "expert-store",
            f"making {path} ({format_bytes(layout.num_bytes)}) with this model's experts as the "
            "processor wants them; once for a model.",
        )
        return make_store(path, layout, ctx, index, spec, on_progress)
    except PlanError as error:
        if settings.expert_store is not None:
            raise
        reason = str(error).splitlines()[0]
        telemetry.notice(
            "expert-store", f"{reason} Experts are read from the model's own file, which is slower."
        )
        return in_place(index, shapes)


def store_name(index: TensorIndex, model: str) -> str:
    """The file's name: the model's, and enough of its fingerprint to tell it from others."""
    name = index.paths[0].name
    shard = parse_shard_name(name)
    stem = name.removesuffix(".gguf") if shard is None else shard.stem
    return f"{stem}-{model[:16]}{SUFFIX}"


def other_bytes(index: TensorIndex, spec: ModelSpec, settings: Settings) -> int:
    """Memory of a model on the processor beside its routed experts, one conversation included."""
    has_draft = settings.draft_tokens > 0
    own = {name for shape in layer_shapes(index, spec) for name in shape.names}
    table = tensor_name(Role.NGRAM_TABLE)
    own.add(table)
    if not spec.is_head_tied:
        own.add(tensor_name(Role.EMBEDDING))
    draft = f"blk.{spec.num_layers}."
    dense = sum(
        entry.num_bytes
        for name, entry in index.items()
        if name not in own and (has_draft or not name.startswith(draft))
    )
    capacity = settings.context_len or min(spec.context_len, DEFAULT_CONTEXT_LEN)
    layers = spec.num_layers + (1 if has_draft else 0)
    cell = 2 * spec.num_kv_heads * spec.head_dim * _NUM_BYTES_OF_CELL.get(settings.kv_format, 2)
    rows = index[table].num_bytes if table in index else 0
    return dense + capacity * cell * layers + min(CACHE_BYTES, rows) + _PROGRAM_BYTES


def _check_room(path: Path, num_bytes: int) -> None:
    """Refuses a store for which the disk has no room, before anything is written."""
    part = path.with_name(path.name + ".part")
    try:
        free = shutil.disk_usage(path.parent).free
        there = part.stat().st_blocks * 512 if part.exists() else 0
    except OSError as error:
        raise PlanError(
            f"the expert store cannot be made: {error.strerror}.\n  file: {path}\n"
            "  Try: --expert-store with a folder that exists."
        ) from error
    if num_bytes > free + there:
        raise PlanError(
            f"the expert store takes {format_bytes(num_bytes)}, and the disk has "
            f"{format_bytes(free)} left.\n  file: {path}\n"
            "  Try: --expert-store with a folder that has room, or --mmap-experts, which reads the "
            "model's own file."
        )
