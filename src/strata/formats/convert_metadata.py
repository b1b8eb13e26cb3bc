"""GGUF metadata from the configuration of a Hugging Face ``qwen4_exp`` checkpoint.

Owns the meaning of config.json. Tensors are in convert_transforms, the tokenizer in
convert_tokenizer. Integers are numpy scalars, because GGUF readers insist on one width per key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strata.errors import CheckpointError, UnsupportedError
from strata.model_spec import ARCHITECTURE

MASK_64 = (1 << 64) - 1
MAX_INTEGER = (1 << 31) - 1
# Each head is a prime to search for; the trained model has 8 for each length, to 3 tokens.
MAX_NGRAM_HEADS = 256
MAX_NGRAM_SIZE = 16
# Constants of SplitMix64 (Steele, Lea, Flood 2014) and the stride between n-gram layers.
SPLITMIX_STEP = 0x9E3779B97F4A7C15
SPLITMIX_FIRST = 0xBF58476D1CE4E5B9
SPLITMIX_SECOND = 0x94D049BB133111EB

_SCALINGS = {"default": "none", "none": "none", "linear": "linear", "yarn": "yarn"}


@dataclass(frozen=True, slots=True)
class NgramHash:
    """The constants of the n-gram hash: ``mix % sizes[h] + offsets[h]``."""

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]


def text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """The language model's part of a config.json; of a text-only one the whole.

    Raises:
        UnsupportedError: the checkpoint is of another family.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    kind = text.get("model_type", config.get("model_type"))
    if kind not in ("qwen4_exp", "qwen4_exp_text"):
        raise UnsupportedError(
            f"the checkpoint's model_type is {kind!r}; expected 'qwen4_exp' or 'qwen4_exp_text'.\n"
            "  where: config.json\n  Try: a checkpoint of Qwen3.8 Flash Next."
        )
    return text


def metadata_from_config(
    config: Mapping[str, object],
    *,
    name: str = "",
    ngram_hash: NgramHash | None = None,
    num_draft_layers: int = 0,
) -> dict[str, object]:
    """The ``general.*`` and ``qwen4exp.*`` keys.

    Args:
        config: config.json, of the text model or of the one with a vision tower.
        name: ``general.name``.
        ngram_hash: constants stored in the checkpoint; derived from the seed when None.
        num_draft_layers: blocks behind the decoder layers.

    Raises:
        CheckpointError: a field is missing or holds nonsense.
        UnsupportedError: a feature Strata does not have.
    """
    text = text_config(config)
    read = _Fields(text)
    _refuse_unknown_features(text)
    layers = _layer_types(read)
    is_sparse = [kind == "indexed_attention" for kind in layers]
    ratio = read.integer("indexer_compress_ratio", 4) if any(is_sparse) else 0
    num_blocks = len(layers) + num_draft_layers
    keys: dict[str, object] = {
        "block_count": np.uint32(num_blocks),
        "context_length": np.uint32(read.integer("max_position_embeddings", 32768)),
        "embedding_length": np.uint32(read.integer("hidden_size")),
        "vocab_size": np.uint32(read.integer("vocab_size")),
        "attention.head_count": np.uint32(read.integer("num_attention_heads")),
        "attention.head_count_kv": np.uint32(read.integer("num_key_value_heads")),
        "attention.key_length": np.uint32(read.integer("head_dim", 256)),
        "attention.value_length": np.uint32(read.integer("head_dim", 256)),
        "attention.layer_norm_rms_epsilon": np.float32(read.number("rms_norm_eps", 1e-6)),
        "attention.compress_ratios": np.array(
            [ratio * flag for flag in is_sparse] + [0] * num_draft_layers, np.int32
        ),
        "expert_count": np.uint32(read.integer("num_experts")),
        "expert_used_count": np.uint32(read.integer("num_experts_per_tok")),
        "expert_feed_forward_length": np.uint32(read.integer("moe_intermediate_size")),
        "expert_shared_feed_forward_length": np.uint32(
            read.integer("shared_expert_intermediate_size")
        ),
        "ssm.conv_kernel": np.uint32(read.integer("linear_conv_kernel_dim", 4)),
        "ssm.state_size": np.uint32(read.integer("linear_key_head_dim")),
        "ssm.group_count": np.uint32(read.integer("linear_num_key_heads")),
        "ssm.time_step_rank": np.uint32(read.integer("linear_num_value_heads")),
        "ssm.inner_size": np.uint32(
            read.integer("linear_num_value_heads") * read.integer("linear_value_head_dim")
        ),
        "hyper_connection.count": np.uint32(read.integer("hc_count", 4)),
        "hyper_connection.low_rank": np.uint32(read.integer("hc_lowrank", 320)),
    }
    keys.update(_layer_pattern(is_sparse, num_draft_layers))
    if any(is_sparse):
        keys["attention.indexer.head_count"] = np.uint32(read.integer("indexer_n_heads"))
        keys["attention.indexer.key_length"] = np.uint32(read.integer("indexer_head_dim"))
        keys["attention.indexer.top_k"] = np.uint32(read.integer("indexer_budget"))
    if num_draft_layers:
        keys["nextn_predict_layers"] = np.uint32(num_draft_layers)
    keys.update(_rope_keys(read))
    keys.update(_ngram_keys(config, read, ngram_hash))
    gate = text.get("output_gate_type") or text.get("hidden_act", "silu")
    if gate != "sigmoid":
        keys["strata.output_gate"] = str(gate)
    general: dict[str, object] = {
        "general.architecture": ARCHITECTURE,
        "general.type": "model",
        "general.name": name or "qwen4exp",
        "general.quantization_version": np.uint32(2),
    }
    return general | {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}


