"""The launches of one prompt chunk: every layer over up to 8,192 rows, in order, nothing allocated.

The sibling of ``window`` for many rows: products on tensor cores over weights that are taken apart
once a chunk, the delta net in chunks of 64, attention without a mask. Experts have the bits of a
window; elsewhere sums run in another order. No row's bits depend on where a prompt is cut, as long
as it is cut at multiples of ``prompt_layout.CUT_TOKENS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.gpu.float_matrix import FloatMatrix
from strata.gpu.kernels.attention_prompt import attend_prompt
from strata.gpu.kernels.bf16_prompt import bf16_prompt_product
from strata.gpu.kernels.conv_prompt import conv_prompt
from strata.gpu.kernels.delta_scan import delta_scan, gated_norm
from strata.gpu.kernels.expand import expand
from strata.gpu.kernels.float_prompt import float_prompt_product
from strata.gpu.kernels.gated_delta import GdnMemory
from strata.gpu.kernels.grouped_product import prompt_product
from strata.gpu.kernels.hyper_connections import ExpertOutputs, silu_of_quotient
from strata.gpu.kernels.index_prompt import append_index, select_prompt
from strata.gpu.kernels.ngram_prompt import add_memory_prompt
from strata.gpu.kernels.prompt_codes import quantize_prompt
from strata.gpu.kernels.qsa_append import IndexInputs, RopeTable, append
from strata.gpu.kernels.read_prompt import between_prompt, down_prompt, up_mix_prompt
from strata.gpu.kernels.router import route
from strata.gpu.kernels.stream_prompt import mix_prompt
from strata.gpu.kernels.write_prompt import write_prompt
from strata.gpu.launch_tape import LaunchTape, can_record
from strata.gpu.prompt_experts import PromptExperts
from strata.gpu.prompt_layout import CUT_TOKENS, experts_at_a_time, is_fused_read, is_split
from strata.gpu.state import QsaMemory
from strata.gpu.weights import GdnWeights
from strata.model_spec import Gate, LayerKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from torch.cuda import Event

    from strata.gpu.kernels.prompt_codes import PromptCodes
    from strata.gpu.model_layout import ModelLayout
    from strata.gpu.prompt_buffers import PromptBuffers
    from strata.gpu.state import SessionState
    from strata.gpu.weights import (
        HcWeights,
        LayerWeights,
        Matrices,
        ModelWeights,
        MoeWeights,
        PleWeights,
        QsaWeights,
    )
    from strata.model_spec import ModelSpec

# Names of ``prompt_layout.PromptShapes.phases``.
_READ, _MOE, _PLE = "read", "moe", "ple"
_GDN, _QSA = LayerKind.GDN.value, LayerKind.QSA.value
# The most rows of a chunk whose launches are kept: with more, the host is ahead of the card anyway.
_MOST_TAPED_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Place:
    """What differs between chunks of as many rows.

    Attributes:
        position: tokens before row 0.
        before_late: recorded when the card comes to the late layers; None if nobody waits.
    """

    position: int
    before_late: Event | None = None


_NOWHERE = Place(0)  # for steps that do not ask


class Prompt:
    """A model, a conversation's state and the buffers between them.

    Args:
        spec: geometry.
        layout: of the model.
        weights: on the same device as the rest.
        state: of the conversation; no rows may be pending in it.
        buffers: of a chunk.
        flags: [L + 1, 4] int32; the first of a row is set where a layer gives NaN or infinity.
        rope: of all positions; None where no layer rotates.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: ModelLayout,
        weights: ModelWeights,
        state: SessionState,
        buffers: PromptBuffers,
        flags: Tensor,
        rope: RopeTable | None,
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._state = state
        self._buffers = buffers
        self._rope = rope
        self._flags = [row[:1] for row in flags]
        self._experts = PromptExperts(buffers)
        # Experts that are streamed ask for other launches each time.
        is_whole = all(layer.moe.tier is None for layer in weights.layers)
        self._is_taped = is_whole and not flags.is_meta and can_record()
        self._tapes: dict[tuple[int, int, int], LaunchTape[Place]] = {}
        self._tape: LaunchTape[Place] | None = None  # that is being recorded
        self._experts_step = [
            experts_at_a_time(layer.experts, buffers.max_rows) for layer in layout.layers
        ]
        tier = weights.layers[0].moe.tier
        self._ahead = None if tier is None else tier.ahead
        self._fused = [
            (is_fused_read(layer.hc_attn, spec), is_fused_read(layer.hc_ffn, spec))
            for layer in layout.layers
        ]

    def launch(
        self,
        host_rows: Tensor,
        position: int,
        late_layer: int = 0,
        before_late: Event | None = None,
    ) -> Tensor:
        """Every layer over the rows of a chunk; the state moves on.

        Args:
            host_rows: [N, D + W] float32, embedding and n-gram rows; page-locked on a card, and
                not to be changed before the launches are done.
            position: tokens before row 0.
            late_layer: before which an event is recorded.
            before_late: that event.

        Returns:
            [S * D] float32: the last row, normed for the read before the head.
        """
        buffers, spec, num_rows = self._buffers, self._spec, len(host_rows)
        buffers.begin(num_rows, position)
        if self._ahead is not None:
            self._ahead.begin(num_rows, self._experts_step)
        rows = buffers.rows("rows")
        rows.copy_(host_rows, non_blocking=True)
        streams = self._streams()
        streams.copy_(rows[:, None, : spec.hidden_size].expand_as(streams))
        place = Place(position, before_late)
        # Chunks of the delta net lie at multiples of these tokens.
        key = (num_rows, position % CUT_TOKENS, late_layer)
        if key in self._tapes:
            self._tapes[key].play(place)
        elif self._is_taped and num_rows <= _MOST_TAPED_ROWS:
            tape = self._tape = LaunchTape[Place]()
            try:
                with tape.recording():
                    self._layers(place, late_layer)
            finally:
                self._tape = None
            self._tapes[key] = tape
        else:
            self._layers(place, late_layer)
        return buffers.rows("last")[0]

    def _layers(self, place: Place, late_layer: int) -> None:
        for layer in self._weights.layers:
            if layer.index == late_layer:
                self._step(_tell, place)
            self._layer(layer, place)
        buffers = self._buffers
        write_prompt(
            self._streams()[-1:], None, None, self._weights.final.norm, self._spec.rms_eps,
            buffers.rows("inverse")[-1:], buffers.rows("last"),
        )  # fmt: skip

    def _step(self, run: Callable[[Place], object], place: Place) -> None:
        """What is no launch, or asks where the chunk lies: done anew for every chunk."""
        if self._tape is None:
            run(place)
        else:
            self._tape.step(run, place)

    def _layer(self, layer: LayerWeights, place: Place) -> None:
        bad = self._flags[layer.index]
        is_fused, is_second_fused = self._fused[layer.index]
        if layer.ple is not None:
            self._ple(layer.ple, place, bad)
        if layer.ple is not None or layer.index == 0:
            self._write(None, None, layer.hc_attn, has_xn=not is_fused)
        inject = self._read(layer.hc_attn, bad, is_fused=is_fused)
        if isinstance(layer.mixer, GdnWeights):
            self._gdn(layer.mixer, self._state.layers[layer.index], place, bad)
        else:
            self._qsa(layer.mixer, self._state.layers[layer.index], place, bad)
        self._write(self._buffers.rows("out"), inject, layer.hc_ffn, has_xn=not is_second_fused)
        inject = self._read(layer.hc_ffn, bad, is_fused=is_second_fused)
        outputs = self._moe(layer.moe, self._experts_step[layer.index], bad)
        # Where the memory changes the streams next, or only one row is read, no norm is used.
        following = self._weights.layers[layer.index + 1 : layer.index + 2]
        has_norm = bool(following) and following[0].ple is None
        hc = following[0].hc_attn if has_norm else layer.hc_ffn
        has_xn = has_norm and not self._fused[layer.index + 1][0]
        self._write(outputs, inject, hc, has_xn=has_xn)

    def _write(
        self,
        output: Tensor | ExpertOutputs | None,
        inject: Tensor | None,
        hc: HcWeights,
        *,
        has_xn: bool,
    ) -> None:
        """Adds to the streams; norms them for the read ``hc``, which wants ``xn`` or makes it."""
        buffers = self._buffers
        write_prompt(
            self._streams(), output, inject, hc.norm, self._spec.rms_eps, buffers.rows("inverse"),
            buffers.rows("xn") if has_xn else None,
        )  # fmt: skip

    def _read(self, hc: HcWeights, bad: Tensor, *, is_fused: bool) -> Tensor:
        """``x`` from the streams or ``xn``; gives the injection's products."""
        return self._fused_read(hc, bad) if is_fused else self._stepwise_read(hc, bad)

    def _fused_read(self, hc: HcWeights, bad: Tensor) -> Tensor:
        buffers, streams = self._buffers, self._streams()
        (down, _), (up, _) = hc.down_inject.launches[0], hc.up.launches[0]
        assert isinstance(down, FloatMatrix)  # noqa: S101 - it could not be fused
        assert isinstance(up, FloatMatrix)  # noqa: S101
        inverse, inject = buffers.rows("inverse"), buffers.rows("inject")
        parts = buffers.rows("low_parts", _READ)
        sums = buffers.rows("sums", _READ)[:, : len(streams), : down.num_rows]
        down_prompt(streams, inverse, hc.norm, down, buffers.rows("plain", _READ), sums)
        between_prompt(sums, hc.down_inject.columns, parts, inject)
        up_mix_prompt(
            parts, up, streams, inverse, hc.norm, buffers.rows("x"), buffers.codes("codes.x"), bad
        )
        return inject

    def _stepwise_read(self, hc: HcWeights, bad: Tensor) -> Tensor:
        buffers, streams = self._buffers, self._spec.num_streams
        xn, low = buffers.rows("xn"), buffers.rows("low", _READ)
        both, gate = buffers.rows("low_inject", _READ), buffers.rows("gate", _READ)
        self._products(hc.down_inject, xn, both, _READ, bad)
        low_columns, inject_columns = (both[:, slice(*pair)] for pair in hc.down_inject.columns)
        silu_of_quotient(low_columns, streams, low)
        self._products(hc.up, low, gate, _READ, bad)
        codes = buffers.codes("codes.x")
        mix_prompt(xn, gate, streams, buffers.rows("x"), codes, bad)
        inject = buffers.rows("inject")
        self._step(lambda _: inject.copy_(inject_columns), _NOWHERE)
        return inject

    def _gdn(self, weights: GdnWeights, memory: object, place: Place, bad: Tensor) -> None:
        """``out`` from ``x``; the memory and its ring move on."""
        assert isinstance(memory, GdnMemory)  # noqa: S101 - built from the same list
        spec, buffers = self._spec, self._buffers
        projected, mixed = buffers.rows("projected", _GDN), buffers.rows("mixed", _GDN)
        codes = buffers.codes("codes.x")
        self._products(weights.projections, buffers.rows("x"), projected, _GDN, bad, codes)
        qkv, z, alpha, beta = (
            projected[:, slice(*columns)] for columns in weights.projections.columns
        )
        rows, constants = buffers.mixed_rows(_GDN), weights.constants
        self._step(lambda at: conv_prompt(qkv, constants, memory, at.position, rows), place)
        # Of the position only where it lies between two multiples of CUT_TOKENS matters here.
        delta_scan(
            rows, alpha, beta, constants, memory.memory, place.position,
            buffers.scan_scratch(_GDN), mixed,
        )  # fmt: skip
        mixed_codes = None
        if not weights.out.has_floats and spec.gdn_value_dim % 32 == 0:
            mixed_codes = buffers.codes(f"codes.{mixed.shape[1]}", _GDN)
        gated_norm(
            mixed, z, constants.gamma, spec.rms_eps,
            is_silu_gate=spec.gdn_gate is Gate.SILU, codes=mixed_codes, bad=bad,
        )  # fmt: skip
        self._products(weights.out, mixed, buffers.rows("out"), _GDN, bad, mixed_codes)

    def _qsa(self, weights: QsaWeights, memory: object, place: Place, bad: Tensor) -> None:
        """``out`` from ``x``; the rows become the cells from ``position`` on."""
        assert isinstance(memory, QsaMemory)  # noqa: S101 - built from the same list
        rope = self._rope
        assert rope is not None  # noqa: S101
        spec, buffers = self._spec, self._buffers
        projected, mixed = buffers.rows("projected", _QSA), buffers.rows("mixed", _QSA)
        codes = buffers.codes("codes.x")
        self._products(weights.projections, buffers.rows("x"), projected, _QSA, bad, codes)
        q_gate, k, v, index_q, index_k = (
            projected[:, slice(*columns)] for columns in weights.projections.columns
        )
        n, block, budget = len(projected), spec.index_block, spec.index_budget // spec.index_block
        q_gate = q_gate.view(n, spec.num_heads, 2 * spec.head_dim)
        queries, positions = buffers.rows("queries", _QSA), buffers.rows("positions")
        kv = (n, spec.num_kv_heads, spec.head_dim)
        append(
            q_gate, k.view(kv), v.view(kv), weights.q_gamma, weights.k_gamma, rope,
            positions, spec.rms_eps, memory.cells, queries,
        )  # fmt: skip
        pairs, chosen = buffers.rows("index_pairs", _QSA), buffers.rows("chosen", _QSA)
        scratch, gate = buffers.index_scratch(_QSA), q_gate[:, :, spec.head_dim :]
        inputs = IndexInputs(
            index_q.view(n, spec.index_heads, spec.index_dim), index_k, weights.index_q_gamma,
            weights.index_k_gamma, buffers.rows("index_queries", _QSA), block,
        )  # fmt: skip

        def choose_and_attend(at: Place) -> None:
            append_index(inputs, rope, positions, at.position, spec.rms_eps, memory.index, pairs)
            select_prompt(
                pairs, memory.index.pooled, positions, at.position, budget, block, scratch, chosen
            )
            attend_prompt(queries, gate, memory.cells, chosen, block, at.position, mixed)

        self._step(choose_and_attend, place)
        self._products(weights.out, mixed, buffers.rows("out"), _QSA, bad)

    def _ple(self, weights: PleWeights, place: Place, bad: Tensor) -> None:
        """Adds the n-gram memory to the streams."""
        buffers, ring = self._buffers, self._state.ple_ring
        assert ring is not None  # noqa: S101 - the layer has its weights
        rows = buffers.rows("rows")[:, self._spec.hidden_size :]
        products = buffers.rows("projected", _PLE)
        self._products(weights.projections, rows, products, _PLE, bad)
        key, value = (products[:, slice(*columns)] for columns in weights.projections.columns)
        streams, scratch = (
            self._streams(),
            [buffers.rows(name, _PLE) for name in ("gated", "inputs")],
        )

        def add(at: Place) -> None:
            add_memory_prompt(
                streams, key, value, weights.constants, ring, at.position, self._spec.rms_eps,
                *scratch,
            )  # fmt: skip

        self._step(add, place)

    def _moe(self, weights: MoeWeights, step: int, bad: Tensor) -> ExpertOutputs:
        """Outputs of the chosen experts and of the shared one, not yet added up."""
        spec, buffers = self._spec, self._buffers
        x, routed = buffers.rows("x"), buffers.rows("routed", _MOE)
        codes = buffers.codes("codes.x")
        self._products(weights.routers, x, routed, _MOE, bad, codes)
        logits, shared_logits = (routed[:, slice(*pair)] for pair in weights.routers.columns)
        ids, topk_weights = buffers.rows("expert_ids", _MOE), buffers.rows("topk_weights", _MOE)
        shared_weight = buffers.rows("shared_weight", _MOE)
        route(
            logits, shared_logits, spec.expert_weights_scale, ids, topk_weights, shared_weight, bad
        )
        outputs = self._experts.routed(weights, codes, ids, step, bad)
        shared = buffers.rows("out")
        self._experts.shared(weights.shared, codes, shared, bad)
        by_row = outputs.view(-1, spec.top_k, spec.hidden_size)[: len(x)]
        return ExpertOutputs(by_row, topk_weights, shared, shared_weight)

    def _products(
        self,
        matrices: Matrices,
        x: Tensor,
        out: Tensor,
        phase: str,
        bad: Tensor,
        codes: PromptCodes | None = None,
    ) -> None:
        """All products of ``x``; its codes are made if there are none and the matrices read any."""
        if codes is None and matrices.has_codes:
            codes = self._buffers.codes(f"codes.{x.shape[1]}", phase)
            quantize_prompt(x, codes, bad)
        for matrix, column in matrices.launches:
            columns = out[:, column : column + matrix.num_rows]
            if isinstance(matrix, FloatMatrix) and is_split(matrix.format_name, matrix.inner):
                bf16_prompt_product(matrix, x, self._buffers.rows("plain", phase), columns)
            elif isinstance(matrix, FloatMatrix):
                float_prompt_product(matrix, x, columns)
            else:
                assert codes is not None  # noqa: S101 - matrices that read them
                room = self._buffers.expanded(
                    phase, matrix.format_name, 1, matrix.num_rows, matrix.inner
                )
                expand(matrix, room)
                prompt_product(codes, room, columns)

    def _streams(self) -> Tensor:
        spec = self._spec
        return self._buffers.rows("streams").view(-1, spec.num_streams, spec.hidden_size)


def _tell(place: Place) -> None:
    """Marks in the stream that the late layers come next."""
    if place.before_late is not None:
        place.before_late.record()
