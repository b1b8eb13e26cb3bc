"""The public tensor names of a ``qwen4exp`` GGUF and the shape each must have.

Owns names, shapes and the check of a whole file against its geometry. Does not read tensors.
Shapes are numpy order, slowest first: a matrix is [out, in], expert stacks are [E, out, in].
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from strata.errors import CheckpointError
from strata.model_spec import LayerKind, ModelSpec, NgramSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class HasShape(Protocol):
    """What the check needs of an index entry."""

    @property
    def shape(self) -> tuple[int, ...]:
        """numpy-order shape."""
        ...


class Role(Enum):
    """What a tensor is in the model; the value is its name, without ``blk.N.`` in a layer."""

    EMBEDDING = "token_embd.weight"
    HEAD = "output.weight"
    FINAL_HC_NORM = "output_hc_norm.weight"
    FINAL_HC_DOWN = "output_hc_down.weight"
    FINAL_HC_UP = "output_hc_up.weight"
    NGRAM_TABLE = "per_layer_token_embd.weight"

    HC_ATTN_NORM = "hc_attn_norm.weight"
    HC_ATTN_DOWN = "hc_attn_down.weight"
    HC_ATTN_UP = "hc_attn_up.weight"
    HC_ATTN_INJECT = "hc_attn_inject.weight"
    HC_FFN_NORM = "hc_ffn_norm.weight"
    HC_FFN_DOWN = "hc_ffn_down.weight"
    HC_FFN_UP = "hc_ffn_up.weight"
    HC_FFN_INJECT = "hc_ffn_inject.weight"

    ROUTER = "ffn_gate_inp.weight"
    EXPERTS_GATE = "ffn_gate_exps.weight"
    EXPERTS_UP = "ffn_up_exps.weight"
    EXPERTS_GATE_UP = "ffn_gate_up_exps.weight"
    EXPERTS_DOWN = "ffn_down_exps.weight"
    SHARED_ROUTER = "ffn_gate_inp_shexp.weight"
    SHARED_GATE = "ffn_gate_shexp.weight"
    SHARED_UP = "ffn_up_shexp.weight"
    SHARED_DOWN = "ffn_down_shexp.weight"

    GDN_QKV = "attn_qkv.weight"
    GDN_GATE = "attn_gate.weight"
    GDN_CONV = "ssm_conv1d.weight"
    GDN_DT = "ssm_dt.bias"
    GDN_A = "ssm_a"
    GDN_ALPHA = "ssm_alpha.weight"
    GDN_BETA = "ssm_beta.weight"
    GDN_NORM = "ssm_norm.weight"
    GDN_OUT = "ssm_out.weight"

    ATTN_Q = "attn_q.weight"
    ATTN_K = "attn_k.weight"
    ATTN_V = "attn_v.weight"
    ATTN_OUT = "attn_output.weight"
    ATTN_Q_NORM = "attn_q_norm.weight"
    ATTN_K_NORM = "attn_k_norm.weight"
    INDEX_Q = "indexer.q_proj.weight"
    INDEX_K = "indexer.k_proj.weight"
    INDEX_Q_NORM = "indexer.q_norm.weight"
    INDEX_K_NORM = "indexer.k_norm.weight"

    PLE_KEY = "ple_key.weight"
    PLE_VALUE = "ple_value.weight"
    PLE_NORM_KEY = "ple_norm_key.weight"
    PLE_NORM_QUERY = "ple_norm_query.weight"
    PLE_NORM_CONV = "ple_norm_conv.weight"
    PLE_CONV = "ple_conv1d.weight"

    DRAFT_EMBED_NORM = "nextn.enorm.weight"
    DRAFT_HIDDEN_NORM = "nextn.hnorm.weight"
    DRAFT_IN = "nextn.eh_proj.weight"
    DRAFT_HC_NORM = "nextn.hc_head_norm.weight"
    DRAFT_HC_DOWN = "nextn.hc_head_down.weight"
    DRAFT_HC_UP = "nextn.hc_head_up.weight"
    DRAFT_EMBEDDING = "nextn.embed_tokens.weight"
    DRAFT_HEAD = "nextn.shared_head_head.weight"


Shape = tuple[int, ...]

GLOBAL_ROLES = (
    Role.EMBEDDING,
    Role.HEAD,
    Role.FINAL_HC_NORM,
    Role.FINAL_HC_DOWN,
    Role.FINAL_HC_UP,
    Role.NGRAM_TABLE,
)

HYPER_ROLES = tuple(role for role in Role if role.value.startswith(("hc_attn_", "hc_ffn_")))
EXPERT_ROLES = (
    Role.ROUTER,
    Role.EXPERTS_GATE,
    Role.EXPERTS_UP,
    Role.EXPERTS_DOWN,
    Role.SHARED_ROUTER,
    Role.SHARED_GATE,
    Role.SHARED_UP,
    Role.SHARED_DOWN,
)
INDEX_ROLES = (Role.INDEX_Q, Role.INDEX_K, Role.INDEX_Q_NORM, Role.INDEX_K_NORM)
ATTN_ROLES = (
    Role.ATTN_Q,
    Role.ATTN_K,
    Role.ATTN_V,
    Role.ATTN_OUT,
    Role.ATTN_Q_NORM,
    Role.ATTN_K_NORM,
)
GDN_ROLES = (
    Role.GDN_QKV,
    Role.GDN_GATE,
    Role.GDN_CONV,
    Role.GDN_DT,
    Role.GDN_A,
    Role.GDN_ALPHA,
    Role.GDN_BETA,
    Role.GDN_NORM,
    Role.GDN_OUT,
)
PLE_ROLES = tuple(role for role in Role if role.value.startswith("ple_"))
DRAFT_ROLES = (
    Role.DRAFT_EMBED_NORM,
    Role.DRAFT_HIDDEN_NORM,
    Role.DRAFT_IN,
    Role.DRAFT_HC_NORM,
    Role.DRAFT_HC_DOWN,
    Role.DRAFT_HC_UP,
)
DRAFT_OPTIONAL_ROLES = (*INDEX_ROLES, Role.DRAFT_EMBEDDING, Role.DRAFT_HEAD)


def tensor_name(role: Role, layer: int | None = None) -> str:
    """The public name, as in ``blk.3.attn_q.weight``; ``layer`` only for roles of a layer."""
    if role in GLOBAL_ROLES:
        return role.value
    if layer is None:
        raise ValueError(f"{role} belongs to a layer; no layer was given")
    return f"blk.{layer}.{role.value}"


_LAYER_NAME = re.compile(r"blk\.(\d{1,6})\.(.+)\Z")
_BY_VALUE = {role.value: role for role in Role}


def parse_name(name: str) -> tuple[Role, int | None] | None:
    """Role and layer of a public name; None when the name is not one."""
    match = _LAYER_NAME.match(name)
    role = _BY_VALUE.get(match[2] if match else name)
    if role is None or (role in GLOBAL_ROLES) == bool(match):
        return None
    return role, int(match[1]) if match else None


def _ngram_of(spec: ModelSpec) -> NgramSpec:
    if spec.ngram is None:
        raise ValueError("the model has no n-gram memory")
    return spec.ngram


def _ngram_width(spec: ModelSpec) -> int:
    ngram = _ngram_of(spec)
    return ngram.row_size * ngram.num_heads


def ngram_rows(spec: ModelSpec) -> int:
    """Rows the n-gram table must have at least; files pad it to a round number."""
    ngram = _ngram_of(spec)
    return max(o + s for o, s in zip(ngram.head_offsets, ngram.head_vocab_sizes, strict=True))


_SHAPES: dict[Role, Callable[[ModelSpec], Shape]] = {
    Role.EMBEDDING: lambda s: (s.vocab_size, s.hidden_size),
    Role.NGRAM_TABLE: lambda s: (ngram_rows(s), _ngram_of(s).row_size),
    Role.HC_ATTN_NORM: lambda s: (s.hyper_size,),
    Role.HC_ATTN_DOWN: lambda s: (s.hc_rank, s.hyper_size),
    Role.HC_ATTN_UP: lambda s: (s.hyper_size, s.hc_rank),
    Role.HC_ATTN_INJECT: lambda s: (s.num_streams, s.hyper_size),
    Role.ROUTER: lambda s: (s.num_experts, s.hidden_size),
    Role.EXPERTS_GATE: lambda s: (s.num_experts, s.expert_size, s.hidden_size),
    Role.EXPERTS_GATE_UP: lambda s: (s.num_experts, 2 * s.expert_size, s.hidden_size),
    Role.EXPERTS_DOWN: lambda s: (s.num_experts, s.hidden_size, s.expert_size),
    Role.SHARED_ROUTER: lambda s: (s.hidden_size,),
    Role.SHARED_GATE: lambda s: (s.shared_expert_size, s.hidden_size),
    Role.SHARED_DOWN: lambda s: (s.hidden_size, s.shared_expert_size),
    Role.GDN_QKV: lambda s: (s.gdn_conv_channels, s.hidden_size),
    Role.GDN_GATE: lambda s: (s.gdn_value_size, s.hidden_size),
    Role.GDN_CONV: lambda s: (s.gdn_conv_channels, s.gdn_conv_kernel),
    Role.GDN_DT: lambda s: (s.gdn_value_heads,),
    Role.GDN_ALPHA: lambda s: (s.gdn_value_heads, s.hidden_size),
    Role.GDN_NORM: lambda s: (s.gdn_value_dim,),
    Role.GDN_OUT: lambda s: (s.hidden_size, s.gdn_value_size),
    # Query and gate of a head lie side by side.
    Role.ATTN_Q: lambda s: (2 * s.num_heads * s.head_dim, s.hidden_size),
    Role.ATTN_K: lambda s: (s.num_kv_heads * s.head_dim, s.hidden_size),
    Role.ATTN_OUT: lambda s: (s.hidden_size, s.num_heads * s.head_dim),
    Role.ATTN_Q_NORM: lambda s: (s.head_dim,),
    Role.INDEX_Q: lambda s: (s.index_heads * s.index_dim, s.hidden_size),
    Role.INDEX_K: lambda s: (s.index_dim, s.hidden_size),
    Role.INDEX_Q_NORM: lambda s: (s.index_dim,),
    Role.PLE_KEY: lambda s: (s.hyper_size, _ngram_width(s)),
    Role.PLE_VALUE: lambda s: (s.hidden_size, _ngram_width(s)),
    Role.PLE_NORM_KEY: lambda s: (s.hyper_size,),
    Role.PLE_CONV: lambda s: (s.hyper_size, _ngram_of(s).conv_kernel),
    Role.DRAFT_EMBED_NORM: lambda s: (s.hidden_size,),
    Role.DRAFT_IN: lambda s: (s.hidden_size, 2 * s.hidden_size),
}

# Roles shaped like another one.
_SHAPED_LIKE = {
    Role.HEAD: Role.EMBEDDING,
    Role.DRAFT_EMBEDDING: Role.EMBEDDING,
    Role.DRAFT_HEAD: Role.EMBEDDING,
    Role.FINAL_HC_NORM: Role.HC_ATTN_NORM,
    Role.HC_FFN_NORM: Role.HC_ATTN_NORM,
    Role.DRAFT_HC_NORM: Role.HC_ATTN_NORM,
    Role.DRAFT_HIDDEN_NORM: Role.HC_ATTN_NORM,
    Role.FINAL_HC_DOWN: Role.HC_ATTN_DOWN,
    Role.HC_FFN_DOWN: Role.HC_ATTN_DOWN,
    Role.DRAFT_HC_DOWN: Role.HC_ATTN_DOWN,
    Role.FINAL_HC_UP: Role.HC_ATTN_UP,
    Role.HC_FFN_UP: Role.HC_ATTN_UP,
    Role.DRAFT_HC_UP: Role.HC_ATTN_UP,
    Role.HC_FFN_INJECT: Role.HC_ATTN_INJECT,
    Role.EXPERTS_UP: Role.EXPERTS_GATE,
    Role.SHARED_UP: Role.SHARED_GATE,
    Role.GDN_A: Role.GDN_DT,
    Role.GDN_BETA: Role.GDN_ALPHA,
    Role.ATTN_V: Role.ATTN_K,
    Role.ATTN_K_NORM: Role.ATTN_Q_NORM,
    Role.INDEX_K_NORM: Role.INDEX_Q_NORM,
    Role.PLE_NORM_QUERY: Role.PLE_NORM_KEY,
    Role.PLE_NORM_CONV: Role.PLE_NORM_KEY,
}


def expected_shape(role: Role, spec: ModelSpec) -> Shape:
    """The numpy-order shape; of the n-gram table the least number of rows."""
    return _SHAPES[_SHAPED_LIKE.get(role, role)](spec)


def global_roles(spec: ModelSpec) -> tuple[Role, ...]:
    """Tensors outside the layers that a file of this geometry holds."""
    absent = set()
    if spec.is_head_tied:
        absent.add(Role.HEAD)
    if spec.ngram is None:
        absent.add(Role.NGRAM_TABLE)
    return tuple(role for role in GLOBAL_ROLES if role not in absent)


def layer_roles(spec: ModelSpec, layer: int) -> tuple[Role, ...]:
    """Tensors block ``layer`` needs; blocks from ``num_layers`` on are draft layers."""
    shared = (*HYPER_ROLES, *EXPERT_ROLES)
    if layer >= spec.num_layers:
        return (*shared, *ATTN_ROLES, *DRAFT_ROLES)
    is_sparse = spec.layer_kinds[layer] is LayerKind.QSA
    mixer = (*ATTN_ROLES, *INDEX_ROLES) if is_sparse else GDN_ROLES
    has_ngram = spec.ngram is not None and spec.ngram.layer == layer
    return (*shared, *mixer, *(PLE_ROLES if has_ngram else ()))


def required_tensors(spec: ModelSpec) -> dict[str, Role]:
    """Name to role of every tensor a complete file must hold, in file order."""
    names = {tensor_name(role): role for role in global_roles(spec)}
    for layer in range(spec.num_layers + spec.num_draft_layers):
        names.update({tensor_name(role, layer): role for role in layer_roles(spec, layer)})
    return names


def check_layout(
    index: Mapping[str, HasShape], spec: ModelSpec, *, source: str = ""
) -> tuple[str, ...]:
    """Compares every tensor of a file with the geometry; returns notices about unknown tensors.

    Accepted variations: a tied head, ``ffn_gate_up_exps`` in place of gate and up, ``.scale``
    companions, and a draft block with or without an indexer, its own embedding or its own head.

    Raises:
        CheckpointError: tensors are missing (all are listed), a layer holds tensors of the other
            kind, or a shape is wrong (the first is named).
    """
    where = f"\n  file: {source}" if source else ""
    required = required_tensors(spec)
    for layer in range(spec.num_layers + spec.num_draft_layers):
        fused = tensor_name(Role.EXPERTS_GATE_UP, layer)
        if fused in index:
            del required[tensor_name(Role.EXPERTS_GATE, layer)]
            del required[tensor_name(Role.EXPERTS_UP, layer)]
            required[fused] = Role.EXPERTS_GATE_UP
    missing = [name for name in required if name not in index]
    if missing:
        shown = ", ".join(missing[:20]) + (" ..." if len(missing) > 20 else "")
        raise CheckpointError(
            f"{len(missing)} of {len(required)} tensors are missing: {shown}{where}\n"
            "  Try: check that every shard is present, or download the model again."
        )
    unknown = []
    for name, entry in index.items():
        role = required.get(name) or _optional_role(name, spec)
        if role is not None:
            _check_shape(name, tuple(entry.shape), role, spec, where)
        elif (kind := _foreign_kind(name, spec)) is not None:
            raise CheckpointError(
                f"{name} does not belong there: its layer is a {kind.value} layer.{where}\n"
                "  Try: convert the model again; metadata and tensors disagree."
            )
        elif not _is_companion(name, index):
            unknown.append(name)
    if not unknown:
        return ()
    shown = ", ".join(unknown[:8]) + (" ..." if len(unknown) > 8 else "")
    return (f"{len(unknown)} unknown tensors are ignored: {shown}",)


def _optional_role(name: str, spec: ModelSpec) -> Role | None:
    parsed = parse_name(name)
    if parsed is None:
        return None
    role, layer = parsed
    is_draft = layer is not None and (
        spec.num_layers <= layer < spec.num_layers + spec.num_draft_layers
    )
    return role if is_draft and role in DRAFT_OPTIONAL_ROLES else None


def _foreign_kind(name: str, spec: ModelSpec) -> LayerKind | None:
    """The kind of the tensor's layer if the tensor mixes tokens in the other way, else None."""
    parsed = parse_name(name)
    if parsed is None:
        return None
    role, layer = parsed
    if layer is None or layer >= spec.num_layers:
        return None
    kind = spec.layer_kinds[layer]
    foreign = GDN_ROLES if kind is LayerKind.QSA else (*ATTN_ROLES, *INDEX_ROLES)
    return kind if role in foreign else None


def _is_companion(name: str, index: Mapping[str, HasShape]) -> bool:
    """NVFP4 files store one more scale per tensor or expert beside the weight."""
    stem, _, suffix = name.rpartition(".")
    return suffix in ("scale", "input_scale") and f"{stem}.weight" in index


def _check_shape(name: str, found: Shape, role: Role, spec: ModelSpec, where: str) -> None:
    expected = expected_shape(role, spec)
    if role is Role.NGRAM_TABLE:
        is_right = len(found) == 2 and found[0] >= expected[0] and found[1] == expected[1]
    else:
        is_right = found == expected
    if not is_right:
        at_least = "at least " if role is Role.NGRAM_TABLE else ""
        raise CheckpointError(
            f"{name} has shape {list(found)}; its metadata asks for {at_least}{list(expected)}."
            f"{where}\n  Try: download the model again; metadata and tensors disagree."
        )
