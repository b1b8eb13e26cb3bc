"""The weights of a model on a card: which tensors each layer has, by what they do.

Owns the types; ``weights`` fills them from a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.gpu.float_matrix import FloatMatrix

if TYPE_CHECKING:
    from torch import Tensor

    from strata.formats.model_tensors import Embedding
    from strata.gpu.arena import Arena
    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.gated_delta import GdnConstants
    from strata.gpu.kernels.ngram_memory import NgramConstants
    from strata.gpu.layer_tier import LayerTier
    from strata.gpu.packing import PackedMatrix


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices of a bundle.

    Attributes:
        launches: a matrix and its first output column, one for each format.
        columns: (first, end) output columns of each matrix, in the order of the bundle.
        width: output columns in all.
        has_codes: whether a launch reads int8 codes.
    """

    launches: tuple[tuple[PackedMatrix | FloatMatrix, int], ...]
    columns: tuple[tuple[int, int], ...]
    width: int
    has_codes: bool

    @property
    def has_floats(self) -> bool:
        """Whether a launch reads activations as they are."""
        return any(isinstance(matrix, FloatMatrix) for matrix, _ in self.launches)


@dataclass(frozen=True, slots=True)
class HcWeights:
    """A hyper-connection read: gamma [S * D]; down [r, S * D] and inject [S, S * D]; up.

    The rows of ``up`` [S * D, r] lie by ``stream_read.read_order``; so do its products' columns.
    """

    norm: Tensor
    down_inject: Matrices
    up: Matrices


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """Projections qkv, z, alpha, beta; small weights; out."""

    projections: Matrices
    constants: GdnConstants
    out: Matrices


@dataclass(frozen=True, slots=True)
class QsaWeights:
    """Projections q and gate, k, v, index q, index k; gammas of their norms; out."""

    projections: Matrices
    q_gamma: Tensor
    k_gamma: Tensor
    index_q_gamma: Tensor
    index_k_gamma: Tensor
    out: Matrices


@dataclass(frozen=True, slots=True)
class PleWeights:
    """The n-gram memory: projections key and value, small weights."""

    projections: Matrices
    constants: NgramConstants


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Router and shared router; the experts; the shared expert, a stack of one.

    Attributes:
        tier: the way to experts in no slot; None where they are nowhere else.
        forced: [8, K], taken by windows instead of what routers choose; for measuring.
    """

    routers: Matrices
    experts: ExpertSlots
    shared: ExpertSlots
    tier: LayerTier | None = None
    forced: Tensor | None = None

    @property
    def way(self) -> LayerTier | None:
        """``tier``, where an expert is in no slot."""
        return self.tier if self.tier and self.tier.is_needed else None


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
        embedding: [V, D].
        embed_norm, hidden_norm: [D] and [S * D] gammas; each is one norm.
        fusion: [D, 2 D] of an embedding beside one stream.
        projections: q and gate, k, v.
    """

    embedding: PackedMatrix | FloatMatrix
    embed_norm: Tensor
    hidden_norm: Tensor
    fusion: Matrices
    hc_attn: HcWeights
    projections: Matrices
    q_gamma: Tensor
    k_gamma: Tensor
    out: Matrices
    hc_ffn: HcWeights
    moe: MoeWeights
    final: HcWeights
    head: Matrices


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Everything a forward needs but the n-gram table.

    Attributes:
        num_bytes: by what holds them.
        slots: memory of the routed experts.
    """

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final: HcWeights
    head: Matrices
    draft: DraftWeights | None
    num_bytes: dict[str, int]
    slots: Arena
