"""The model used when none is named: the shipped demo, else a synthetic one made on first use."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from strata import __version__, telemetry
from strata.errors import SettingsError
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize
from strata.settings import user_cache_dir

if TYPE_CHECKING:
    from strata.engine.session import OnProgress

_GEOMETRY = "tiny"
_TYPES = "q8_0"
_DEMO_FOLDER = "demo"


def default_model(on_progress: OnProgress | None = None) -> Path:
    """A model file that exists, and a notice that says which it is.

    ``on_progress`` is called with (bytes done, bytes in all) while one is made.

    Raises:
        SettingsError: the cache folder cannot be written.
    """
    demo = _shipped_demo()
    if demo is not None:
        telemetry.notice("default-model", "no --model was given; this is the small demo model.")
        return demo
    # Another version may write other weights from the same seed.
    path = user_cache_dir() / f"synthetic-{_GEOMETRY}-{_TYPES}-{__version__}.gguf"
    telemetry.notice(
        "default-model",
        "no --model was given; this is a synthetic model with random weights, and what it writes "
        f"means nothing ({path}).",
    )
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"the cache folder cannot be made: {error.strerror}.\n  folder: {path.parent}\n"
                "  Try: --model FILE, or another folder in XDG_CACHE_HOME."
            ) from None
        synthesize(
            path,
            GEOMETRIES[_GEOMETRY],
            TypePlan.preset(_TYPES),
            progress=None if on_progress is None else lambda done, all_, _: on_progress(done, all_),
        )
    return path


def _shipped_demo() -> Path | None:
    folder = Path(str(resources.files("strata"))) / _DEMO_FOLDER
    found = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    return found[0] if found else None
