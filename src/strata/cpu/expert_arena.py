"""Every routed expert of a model in RAM, for a card that has not got them all.

Owns the memory, one blob an expert. The thread that answers is ``expert_serving``.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from strata.cpu.expert_layers import (
    READ_PAST,
    allocate,
    factors_of,
    layer_shapes,
    pack_experts,
)
from strata.cpu.expert_serving import ExpertServing
from strata.errors import PlanError
from strata.host_memory import available_bytes
from strata.tiers.hand_off import ExpertMemory
from strata.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from strata._native import Context
    from strata.formats.model_tensors import ModelTensors
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec

    Bytes = NDArray[np.uint8]


class ExpertArena(ExpertServing):
    """The experts of all layers; ``tiers.hand_off.ExpertHost``.

    Args:
        ctx: threads that pack and compute; used by nobody else while a mailbox is open.
        index: an open model whose layout has been checked.
        spec: its geometry.

    Raises:
        DeviceError: the system refused the memory.
        PlanError: it has not got so much.
    """

    def __init__(self, ctx: Context, index: TensorIndex, spec: ModelSpec) -> None:
        self._shapes = layer_shapes(index, spec)
        all_bytes = [spec.num_experts * shape.blob_bytes for shape in self._shapes]
        self._num_bytes = sum(all_bytes) + READ_PAST
        _check_available(self._num_bytes)
        self._memory = allocate(self._num_bytes)
        self._scales = np.ones((spec.num_layers, spec.num_experts, 3), np.float32)
        starts = np.cumsum([0, *all_bytes]).tolist()
        base = self._memory.ctypes.data
        self._places = tuple(
            ExpertMemory(base + start, shape.blob_bytes, scales)
            for start, shape, scales in zip(starts, self._shapes, self._scales, strict=False)
        )
        layers = [shape.native for shape in self._shapes]
        for layer, place in zip(layers, self._places, strict=True):
            layer.set_memory(place.address, place.blob_bytes, place.scales.ctypes.data)
        super().__init__(ctx, spec, layers, (self._memory, self._scales))

    @property
    def num_bytes(self) -> int:
        """Bytes of all experts."""
        return self._num_bytes

    @property
    def layers(self) -> Sequence[ExpertMemory]:
        """The memory of each layer's experts."""
        return self._places

    def fill(self, tensors: ModelTensors) -> None:
        """Packs every expert of the file, one layer after the other.

        Raises:
            CheckpointError: a tensor cannot be used; names it.
        """
        for layer in range(self._spec.num_layers):
            self.fill_layer(layer, tensors)

    def fill_layer(self, layer: int, tensors: ModelTensors) -> None:
        """Packs the experts of one layer."""
        shape, every = self._shapes[layer], range(self._spec.num_experts)
        self._scales[layer] = factors_of(shape, tensors)
        places = (self.blob(layer, expert) for expert in every)
        pack_experts(self._ctx, shape, tensors, every, places)

    def read(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> None:
        """Copies experts' blobs to these addresses; passing by or not, they stay here as well."""
        del is_passing
        for expert, place in zip(experts, places, strict=True):
            blob = self.blob(layer, expert)
            ctypes.memmove(place, blob.ctypes.data, blob.nbytes)

    def blob(self, layer: int, expert: int) -> Bytes:
        """The bytes of an expert; a view."""
        place = self._places[layer]
        first = place.address - self._memory.ctypes.data + expert * place.blob_bytes
        return self._memory[first : first + place.blob_bytes]


def _check_available(num_bytes: int) -> None:
    available = available_bytes()
    if num_bytes > available:
        raise PlanError(
            f"experts that are not in VRAM lie in RAM, {format_bytes(num_bytes)} in all; "
            f"{format_bytes(available)} are available.\n"
            "  Try: close other programs; --ram-limit, which leaves the rest on the disk; or a "
            "file with smaller weights."
        )
