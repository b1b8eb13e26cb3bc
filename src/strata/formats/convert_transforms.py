"""How each GGUF tensor is made from the tensors of a Hugging Face ``qwen4_exp`` checkpoint.

Owns the names of the checkpoint and the arithmetic between both forms, as recipes that can be
carried out a few rows at a time. Does not quantise or write.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError
from strata.formats.convert_metadata import metadata_from_config, text_config
from strata.formats.convert_source import (
    Floats,
    IntegerSource,
    TensorSource,
    as_matrix,
    ngram_parts,
    stored_hash,
)
from strata.formats.naming import (
    DRAFT_OPTIONAL_ROLES,
    INDEX_ROLES,
    Role,
    Shape,
    expected_shape,
    global_roles,
    layer_roles,
    tensor_name,
)
from strata.spec_reader import read_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.model_spec import ModelSpec


class Change(Enum):
    """Arithmetic on the values of a tensor."""

    NONE = "as stored"
    ADD_ONE = "w + 1: the checkpoint's norms are centred on zero"
    NEGATIVE_EXP = "-exp(w): the decay is stored as its logarithm"


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of rows of one source tensor."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """One GGUF tensor: ``strips`` stand side by side, the pieces of a strip one below another."""

    role: Role
    layer: int | None
    shape: Shape
    strips: tuple[tuple[Piece, ...], ...]
    change: Change = Change.NONE
    column_order: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """The public name."""
        return tensor_name(self.role, self.layer)

    @property
    def num_rows(self) -> int:
        """Rows of the result seen as a matrix; a vector is one row."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    def read(self, source: TensorSource, start: int, stop: int) -> Floats:
        """Rows ``start`` to ``stop`` of the result, [rows, last size] float32, a new array."""
        if len(self.shape) == 1:
            whole = [source.rows(p.name, p.start, p.stop).ravel() for p in self.strips[0]]
            values = np.concatenate(whole).reshape(1, -1)[start:stop]
        else:
            strips = [_read_strip(source, strip, start, stop) for strip in self.strips]
            values = strips[0] if len(strips) == 1 else np.concatenate(strips, axis=1)
        if self.column_order is not None:
            values = values[:, np.array(self.column_order)]
        if self.change is Change.ADD_ONE:
            return values + np.float32(1)
        if self.change is Change.NEGATIVE_EXP:
            return -np.exp(values)
        return values


def _read_strip(source: TensorSource, strip: tuple[Piece, ...], start: int, stop: int) -> Floats:
    ends = list(accumulate(piece.stop - piece.start for piece in strip))
    parts = []
    at = start
    for number in range(bisect_right(ends, start), len(strip)):
        piece, end = strip[number], ends[number]
        if at >= stop:
            break
        shift = piece.stop - end
        parts.append(source.rows(piece.name, at + shift, min(stop, end) + shift))
        at = min(stop, end)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


