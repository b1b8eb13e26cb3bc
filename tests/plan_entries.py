"""Headers of model files of any geometry, without a file: for plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from strata.formats import synth
from strata.formats.naming import required_tensors
from strata.formats.tensor_index import TensorEntry

if TYPE_CHECKING:
    from strata.formats.convert_types import TypePlan
    from strata.formats.synth import SynthGeometry
    from strata.model_spec import ModelSpec


def header_of(geometry: SynthGeometry, mix: TypePlan) -> tuple[ModelSpec, dict[str, TensorEntry]]:
    """Geometry and tensors of a file of this kind; nothing is at their offsets."""
    spec, _ = synth.spec_of(geometry)
    entries = {}
    for name, role in required_tensors(spec).items():
        plan = synth._plan(name, role, spec, mix)
        entries[name] = TensorEntry(
            name, plan.shape, plan.format, Path("none.gguf"), 0, plan.num_bytes
        )
    return spec, entries
