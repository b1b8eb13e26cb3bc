"""Tiny random models: a transformers config and model, the same weights by GGUF name, the spec.

``TINY`` names the geometries, ``random_changes`` draws more. ``tiny_model`` builds one; everything
is seeded and cached, so treat it as read-only. Other test folders import this module too.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tests.models.hf_names import rename
from tests.models.hf_oracle import widened
from torch import nn
from transformers import Qwen4ExpForCausalLM
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

from strata.model_spec import Gate, LayerKind, ModelSpec, NgramSpec, RopeScaling, RopeSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

VOCAB_SIZE = 97
EOS_ID = 7


@dataclass(frozen=True)
class TinyModel:
    """One model twice: for transformers, and by GGUF name with its spec."""

    hf: Qwen4ExpForCausalLM
    spec: ModelSpec
    weights: Mapping[str, np.ndarray]


def tiny_config(**changes: Any) -> Qwen4ExpTextConfig:
    """A four-layer config with every part of the model in it; ``changes`` override fields."""
    fields: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "full_attention_interval": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "hc_count": 4,
        "hc_lowrank": 12,
        "ple_layer_ids": [2],
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": 50,
        "make_ngram_vocab_size_divisible_by": 16,
        "split_ngram_parts": 1,
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "output_gate_type": "sigmoid",
        "eos_token_id": EOS_ID,
        "rope_parameters": _rope([2, 1, 1]),
    }
    return Qwen4ExpTextConfig(**(fields | changes))


def _rope(sections: list[int], share: float = 0.5, **more: Any) -> dict[str, Any]:
    return {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": share,
        "mrope_section": sections,
    } | more


_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}

TINY: dict[str, dict[str, Any]] = {
    "plain": {},
    "many-qsa": {
        "full_attention_interval": 2,
        "num_hidden_layers": 6,
        "hc_count": 2,
        "hc_lowrank": 5,
        "tie_word_embeddings": True,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "indexer_budget": 8,
        "output_gate_type": "silu",
        "ple_layer_ids": [1],
    },
    "no-memory": {
        "hidden_size": 48,
        "full_attention_interval": 1,
        "num_hidden_layers": 3,
        "ple_layer_ids": None,
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "indexer_n_heads": 3,
        "indexer_head_dim": 24,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "num_experts": 4,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 20,
        "rope_parameters": _rope([3, 3, 2], share=1.0),
    },
    "long-ngram": {
        "hidden_size": 36,
        "full_attention_interval": 3,
        "num_hidden_layers": 3,
        "hc_count": 3,
        "ngram_size": 4,
        "heads_per_ngram": 2,
        "ple_conv_kernel_size": 3,
        "linear_conv_kernel_dim": 2,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 20,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "indexer_budget": 16,
        "indexer_compress_ratio": 8,
        "num_experts": 16,
        "num_experts_per_tok": 5,
        "shared_expert_intermediate_size": 44,
    },
    "yarn": {
        "hidden_size": 80,
        "max_position_embeddings": 256,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "ngram_size": 2,
        "heads_per_ngram": 5,
        "ple_layer_ids": [3],
        "linear_num_value_heads": 2,
        "indexer_n_heads": 1,
        "rope_parameters": _rope([3, 3, 2], **_YARN),
    },
    "linear-rope": {
        "full_attention_interval": 2,
        "hc_lowrank": 3,
        "ple_layer_ids": [3],
        "num_experts": 3,
        "num_experts_per_tok": 1,
        "indexer_n_heads": 2,
        "rope_parameters": _rope([2, 1, 1], rope_type="linear", factor=2.5),
    },
}


def random_changes(seed: int) -> dict[str, Any]:
    """Changes for ``tiny_config``: a geometry drawn from everything the model allows."""
    rng = np.random.default_rng(seed)

    def pick(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    ngram_size, heads_per_ngram = pick(2, 3, 4), pick(1, 2, 3)
    ngram_heads = (ngram_size - 1) * heads_per_ngram
    interval = pick(2, 3)
    num_layers = interval + pick(0, 1, 3)
    gdn_layers = [layer for layer in range(num_layers) if (layer + 1) % interval]
    pairs = pick(3, 4, 6)
    sections = [pairs - pairs // 3 - (pairs + 1) // 3, (pairs + 1) // 3, pairs // 3]
    kv_heads, key_heads, block = pick(1, 2), pick(1, 2, 3), pick(2, 3, 4)
    num_experts = pick(3, 6, 11)
    return {
        "hidden_size": pick(24, 40, 56),
        "num_hidden_layers": num_layers,
        "full_attention_interval": interval,
        "num_attention_heads": kv_heads * pick(1, 2, 3),
        "num_key_value_heads": kv_heads,
        "head_dim": pairs * 4,
        "rope_parameters": _rope(sections),
        "linear_conv_kernel_dim": pick(2, 3, 4),
        "linear_key_head_dim": pick(8, 12),
        "linear_value_head_dim": pick(8, 20),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * pick(1, 2, 3),
        "moe_intermediate_size": pick(12, 28),
        "shared_expert_intermediate_size": pick(12, 28),
        "num_experts": num_experts,
        "num_experts_per_tok": int(rng.integers(1, num_experts + 1)),
        "hc_count": pick(2, 3, 4),
        "hc_lowrank": pick(1, 4, 9),
        "ple_layer_ids": [pick(*gdn_layers) + 1],
        "ple_embed_dim": ngram_heads * pick(3, 8),
        "ple_conv_kernel_size": pick(2, 3, 4),
        "ngram_size": ngram_size,
        "heads_per_ngram": heads_per_ngram,
        "indexer_n_heads": pick(1, 2, 5),
        "indexer_head_dim": pairs * pick(2, 3),
        "indexer_compress_ratio": block,
        "indexer_budget": block * pick(2, 3, 4),
        "output_gate_type": pick("sigmoid", "silu", None),
        "tie_word_embeddings": pick(True, False),
    }


def spec_of(config: Qwen4ExpTextConfig) -> ModelSpec:
    """The geometry a converted file of this config would have."""
    rope = config.rope_parameters
    scaling = {"default": "none"}.get(rope["rope_type"], rope["rope_type"])
    return ModelSpec(
        name="tiny",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layer_kinds=tuple(
            LayerKind.GDN if kind == "linear_attention" else LayerKind.QSA
            for kind in config.layer_types
        ),
        context_len=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        num_streams=config.hc_count,
        hc_rank=config.hc_lowrank,
        gdn_key_heads=config.linear_num_key_heads,
        gdn_value_heads=config.linear_num_value_heads,
        gdn_key_dim=config.linear_key_head_dim,
        gdn_value_dim=config.linear_value_head_dim,
        gdn_conv_kernel=config.linear_conv_kernel_dim,
        gdn_gate=Gate(config.output_gate_type or config.hidden_act),
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rope=RopeSpec(
            dim=int(config.head_dim * rope["partial_rotary_factor"]),
            base=rope["rope_theta"],
            sections=tuple(rope["mrope_section"]),
            scaling=RopeScaling(scaling),
            factor=rope.get("factor", 1.0),
            original_context_len=rope.get(
                "original_max_position_embeddings",
                0 if scaling == "none" else config.max_position_embeddings,
            ),
            ext_factor=0.0 if scaling == "linear" else 1.0,
            beta_fast=rope.get("beta_fast", 32.0),
            beta_slow=rope.get("beta_slow", 1.0),
        ),
        index_heads=config.indexer_n_heads,
        index_dim=config.indexer_head_dim,
        index_budget=config.indexer_budget,
        index_block=config.indexer_compress_ratio,
        num_experts=config.num_experts,
        top_k=config.num_experts_per_tok,
        expert_size=config.moe_intermediate_size,
        shared_expert_size=config.shared_expert_intermediate_size,
        expert_weights_scale=1.0,
        ngram=_ngram_spec(config),
        num_draft_layers=0,
        is_head_tied=config.tie_word_embeddings,
    )


def _ngram_spec(config: Qwen4ExpTextConfig) -> NgramSpec | None:
    if not config.ple_layer_ids:
        return None
    layer = config.ple_layer_ids[0] - 1
    embedding = build(config).model.layers[layer].ple.ple_embedding
    return NgramSpec(
        layer=layer,
        ngram_size=config.ngram_size,
        heads_per_ngram=config.heads_per_ngram,
        row_size=config.ple_embed_dim // len(embedding.head_offsets),
        conv_kernel=config.ple_conv_kernel_size,
        eos_id=config.eos_token_id,
        image_id=None,
        multipliers=tuple(embedding.layer_multipliers.tolist()),
        head_vocab_sizes=tuple(embedding.head_vocab_sizes),
        head_offsets=tuple(embedding.head_offsets),
    )


def build(config: Qwen4ExpTextConfig) -> Qwen4ExpForCausalLM:
    """The config as a model, in arithmetic that any precision has."""
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # the grouped product has no float64
    return Qwen4ExpForCausalLM(config).eval()


def randomize(model: nn.Module, seed: int) -> None:
    """Draws every parameter, also those transformers starts as constants."""
    rng = np.random.default_rng(seed)
    for name, parameter in model.named_parameters():
        shape = tuple(parameter.shape)
        if name.endswith("A_log"):
            values = np.log(rng.uniform(0.02, 2.0, shape))
        elif name.endswith("dt_bias"):
            values = rng.normal(-1.0, 1.0, shape)
        elif "embed" in name:
            values = rng.normal(0.0, 1.0, shape)
        elif "conv1d" in name:
            values = rng.normal(0.0, 0.5, shape)
        elif len(shape) == 1:  # norms: gated ones are centred at one, all others at zero
            centre = 1.0 if "linear_attn.norm" in name else 0.0
            values = rng.normal(centre, 0.3, shape)
        else:
            values = rng.normal(0.0, 1.5 / np.sqrt(shape[-1]), shape)
        # Rounded through float32, so that both precisions hold the same weights.
        drawn = torch.from_numpy(values.astype(np.float32))
        parameter.data.copy_(drawn)


@functools.cache
def tiny_model(name: str, dtype: str = "float32") -> TinyModel:
    """The model called ``name`` in ``TINY``, or "random-N" for a drawn geometry.

    "float64" has the same weights and wider arithmetic, in transformers too.
    """
    torch.set_num_threads(1)
    drawn = name.removeprefix("random-")
    config = tiny_config(**(TINY[name] if drawn == name else random_changes(int(drawn))))
    spec = spec_of(config)
    if dtype == "float64":
        with widened():
            hf = build(config)
        hf = hf.double()
    else:
        hf = build(config)
    randomize(hf, seed=zlib.crc32(name.encode()))
    return TinyModel(hf, spec, gguf_weights(hf))


def gguf_weights(model: Qwen4ExpForCausalLM) -> dict[str, np.ndarray]:
    """The model's weights by GGUF name, in GGUF conventions, numpy shape, its own dtype."""
    state = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    return rename(state, model.config)