# Source name below the layer, and the change, of every tensor that is copied whole.
_ADD = Change.ADD_ONE
_COPIED: dict[Role, tuple[str, Change]] = {
    Role.EMBEDDING: ("embed_tokens.weight", Change.NONE),
    Role.HEAD: ("lm_head.weight", Change.NONE),
    Role.FINAL_HC_NORM: ("hyper_connection_mixer.hc_norm.weight", _ADD),
    Role.FINAL_HC_DOWN: ("hyper_connection_mixer.input_mix_weight_down.weight", Change.NONE),
    Role.FINAL_HC_UP: ("hyper_connection_mixer.input_mix_weight_up.weight", Change.NONE),
    Role.HC_ATTN_NORM: ("attn_hyper_connection.hc_norm.weight", _ADD),
    Role.HC_ATTN_DOWN: ("attn_hyper_connection.input_mix_weight_down.weight", Change.NONE),
    Role.HC_ATTN_UP: ("attn_hyper_connection.input_mix_weight_up.weight", Change.NONE),
    Role.HC_ATTN_INJECT: ("attn_hyper_connection.block_inject_weight.weight", Change.NONE),
    Role.HC_FFN_NORM: ("mlp_hyper_connection.hc_norm.weight", _ADD),
    Role.HC_FFN_DOWN: ("mlp_hyper_connection.input_mix_weight_down.weight", Change.NONE),
    Role.HC_FFN_UP: ("mlp_hyper_connection.input_mix_weight_up.weight", Change.NONE),
    Role.HC_FFN_INJECT: ("mlp_hyper_connection.block_inject_weight.weight", Change.NONE),
    Role.ROUTER: ("mlp.gate.weight", Change.NONE),
    Role.SHARED_ROUTER: ("mlp.shared_expert_gate.weight", Change.NONE),
    Role.SHARED_GATE: ("mlp.shared_expert.gate_proj.weight", Change.NONE),
    Role.SHARED_UP: ("mlp.shared_expert.up_proj.weight", Change.NONE),
    Role.SHARED_DOWN: ("mlp.shared_expert.down_proj.weight", Change.NONE),
    Role.GDN_NORM: ("linear_attn.norm.weight", Change.NONE),
    Role.ATTN_Q: ("self_attn.q_proj.weight", Change.NONE),
    Role.ATTN_K: ("self_attn.k_proj.weight", Change.NONE),
    Role.ATTN_V: ("self_attn.v_proj.weight", Change.NONE),
    Role.ATTN_OUT: ("self_attn.o_proj.weight", Change.NONE),
    Role.ATTN_Q_NORM: ("self_attn.q_norm.weight", _ADD),
    Role.ATTN_K_NORM: ("self_attn.k_norm.weight", _ADD),
    Role.INDEX_Q_NORM: ("self_attn.indexer.q_layernorm.weight", _ADD),
    Role.INDEX_K_NORM: ("self_attn.indexer.k_layernorm.weight", _ADD),
    Role.PLE_KEY: ("ple.key_proj.weight", Change.NONE),
    Role.PLE_VALUE: ("ple.value_proj.weight", Change.NONE),
    Role.PLE_NORM_KEY: ("ple.norm_key.weight", _ADD),
    Role.PLE_NORM_QUERY: ("ple.norm_query.weight", _ADD),
    Role.PLE_NORM_CONV: ("ple.norm_conv.weight", _ADD),
    Role.PLE_CONV: ("ple.conv1d.weight", Change.NONE),
    Role.DRAFT_EMBED_NORM: ("mtp.pre_fc_norm_embedding.weight", _ADD),
    Role.DRAFT_HIDDEN_NORM: ("mtp.pre_fc_norm_hidden.weight", _ADD),
    Role.DRAFT_HC_NORM: ("mtp.hyper_connection_mixer.hc_norm.weight", _ADD),
    Role.DRAFT_HC_DOWN: ("mtp.hyper_connection_mixer.input_mix_weight_down.weight", Change.NONE),
    Role.DRAFT_HC_UP: ("mtp.hyper_connection_mixer.input_mix_weight_up.weight", Change.NONE),
    Role.DRAFT_EMBEDDING: ("mtp.embed_tokens.weight", Change.NONE),
    Role.DRAFT_HEAD: ("mtp.lm_head.weight", Change.NONE),
}

# GDN tensors with one group of rows per value head: name, leading rows (q and k), change.
_HEADED: dict[Role, tuple[str, Change]] = {
    Role.GDN_QKV: ("linear_attn.in_proj_qkv.weight", Change.NONE),
    Role.GDN_CONV: ("linear_attn.conv1d.weight", Change.NONE),
    Role.GDN_GATE: ("linear_attn.in_proj_z.weight", Change.NONE),
    Role.GDN_ALPHA: ("linear_attn.in_proj_a.weight", Change.NONE),
    Role.GDN_BETA: ("linear_attn.in_proj_b.weight", Change.NONE),
    Role.GDN_DT: ("linear_attn.dt_bias", Change.NONE),
    Role.GDN_A: ("linear_attn.A_log", Change.NEGATIVE_EXP),
}
_WITH_KEYS = (Role.GDN_QKV, Role.GDN_CONV)
_PER_VALUE_ROW = (*_WITH_KEYS, Role.GDN_GATE)

_EXPERT_NAMES = {
    Role.EXPERTS_GATE: "gate_proj",
    Role.EXPERTS_UP: "up_proj",
    Role.EXPERTS_DOWN: "down_proj",
}


