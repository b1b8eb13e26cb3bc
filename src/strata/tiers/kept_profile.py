"""Where the profile of a model is kept from run to run, and the one to begin with.

Owns the choice of the file; its format is ``expert_profile``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from strata import telemetry
from strata.result_files import refuse_unwritable
from strata.tiers.expert_profile import read_profile

if TYPE_CHECKING:
    from pathlib import Path

    from strata.model_spec import ModelSpec
    from strata.settings import Settings
    from strata.tiers.expert_profile import ExpertProfile

_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def profile_path(settings: Settings, spec: ModelSpec) -> Path | None:
    """The file that is read at the start and written at the end, or None."""
    if settings.expert_profile is not None or settings.profile_dir is None:
        return settings.expert_profile
    name = _NO_FILE_NAME.sub("-", spec.name).strip("-.") or "model"
    return settings.profile_dir / f"{name}-{spec.num_layers}x{spec.num_experts}.strp"


def starting_profile(settings: Settings, spec: ModelSpec) -> ExpertProfile | None:
    """What an earlier run left for this model; None where there is no file, or none is wished for.

    Raises:
        CheckpointError: it is no profile, of another model, or damaged.
        SettingsError: there is none yet, and it could not be written.
        OSError: it cannot be read.
    """
    path = profile_path(settings, spec)
    if path is None:
        return None
    if path.exists():
        return read_profile(path, spec.num_layers, spec.num_experts, spec.name)
    if settings.expert_profile is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    refuse_unwritable("--expert-profile", path)
    telemetry.notice("expert-profile", f"no expert profile yet; {path} is written at the end.")
    return None
