"""What a conversation leaves behind in each layer, on a card; saved and restored exactly.

Everything goes by position: rings and cells of rows that are not kept are written over by those
that come in their place, so committing a window changes no memory here. Only the recurrent memory
runs behind: kept rows wait in a ring and are stepped in by the next window (``num_pending``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strata.gpu.arena import Arena
from strata.gpu.kernels.gated_delta import GdnMemory
from strata.gpu.kernels.qsa_append import Cells, IndexKeys
from strata.gpu.session_layout import INDEX_GROUP, state_shapes
from strata.gpu.shapes import total_bytes
from strata.model_spec import LayerKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class QsaMemory:
    """One sparse attention layer: cells, and what its indexer keeps."""

    cells: Cells
    index: IndexKeys


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation's exact state, in host memory.

    Attributes:
        position: tokens committed.
        layers: one tuple of tensors for each layer.
        ple: newest inputs of the n-gram memory's convolution, if there is one.
        tokens: newest token ids of the n-gram memory.
        draft: what the draft layer keeps, if there is one.
    """

    position: int
    layers: tuple[tuple[Tensor, ...], ...]
    ple: tuple[Tensor, ...]
    tokens: NDArray[np.int64]
    draft: tuple[Tensor, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Host memory it holds."""
        return self.tokens.nbytes + sum(
            part.nbytes for parts in (*self.layers, self.ple, self.draft) for part in parts
        )


class SessionState:
    """State of all layers; position and pending rows are the session's.

    Args:
        spec: geometry.
        capacity: tokens of the conversation.
        kv_format: "f16" or "int8".
        device: where.

    Raises:
        DeviceError: the card has not got the memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        capacity: int,
        kv_format: str,
        device: torch.device,
    ) -> None:
        self._spec = spec
        parts = state_shapes(spec, capacity, kv_format)
        size = sum(total_bytes(shapes.values()) for shapes in parts.values())
        arena = Arena(size, device, "the state of a conversation")
        self.num_bytes = arena.num_bytes
        self.layers: list[GdnMemory | QsaMemory] = []
        for layer, kind in enumerate(spec.layer_kinds):
            tensors = arena.take_all(parts[f"layer.{layer}"])
            if kind is LayerKind.GDN:
                self.layers.append(GdnMemory(**tensors))
            else:
                index = IndexKeys(tensors.pop("ring"), tensors.pop("pooled"))
                self.layers.append(QsaMemory(Cells(**tensors), index))
        self.ple_ring = arena.take_all(parts["ple"]).get("ring")

    def reset(self) -> None:
        """Before the first token. Rings and cells are not read before they are written."""
        for layer in self.layers:
            if isinstance(layer, GdnMemory):
                layer.memory.zero_()

    def save(self, position: int) -> tuple[tuple[tuple[Tensor, ...], ...], tuple[Tensor, ...]]:
        """Host copies of what ``position`` tokens left, none of them pending."""
        layers = tuple(
            tuple(_to_host(part) for part in self._parts(layer, position)) for layer in self.layers
        )
        return layers, tuple(_to_host(part) for part in self._ple_parts(position))

    def load(self, snapshot: Snapshot) -> None:
        """Puts a saved state back."""
        position = snapshot.position
        for layer, saved in zip(self.layers, snapshot.layers, strict=True):
            for part, values in zip(self._parts(layer, position), saved, strict=True):
                part.copy_from(values)
        for part, values in zip(self._ple_parts(position), snapshot.ple, strict=True):
            part.copy_from(values)

    def _parts(self, layer: GdnMemory | QsaMemory, position: int) -> list[_Part]:
        spec = self._spec
        if isinstance(layer, GdnMemory):
            history = spec.gdn_conv_kernel - 1
            return [_Part(layer.memory), _ring_part(layer.ring, position, history)]
        cells, block = layer.cells, spec.index_block
        planes = (cells.keys, cells.values, cells.key_scales, cells.value_scales)
        groups = -(-(position // block) // INDEX_GROUP)
        return [
            *(_Part(plane[:, :position]) for plane in planes if plane is not None),
            _ring_part(layer.index.ring, position, position % block),
            _Part(layer.index.pooled[:groups]),
        ]

    def _ple_parts(self, position: int) -> list[_Part]:
        if self.ple_ring is None or self._spec.ngram is None:
            return []
        return [_ring_part(self.ple_ring, position, self._spec.ngram.conv_history)]


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of the state: all of a view, or some of its rows."""

    memory: Tensor
    rows: Tensor | None = None

    def values(self) -> Tensor:
        return self.memory if self.rows is None else self.memory[self.rows]

    def copy_from(self, values: Tensor) -> None:
        if self.rows is None:
            self.memory.copy_(values)
        else:
            self.memory[self.rows] = values.to(self.memory.device)


def _ring_part(ring: Tensor, position: int, history: int) -> _Part:
    """The newest ``history`` rows of a ring before ``position``."""
    places = torch.arange(max(0, position - history), position, device=ring.device)
    return _Part(ring, places % len(ring))


def _to_host(part: _Part) -> Tensor:
    values = part.values()
    return values.clone() if values.device.type == "cpu" else values.cpu()
