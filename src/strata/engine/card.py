"""The way to the card: its packages are optional and loaded only when a card is asked for.

Owns the message where they are missing. What a card does is ``strata.gpu``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from strata.engine.bench_card import Probe
    from strata.engine.session import Model, OnProgress
    from strata.engine.tiers import ExpertTiers
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec
    from strata.settings import Settings
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import SlotLayout

_PACKAGES = ("torch", "triton")
# What a driver for CUDA leaves in the system, on Linux and in its subsystem on Windows.
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))


def is_card_likely() -> bool:
    """Whether the packages and a driver are installed. Loads neither."""
    has_packages = all(importlib.util.find_spec(name) is not None for name in _PACKAGES)
    return has_packages and any(file.exists() for file in _DRIVER_FILES)


def load_on_card(
    index: TensorIndex,
    spec: ModelSpec,
    settings: Settings,
    capacity: int,
    on_progress: OnProgress | None,
    make_host: Callable[[SlotLayout, NDArray[np.int64] | None, int], ExpertHost] | None = None,
) -> Model:
    """The model on a card; arguments and errors are those of ``strata.gpu.build.load_model``.

    Raises:
        DeviceError: a package is missing, or there is no card.
    """
    try:
        from strata.gpu.build import load_model
    except ImportError as error:
        if (error.name or "").startswith("strata"):
            raise  # a fault of ours
        what = "is not installed" if error.name in _PACKAGES else f"cannot be loaded: {error}"
        raise DeviceError(
            f"a graphics card needs the package {error.name or 'torch'}, which {what}.\n"
            '  Try: pip install ".[gpu]" in a copy of Strata\'s sources, or --device cpu'
        ) from error
    return load_model(index, spec, settings, capacity, make_host=make_host, on_progress=on_progress)


def tiers_of(model: Model) -> ExpertTiers | None:
    """The experts of a model that ``load_on_card`` gave; None where all of them are on the card."""
    from strata.gpu.model import GpuModel

    assert isinstance(model, GpuModel)  # noqa: S101 - the caller has loaded it on a card
    return None if model.experts is None else model


def probe_of(model: Model) -> Probe:
    """What measures a model that ``load_on_card`` gave."""
    from strata.gpu.model import GpuModel
    from strata.gpu.probe import CardProbe

    assert isinstance(model, GpuModel)  # noqa: S101 - the caller has loaded it on a card
    return CardProbe(model)
