"""The launches of one decode window: every layer over 1 to 8 rows, in order, nothing allocated.

Inputs and outputs are the buffers; what the host decides between windows (position, pending rows,
token rows) lies in memory, so the same launches serve every window of as many rows. State is read
and written where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.gpu.kernels.attention import Parts, Selection, attend
from strata.gpu.kernels.draft_input import keep_streams
from strata.gpu.kernels.gated_delta import GdnMemory, gdn_window
from strata.gpu.kernels.hyper_connections import write_and_norm
from strata.gpu.kernels.indexer import score_blocks, select_blocks
from strata.gpu.kernels.ngram_memory import add_memory
from strata.gpu.kernels.qsa_append import IndexInputs, RopeTable, append
from strata.gpu.kernels.quantize import quantize
from strata.gpu.launches import Launches
from strata.gpu.state import QsaMemory
from strata.gpu.weights import GdnWeights
from strata.model_spec import Gate

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.sampler import Choice, Sampler
    from strata.gpu.state import SessionState
    from strata.gpu.weights import (
        HcWeights,
        LayerWeights,
        ModelWeights,
        PleWeights,
        QsaWeights,
    )
    from strata.model_spec import ModelSpec


@dataclass(frozen=True, slots=True)
class WindowShape:
    """What decides which launches a window has.

    Attributes:
        num_rows: 1 to 8.
        has_head: logits are wanted.
        has_selection: a row sees more complete blocks than it may attend to.
        choice: how tokens are picked on the card; None where the host wants the logits.
    """

    num_rows: int
    has_head: bool
    has_selection: bool
    choice: Choice | None = None


class Window(Launches):
    """A model, a conversation's state and the buffers between them.

    Args:
        spec: geometry.
        weights: on the same device as the rest.
        state: of the conversation.
        buffers: of a window.
        capacity: tokens of the conversation.
        sampler: picks tokens in windows that have a choice.
        stream_ring: where the last layer's streams are left for the draft layer, or None.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: ModelWeights,
        state: SessionState,
        buffers: WindowBuffers,
        capacity: int,
        sampler: Sampler,
        stream_ring: Tensor | None = None,
    ) -> None:
        super().__init__(spec, buffers)
        self._weights = weights
        self._state = state
        self._capacity = capacity
        self._sampler = sampler
        self._stream_ring = stream_ring
        self._tiers = [layer.moe.tier for layer in weights.layers if layer.moe.tier is not None]
        flags = buffers.tensors["flags"]
        self._flags = [row[:1] for row in flags]
        # What reads the streams after each layer's last write; None where the memory changes them.
        following = [None if layer.ple else layer.hc_attn for layer in weights.layers[1:]]
        self._reads_after: list[HcWeights | None] = [*following, weights.final]

    @property
    def variant(self) -> tuple[tuple[bool, ...], ...]:
        """What decides, beside its shape, which launches a window has."""
        return tuple((tier.is_needed, tier.has_staging, tier.keeps) for tier in self._tiers)

    def launch(self, shape: WindowShape) -> None:
        """Every launch of a window; inputs must be on the card."""
        n, buffers, hidden = shape.num_rows, self._buffers, self._spec.hidden_size
        buffers.tensors["flags"].zero_()
        streams = self._streams(n)
        streams.copy_(buffers.rows[:n, None, :hidden].expand_as(streams))
        for layer in self._weights.layers:
            self._layer(layer, shape)
        if self._stream_ring is not None:
            keep_streams(streams, buffers.position, self._stream_ring)
        if shape.has_head:
            final, head = self._weights.final, self._weights.head
            bad = self._flags[-1]
            self._read(final, n, bad, has_codes=head.has_codes, is_split=True, following=head)
            logits = self._rows("logits", n)
            self._products(head, self._rows("x", n), n, logits, self._split_for(head, "x", n))
            if shape.choice is not None:
                self._sampler.launch(shape.choice, logits, buffers.position, bad)

    def head(self, normed: Tensor) -> None:
        """Row 0 of the logits from one row [S * D], normed for the read before the head."""
        final, head, bad = self._weights.final, self._weights.head, self._flags[-1]
        xn = self._rows("xn", 1)
        xn.copy_(normed)
        codes = self._codes_for(final.down_inject, xn, 1)
        if codes is not None:
            quantize(xn, codes, bad)
        self._read(final, 1, bad, has_codes=head.has_codes)
        self._products(head, self._rows("x", 1), 1, self._rows("logits", 1))

    def step_pending(self) -> None:
        """Takes the pending rows into the recurrent memories, as the next window would."""
        for layer, memory in zip(self._weights.layers, self._state.layers, strict=True):
            if isinstance(layer.mixer, GdnWeights):
                self._gdn(layer.mixer, memory, 0, self._flags[layer.index])

    def _layer(self, layer: LayerWeights, shape: WindowShape) -> None:
        n, bad, eps = shape.num_rows, self._flags[layer.index], self._spec.rms_eps
        streams, xn = self._streams(n), self._rows("xn", n)
        if layer.ple is not None:
            self._ple(layer.ple, n, bad)
        if layer.ple is not None or layer.index == 0:
            forms = self._forms(layer.hc_attn.down_inject, n, bad)
            write_and_norm(streams, None, None, layer.hc_attn.norm, eps, xn, *forms)
        mixer = layer.mixer
        following = mixer.projections
        inject = self._read(
            layer.hc_attn, n, bad, has_codes=following.has_codes, is_split=True, following=following
        )
        if isinstance(mixer, GdnWeights):
            self._gdn(mixer, self._state.layers[layer.index], n, bad)
        else:
            self._qsa(mixer, self._state.layers[layer.index], shape, bad)
        forms = self._forms(layer.hc_ffn.down_inject, n, bad)
        write_and_norm(streams, self._rows("out", n), inject, layer.hc_ffn.norm, eps, xn, *forms)
        following = layer.moe.routers
        inject = self._read(
            layer.hc_ffn, n, bad, has_codes=True, is_split=True, following=following
        )
        outputs = self._moe(layer.moe, n, bad, self._split_for(following, "x", n))
        coming = self._reads_after[layer.index]
        if coming is None:
            # The memory of the next layer changes the streams before they are normed again.
            write_and_norm(streams, outputs, inject, layer.hc_ffn.norm, eps, xn)
        else:
            forms = self._forms(coming.down_inject, n, bad)
            write_and_norm(streams, outputs, inject, coming.norm, eps, xn, *forms)

    def _gdn(self, weights: GdnWeights, memory: object, n: int, bad: Tensor) -> None:
        """``out`` from ``x``; with no rows, only the pending ones are stepped in."""
        assert isinstance(memory, GdnMemory)  # noqa: S101 - built from the same list
        spec, buffers = self._spec, self._buffers
        projected = self._rows("projected", n)
        if n:
            split = self._split_for(weights.projections, "x", n)
            self._products(weights.projections, self._rows("x", n), n, projected, split)
        qkv, z, alpha, beta = (
            projected[:, slice(*columns)] for columns in weights.projections.columns
        )
        mixed = self._mixed(n, spec.gdn_value_size)
        gdn_window(
            qkv, z, alpha, beta, weights.constants, memory, buffers.position, buffers.num_pending,
            mixed, self._tail_codes(weights.out, mixed, n, spec.gdn_value_dim), bad,
            is_silu_gate=spec.gdn_gate is Gate.SILU, eps=spec.rms_eps,
        )  # fmt: skip
        if n:
            self._close(weights.out, mixed, n, spec.gdn_value_dim, bad)

    def _qsa(self, weights: QsaWeights, memory: object, shape: WindowShape, bad: Tensor) -> None:
        """``out`` from ``x``; the rows become the cells from the position on."""
        assert isinstance(memory, QsaMemory)  # noqa: S101 - built from the same list
        spec, buffers, n = self._spec, self._buffers, shape.num_rows
        tensors, block = buffers.tensors, spec.index_block
        projected = self._rows("projected", n)
        split = self._split_for(weights.projections, "x", n)
        self._products(weights.projections, self._rows("x", n), n, projected, split)
        q_gate, k, v, index_q, index_k = (
            projected[:, slice(*columns)] for columns in weights.projections.columns
        )
        q_gate = q_gate.view(n, spec.num_heads, 2 * spec.head_dim)
        queries, index_queries = self._rows("queries", n), self._rows("index_queries", n)
        inputs = IndexInputs(
            index_q.view(n, spec.index_heads, spec.index_dim), index_k,
            weights.index_q_gamma, weights.index_k_gamma, index_queries, block,
        )  # fmt: skip
        append(
            q_gate,
            k.view(n, spec.num_kv_heads, spec.head_dim),
            v.view(n, spec.num_kv_heads, spec.head_dim),
            weights.q_gamma, weights.k_gamma, RopeTable(tensors["rope_cos"], tensors["rope_sin"]),
            buffers.position, spec.rms_eps, memory.cells, queries, (inputs, memory.index),
        )  # fmt: skip
        chosen = tensors["chosen"]
        if shape.has_selection:
            scores = tensors["scores"]
            score_blocks(
                index_queries, memory.index.pooled, buffers.position, spec.index_budget, block,
                scores,
            )  # fmt: skip
            select_blocks(
                scores, buffers.position, n, spec.index_budget // block, block,
                tensors["candidates"], chosen,
            )  # fmt: skip
        mixed = self._mixed(n, spec.num_heads * spec.head_dim)
        attend(
            queries, q_gate[:, :, spec.head_dim :], memory.cells,
            Selection(chosen, block, self._capacity), buffers.position,
            Parts(tensors["part_values"], tensors["part_sums"]), mixed,
            self._tail_codes(weights.out, mixed, n, spec.head_dim), bad,
        )  # fmt: skip
        self._close(weights.out, mixed, n, spec.head_dim, bad)

    def _ple(self, weights: PleWeights, n: int, bad: Tensor) -> None:
        """Adds the n-gram memory to the streams."""
        ring = self._state.ple_ring
        assert ring is not None  # noqa: S101 - the layer has its weights
        rows = self._buffers.rows[:n, self._spec.hidden_size :]
        codes = self._codes_for(weights.projections, rows, n)
        if codes is not None:
            quantize(rows, codes, bad)
        products = self._rows("ple", n)
        self._products(weights.projections, rows, n, products)
        key, value = (products[:, slice(*columns)] for columns in weights.projections.columns)
        add_memory(
            self._streams(n), key, value, weights.constants, ring, self._buffers.position,
            self._spec.rms_eps, self._rows("ple_gated", n), self._rows("ple_inputs", n),
        )  # fmt: skip
