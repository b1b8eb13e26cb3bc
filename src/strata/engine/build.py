"""The one place where files, devices and text are joined into the parts of an engine.

Owns the choice of model when none is named, of the device, and the size of a conversation.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from strata import telemetry
from strata.cpu.build import load_model, measure_bandwidth, open_context, physical_cores
from strata.cpu.expert_build import open_host
from strata.cpu.model import CpuModel
from strata.engine.card import is_card_likely, load_on_card, tiers_of
from strata.engine.conversation_identity import identity_of
from strata.engine.default_model import default_model
from strata.engine.model_file import open_file
from strata.engine.model_text import ModelText, NoText
from strata.engine.parts import Parts
from strata.engine.recording import RecordingModel
from strata.engine.tiers import ProfileKeeper
from strata.errors import DeviceError, PlanError, SettingsError, UnsupportedError
from strata.result_files import refuse_unwritable
from strata.session_rules import DEFAULT_CONTEXT_LEN
from strata.tiers.kept_profile import profile_path

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from strata.engine.model_file import ModelFile
    from strata.engine.parts import Text
    from strata.engine.session import Model, OnProgress
    from strata.engine.tiers import ExpertTiers
    from strata.model_spec import ModelSpec
    from strata.settings import Settings
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import SlotLayout

# Begins every message in the templates of this family.
TURN_TOKEN = "<|im_start|>"


def open_parts(settings: Settings, *, on_progress: OnProgress | None = None) -> Parts:
    """Everything an engine needs, loaded.

    Args:
        settings: ``settings.model`` of ``None`` means the built-in model.
        on_progress: called while loading with (bytes done, bytes in all).

    Raises:
        CheckpointError: the file is damaged, or not of this architecture.
        PlanError: it does not fit this machine.
        DeviceError: the processor, the compiled extension or a card refused.
    """
    if settings.routing_trace is not None:
        _check_recording(settings, settings.routing_trace)
    with open_file(model_path(settings)) as model_file:
        for notice in model_file.notices:
            telemetry.notice("model-file", notice)
        spec = model_file.spec
        if settings.draft_tokens and not spec.num_draft_layers:
            telemetry.notice("draft-layer", "this model has no draft layer; nothing is drafted.")
        text = text_of(model_file)
        model, device = _load(model_file, settings, on_progress)
        identity = identity_of(model_file.index, model.numerics)
    tiers, keeper = _tiers(model, settings, spec)
    if settings.routing_trace is not None:
        model = RecordingModel(model, settings.routing_trace)
    return Parts(
        model=model,
        text=text,
        vocab_size=spec.vocab_size,
        context_len=context_len(settings, spec),
        close=model.close if keeper is None else partial(_close, model, keeper),
        device=device,
        tiers=tiers,
        after_request=None if keeper is None else keeper.after_request,
        turn_id=text.token_id(TURN_TOKEN) if isinstance(text, ModelText) else None,
        identity=identity,
    )


def _tiers(
    model: Model, settings: Settings, spec: ModelSpec
) -> tuple[ExpertTiers | None, ProfileKeeper | None]:
    """Where a model's experts lie, if in several places, and who keeps what is learned of them."""
    if isinstance(model, CpuModel):
        return model.expert_places(), None
    tiers, path = tiers_of(model), profile_path(settings, spec)
    return tiers, None if tiers is None or path is None else ProfileKeeper(tiers, path)


def _close(model: Model, keeper: ProfileKeeper) -> None:
    try:
        keeper.save()
    finally:
        model.close()


def _load(
    model_file: ModelFile, settings: Settings, on_progress: OnProgress | None
) -> tuple[Model, str]:
    """The model on the device these settings mean, and that device."""
    index, spec = model_file.index, model_file.spec
    capacity = context_len(settings, spec)

    def make_host(
        slots: SlotLayout, ranking: NDArray[np.int64] | None, num_lent: int
    ) -> ExpertHost:
        # One core stays with the thread that launches.
        threads = settings.threads or max(1, physical_cores() - 1)
        ctx = open_context(threads, settings.isa)
        return open_host(
            ctx, index, spec, settings, slots, ranking, num_lent=num_lent, on_progress=on_progress
        )

    if settings.device == "cuda":
        return load_on_card(index, spec, settings, capacity, on_progress, make_host), "cuda"
    if settings.device == "auto" and is_card_likely():
        try:
            return load_on_card(index, spec, settings, capacity, on_progress, make_host), "cuda"
        except (DeviceError, PlanError, SettingsError, UnsupportedError) as error:
            reason = str(error).splitlines()[0]
            telemetry.notice("device", f"the processor computes, not the card: {reason}")
    return load_model(index, spec, settings, on_progress=on_progress), "cpu"


def _check_recording(settings: Settings, path: Path) -> None:
    """Refuses, before anything is loaded, what could not be recorded afterwards."""
    if settings.device != "cpu":
        raise SettingsError(
            "routing is recorded where the processor computes, not with --device "
            f"{settings.device} (setting routing_trace).\n  Try: --device cpu"
        )
    refuse_unwritable("--routing-trace", path)


def model_path(settings: Settings) -> Path:
    """The model file these settings mean."""
    return default_model() if settings.model is None else settings.model


def num_threads(settings: Settings) -> int:
    """Worker threads these settings mean on this machine."""
    return settings.threads if settings.threads is not None else physical_cores()


def machine_bandwidth(threads: int) -> float:
    """Bytes per second that ``threads`` threads read from memory, measured now."""
    return measure_bandwidth(threads)


def context_len(settings: Settings, spec: ModelSpec) -> int:
    """Tokens a conversation may have: as asked, or the model's own up to a moderate size.

    More than the model was trained on is allowed, and told.
    """
    if settings.context_len is None:
        return min(spec.context_len, DEFAULT_CONTEXT_LEN)
    if settings.context_len > spec.context_len:
        telemetry.notice(
            "context",
            f"the context of {settings.context_len} tokens is beyond the {spec.context_len} the "
            "model was made for; answers may get worse past them.",
        )
    return settings.context_len


def text_of(model_file: ModelFile) -> Text:
    """The text side of a file, or one that refuses where the file has no tokenizer."""
    if not model_file.has_tokenizer:
        telemetry.notice("tokenizer", "this model file has no tokenizer; it takes token ids only.")
        return NoText()
    return ModelText.from_metadata(model_file.index.metadata, model_file.spec.vocab_size)