class _Fields:
    """Typed access to a config, with errors that name the field."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.config = config

    def fault(self, field: str, expected: str) -> CheckpointError:
        found = self.config.get(field)
        stated = "is missing" if found is None else f"is {found!r}"
        return CheckpointError(
            f"the field {field} {stated}; expected {expected}.\n"
            "  where: config.json\n  Try: copy the checkpoint's config.json again."
        )

    def integer(self, field: str, default: int | None = None, most: int = MAX_INTEGER) -> int:
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise self.fault(field, f"a whole number from 1 to {most}")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.config.get(field)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fault(field, "a number above zero")
        return float(value)

    def integers(self, field: str) -> list[int]:
        value = self.config.get(field)
        value = [] if value is None else value
        value = [value] if isinstance(value, int) else value
        if not isinstance(value, Sequence) or not all(isinstance(item, int) for item in value):
            raise self.fault(field, "a list of whole numbers")
        return list(value)


def _refuse_unknown_features(text: Mapping[str, object]) -> None:
    refused = (
        ("attention_bias", bool(text.get("attention_bias", False))),
        ("hidden_act", text.get("hidden_act", "silu") != "silu"),
        ("norm_topk_prob", not text.get("norm_topk_prob", True)),
        ("indexer_kv_heads", text.get("indexer_kv_heads") not in (None, 1)),
        ("output_gate_type", text.get("output_gate_type") not in (None, "sigmoid", "silu")),
    )
    for field, is_refused in refused:
        if is_refused:
            raise UnsupportedError(
                f"the checkpoint has {field} = {text.get(field)!r}, which Strata does not run.\n"
                "  where: config.json\n  Try: a checkpoint without it."
            )


def _layer_types(read: _Fields) -> list[str]:
    """Kind of every decoder layer; "full_attention" is the official file's word for the indexer."""
    num_layers = read.integer("num_hidden_layers")
    stored = read.config.get("layer_types")
    if stored is None:
        interval = read.integer("full_attention_interval", 4)
        return [
            "linear_attention" if (layer + 1) % interval else "indexed_attention"
            for layer in range(num_layers)
        ]
    if not isinstance(stored, Sequence) or len(stored) != num_layers:
        raise read.fault("layer_types", f"{num_layers} names")
    kinds = [{"full_attention": "indexed_attention"}.get(str(kind), str(kind)) for kind in stored]
    if not set(kinds) <= {"linear_attention", "indexed_attention"}:
        raise read.fault("layer_types", "linear_attention or indexed_attention on each layer")
    return kinds


def _layer_pattern(is_sparse: list[bool], num_draft_layers: int) -> dict[str, object]:
    """The interval where sparse layers repeat evenly, else the list of recurrent layers."""
    first = is_sparse.index(True) + 1 if any(is_sparse) else len(is_sparse) + 1
    if is_sparse == [(layer + 1) % first == 0 for layer in range(len(is_sparse))]:
        return {"full_attention_interval": np.uint32(first)}
    recurrent = [not flag for flag in is_sparse] + [False] * num_draft_layers
    return {"attention.recurrent_layers": np.array(recurrent, np.bool_)}


