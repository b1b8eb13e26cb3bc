"""A model file on a card, as ``Settings`` wish it; refuses before anything is allocated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import triton  # noqa: F401 - a missing one is told here, before anything is read

from strata import telemetry
from strata.errors import DeviceError, SettingsError
from strata.gpu.cache_options import CacheOptions
from strata.gpu.loan_plan import LoanRules
from strata.gpu.memory_plan import (
    Wishes,
    check_plan,
    plan_memory,
    room_bytes,
    with_fitting_chunk,
)
from strata.gpu.model import GpuModel
from strata.gpu.model_layout import model_layout
from strata.gpu.prompt_layout import CUT_TOKENS, MAX_CHUNK
from strata.gpu.slot_plan import ADMISSIONS, SlotWishes, most_lent, plan_card
from strata.tiers.kept_profile import starting_profile
from strata.tiers.policy_table import PolicyOptions
from strata.units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from strata.formats.tensor_index import TensorIndex
    from strata.gpu.model_layout import ModelLayout
    from strata.model_spec import ModelSpec
    from strata.settings import Settings
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import SlotLayout

    MakeHost = Callable[[SlotLayout, NDArray[np.int64] | None, int], ExpertHost]

# A slow disk may have to read all of a layer's experts before a window goes on.
_FILE_LIMIT_SECONDS = 30.0


def load_model(
    index: TensorIndex,
    spec: ModelSpec,
    settings: Settings,
    capacity: int,
    *,
    make_host: MakeHost | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> GpuModel:
    """The model, ready for a conversation of ``capacity`` tokens on the first card.

    Args:
        index: an open model whose layout has been checked; may be closed afterwards.
        spec: its geometry.
        settings: kv_format, vram_limit, chunk_tokens, direct_io, draft_tokens and those of the
            expert cache are used.
        capacity: tokens of the conversation that is to fit.
        make_host: makes what has and computes experts that are not on the card, from its slots, the
            ranking they are filled by, and how many of the last of them prompts may borrow; None
            where all experts have to be on the card.
        on_progress: called with (bytes read, bytes to read).

    Raises:
        DeviceError: there is no card, or it refuses.
        PlanError: it does not fit; says what takes how much, and the cheapest ways out.
        SettingsError: a wish the card cannot grant.
        UnsupportedError: a block format without kernels.
        CheckpointError: a tensor cannot be used; names it.
    """
    if settings.kv_format == "f32":
        raise SettingsError("the card keeps keys and values as f16 or int8.\n  Try: --kv f16")
    device = _card()
    has_draft = settings.draft_tokens > 0 and spec.num_draft_layers > 0
    limit = None if settings.vram_limit is None else settings.vram_limit * MiB
    chunk = _chunk(settings)
    free, _ = torch.cuda.mem_get_info(device)
    layout = model_layout(index, spec, has_draft=has_draft)
    wishes = Wishes(capacity, settings.kv_format, chunk)
    room = room_bytes(free, limit)
    slots = None
    if make_host is None:
        plan = plan_memory(index, spec, wishes, has_draft=has_draft)
        plan = with_fitting_chunk(plan, layout, spec, room)
    else:
        plan, slots = plan_card(index, layout, spec, wishes, _slot_wishes(settings), room)
        _tell_fewer(settings, spec, slots)
    check_plan(plan, layout, spec, free_bytes=free, limit_bytes=limit)
    name = torch.cuda.get_device_name(device)
    telemetry.notice("memory-plan", f"memory on {name}:\n{plan.table()}")
    options = None if slots is None else _cache_options(spec, settings)
    host = None
    if make_host is not None and slots is not None and options is not None:
        num_lent = 0
        if plan.wishes.has_loans:
            options = replace(options, loans=LoanRules(settings.chunk_tokens))
            num_lent = most_lent(layout, spec, capacity, slots, settings.chunk_tokens)
            _tell_lent(layout, slots, num_lent)
        ranking = None if options.profile is None else options.profile.keys
        host = make_host(slots, ranking, num_lent)
        if any(home.held is not None for home in host.layers):
            options = replace(options, limit_seconds=_FILE_LIMIT_SECONDS)
    model = GpuModel(
        index,
        spec,
        device,
        kv_format=settings.kv_format,
        chunk_tokens=plan.wishes.chunk,
        has_draft=has_draft,
        direct_io=settings.direct_io,
        limit_bytes=limit,
        host=host,
        slots=slots,
        cache_options=options,
        on_progress=on_progress,
    )
    if host is not None and model.experts is not None:
        _tell_locked(model.experts.locked_bytes, host)
    return model


def _tell_locked(locked_bytes: int, host: ExpertHost) -> None:
    """Says how many of the experts in RAM the card reads where they are."""
    kept = sum(home.num_held * home.blob_bytes for home in host.layers)
    all_of = f"{format_bytes(kept)} of experts lie in RAM"
    if locked_bytes >= kept:
        telemetry.notice("page-locked", f"{all_of}, page-locked: the card reads them there.")
        return
    telemetry.notice(
        "page-locked",
        f"{all_of}; the system lets {format_bytes(locked_bytes)} be page-locked, and the rest goes "
        "to the card through a small buffer: prompts are slower. Try: ulimit -l unlimited",
    )


def _slot_wishes(settings: Settings) -> SlotWishes:
    return SlotWishes(
        settings.expert_cache,
        settings.expert_cache_per_layer,
        settings.vram_reserve * MiB,
        settings.chunk_tokens is not None,
        settings.prefill_borrow,
    )


def _tell_lent(layout: ModelLayout, slots: SlotLayout, num_lent: int) -> None:
    """Says how much of the slots prompts take."""
    size = format_bytes(num_lent * layout.layers[0].experts.blob_bytes)
    telemetry.notice(
        "lending",
        f"the longest prompts borrow {num_lent} of {slots.num_slots} slots ({size}); their experts "
        "come back afterwards.",
    )


def _tell_fewer(settings: Settings, spec: ModelSpec, slots: SlotLayout | None) -> None:
    """Says so where there are fewer slots than were asked for."""
    wished = settings.expert_cache
    if wished is not None and slots is not None and slots.num_slots < wished:
        num_pairs = spec.num_layers * spec.num_experts
        what = "there are no more experts" if slots.num_slots == num_pairs else "no more fit"
        telemetry.notice("expert-cache", f"{slots.num_slots} slots for experts: {what}.")


def _cache_options(spec: ModelSpec, settings: Settings) -> CacheOptions:
    return CacheOptions(
        policy=settings.expert_policy,
        policy_options=PolicyOptions(max_admissions=ADMISSIONS),
        staged_share=settings.pcie_frac,
        keeps_copied=settings.keep_copied,
        profile=starting_profile(settings, spec),
        has_full_check=settings.verify_slots,
    )


def _chunk(settings: Settings) -> int:
    """Prompt tokens of a step: the wish, or as many as there is use for."""
    wished = MAX_CHUNK if settings.chunk_tokens is None else settings.chunk_tokens
    if wished % CUT_TOKENS or wished > MAX_CHUNK:
        nearest = min(-(-wished // CUT_TOKENS) * CUT_TOKENS, MAX_CHUNK)
        raise SettingsError(
            f"on a card prompts are read in steps of a multiple of {CUT_TOKENS} tokens, at most "
            f"{MAX_CHUNK}, not {wished}.\n  Try: --chunk {nearest}"
        )
    return wished


def _card() -> torch.device:
    if not torch.cuda.is_available():
        built = "" if torch.version.cuda else " (this torch is built without CUDA)"
        raise DeviceError(
            f"torch {torch.__version__} sees no graphics card{built}.\n"
            "  Try: --device cpu, or a driver and a torch that fit the card."
        )
    return torch.device("cuda", torch.cuda.current_device())
