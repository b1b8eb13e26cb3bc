"""A model file's tensors as the kernels want them: which of them make up which part of the model.

One tensor at a time is read, packed and let go (``tensor_loader``), so the peak is the packed model
plus one tensor. The n-gram table and the embedding stay in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata import _native
from strata.cpu.tensor_loader import TensorLoader
from strata.formats.model_tensors import ModelTensors
from strata.formats.naming import Role, tensor_name
from strata.model_spec import Gate, LayerKind, ModelSpec

if TYPE_CHECKING:
    from strata._native import Context, DenseLayer, Experts, GdnLayer, Matrix, QsaLayer
    from strata.cpu.buffers import Floats
    from strata.cpu.expert_tier import ExpertTier
    from strata.formats.model_tensors import Embedding, OnProgress
    from strata.formats.tensor_index import TensorIndex


@dataclass(frozen=True, slots=True)
class HcWeights:
    """One hyper-connection read, and the write that follows it.

    Attributes:
        norm: [S, D] gamma.
        down_inject: [r, S * D] and, except before the head, [S, S * D]: both read the norm.
        up: [S * D, r].
    """

    norm: Floats
    down_inject: list[Matrix]
    up: list[Matrix]


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """A gated delta net layer: in-projections qkv, z, alpha, beta; small weights; out."""

    projections: list[Matrix]
    layer: GdnLayer
    out: list[Matrix]


@dataclass(frozen=True, slots=True)
class QsaWeights:
    """A sparse attention layer: projections q and gate, k, v, index q, index k; norms; out."""

    projections: list[Matrix]
    layer: QsaLayer
    out: list[Matrix]


@dataclass(frozen=True, slots=True)
class PleWeights:
    """The n-gram memory: projections key and value, norms [S, D], convolution [kernel, S * D]."""

    projections: list[Matrix]
    key_norm: Floats
    query_norm: Floats
    conv_norm: Floats
    conv: Floats


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Router [E, D] and shared router [1, D]; the experts; the shared expert, a stack of one."""

    routers: list[Matrix]
    experts: Experts
    shared: Experts


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer."""

    index: int
    ple: PleWeights | None
    hc_attn: HcWeights
    mixer: GdnWeights | QsaWeights
    hc_ffn: HcWeights
    moe: MoeWeights


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """The draft layer: what joins a token's embedding to the streams, a dense layer, its end.

    Attributes:
        embed_norm, hidden_norm: [1, D] and [1, S * D] gammas; each is one norm.
        fusion: [D, 2 D] of an embedding beside one stream.
        query: projection of q and gate; keys_values: k and v.
    """

    layer: int
    embedding: Embedding
    embed_norm: Floats
    hidden_norm: Floats
    fusion: list[Matrix]
    hc_attn: HcWeights
    query: list[Matrix]
    keys_values: list[Matrix]
    attention: DenseLayer
    out: list[Matrix]
    hc_ffn: HcWeights
    moe: MoeWeights
    final: HcWeights
    head: list[Matrix]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Everything a forward needs but the n-gram table; ``num_bytes`` by what holds them."""

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final: HcWeights
    head: list[Matrix]
    draft: DraftWeights | None
    num_bytes: dict[str, int]


def load_weights(
    ctx: Context,
    index: TensorIndex,
    spec: ModelSpec,
    on_progress: OnProgress | None = None,
    *,
    has_draft: bool = False,
    tier: ExpertTier | None = None,
) -> ModelWeights:
    """The model of ``index``, packed.

    Args:
        ctx: its threads pack; the packed form does not depend on its instruction set.
        index: an open model whose layout has been checked (``naming.check_layout``).
        spec: its geometry.
        on_progress: called with (bytes read, bytes to read).
        has_draft: load the draft layer too; the file must have one.
        tier: has the routed experts of the decoder layers; None packs them all into memory.

    Raises:
        CheckpointError: a float tensor holds NaN or infinity; names it.
    """
    return _Loader(ctx, index, spec, on_progress, has_draft=has_draft, tier=tier).model()


