"""A model file's tensors as the kernels want them: packed matrices and checked small arrays.

Owns loading. One tensor at a time is read, packed and let go, so the peak is the packed model plus
one tensor. The n-gram table and the embedding stay in the file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu.file_pages import drop_pages
from strata.errors import CheckpointError
from strata.formats.block_decode import dequantize
from strata.formats.naming import Role, tensor_name
from strata.model_spec import Gate, LayerKind, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from strata._native import Context, Experts, GdnLayer, Matrix, QsaLayer
    from strata.cpu.buffers import Floats
    from strata.formats.block_formats import BlockFormat
    from strata.formats.tensor_index import TensorIndex

    Bytes = NDArray[np.uint8]
    OnProgress = Callable[[int, int], None]


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
class Embedding:
    """Rows of the embedding, decoded when asked for; the table stays in the mapped file."""

    format: BlockFormat
    raw: Bytes
    scale: float = 1.0

    def rows(self, tokens: NDArray[np.int32]) -> Floats:
        """[T, D] float32 of tokens [T]."""
        return dequantize(self.format, self.raw[tokens]) * np.float32(self.scale)


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Everything a forward needs but the n-gram table; ``num_bytes`` by what holds them."""

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final: HcWeights
    head: list[Matrix]
    num_bytes: dict[str, int]


def load_weights(
    ctx: Context, index: TensorIndex, spec: ModelSpec, on_progress: OnProgress | None = None
) -> ModelWeights:
    """The model of ``index``, packed.

    Args:
        ctx: its threads pack; the packed form does not depend on its instruction set.
        index: an open model whose layout has been checked (``naming.check_layout``).
        spec: its geometry.
        on_progress: called with (bytes read, bytes to read).

    Raises:
        CheckpointError: a float tensor holds NaN or infinity; names it.
    """
    return _Loader(ctx, index, spec, on_progress).model()


