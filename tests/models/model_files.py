"""Tiny models as files on disk and as models on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.cpu.build import open_context
from strata.cpu.model import CpuModel
from strata.formats.block_formats import FORMATS
from strata.formats.gguf_writer import GgufWriter, TensorPlan
from strata.formats.quantize import quantize
from strata.formats.tensor_index import open_model

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.models.tiny_models import TinyModel


def write_model(path: Path, model: TinyModel, formats: Mapping[str, str] | None = None) -> Path:
    """The model's weights as a GGUF without metadata; float32 but for ``formats`` (by name)."""
    chosen = {name: FORMATS[(formats or {}).get(name, "F32")] for name in model.weights}
    plans = [TensorPlan(name, w.shape, chosen[name]) for name, w in model.weights.items()]
    with GgufWriter(path, {"general.architecture": "qwen4exp"}, plans) as writer:
        for name, weight in model.weights.items():
            writer.write(name, quantize(chosen[name], weight.astype(np.float32)))
    return path


def cpu_model(
    path: Path, model: TinyModel, *, threads: int = 2, isa: str | None = None, **settings
) -> CpuModel:
    """The file loaded; float32 cells unless told otherwise."""
    settings = {"kv_format": "f32", "chunk_tokens": 32} | settings
    with open_model(path) as index:
        return CpuModel(open_context(threads, isa), index, model.spec, **settings)
