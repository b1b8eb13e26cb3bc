"""What a model is, read from a file's metadata, with errors that name the key.

Owns the meaning of the ``qwen4exp.*`` keys, what stands in for those that are missing, and the
faults of converters that are repaired. The geometry itself is ``model_spec``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.metadata_reader import MetadataReader
from strata.model_spec import (
    ARCHITECTURE,
    Gate,
    LayerKind,
    ModelSpec,
    NgramSpec,
    RopeScaling,
    RopeSpec,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# The pooling ratio of every trained model; used where a converter wrote only zeros.
DEFAULT_INDEX_BLOCK = 4


def read_spec(
    metadata: Mapping[str, object],
    *,
    tensor_shapes: Mapping[str, tuple[int, ...]] | None = None,
    notices: list[str] | None = None,
    source: str = "",
) -> ModelSpec:
    """The geometry that a file's ``qwen4exp.*`` keys describe.

    Args:
        metadata: key to value; integers, floats, strings and sequences of them.
        tensor_shapes: numpy-order shape of every tensor of the file, by name. Tells the size
            of the vocabulary, whether the head is tied, the rows of the n-gram table and
            whether indexer tensors exist. ``None``: the metadata alone decides, head untied.
        notices: receives one sentence for each fault that was repaired on reading.
        source: the file, for messages.

    Raises:
        CheckpointError: a key is missing or holds nonsense; the message names it.
        UnsupportedError: another architecture, or a feature Strata does not have.
    """
    reader = MetadataReader(metadata, prefix=ARCHITECTURE + ".", source=source)
    architecture = reader.text("general.architecture", default="", is_global=True)
    if architecture != ARCHITECTURE:
        raise reader.unsupported(
            f"the architecture is {architecture!r}; Strata runs {ARCHITECTURE!r} only",
            "a GGUF of a Qwen3.8 Flash Next model, or strata convert for its checkpoint",
        )
    shapes = {} if tensor_shapes is None else tensor_shapes
    found: list[str] = [] if notices is None else notices
    kinds, index_block = _layers(reader, shapes, found)
    spec = ModelSpec(
        name=reader.text("general.name", default="", is_global=True),
        vocab_size=_vocab_size(reader, shapes),
        hidden_size=reader.size("embedding_length"),
        layer_kinds=kinds,
        context_len=reader.size("context_length"),
        rms_eps=reader.positive_float("attention.layer_norm_rms_epsilon"),
        num_streams=reader.size("hyper_connection.count"),
        hc_rank=reader.size("hyper_connection.low_rank"),
        gdn_key_heads=reader.size("ssm.group_count"),
        gdn_value_heads=reader.size("ssm.time_step_rank"),
        gdn_key_dim=reader.size("ssm.state_size"),
        gdn_value_dim=reader.quotient("ssm.inner_size", "ssm.time_step_rank"),
        gdn_conv_kernel=reader.size("ssm.conv_kernel"),
        gdn_gate=Gate(reader.choice("strata.output_gate", [g.value for g in Gate], "sigmoid")),
        num_heads=reader.size("attention.head_count"),
        num_kv_heads=reader.size("attention.head_count_kv"),
        head_dim=reader.size("attention.key_length"),
        rope=_rope(reader),
        # Without a sparse layer the indexer has no size; ones keep every ratio defined.
        index_heads=reader.size("attention.indexer.head_count", default=1),
        index_dim=reader.size("attention.indexer.key_length", default=_rope_dim(reader)),
        index_budget=reader.size("attention.indexer.top_k", default=index_block),
        index_block=index_block,
        num_experts=reader.size("expert_count"),
        top_k=reader.size("expert_used_count"),
        expert_size=reader.size("expert_feed_forward_length"),
        shared_expert_size=reader.size("expert_shared_feed_forward_length"),
        expert_weights_scale=reader.positive_float("expert_weights_scale", default=1.0),
        ngram=_ngram(reader, shapes),
        num_draft_layers=reader.count("nextn_predict_layers", default=0),
        is_head_tied=bool(shapes) and "output.weight" not in shapes,
    )
    _check(spec, reader)
    return spec


def _vocab_size(reader: MetadataReader, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Rows of the embedding; the tensor decides, then the vocabulary key, then the token list."""
    embedding = shapes.get("token_embd.weight")
    if embedding is not None and len(embedding) == 2:
        return embedding[0]
    if reader.has("vocab_size"):
        return reader.size("vocab_size")
    return reader.length("tokenizer.ggml.tokens", is_global=True)