class _Loader:
    def __init__(
        self, ctx: Context, index: TensorIndex, spec: ModelSpec, on_progress: OnProgress | None
    ) -> None:
        self._ctx = ctx
        self._index = index
        self._spec = spec
        self._on_progress = on_progress
        self._read_bytes = 0
        unread = {Role.NGRAM_TABLE.value}
        if not spec.is_head_tied:
            unread.add(Role.EMBEDDING.value)
        self._total_bytes = sum(e.num_bytes for name, e in index.items() if name not in unread)
        self._num_bytes: Counter[str] = Counter()

    def model(self) -> ModelWeights:
        spec = self._spec
        embedding_name = tensor_name(Role.EMBEDDING)
        head = Role.EMBEDDING if spec.is_head_tied else Role.HEAD
        layers = tuple(self._layer(layer) for layer in range(spec.num_layers))
        final = HcWeights(
            self._norms(Role.FINAL_HC_NORM, None),
            [self._matrix(Role.FINAL_HC_DOWN, None)],
            [self._matrix(Role.FINAL_HC_UP, None)],
        )
        return ModelWeights(
            Embedding(
                self._index[embedding_name].format,
                self._index.raw(embedding_name),
                self._scales(embedding_name, 1)[0],
            ),
            layers,
            final,
            [self._matrix(head, None)],
            dict(self._num_bytes),
        )

    def _layer(self, layer: int) -> LayerWeights:
        spec = self._spec
        has_ngram = spec.ngram is not None and spec.ngram.layer == layer
        is_gdn = spec.layer_kinds[layer] is LayerKind.GDN
        return LayerWeights(
            layer,
            self._ple(layer) if has_ngram else None,
            self._hc(
                Role.HC_ATTN_NORM, Role.HC_ATTN_DOWN, Role.HC_ATTN_INJECT, Role.HC_ATTN_UP, layer
            ),
            self._gdn(layer) if is_gdn else self._qsa(layer),
            self._hc(Role.HC_FFN_NORM, Role.HC_FFN_DOWN, Role.HC_FFN_INJECT, Role.HC_FFN_UP, layer),
            self._moe(layer),
        )

    def _hc(self, norm: Role, down: Role, inject: Role, up: Role, layer: int) -> HcWeights:
        return HcWeights(
            self._norms(norm, layer),
            [self._matrix(down, layer), self._matrix(inject, layer)],
            [self._matrix(up, layer)],
        )

    def _gdn(self, layer: int) -> GdnWeights:
        spec = self._spec
        roles = (Role.GDN_QKV, Role.GDN_GATE, Role.GDN_ALPHA, Role.GDN_BETA)
        return GdnWeights(
            [self._matrix(role, layer) for role in roles],
            _native.GdnLayer(
                spec.gdn_key_heads,
                spec.gdn_value_heads,
                spec.rms_eps,
                spec.gdn_gate is Gate.SILU,
                self._transposed(Role.GDN_CONV, layer),
                self._floats(Role.GDN_A, layer),
                self._floats(Role.GDN_DT, layer),
                self._floats(Role.GDN_NORM, layer),
            ),
            [self._matrix(Role.GDN_OUT, layer)],
        )

    def _qsa(self, layer: int) -> QsaWeights:
        spec = self._spec
        for role in (Role.INDEX_Q, Role.INDEX_K):
            # Their outputs only choose blocks and feed no product: no later check would see a NaN.
            if not np.isfinite(self._index.array(tensor_name(role, layer))).all():
                raise self._not_finite(tensor_name(role, layer))
        roles = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.INDEX_Q, Role.INDEX_K)
        norms = (Role.ATTN_Q_NORM, Role.ATTN_K_NORM, Role.INDEX_Q_NORM, Role.INDEX_K_NORM)
        return QsaWeights(
            [self._matrix(role, layer) for role in roles],
            _native.QsaLayer(
                spec.num_heads,
                spec.num_kv_heads,
                spec.index_heads,
                spec.index_block,
                spec.index_budget // spec.index_block,
                spec.rope.dim,
                spec.rms_eps,
                *(self._floats(role, layer) for role in norms),
            ),
            [self._matrix(Role.ATTN_OUT, layer)],
        )

    def _ple(self, layer: int) -> PleWeights:
        return PleWeights(
            [self._matrix(Role.PLE_KEY, layer), self._matrix(Role.PLE_VALUE, layer)],
            self._norms(Role.PLE_NORM_KEY, layer),
            self._norms(Role.PLE_NORM_QUERY, layer),
            self._norms(Role.PLE_NORM_CONV, layer),
            self._transposed(Role.PLE_CONV, layer),
        )

    def _moe(self, layer: int) -> MoeWeights:
        spec = self._spec
        routers = [self._matrix(Role.ROUTER, layer), self._matrix(Role.SHARED_ROUTER, layer)]
        gate, up, down = Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN
        shared = self._stack((gate, up, down), layer, spec.shared_expert_size, "shared experts")
        fused = tensor_name(Role.EXPERTS_GATE_UP, layer)
        if fused in self._index:
            roles = (Role.EXPERTS_GATE_UP, Role.EXPERTS_GATE_UP, Role.EXPERTS_DOWN)
        else:
            roles = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
        experts = self._stack(roles, layer, spec.expert_size, "routed experts")
        return MoeWeights(routers, experts, shared)

    def _stack(self, roles: tuple[Role, Role, Role], layer: int, size: int, owner: str) -> Experts:
        """Experts [num, size, D], [num, size, D], [num, D, size]; two equal roles are fused."""
        names = [tensor_name(role, layer) for role in roles]
        entries = [self._index[name] for name in names]
        num = entries[0].shape[0] if len(entries[0].shape) == 3 else 1
        gate_format, up_format, down_format = (entry.format.ggml_id for entry in entries)
        experts = _native.Experts(
            gate_format, up_format, down_format, num, self._spec.hidden_size, size
        )
        raws = []
        for name in names:
            raw = self._index.raw(name)
            self._check_finite(name, raw)
            raws.append(raw if raw.ndim == 3 else raw[None])
        scales = [self._scales(name, num) for name in names]
        is_fused = names[0] == names[1]
        for e in range(num):
            gate, up, down = (raw[e] for raw in raws)
            if is_fused:
                gate, up = gate[:size], up[size:]
            experts.load(self._ctx, e, gate, up, down, *(scale[e] for scale in scales))
            self._advance(sum(part.nbytes for part in (gate, up, down)))
        for raw in raws:
            drop_pages(raw)
        self._num_bytes[owner] += experts.num_bytes
        return experts

    def _matrix(self, role: Role, layer: int | None) -> Matrix:
        name = tensor_name(role, layer)
        entry, raw = self._index[name], self._index.raw(name)
        self._check_finite(name, raw)
        if raw.ndim == 1:  # a single output, stored as a vector
            raw = raw[None]
        scale = self._scales(name, 1)[0]
        matrix = _native.Matrix.pack(self._ctx, entry.format.ggml_id, raw, entry.shape[-1], scale)
        self._num_bytes["dense weights"] += matrix.num_bytes
        self._advance(raw.nbytes)
        if role is not Role.EMBEDDING:
            drop_pages(raw)
        return matrix

    def _scales(self, name: str, num: int) -> list[float]:
        """What a file keeps beside a tensor to multiply its outputs by: [num], ones if nothing.

        NVFP4 files have ``STEM.scale`` beside ``STEM.weight``: one value, or one for each expert.

        Raises:
            CheckpointError: another number of values, or one that is not finite.
        """
        companion = f"{name.removesuffix('.weight')}.scale"
        if companion not in self._index:
            return [1.0] * num
        values = self._index.array(companion).reshape(-1)
        if values.size not in (1, num):
            raise CheckpointError(
                f"{companion} has {values.size} values, expected 1 or {num}.\n"
                f"  file: {self._index[companion].path}\n"
                "  Try: download or convert the file again; its tensors disagree."
            )
        if not np.isfinite(values).all():
            raise self._not_finite(companion)
        return [float(value) for value in np.broadcast_to(values, num)]

    def _floats(self, role: Role, layer: int | None) -> Floats:
        """A small tensor as float32."""
        name = tensor_name(role, layer)
        values = self._index.array(name)
        if not np.isfinite(values).all():
            raise self._not_finite(name)
        self._num_bytes["dense weights"] += values.nbytes
        self._advance(self._index[name].num_bytes)
        return values

    def _norms(self, role: Role, layer: int | None) -> Floats:
        """Gammas of every stream, [S, D]."""
        return self._floats(role, layer).reshape(self._spec.num_streams, self._spec.hidden_size)

    def _transposed(self, role: Role, layer: int) -> Floats:
        """A convolution's [channels, kernel] as [kernel, channels]: channels lie in lanes."""
        return np.ascontiguousarray(self._floats(role, layer).T)

    def _check_finite(self, name: str, raw: Bytes) -> None:
        """NaN and infinity in plain types; in blocks a bad scale shows in the first logits."""
        exponent_masks = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00),
                          "BF16": (np.uint16, 0x7F80)}  # fmt: skip
        known = exponent_masks.get(self._index[name].format.name)
        if known is None:
            return
        word, mask = known
        rows = raw.reshape(-1, raw.shape[-1])
        # Some MiB at a time: the comparison makes arrays of the size of its input.
        step = max(1, (4 << 20) // rows.shape[1])
        for first in range(0, len(rows), step):
            words = rows[first : first + step].view(word)
            if ((words & word(mask)) == mask).any():
                raise self._not_finite(name)

    def _not_finite(self, name: str) -> CheckpointError:
        entry = self._index[name]
        return CheckpointError(
            f"tensor {name} holds NaN or infinity; every weight must be a finite number.\n"
            f"  file: {entry.path}, offset {entry.offset:#x}\n"
            "  Try: download or convert the file again; it is damaged."
        )

    def _advance(self, num_bytes: int) -> None:
        self._read_bytes += num_bytes
        if self._on_progress is not None:
            self._on_progress(min(self._read_bytes, self._total_bytes), self._total_bytes)
