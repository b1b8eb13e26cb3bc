"""The launches of the draft layer: cells of up to 8 positions, then drafts one after the other.

The mathematics is ``reference.draft_layer``. Uses a window's buffers: both never run at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from strata.gpu.kernels.argmax import argmax
from strata.gpu.kernels.attention import Parts, Selection, attend
from strata.gpu.kernels.draft_input import join
from strata.gpu.kernels.embed import embed
from strata.gpu.kernels.hyper_connections import write_and_norm
from strata.gpu.kernels.qsa_append import Cells, RopeTable, append
from strata.gpu.kernels.quantize import Codes, quantize
from strata.gpu.launches import Launches
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.weights import DraftWeights
    from strata.model_spec import ModelSpec

_CODE_FIELDS = ("codes", "scales", "sums", "scaled_sums", "scaled_half_sums")


class DraftLaunches(Launches):
    """The layer's weights, its cells and the buffers between its launches.

    Args:
        spec: geometry.
        weights: of the layer.
        buffers: of a window.
        tensors: by the names of ``draft_layout.draft_shapes``.
        capacity: tokens of the conversation.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DraftWeights,
        buffers: WindowBuffers,
        tensors: Mapping[str, Tensor],
        capacity: int,
    ) -> None:
        super().__init__(spec, buffers)
        self._weights = weights
        self._tensors = tensors
        names = ("keys", "values", "key_scales", "value_scales")
        self.cells = Cells(*(tensors.get(name) for name in names))  # type: ignore[arg-type]
        self._selection = Selection(None, 1, capacity)
        self._parts = Parts(tensors["part_values"], tensors["part_sums"])
        self._rope = RopeTable(buffers.tensors["rope_cos"], buffers.tensors["rope_sin"])
        self._joined_codes: Codes | None = None
        if "joined_codes.codes" in tensors:
            fields = (tensors[f"joined_codes.{field}"] for field in _CODE_FIELDS)
            self._joined_codes = Codes(*fields)
        self._places, self._tokens = input_views(tensors["inputs"])
        self._probs = tensors["drafts"].view(torch.float32)

    def launch(self, num_rows: int, num_drafts: int) -> None:
        """Cells of ``num_rows`` waiting positions, then ``num_drafts`` drafts, perhaps none."""
        drafts, places = self._tensors["drafts"], self._places
        drafts.zero_()
        bad = drafts[0, 2:3]
        inject, gate = self._make_cells(
            self._tokens[:num_rows], self._tensors["ring"], places[0], places[0], bad
        )
        streams = self._streams(num_rows)
        for draft in range(num_drafts):
            if draft:
                token, bad = drafts[draft - 1, :1], drafts[draft, 2:3]
                inject, gate = self._make_cells(
                    token, streams.view(1, -1), None, places[1 + draft], bad
                )
                streams = self._streams(1)
            # Of several cells only the last one looks about.
            last = slice(len(streams) - 1, len(streams))
            streams = streams[last]
            self._attend(self._rows("queries", MAX_WINDOW_ROWS)[last], gate[last],
                         places[1 + draft], bad)  # fmt: skip
            self._finish(streams, inject[last], draft, bad)

    def _make_cells(
        self,
        tokens: Tensor,
        source: Tensor,
        source_place: Tensor | None,
        place: Tensor,
        bad: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Cells from ``place`` on; their injections and gates of the attention's heads."""
        spec, weights, n = self._spec, self._weights, len(tokens)
        eps, width = spec.rms_eps, spec.hidden_size
        embedded = self._tensors["embedded"][:n]
        embed(weights.embedding, tokens, embedded)
        joined = self._tensors["joined"][: n * spec.num_streams]
        join(
            embedded, source, source_place, weights.embed_norm, weights.hidden_norm, eps,
            joined.view(n, spec.num_streams, -1),
        )  # fmt: skip
        streams = self._streams(n)
        fused = streams.view(n * spec.num_streams, width)
        for first in range(0, len(joined), MAX_WINDOW_ROWS):
            rows = joined[first : first + MAX_WINDOW_ROWS]
            if weights.fusion.has_codes:
                quantize(rows, self._codes(rows, len(rows)), bad)
            self._products(weights.fusion, rows, len(rows), fused[first : first + len(rows)])
        xn = self._rows("xn", n)
        codes = self._codes_for(weights.hc_attn.down_inject, xn, n)
        write_and_norm(streams, None, None, weights.hc_attn.norm, eps, xn, codes, bad)
        inject = self._read(weights.hc_attn, n, bad, has_codes=weights.projections.has_codes)
        assert inject is not None  # noqa: S101 - the layout has it
        projected = self._rows("projected", n)
        self._products(weights.projections, self._rows("x", n), n, projected)
        q_gate, k, v = (projected[:, slice(*columns)] for columns in weights.projections.columns)
        q_gate = q_gate.view(n, spec.num_heads, 2 * spec.head_dim)
        kv_shape = (n, spec.num_kv_heads, spec.head_dim)
        append(
            q_gate, k.view(kv_shape), v.view(kv_shape), weights.q_gamma, weights.k_gamma,
            self._rope, place, eps, self.cells, self._rows("queries", n),
        )  # fmt: skip
        return inject, q_gate[:, :, spec.head_dim :]

    def _attend(self, query: Tensor, gate: Tensor, place: Tensor, bad: Tensor) -> None:
        """``out`` of one cell, which sees all before it and itself."""
        spec, out = self._spec, self._weights.out
        mixed = self._mixed(1, spec.num_heads * spec.head_dim)
        codes = self._tail_codes(out, mixed, 1, spec.head_dim)
        attend(query, gate, self.cells, self._selection, place, self._parts, mixed, codes, bad)
        self._close(out, mixed, 1, spec.head_dim, bad)

    def _finish(self, streams: Tensor, inject: Tensor, draft: int, bad: Tensor) -> None:
        """The experts and the head of one cell; the likeliest token is the draft."""
        spec, weights, tensors = self._spec, self._weights, self._buffers.tensors
        xn, eps = self._rows("xn", 1), spec.rms_eps
        codes = self._codes_for(weights.hc_ffn.down_inject, xn, 1)
        written = self._rows("out", 1)
        write_and_norm(streams, written, inject, weights.hc_ffn.norm, eps, xn, codes, bad)
        second = self._read(weights.hc_ffn, 1, bad, has_codes=True)
        codes = self._codes_for(weights.final.down_inject, xn, 1)
        mixture = self._moe(weights.moe, 1, bad)
        write_and_norm(streams, mixture, second, weights.final.norm, eps, xn, codes, bad)
        self._read(weights.final, 1, bad, has_codes=weights.head.has_codes)
        logits, out = self._rows("logits", 1), self._tensors["drafts"]
        self._products(weights.head, self._rows("x", 1), 1, logits)
        argmax(
            logits, tensors["argmax_best"], tensors["argmax_sums"], out[draft, :1],
            self._probs[draft, 1:2], bad,
        )  # fmt: skip

    def _codes(self, x: Tensor, n: int) -> Codes:
        if self._joined_codes is not None and x.shape[-1] == 2 * self._spec.hidden_size:
            return self._joined_codes.rows(n)
        return super()._codes(x, n)


def input_views(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Places [8, 1] int64 and tokens [8] int32 in the bytes of the inputs.

    Place 0 is the first new cell, place 1 + j the cell of draft j.
    """
    size = 16 * MAX_WINDOW_ROWS
    return inputs[:size].view(torch.int64).view(-1, 2)[:, :1], inputs[size:].view(torch.int32)
