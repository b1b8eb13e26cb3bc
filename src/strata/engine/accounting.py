"""Where a model file's bytes are, and how many of them one decoded token reads.

Owns the classes of weights and the sum per token. Pure arithmetic on the index and the geometry.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from strata.formats.naming import (
    ATTN_ROLES,
    EXPERT_ROLES,
    GDN_ROLES,
    HYPER_ROLES,
    INDEX_ROLES,
    PLE_ROLES,
    Role,
    parse_name,
)
from strata.model_spec import LayerKind, ModelSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.formats.gguf import TensorEntry

# Codes of int8 cells have a half-precision scale for 64 of them.
KV_VALUE_BYTES = {"f16": 2, "f32": 4, "int8": 1 + 2 / 64}


class WeightClass(StrEnum):
    """What a tensor's bytes serve."""

    EXPERTS = "routed experts"
    SHARED = "shared experts"
    ROUTER = "routers"
    GDN = "gated delta net"
    ATTENTION = "sparse attention"
    HYPER = "hyper-connections"
    NGRAM_TABLE = "n-gram table"
    NGRAM = "n-gram layer"
    EMBEDDING = "embedding"
    HEAD = "head"
    DRAFT = "draft layer"
    OTHER = "other"


_ROUTED = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_GATE_UP, Role.EXPERTS_DOWN)
_SHARED = (Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN, Role.SHARED_ROUTER)

CLASS_OF_ROLE: dict[Role, WeightClass] = {
    **dict.fromkeys((*HYPER_ROLES, Role.FINAL_HC_NORM), WeightClass.HYPER),
    **dict.fromkeys((Role.FINAL_HC_DOWN, Role.FINAL_HC_UP), WeightClass.HYPER),
    **dict.fromkeys(EXPERT_ROLES, WeightClass.ROUTER),
    **dict.fromkeys(_ROUTED, WeightClass.EXPERTS),
    **dict.fromkeys(_SHARED, WeightClass.SHARED),
    **dict.fromkeys(GDN_ROLES, WeightClass.GDN),
    **dict.fromkeys((*ATTN_ROLES, *INDEX_ROLES), WeightClass.ATTENTION),
    **dict.fromkeys(PLE_ROLES, WeightClass.NGRAM),
    Role.NGRAM_TABLE: WeightClass.NGRAM_TABLE,
    Role.EMBEDDING: WeightClass.EMBEDDING,
    Role.HEAD: WeightClass.HEAD,
}


def class_of(name: str, spec: ModelSpec) -> WeightClass:
    """Class of the tensor of this name."""
    parsed = parse_name(name)
    if parsed is None:
        return WeightClass.OTHER
    role, layer = parsed
    if layer is not None and layer >= spec.num_layers:
        return WeightClass.DRAFT
    return CLASS_OF_ROLE.get(role, WeightClass.OTHER)


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """One class's share of a file: bytes, weights, and weights by format name."""

    num_bytes: int
    num_weights: int
    formats: Mapping[str, int]


def totals(index: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[WeightClass, ClassTotal]:
    """Bytes and formats of each class that the file has, in the order of ``WeightClass``."""
    num_bytes: Counter[WeightClass] = Counter()
    num_weights: Counter[WeightClass] = Counter()
    formats: dict[WeightClass, Counter[str]] = {}
    for name, entry in index.items():
        kind = class_of(name, spec)
        size = _num_weights(entry)
        num_bytes[kind] += entry.num_bytes
        num_weights[kind] += size
        formats.setdefault(kind, Counter())[entry.format.name] += size
    return {
        kind: ClassTotal(num_bytes[kind], num_weights[kind], dict(formats[kind].most_common()))
        for kind in WeightClass
        if kind in formats
    }


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes one decoded token reads."""

    weights: Mapping[WeightClass, int]
    kv: int  # keys, values and index keys of the attention layers
    state: int  # recurrent state of the GDN layers

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.weights.values()) + self.kv + self.state


def token_bytes(
    index: Mapping[str, TensorEntry], spec: ModelSpec, *, position: int, kv_format: str
) -> TokenBytes:
    """Bytes read by the token at ``position``, each stored byte counted once.

    Of the experts ``top_k`` of E are read, of the n-gram table one row for each head, of the
    embedding one row (all of it when it is the head too), of the draft layer nothing.
    """
    weights: Counter[WeightClass] = Counter()
    for name, entry in index.items():
        kind = class_of(name, spec)
        if kind is WeightClass.EXPERTS:
            weights[kind] += entry.num_bytes * spec.top_k // spec.num_experts
        elif kind is WeightClass.NGRAM_TABLE and spec.ngram is not None:
            weights[kind] += spec.ngram.num_heads * entry.row_bytes
        elif kind is WeightClass.EMBEDDING and not spec.is_head_tied:
            weights[kind] += entry.row_bytes
        elif kind not in (WeightClass.DRAFT, WeightClass.OTHER):
            weights[kind] += entry.num_bytes
    num_sparse = sum(kind is LayerKind.QSA for kind in spec.layer_kinds)
    num_gdn = spec.num_layers - num_sparse
    cell_bytes = int(2 * spec.num_kv_heads * spec.head_dim * KV_VALUE_BYTES[kv_format])
    num_cells = min(position + 1, spec.index_budget + spec.index_block - 1)
    # Index keys are pooled to one float32 row for each block; all are scored.
    index_bytes = (position + 1) // spec.index_block * spec.index_dim * 4
    state_bytes = spec.gdn_value_heads * spec.gdn_key_dim * spec.gdn_value_dim * 4
    return TokenBytes(
        weights=dict(weights),
        kv=num_sparse * (num_cells * cell_bytes + index_bytes),
        state=num_gdn * state_bytes,
    )


def _num_weights(entry: TensorEntry) -> int:
    size = 1
    for dim in entry.shape:
        size *= dim
    return size
