"""The model used when none is named: the small one that ships with the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from strata import telemetry
from strata.errors import CheckpointError

_DEMO_FOLDER = "demo"


def default_model() -> Path:
    """First file of the shipped model, and a notice that says which it is.

    Raises:
        CheckpointError: it was not installed.
    """
    folder = Path(str(resources.files("strata"))) / _DEMO_FOLDER
    shards = sorted(folder.glob("*.gguf"))
    if not shards:
        raise CheckpointError(
            "no model was named, and the one that ships with strata is not installed.\n"
            f"  folder: {folder}\n  Try: --model FILE, or install strata again."
        )
    telemetry.notice("default-model", "no --model was given; this is the small demo model.")
    return shards[0]