def _layers(
    reader: MetadataReader, shapes: Mapping[str, tuple[int, ...]], notices: list[str]
) -> tuple[tuple[LayerKind, ...], int]:
    """Kind of every decoder layer (draft layers excluded) and the indexer's pooling ratio."""
    num_blocks = reader.size("block_count", most=4096)
    num_draft = reader.count("nextn_predict_layers", default=0)
    num_layers = num_blocks - num_draft
    if num_layers < 1:
        raise reader.fault("nextn_predict_layers", f"below block_count ({num_blocks})", num_draft)
    ratios = reader.integers("attention.compress_ratios", default=(0,) * num_blocks)
    if len(ratios) not in (num_blocks, num_layers) or min(ratios) < 0:
        raise reader.fault("attention.compress_ratios", f"{num_blocks} counts >= 0", ratios)
    is_sparse = _sparse_layers(reader, num_blocks, ratios)[:num_layers]
    used = {ratio for ratio, sparse in zip(ratios, is_sparse, strict=False) if sparse}
    kinds = tuple(LayerKind.QSA if sparse else LayerKind.GDN for sparse in is_sparse)
    if not used:
        return kinds, 1
    if used == {0}:
        if shapes and not any(".indexer." in name for name in shapes):
            raise reader.unsupported(
                f"{reader.prefix}attention.compress_ratios is zero, no indexer: dense attention",
                "a file with indexer tensors; Strata runs sparse attention only",
            )
        notices.append(
            "attention.compress_ratios is zero on every layer although the file has indexer "
            f"tensors (a known converter fault); {DEFAULT_INDEX_BLOCK} is used."
        )
        return kinds, DEFAULT_INDEX_BLOCK
    if len(used) > 1:
        raise reader.unsupported(
            f"{reader.prefix}attention.compress_ratios differs between layers: {sorted(used)}",
            "another file; Strata pools the same number of keys on every layer",
        )
    return kinds, used.pop()


def _sparse_layers(
    reader: MetadataReader, num_blocks: int, ratios: tuple[int, ...]
) -> tuple[bool, ...]:
    """Which blocks attend: by the list of recurrent layers, by the ratios, or by the interval."""
    if reader.has("attention.recurrent_layers"):
        recurrent = reader.integers("attention.recurrent_layers")
        if len(recurrent) == num_blocks and set(recurrent) <= {0, 1}:
            return tuple(not flag for flag in recurrent)
        if recurrent and not 0 <= min(recurrent) <= max(recurrent) < num_blocks:
            raise reader.fault("attention.recurrent_layers", f"below {num_blocks}", recurrent)
        return tuple(layer not in recurrent for layer in range(num_blocks))
    if reader.has("full_attention_interval"):
        interval = reader.size("full_attention_interval")
        return tuple((layer + 1) % interval == 0 for layer in range(num_blocks))
    if any(ratios):
        return tuple(ratio > 0 for ratio in ratios) + (False,) * (num_blocks - len(ratios))
    raise reader.missing("full_attention_interval")


def _rope_dim(reader: MetadataReader) -> int:
    return reader.size("rope.dimension_count", default=reader.size("attention.key_length"))


