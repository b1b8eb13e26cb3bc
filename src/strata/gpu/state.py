"""What a conversation leaves behind in each layer, on a card; saved and restored exactly.

Everything goes by position: rings and cells of rows that are not kept are written over by those
that come in their place, so committing a window changes no memory here. Only the recurrent memory
runs behind: kept rows wait in a ring and are stepped in by the next window (``num_pending``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from strata.gpu.arena import Arena
from strata.gpu.kernels.gated_delta import GdnMemory
from strata.gpu.kernels.qsa_append import Cells, IndexKeys
from strata.gpu.session_layout import INDEX_GROUP, state_shapes
from strata.gpu.shapes import total_bytes
from strata.model_spec import LayerKind
from strata.session_rules import have_forms, page_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.draft import GpuDrafter
    from strata.model_spec import ModelSpec
    from strata.session_rules import Arrays, Forms


@dataclass(frozen=True, slots=True)
class QsaMemory:
    """One sparse attention layer: cells, and what its indexer keeps."""

    cells: Cells
    index: IndexKeys


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

    def save(self, position: int) -> Arrays:
        """Host copies of what ``position`` tokens left besides cells, none of them pending."""
        return tuple(_to_host(part.values()) for part in self._running(position))

    def load(self, saved: Arrays, position: int) -> None:
        """Puts them back."""
        for part, values in zip(self._running(position), saved, strict=True):
            part.copy_from(values)

    def forms(self, position: int) -> Forms:
        """Sizes and types of what ``save`` gives."""
        return [_form(part.values()) for part in self._running(position)]

    def cells(self, start: int, stop: int) -> list[Tensor]:
        """Views of what the tokens from ``start`` to ``stop`` left once and for all."""
        block = self._spec.index_block
        groups = slice(start // (block * INDEX_GROUP), -(-(stop // block) // INDEX_GROUP))
        views: list[Tensor] = []
        for layer in self.layers:
            if isinstance(layer, QsaMemory):
                cells = layer.cells
                planes = (cells.keys, cells.values, cells.key_scales, cells.value_scales)
                views += [plane[:, start:stop] for plane in planes if plane is not None]
                views.append(layer.index.pooled[groups])
        return views

    def _running(self, position: int) -> list[_Part]:
        spec, parts = self._spec, list[_Part]()
        for layer in self.layers:
            if isinstance(layer, GdnMemory):
                history = spec.gdn_conv_kernel - 1
                parts += [_Part(layer.memory), _ring_part(layer.ring, position, history)]
            else:
                block = spec.index_block
                parts.append(_ring_part(layer.index.ring, position, position % block))
        if self.ple_ring is not None and spec.ngram is not None:
            parts.append(_ring_part(self.ple_ring, position, spec.ngram.conv_history))
        return parts


class GpuCells:
    """What each token leaves once and for all, of all layers: copied to the host and back by token.

    Args:
        spec: geometry.
        state: of the layers.
        drafter: whose cells are kept with them, if there is one.
    """

    def __init__(self, spec: ModelSpec, state: SessionState, drafter: GpuDrafter | None) -> None:
        self._state = state
        self._drafter = drafter
        self.page_tokens = page_tokens(spec.index_block * INDEX_GROUP)

    def save(self, start: int, stop: int) -> Arrays:
        """Host copies of what the tokens from ``start``, a multiple of a page, to ``stop`` left."""
        return tuple(_to_host(view) for view in self._views(start, stop))

    def load(self, start: int, stop: int, cells: Arrays) -> None:
        """Puts them back."""
        for view, values in zip(self._views(start, stop), cells, strict=True):
            view.copy_(torch.from_numpy(values))

    def fit(self, start: int, stop: int, cells: Arrays) -> bool:
        """Whether these can be cells of those tokens, by their sizes and types."""
        return have_forms(cells, [_form(view) for view in self._views(start, stop)])

    def _views(self, start: int, stop: int) -> list[Tensor]:
        views = self._state.cells(start, stop)
        return views if self._drafter is None else [*views, *self._drafter.cells(start, stop)]


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of the state: all of a view, or some of its rows."""

    memory: Tensor
    rows: Tensor | None = None

    def values(self) -> Tensor:
        return self.memory if self.rows is None else self.memory[self.rows]

    def copy_from(self, saved: NDArray[Any]) -> None:
        values = torch.from_numpy(saved)
        if self.rows is None:
            self.memory.copy_(values)
        else:
            self.memory[self.rows] = values.to(self.memory.device)


def _ring_part(ring: Tensor, position: int, history: int) -> _Part:
    """The newest ``history`` rows of a ring before ``position``."""
    places = torch.arange(max(0, position - history), position, device=ring.device)
    return _Part(ring, places % len(ring))


def _to_host(values: Tensor) -> NDArray[Any]:
    copied: NDArray[Any] = values.to("cpu", copy=True).contiguous().numpy()
    return copied


def _form(values: Tensor) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return tuple(values.shape), np.dtype(str(values.dtype).removeprefix("torch."))
