"""Models on a card, or in Triton's interpreter where there is none; without triton tests skip.

The threads that answer a card's requests are the real ones in both.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")
from tests.models.smallest_model import EXPERTS, LAYERS, smallest_model  # noqa: E402
from tests.models.tiny_models import VOCAB_SIZE  # noqa: E402

from strata import _native  # noqa: E402
from strata.cpu.expert_arena import ExpertArena  # noqa: E402
from strata.formats.tensor_index import open_model  # noqa: E402
from strata.gpu.expert_cache import CacheOptions  # noqa: E402
from strata.gpu.model import GpuModel  # noqa: E402
from strata.tiers.slots import layer_slots  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from strata.model_spec import ModelSpec
    from strata.tiers.slots import SlotLayout

DEVICE = torch.device("cpu" if triton.knobs.runtime.interpret else "cuda")
# A chunk of 64 and a window.
PROMPT = np.random.default_rng(4).integers(0, VOCAB_SIZE, 66).astype(np.int32)


def gpu_model(path: Path, spec: ModelSpec | None = None, **options) -> GpuModel:
    """The file with everything on the card; the smallest model unless another is told."""
    with open_model(path) as index:
        return GpuModel(index, spec or smallest_model().spec, DEVICE, **options)


@dataclasses.dataclass
class Tiered:
    """A model with fewer slots than experts, and where the others lie."""

    model: GpuModel
    arena: ExpertArena


def tiered_model(path: Path, slots: SlotLayout, **options) -> Tiered:
    """The smallest model with these slots; ``options`` are ``CacheOptions``."""
    with open_model(path) as index:
        arena = ExpertArena(_native.Context(2, "scalar"), index, smallest_model().spec)
    chosen = CacheOptions(num_stages=3, **options)
    return Tiered(gpu_model(path, host=arena, slots=slots, cache_options=chosen), arena)


def per_layer(num: int) -> SlotLayout:
    """So many slots of each layer's own."""
    return layer_slots(LAYERS, EXPERTS, LAYERS * num)