def _rope(reader: MetadataReader) -> RopeSpec:
    dim = _rope_dim(reader)
    pairs = dim // 2
    balanced = ((pairs + 2) // 3, (pairs + 1) // 3, pairs // 3)
    sections = reader.integers("rope.dimension_sections", default=balanced)
    if len(sections) < 3 or min(sections) < 0 or any(sections[3:]):
        raise reader.fault("rope.dimension_sections", "three counts >= 0, then zeros", sections)
    base = reader.positive_float("rope.freq_base")
    kinds = [kind.value for kind in RopeScaling]
    scaling = RopeScaling(reader.choice("rope.scaling.type", kinds, "none"))
    unscaled = RopeSpec(dim=dim, base=base, sections=(sections[0], sections[1], sections[2]))
    if scaling is RopeScaling.NONE:
        return unscaled
    factor = reader.positive_float("rope.scaling.factor")
    if factor < 1.0:
        raise reader.fault("rope.scaling.factor", "at least 1", factor)
    attn_factor = reader.positive_float("rope.scaling.attn_factor", default=1.0)
    is_yarn = scaling is RopeScaling.YARN
    return RopeSpec(
        dim=dim,
        base=base,
        sections=unscaled.sections,
        scaling=scaling,
        factor=factor,
        original_context_len=reader.size(
            "rope.scaling.original_context_length", default=reader.size("context_length")
        ),
        attn_factor=attn_factor
        * reader.positive_float("rope.scaling.yarn_attn_factor", default=1.0),
        # Linear scaling never extrapolates.
        ext_factor=reader.number("rope.scaling.yarn_ext_factor", default=1.0) if is_yarn else 0.0,
        beta_fast=reader.positive_float("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=reader.positive_float("rope.scaling.yarn_beta_slow", default=1.0),
    )


def _ngram(reader: MetadataReader, shapes: Mapping[str, tuple[int, ...]]) -> NgramSpec | None:
    layers = reader.integers("ple.layers", default=())
    if not layers:
        return None
    if len(layers) > 1:
        raise reader.unsupported(
            f"{reader.prefix}ple.layers names {len(layers)} layers ({list(layers)})",
            "a model with one n-gram layer; Strata holds one n-gram memory",
        )
    ngram = NgramSpec(
        layer=layers[0],
        ngram_size=reader.size("ple.ngram_size"),
        heads_per_ngram=reader.size("ple.heads_per_ngram"),
        row_size=reader.size("embedding_length_per_layer_input"),
        conv_kernel=reader.size("ple.conv_kernel"),
        eos_id=reader.count("ple.eos_token_id"),
        image_id=reader.count("ple.image_token_id") if reader.has("ple.image_token_id") else None,
        multipliers=reader.integers("ple.layer_multipliers"),
        head_vocab_sizes=reader.integers("ple.head_vocab_sizes"),
        head_offsets=reader.integers("ple.head_offsets"),
    )
    _check_ngram(ngram, reader, shapes.get("per_layer_token_embd.weight"))
    return ngram


def _check_ngram(ngram: NgramSpec, reader: MetadataReader, table: tuple[int, ...] | None) -> None:
    """Raises CheckpointError where a hash could leave the table."""
    heads = ngram.num_heads
    reader.require(
        ("ple.ngram_size", ngram.ngram_size >= 2, "at least 2", ngram.ngram_size),
        ("ple.layer_multipliers", len(ngram.multipliers) == ngram.ngram_size
         and all(0 <= value < 1 << 64 for value in ngram.multipliers),
         f"{ngram.ngram_size} unsigned 64-bit values", ngram.multipliers),
        ("ple.head_vocab_sizes", len(ngram.head_vocab_sizes) == heads
         and all(value > 0 for value in ngram.head_vocab_sizes),
         f"{heads} counts above zero", ngram.head_vocab_sizes),
        ("ple.head_offsets", len(ngram.head_offsets) == heads
         and all(value >= 0 for value in ngram.head_offsets),
         f"{heads} counts", ngram.head_offsets),
    )  # fmt: skip
    if table is None or len(table) != 2:
        return
    for offset, size in zip(ngram.head_offsets, ngram.head_vocab_sizes, strict=True):
        if offset + size > table[0]:
            expected = f"offset + size within the table's {table[0]} rows"
            raise reader.fault("ple.head_offsets", expected, offset + size)


def _check(spec: ModelSpec, reader: MetadataReader) -> None:
    """Raises CheckpointError where two sound keys contradict each other."""
    if reader.has("expert_weights_norm") and not reader.flag("expert_weights_norm"):
        raise reader.unsupported(
            f"{reader.prefix}expert_weights_norm is false",
            "another file; routing weights are always renormalised here",
        )
    # 1 is softmax in the public numbering; sigmoid routers belong to other families.
    if reader.count("expert_gating_func", default=1) not in (0, 1):
        raise reader.unsupported(
            f"{reader.prefix}expert_gating_func is not softmax", "another file"
        )
    rope, ngram = spec.rope.dim, spec.ngram
    reader.require(
        ("expert_used_count", spec.top_k <= spec.num_experts,
         f"at most expert_count ({spec.num_experts})", spec.top_k),
        ("attention.head_count", spec.num_heads % spec.num_kv_heads == 0,
         f"a multiple of head_count_kv ({spec.num_kv_heads})", spec.num_heads),
        ("ssm.time_step_rank", spec.gdn_value_heads % spec.gdn_key_heads == 0,
         f"a multiple of ssm.group_count ({spec.gdn_key_heads})", spec.gdn_value_heads),
        ("rope.dimension_count", rope % 2 == 0 and rope <= min(spec.head_dim, spec.index_dim),
         f"even and at most {min(spec.head_dim, spec.index_dim)}", rope),
        ("attention.indexer.top_k", spec.index_budget % spec.index_block == 0,
         f"a multiple of the pooling ratio {spec.index_block}", spec.index_budget),
        ("ple.layers", ngram is None or 0 <= ngram.layer < spec.num_layers,
         f"below {spec.num_layers}", ngram and ngram.layer),
    )  # fmt: skip
    if LayerKind.QSA in spec.layer_kinds:
        for key in ("head_count", "key_length", "top_k"):
            if not reader.has(f"attention.indexer.{key}"):
                raise reader.missing(f"attention.indexer.{key}")
