"""A model file's tensors on a card, packed as the kernels read them.

One tensor at a time is read, checked, re-laid on the card and let go. Where it goes is decided by
``model_layout``; the embedding and the n-gram table stay in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from strata.formats.file_pages import drop_pages
from strata.formats.model_tensors import ModelTensors
from strata.formats.naming import Role, tensor_name
from strata.gpu.arena import Arena
from strata.gpu.expert_slots import BlobLayout, ExpertSlots
from strata.gpu.float_matrix import FloatMatrix, pack_floats
from strata.gpu.kernels.gated_delta import GdnConstants
from strata.gpu.kernels.ngram_memory import NgramConstants
from strata.gpu.kernels.stream_read import read_order
from strata.gpu.memory_plan import weight_bytes
from strata.gpu.model_weights import (
    DraftWeights,
    GdnWeights,
    HcWeights,
    LayerWeights,
    Matrices,
    ModelWeights,
    MoeWeights,
    PleWeights,
    QsaWeights,
)
from strata.gpu.packing import PackedMatrix, pack
from strata.gpu.shapes import Shape
from strata.gpu.slot_memory import slot_memory
from strata.gpu.weight_layout import FLOAT_FORMATS, PANEL_ROWS
from strata.model_spec import LayerKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.formats.model_tensors import OnProgress
    from strata.formats.tensor_index import TensorIndex
    from strata.gpu.model_layout import (
        DraftLayout,
        ExpertsLayout,
        HcLayout,
        LayerLayout,
        ModelLayout,
    )
    from strata.gpu.weight_layout import Bundle
    from strata.model_spec import ModelSpec
    from strata.tiers.hand_off import ExpertHost

__all__ = [
    "DraftWeights",
    "GdnWeights",
    "HcWeights",
    "LayerWeights",
    "Matrices",
    "ModelWeights",
    "MoeWeights",
    "PleWeights",
    "QsaWeights",
    "load_weights",
]

# Stored bytes that are sent and re-laid at a time.
_CHUNK_BYTES = 1 << 24
_ROUTED = "routed experts"


def load_weights(
    index: TensorIndex,
    spec: ModelSpec,
    layout: ModelLayout,
    device: torch.device,
    on_progress: OnProgress | None = None,
    host: ExpertHost | None = None,
) -> ModelWeights:
    """The model of ``index``, packed, on a device.

    Args:
        index: an open model whose layout has been checked (``naming.check_layout``).
        spec: its geometry.
        layout: of ``model_layout``.
        device: where.
        on_progress: called with (bytes read, bytes to read).
        host: takes the routed experts of the trunk, whose slots stay empty; None puts them all
            into slots.

    Raises:
        CheckpointError: a float tensor holds NaN or infinity; names it.
        DeviceError: the card has not got the memory.
    """
    return _Loader(index, spec, layout, device, on_progress, host).model()


class _Loader:
    def __init__(
        self,
        index: TensorIndex,
        spec: ModelSpec,
        layout: ModelLayout,
        device: torch.device,
        on_progress: OnProgress | None,
        host: ExpertHost | None,
    ) -> None:
        self._spec = spec
        self._host = host
        self._layout = layout
        self._device = device
        self._file = ModelTensors(
            index, spec, has_draft=layout.draft is not None, on_progress=on_progress
        )
        sizes = weight_bytes(layout, index)
        self._arenas: dict[str, Arena] = {}
        for name, size in sizes.items():
            # Where experts are elsewhere too, a model can do with fewer slots while it runs.
            make = slot_memory if host is not None and name == _ROUTED else Arena
            self._arenas[name] = make(size, device, name)
        self._dense = self._arenas["dense weights"]

    def model(self) -> ModelWeights:
        layers = tuple(self._layer(layer) for layer in self._layout.layers)
        final = self._hc(self._layout.final)
        head = self._matrices(self._layout.head)
        embedding = self._file.embedding(tensor_name(Role.EMBEDDING))
        draft = None
        if self._layout.draft is not None:
            self._dense = self._arenas["draft layer"]
            draft = self._draft(self._layout.draft, head)
        num_bytes = {name: arena.used_bytes for name, arena in self._arenas.items()}
        slots = self._arenas[_ROUTED]
        return ModelWeights(embedding, layers, final, head, draft, num_bytes, slots)

    def _draft(self, draft: DraftLayout, head: Matrices) -> DraftWeights:
        embedding = head if draft.embedding is None else self._matrices(draft.embedding)
        small = draft.small
        return DraftWeights(
            embedding.launches[0][0],
            self._floats(draft.embed_norm),
            self._floats(draft.hidden_norm),
            self._matrices(draft.fusion),
            self._hc(draft.hc_attn),
            self._matrices(draft.projections),
            self._floats(small[Role.ATTN_Q_NORM]),
            self._floats(small[Role.ATTN_K_NORM]),
            self._matrices(draft.out),
            self._hc(draft.hc_ffn),
            MoeWeights(
                self._matrices(draft.routers),
                self._experts(draft.experts, "draft layer"),
                self._experts(draft.shared, "draft layer"),
            ),
            self._hc(draft.final),
            head if draft.head is None else self._matrices(draft.head),
        )

    def _layer(self, layer: LayerLayout) -> LayerWeights:
        return LayerWeights(
            layer.index,
            self._ple(layer),
            self._hc(layer.hc_attn),
            self._gdn(layer) if layer.kind is LayerKind.GDN else self._qsa(layer),
            self._hc(layer.hc_ffn),
            MoeWeights(
                self._matrices(layer.routers),
                self._routed(layer),
                self._experts(layer.shared, "shared experts"),
            ),
        )

    def _routed(self, layer: LayerLayout) -> ExpertSlots:
        if self._host is None:
            return self._experts(layer.experts, _ROUTED)
        experts = layer.experts
        self._host.fill_layer(layer.index, self._file)
        blob = BlobLayout(experts.formats, experts.hidden_size, experts.expert_size)
        return ExpertSlots(blob, **self._arenas[_ROUTED].take_all(experts.shapes()))

    def _hc(self, hc: HcLayout) -> HcWeights:
        norm = self._floats(hc.norm).reshape(-1)
        order = read_order(self._spec.num_streams, self._spec.hidden_size).numpy()
        return HcWeights(norm, self._matrices(hc.down_inject), self._matrices(hc.up, order))

    def _gdn(self, layer: LayerLayout) -> GdnWeights:
        small = layer.small
        constants = GdnConstants(
            conv=self._floats(small[Role.GDN_CONV], is_transposed=True),
            dt_bias=self._floats(small[Role.GDN_DT]),
            ssm_a=self._floats(small[Role.GDN_A]).reshape(-1),
            gamma=self._floats(small[Role.GDN_NORM]),
        )
        return GdnWeights(self._matrices(layer.projections), constants, self._matrices(layer.out))

    def _qsa(self, layer: LayerLayout) -> QsaWeights:
        self._file.refuse_bad_indexer(layer.index)
        small = layer.small
        return QsaWeights(
            self._matrices(layer.projections),
            self._floats(small[Role.ATTN_Q_NORM]),
            self._floats(small[Role.ATTN_K_NORM]),
            self._floats(small[Role.INDEX_Q_NORM]),
            self._floats(small[Role.INDEX_K_NORM]),
            self._matrices(layer.out),
        )

    def _ple(self, layer: LayerLayout) -> PleWeights | None:
        if layer.ple is None or self._spec.ngram is None:
            return None
        small = layer.ple_small
        constants = NgramConstants(
            key_gamma=self._floats(small[Role.PLE_NORM_KEY]).reshape(-1),
            query_gamma=self._floats(small[Role.PLE_NORM_QUERY]).reshape(-1),
            conv_gamma=self._floats(small[Role.PLE_NORM_CONV]).reshape(-1),
            conv=self._floats(small[Role.PLE_CONV], is_transposed=True),
            dilation=self._spec.ngram.ngram_size,
        )
        return PleWeights(self._matrices(layer.ple), constants)

    def _floats(self, name: str, *, is_transposed: bool = False) -> Tensor:
        """A small tensor; a convolution's [channels, kernel] lies as [kernel, channels]."""
        values = self._file.floats(name)
        out = self._dense.take(Shape(values.T.shape if is_transposed else values.shape))
        out.copy_(torch.from_numpy(np.array(values.T if is_transposed else values, order="C")))
        return out

    def _matrices(self, bundle: Bundle, order: NDArray[np.int64] | None = None) -> Matrices:
        """A bundle packed; with ``order``, rows of its matrices lie so."""
        launches: list[tuple[PackedMatrix | FloatMatrix, int]] = []
        for launch in bundle.launches:
            panels = self._dense.take(Shape((launch.num_panels, launch.panel_bytes), "uint8"))
            for part in launch.parts:
                raw = self._file.raw(part.name)
                rows = raw[None] if raw.ndim == 1 else raw  # a single output is a vector
                rows = rows if order is None else rows[order]
                end = part.panel + -(-part.num_rows // PANEL_ROWS)
                self._send(launch.format_name, rows, launch.inner, panels[part.panel : end])
                if part.name != Role.EMBEDDING.value:
                    drop_pages(raw)
            matrix = _matrix(launch.format_name, launch.num_rows, launch.inner, panels)
            launches.append((matrix, launch.column))
        return Matrices(tuple(launches), bundle.columns, bundle.width, bundle.has_codes)

    def _experts(self, layout: ExpertsLayout, owner: str) -> ExpertSlots:
        """Every expert of a layer in the slot of its number."""
        blob = BlobLayout(layout.formats, layout.hidden_size, layout.expert_size)
        slots = ExpertSlots(blob, **self._arenas[owner].take_all(layout.shapes()))
        is_fused = layout.names[0] == layout.names[1]
        for role, name in enumerate(layout.names):
            raw = self._file.raw(name)
            first = layout.expert_size if is_fused and role == 1 else 0
            num_rows = blob.shape_of(role)[0]
            every = (raw[None] if raw.ndim == 2 else raw)[:, first : first + num_rows]
            self._fill(slots, role, every)
            drop_pages(raw)
            slots.scales[:, role] = torch.tensor(self._file.scales(name, layout.num))
        slots.slot_of.copy_(torch.arange(layout.num))
        return slots

    def _fill(self, slots: ExpertSlots, role: int, every: NDArray[np.uint8]) -> None:
        """One matrix of all experts [num, rows, row_bytes], some experts at a time."""
        layout = slots.layout
        inner = layout.shape_of(role)[1]
        first_byte, end_byte = layout.offset_of(role), layout.offset_of(role + 1)
        step = max(1, _CHUNK_BYTES // every[0].nbytes)
        for first in range(0, len(every), step):
            some = np.array(every[first : first + step])
            rows = torch.from_numpy(some).to(self._device).flatten(0, 1)
            panels = pack(layout.formats[role], rows, inner).panels
            blobs = slots.blobs[first : first + step, first_byte:end_byte]
            blobs.copy_(panels.reshape(len(some), -1))
            self._file.advance(some.nbytes)

    def _send(self, format_name: str, rows: NDArray[np.uint8], inner: int, panels: Tensor) -> None:
        """Re-lays stored rows into panels, some at a time."""
        step = max(1, _CHUNK_BYTES // rows.shape[1] // PANEL_ROWS) * PANEL_ROWS
        for first in range(0, len(rows), step):
            # A copy: torch takes no arrays it could not write to.
            some = np.array(rows[first : first + step])
            at = first // PANEL_ROWS
            out = panels[at : at + -(-len(some) // PANEL_ROWS)]
            stored = torch.from_numpy(some).to(self._device)
            if format_name in FLOAT_FORMATS:
                pack_floats(format_name, stored, inner, out)
            else:
                pack(format_name, stored, inner, out)
            self._file.advance(some.nbytes)


def _matrix(
    format_name: str, num_rows: int, inner: int, panels: Tensor
) -> PackedMatrix | FloatMatrix:
    kind = FloatMatrix if format_name in FLOAT_FORMATS else PackedMatrix
    return kind(format_name, num_rows, inner, panels)
