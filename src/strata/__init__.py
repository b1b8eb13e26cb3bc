"""Strata: a 125-billion-parameter mixture-of-experts model on an ordinary computer.

The public names are loaded on first use, so that ``strata --help`` does not wait for numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.engine.engine import Engine
    from strata.engine.generation import Generation
    from strata.engine.request import Completion, FinishReason, Timings, TokenEvent
    from strata.engine.sampler import SamplingParams
    from strata.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Engine",
    "FinishReason",
    "Generation",
    "SamplingParams",
    "Settings",
    "Timings",
    "TokenEvent",
    "__version__",
]

_HOMES = {
    "Completion": "strata.engine.request",
    "Engine": "strata.engine.engine",
    "FinishReason": "strata.engine.request",
    "Generation": "strata.engine.generation",
    "SamplingParams": "strata.engine.sampler",
    "Settings": "strata.settings",
    "Timings": "strata.engine.request",
    "TokenEvent": "strata.engine.request",
}


if not TYPE_CHECKING:  # a type checker reads the imports above

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'strata' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
