"""The experts of a model file as blobs: their shapes, their packing, their memory.

Owns what arena, store and file tier have in common. A blob is gate, up and down in the processor's
panels; blobs begin at whole pages, which a card can be given one expert at a time and a disk reads
without a copy.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu import native as _tables  # noqa: F401 - the grids must be known to the extension
from strata.errors import DeviceError
from strata.formats.file_pages import drop_pages
from strata.formats.naming import Role, tensor_name
from strata.units import format_bytes, whole_pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from strata._native import Context, ExpertLayer
    from strata.formats.model_tensors import ModelTensors
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec

    Bytes = NDArray[np.uint8]

# A kernel may look this far behind the last expert.
READ_PAST = 64


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The experts of one layer.

    Attributes:
        names: tensors of gate, up and down; two equal ones are fused.
        formats: their block formats' numbers.
        native: for packing; its memory is not set.
        blob_bytes: from one expert to the next, whole pages.
        num_experts: E.
        expert_size: F.
    """

    names: tuple[str, str, str]
    formats: tuple[int, int, int]
    native: ExpertLayer
    blob_bytes: int
    num_experts: int
    expert_size: int

    @property
    def is_fused(self) -> bool:
        """Whether gate and up lie in one tensor."""
        return self.names[0] == self.names[1]


def layer_shapes(index: TensorIndex, spec: ModelSpec) -> list[LayerShape]:
    """The experts of every decoder layer; the draft layer's are not among them."""
    return [_shape_of(index, spec, layer) for layer in range(spec.num_layers)]


def pack_experts(
    ctx: Context,
    shape: LayerShape,
    tensors: ModelTensors,
    experts: Iterable[int],
    places: Iterator[Bytes],
) -> None:
    """Packs experts of a file into the next places, one each.

    Raises:
        CheckpointError: a tensor cannot be used; names it.
    """
    raws = [tensors.raw(name) for name in shape.names]
    for expert in experts:
        gate, up, down = (raw[expert] for raw in raws)
        if shape.is_fused:
            gate, up = gate[: shape.expert_size], up[shape.expert_size :]
        shape.native.pack(ctx, gate, up, down, next(places))
        tensors.advance(gate.nbytes + up.nbytes + down.nbytes)
    for raw in raws:
        drop_pages(raw)


def factors_of(shape: LayerShape, tensors: ModelTensors) -> NDArray[np.float32]:
    """[E, 3] factors on the outputs of gate, up and down.

    Raises:
        CheckpointError: the file has another number of them, or one that is not finite.
    """
    columns = [tensors.scales(name, shape.num_experts) for name in shape.names]
    return np.array(columns, np.float32).T.copy()


def allocate(num_bytes: int) -> Bytes:
    """Memory in large pages where the system gives them, beginning at a page.

    Raises:
        DeviceError: the system refuses.
    """
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise DeviceError(
            f"the system refused {format_bytes(num_bytes)} of memory for experts ({error}).\n"
            "  Try: close other programs, or a file with smaller weights."
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _shape_of(index: TensorIndex, spec: ModelSpec, layer: int) -> LayerShape:
    names = _names_of(index, layer)
    gate, up, down = (index[name].format.ggml_id for name in names)
    native = _native.ExpertLayer(
        gate, up, down, spec.num_experts, spec.hidden_size, spec.expert_size
    )
    blob_bytes = whole_pages(native.expert_bytes)
    return LayerShape(
        names, (gate, up, down), native, blob_bytes, spec.num_experts, spec.expert_size
    )


def _names_of(index: TensorIndex, layer: int) -> tuple[str, str, str]:
    """The tensors of gate, up and down; two equal ones are fused."""
    fused = tensor_name(Role.EXPERTS_GATE_UP, layer)
    down = tensor_name(Role.EXPERTS_DOWN, layer)
    if fused in index:
        return fused, fused, down
    return tensor_name(Role.EXPERTS_GATE, layer), tensor_name(Role.EXPERTS_UP, layer), down