def _rope_keys(read: _Fields) -> dict[str, object]:
    """Rotary keys; transformers keeps an absolute magnitude, GGUF a factor on the YaRN formula."""
    stored = read.config.get("rope_parameters") or read.config.get("rope_scaling") or {}
    if not isinstance(stored, Mapping):
        raise read.fault("rope_parameters", "an object")
    params = _Fields({**read.config, **stored})
    dim = int(read.integer("head_dim", 256) * params.number("partial_rotary_factor", 1.0))
    sections = params.integers("mrope_section") or [11, 11, 10]
    keys: dict[str, object] = {
        "rope.dimension_count": np.uint32(dim),
        "rope.dimension_sections": np.array((*sections, 0, 0, 0, 0)[:4], np.int32),
        "rope.freq_base": np.float32(params.number("rope_theta", 1e7)),
    }
    kind = str(stored.get("rope_type", stored.get("type", "default")))
    if kind not in _SCALINGS:
        raise UnsupportedError(
            f"the checkpoint's rope_type is {kind!r}; known are {', '.join(_SCALINGS)}.\n"
            "  where: config.json\n  Try: a checkpoint with another rotary scaling."
        )
    if _SCALINGS[kind] == "none":
        return keys
    factor = params.number("factor")
    keys["rope.scaling.type"] = _SCALINGS[kind]
    keys["rope.scaling.factor"] = np.float32(factor)
    keys["rope.scaling.original_context_length"] = np.uint32(
        params.integer(
            "original_max_position_embeddings", read.integer("max_position_embeddings", 32768)
        )
    )
    if kind == "yarn":
        keys["rope.scaling.yarn_beta_fast"] = np.float32(params.number("beta_fast", 32.0))
        keys["rope.scaling.yarn_beta_slow"] = np.float32(params.number("beta_slow", 1.0))
        if stored.get("attention_factor") is not None:
            usual = 1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0
            magnitude = params.number("attention_factor")
            keys["rope.scaling.attn_factor"] = np.float32(magnitude / usual)
    return keys


def _ngram_keys(
    config: Mapping[str, object], read: _Fields, stored: NgramHash | None
) -> dict[str, object]:
    layers = sorted(set(read.integers("ple_layer_ids")))
    if not layers:
        return {}
    if len(layers) > 1:
        raise UnsupportedError(
            f"the checkpoint has n-gram memories on {len(layers)} layers ({layers}); "
            "Strata and GGUF hold one.\n  where: config.json\n  Try: a checkpoint with one."
        )
    eos = read.integers("eos_token_id") or _Fields(config).integers("eos_token_id")
    if not eos:
        raise read.fault("eos_token_id", "a token id, because the n-gram memory is cut there")
    ngram_size = read.integer("ngram_size", 3, most=MAX_NGRAM_SIZE)
    per_ngram = read.integer("heads_per_ngram", 8, most=MAX_NGRAM_HEADS)
    num_heads = (ngram_size - 1) * per_ngram
    width = read.integer("ple_embed_dim", read.integer("hidden_size"))
    if num_heads < 1 or width % num_heads:
        raise read.fault("ple_embed_dim", f"a multiple of the {num_heads} n-gram heads")
    hash_ = stored or ngram_hash_from_seed(
        seed=read.integer("seed", 1234),
        vocab_size=read.integer("vocab_size"),
        ngram_size=ngram_size,
        num_heads=num_heads,
        least_size=read.integer("ngram_vocab_size_base", 20_000_000),
    )
    keys: dict[str, object] = {
        "embedding_length_per_layer_input": np.uint32(width // num_heads),
        "ple.layers": np.array([layers[0] - 1], np.int32),
        "ple.ngram_size": np.uint32(ngram_size),
        "ple.heads_per_ngram": np.uint32(per_ngram),
        "ple.conv_kernel": np.uint32(read.integer("ple_conv_kernel_size", 4)),
        # The window is cut at the first end token only, whatever else ends a turn.
        "ple.eos_token_id": np.uint32(eos[0]),
        "ple.layer_multipliers": np.array(hash_.multipliers, np.uint64),
        "ple.head_vocab_sizes": np.array(hash_.sizes, np.uint64),
        "ple.head_offsets": np.array(hash_.offsets, np.uint64),
    }
    image = config.get("image_token_id")
    if isinstance(image, int):
        keys["ple.image_token_id"] = np.uint32(image)
    return keys


def ngram_hash_from_seed(
    *, seed: int, vocab_size: int, ngram_size: int, num_heads: int, least_size: int
) -> NgramHash:
    """The hash constants of the first n-gram layer.

    Multipliers are odd SplitMix64 draws small enough that token id times multiplier stays below
    2**63; head sizes are consecutive primes from ``least_size`` on.
    """
    half = max(1, ((1 << 63) - 1) // max(vocab_size, 1) // 2)
    draws = [_splitmix(seed + SPLITMIX_STEP * (index + 1)) for index in range(ngram_size)]
    sizes: list[int] = []
    candidate = least_size
    while len(sizes) < num_heads:
        if _is_prime(candidate):
            sizes.append(candidate)
        candidate += 1
    offsets = [sum(sizes[:head]) for head in range(num_heads)]
    return NgramHash(tuple(2 * (draw % half) + 1 for draw in draws), tuple(sizes), tuple(offsets))


def _splitmix(value: int) -> int:
    value = (value + SPLITMIX_STEP) & MASK_64
    value = ((value ^ (value >> 30)) * SPLITMIX_FIRST) & MASK_64
    value = ((value ^ (value >> 27)) * SPLITMIX_SECOND) & MASK_64
    return value ^ (value >> 31)


def _is_prime(value: int) -> bool:
    if value < 4:
        return value in (2, 3)
    return value % 2 != 0 and all(value % divisor for divisor in range(3, math.isqrt(value) + 1, 2))