def tiled_heads(spec: ModelSpec) -> tuple[int, ...]:
    """Value head of the checkpoint that each GGUF value head is.

    GGUF value head h reads key head h % Hk; the checkpoint's reads key head h // (Hv / Hk).
    """
    per_key = spec.gdn_value_heads // spec.gdn_key_heads
    return tuple(
        head % spec.gdn_key_heads * per_key + head // spec.gdn_key_heads
        for head in range(spec.gdn_value_heads)
    )


class RecipeBook:
    """Builds the recipe of every tensor a model needs; collects what the checkpoint lacks."""

    def __init__(self, source: TensorSource, spec: ModelSpec) -> None:
        self._source = source
        self._spec = spec
        self._names = frozenset(source.names())
        self._missing: list[str] = []
        self._used: set[str] = set()

    def build(self) -> tuple[Recipe, ...]:
        """All recipes in file order, global tensors first.

        Raises:
            CheckpointError: tensors are missing (all are listed) or one has the wrong shape.
        """
        spec = self._spec
        recipes = [self._recipe(role, None) for role in global_roles(spec)]
        for layer in range(spec.num_layers + spec.num_draft_layers):
            recipes += [self._recipe(role, layer) for role in layer_roles(spec, layer)]
            if layer >= spec.num_layers:
                recipes += [self._recipe(role, layer) for role in self._draft_extras(layer)]
        if self._missing:
            shown = ", ".join(self._missing[:20]) + (" ..." if len(self._missing) > 20 else "")
            raise CheckpointError(
                f"the checkpoint lacks {len(self._missing)} tensors: {shown}\n"
                "  Try: check that every safetensors shard is present."
            )
        return tuple(recipes)

    def _draft_extras(self, layer: int) -> list[Role]:
        """Tensors a draft layer may have. llama.cpp loads one only with its indexer."""
        indexer = f"{self._prefix(Role.INDEX_Q, layer)}self_attn.indexer.index_qk_proj.weight"
        return [
            role
            for role in DRAFT_OPTIONAL_ROLES
            if (indexer if role in INDEX_ROLES else _COPIED[role][0]) in self._names
        ]

    def unused(self) -> list[str]:
        """Names no recipe reads."""
        return sorted(self._names - self._used)

    def _prefix(self, role: Role, layer: int | None) -> str:
        if layer is None or _COPIED.get(role, ("",))[0].startswith("mtp."):
            return ""
        if layer >= self._spec.num_layers:
            return f"mtp.layers.{layer - self._spec.num_layers}."
        return f"layers.{layer}."

    def _recipe(self, role: Role, layer: int | None) -> Recipe:
        prefix = self._prefix(role, layer)
        shape = expected_shape(role, self._spec)
        if role in _COPIED:
            suffix, change = _COPIED[role]
            return Recipe(role, layer, shape, (self._whole(prefix + suffix, shape),), change)
        if role in _HEADED:
            return self._headed(role, layer, prefix, shape)
        if role in _EXPERT_NAMES:
            strip = self._experts(role, prefix + "mlp.experts.", shape)
            return Recipe(role, layer, shape, (strip,))
        if role is Role.GDN_OUT:
            strip = self._whole(prefix + "linear_attn.out_proj.weight", shape)
            dim = self._spec.gdn_value_dim
            order = tuple(h * dim + i for h in tiled_heads(self._spec) for i in range(dim))
            return Recipe(role, layer, shape, (strip,), column_order=order)
        if role in (Role.INDEX_Q, Role.INDEX_K):
            name = prefix + "self_attn.indexer.index_qk_proj.weight"
            split = self._spec.index_heads * self._spec.index_dim
            total = split + self._spec.index_dim
            self._whole(name, (total, shape[-1]))
            piece = Piece(name, 0, split) if role is Role.INDEX_Q else Piece(name, split, total)
            return Recipe(role, layer, shape, ((piece,),))
        if role is Role.NGRAM_TABLE:
            return self._ngram_table()
        if role is Role.DRAFT_IN:
            return Recipe(role, layer, shape, self._draft_in(shape))
        raise ValueError(f"no recipe for {role}")

    def _whole(self, name: str, shape: Shape) -> tuple[Piece, ...]:
        """All rows of one tensor, which must hold ``shape`` (sizes of one are ignored)."""
        if name not in self._names:
            self._missing.append(name)
            return (Piece(name, 0, 0),)
        self._used.add(name)
        found = self._source.shape(name)
        if [size for size in found if size != 1] != [size for size in shape if size != 1]:
            raise CheckpointError(
                f"{name} has shape {list(found)}; config.json asks for {list(shape)}.\n"
                "  Try: copy the checkpoint again; configuration and tensors disagree."
            )
        return (Piece(name, 0, as_matrix(found)[0]),)

    def _headed(self, role: Role, layer: int | None, prefix: str, shape: Shape) -> Recipe:
        suffix, change = _HEADED[role]
        spec = self._spec
        self._whole(prefix + suffix, shape)
        keys = 2 * spec.gdn_key_heads * spec.gdn_key_dim if role in _WITH_KEYS else 0
        size = spec.gdn_value_dim if role in _PER_VALUE_ROW else 1
        pieces = [Piece(prefix + suffix, 0, keys)] if keys else []
        for head in tiled_heads(spec):
            start = keys + head * size
            pieces.append(Piece(prefix + suffix, start, start + size))
        return Recipe(role, layer, shape, (tuple(pieces),), change)

    def _experts(self, role: Role, prefix: str, shape: Shape) -> tuple[Piece, ...]:
        """Rows of every expert: from one tensor per expert, or from the fused stacks."""
        num_experts, rows, inner = shape
        if role is Role.EXPERTS_DOWN and prefix + "down_proj" in self._names:
            return self._whole(prefix + "down_proj", shape)
        fused = prefix + "gate_up_proj"
        if role is not Role.EXPERTS_DOWN and fused in self._names:
            self._whole(fused, (num_experts, 2 * rows, inner))
            skip = rows if role is Role.EXPERTS_UP else 0
            starts = [2 * rows * expert + skip for expert in range(num_experts)]
            return tuple(Piece(fused, start, start + rows) for start in starts)
        projection = _EXPERT_NAMES[role]
        return tuple(
            piece
            for expert in range(num_experts)
            for piece in self._whole(f"{prefix}{expert}.{projection}.weight", (rows, inner))
        )

    def _ngram_table(self) -> Recipe:
        spec = self._spec
        layer = spec.ngram.layer if spec.ngram else 0
        least, width = expected_shape(Role.NGRAM_TABLE, spec)
        stem = f"layers.{layer}.ple.ple_embedding.ngram_embedding."
        parts = ngram_parts(self._names, stem)
        if not parts:
            self._missing.append(stem + "weight")
            return Recipe(Role.NGRAM_TABLE, None, (least, width), ())
        self._used.update(parts)
        shapes = [self._source.shape(name) for name in parts]
        rows = sum(as_matrix(shape)[0] for shape in shapes)
        if any(as_matrix(shape)[1] != width for shape in shapes) or rows < least:
            raise CheckpointError(
                f"{stem}* holds {rows} rows in {len(parts)} tensors, the first {list(shapes[0])}; "
                f"config.json asks for at least {least} rows of {width}.\n"
                "  Try: check that every safetensors shard is present."
            )
        strip = tuple(
            Piece(name, 0, as_matrix(shape)[0]) for name, shape in zip(parts, shapes, strict=True)
        )
        return Recipe(Role.NGRAM_TABLE, None, (rows, width), (strip,))

    def _draft_in(self, shape: Shape) -> tuple[tuple[Piece, ...], ...]:
        if "mtp.fc.weight" in self._names:
            return (self._whole("mtp.fc.weight", shape),)
        half = (shape[0], shape[1] // 2)
        return (
            self._whole("mtp.fc_embedding.weight", half),
            self._whole("mtp.fc_hidden.weight", half),
        )


def spec_from_config(
    config: Mapping[str, object], source: IntegerSource, *, name: str = "", has_draft: bool = True
) -> tuple[ModelSpec, dict[str, object]]:
    """Geometry and metadata of a checkpoint, from its configuration and tensor names."""
    names = set(source.names())
    has_draft = has_draft and any(key.startswith("mtp.layers.") for key in names)
    metadata = metadata_from_config(
        config, name=name, ngram_hash=stored_hash(source), num_draft_layers=int(has_draft)
    )
    text = text_config(config)
    is_tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    has_head = "lm_head.weight" in names and not is_tied
    shapes: dict[str, Shape] = {"blk.0.indexer.q_proj.weight": ()}
    if has_head or not is_tied:
        shapes["output.weight"] = ()
    return read_spec(metadata, tensor_shapes=shapes, source="config.json"), metadata