class _Loader:
    def __init__(
        self,
        ctx: Context,
        index: TensorIndex,
        spec: ModelSpec,
        on_progress: OnProgress | None,
        *,
        has_draft: bool,
        tier: ExpertTier | None,
    ) -> None:
        self._index = index
        self._tier = tier
        self._spec = spec
        self._has_draft = has_draft
        self._file = ModelTensors(index, spec, has_draft=has_draft, on_progress=on_progress)
        self._tensors = TensorLoader(ctx, self._file, spec)

    def model(self) -> ModelWeights:
        spec, tensors = self._spec, self._tensors
        layers = tuple(self._layer(layer) for layer in range(spec.num_layers))
        final = self._end(Role.FINAL_HC_NORM, Role.FINAL_HC_DOWN, Role.FINAL_HC_UP, None)
        embedding = self._file.embedding(tensor_name(Role.EMBEDDING))
        head = [tensors.matrix(Role.EMBEDDING if spec.is_head_tied else Role.HEAD, None)]
        num_bytes = dict(tensors.num_bytes)
        if self._tier is not None:
            num_bytes["routed experts"] = self._tier.num_bytes
        before = tensors.num_bytes.total()
        draft = self._draft(spec.num_layers, embedding, head) if self._has_draft else None
        if draft is not None:
            num_bytes["draft layer"] = tensors.num_bytes.total() - before
        return ModelWeights(embedding, layers, final, head, draft, num_bytes)

    def _end(self, norm: Role, down: Role, up: Role, layer: int | None) -> HcWeights:
        """The read before an output head."""
        tensors = self._tensors
        return HcWeights(
            tensors.norms(norm, layer), [tensors.matrix(down, layer)], [tensors.matrix(up, layer)]
        )

    def _draft(self, layer: int, embedding: Embedding, head: list[Matrix]) -> DraftWeights:
        spec, tensors = self._spec, self._tensors
        own_embedding = tensor_name(Role.DRAFT_EMBEDDING, layer)
        if own_embedding in self._index:
            embedding = self._file.embedding(own_embedding)
        if tensor_name(Role.DRAFT_HEAD, layer) in self._index:
            head = [tensors.matrix(Role.DRAFT_HEAD, layer)]
        norms = (Role.ATTN_Q_NORM, Role.ATTN_K_NORM)
        return DraftWeights(
            layer,
            embedding,
            tensors.floats(Role.DRAFT_EMBED_NORM, layer)[None],
            tensors.floats(Role.DRAFT_HIDDEN_NORM, layer)[None],
            [tensors.matrix(Role.DRAFT_IN, layer)],
            self._hc_attn(layer),
            [tensors.matrix(Role.ATTN_Q, layer)],
            [tensors.matrix(Role.ATTN_K, layer), tensors.matrix(Role.ATTN_V, layer)],
            _native.DenseLayer(
                spec.num_heads,
                spec.num_kv_heads,
                spec.rope.dim,
                spec.rms_eps,
                *(tensors.floats(role, layer) for role in norms),
            ),
            [tensors.matrix(Role.ATTN_OUT, layer)],
            self._hc_ffn(layer),
            self._moe(layer, None),
            self._end(Role.DRAFT_HC_NORM, Role.DRAFT_HC_DOWN, Role.DRAFT_HC_UP, layer),
            head,
        )

    def _layer(self, layer: int) -> LayerWeights:
        spec = self._spec
        has_ngram = spec.ngram is not None and spec.ngram.layer == layer
        is_gdn = spec.layer_kinds[layer] is LayerKind.GDN
        return LayerWeights(
            layer,
            self._ple(layer) if has_ngram else None,
            self._hc_attn(layer),
            self._gdn(layer) if is_gdn else self._qsa(layer),
            self._hc_ffn(layer),
            self._moe(layer, self._tier),
        )

    def _hc_attn(self, layer: int) -> HcWeights:
        return self._hc(
            Role.HC_ATTN_NORM, Role.HC_ATTN_DOWN, Role.HC_ATTN_INJECT, Role.HC_ATTN_UP, layer
        )

    def _hc_ffn(self, layer: int) -> HcWeights:
        return self._hc(
            Role.HC_FFN_NORM, Role.HC_FFN_DOWN, Role.HC_FFN_INJECT, Role.HC_FFN_UP, layer
        )

    def _hc(self, norm: Role, down: Role, inject: Role, up: Role, layer: int) -> HcWeights:
        return HcWeights(
            self._tensors.norms(norm, layer),
            [self._tensors.matrix(down, layer), self._tensors.matrix(inject, layer)],
            [self._tensors.matrix(up, layer)],
        )

    def _gdn(self, layer: int) -> GdnWeights:
        spec = self._spec
        roles = (Role.GDN_QKV, Role.GDN_GATE, Role.GDN_ALPHA, Role.GDN_BETA)
        return GdnWeights(
            [self._tensors.matrix(role, layer) for role in roles],
            _native.GdnLayer(
                spec.gdn_key_heads,
                spec.gdn_value_heads,
                spec.rms_eps,
                spec.gdn_gate is Gate.SILU,
                self._tensors.transposed(Role.GDN_CONV, layer),
                self._tensors.floats(Role.GDN_A, layer),
                self._tensors.floats(Role.GDN_DT, layer),
                self._tensors.floats(Role.GDN_NORM, layer),
            ),
            [self._tensors.matrix(Role.GDN_OUT, layer)],
        )

    def _qsa(self, layer: int) -> QsaWeights:
        spec = self._spec
        self._file.refuse_bad_indexer(layer)
        roles = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.INDEX_Q, Role.INDEX_K)
        norms = (Role.ATTN_Q_NORM, Role.ATTN_K_NORM, Role.INDEX_Q_NORM, Role.INDEX_K_NORM)
        return QsaWeights(
            [self._tensors.matrix(role, layer) for role in roles],
            _native.QsaLayer(
                spec.num_heads,
                spec.num_kv_heads,
                spec.index_heads,
                spec.index_block,
                spec.index_budget // spec.index_block,
                spec.rope.dim,
                spec.rms_eps,
                *(self._tensors.floats(role, layer) for role in norms),
            ),
            [self._tensors.matrix(Role.ATTN_OUT, layer)],
        )

    def _ple(self, layer: int) -> PleWeights:
        return PleWeights(
            [
                self._tensors.matrix(Role.PLE_KEY, layer),
                self._tensors.matrix(Role.PLE_VALUE, layer),
            ],
            self._tensors.norms(Role.PLE_NORM_KEY, layer),
            self._tensors.norms(Role.PLE_NORM_QUERY, layer),
            self._tensors.norms(Role.PLE_NORM_CONV, layer),
            self._tensors.transposed(Role.PLE_CONV, layer),
        )

    def _moe(self, layer: int, tier: ExpertTier | None) -> MoeWeights:
        spec = self._spec
        routers = [
            self._tensors.matrix(Role.ROUTER, layer),
            self._tensors.matrix(Role.SHARED_ROUTER, layer),
        ]
        gate, up, down = Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN
        shared = self._tensors.stack(
            (gate, up, down), layer, spec.shared_expert_size, "shared experts"
        )
        if tier is not None:
            tier.fill_layer(layer, self._file)
            return MoeWeights(routers, _native.Experts(tier.source, layer), shared)
        fused = tensor_name(Role.EXPERTS_GATE_UP, layer)
        if fused in self._index:
            roles = (Role.EXPERTS_GATE_UP, Role.EXPERTS_GATE_UP, Role.EXPERTS_DOWN)
        else:
            roles = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
        experts = self._tensors.stack(roles, layer, spec.expert_size, "routed experts")
        return MoeWeights(routers, experts, shared)
