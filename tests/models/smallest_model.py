"""The smallest model that has every part, for kernels that run in Triton's interpreter."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from tests.models.model_files import write_model
from tests.models.tiny_models import (
    TinyModel,
    build,
    gguf_weights,
    randomize,
    spec_of,
    tiny_config,
)

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, EXPERTS = 2, 4
# Two rows of the n-gram layer's history, several blocks beyond the budget, both kinds of layer.
SMALLEST = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "full_attention_interval": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "num_experts": EXPERTS,
    "hc_count": 2,
    "hc_lowrank": 8,
    "ple_layer_ids": [1],
    "ngram_size": 2,
    "heads_per_ngram": 2,
    "ple_embed_dim": 32,
    "ple_conv_kernel_size": 3,
    "indexer_n_heads": 2,
    "indexer_head_dim": 32,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
_FORMATS = {"ffn_gate_exps": "Q4_0", "ffn_up_exps": "Q4_0", "ffn_down_exps": "Q8_0",
            "ffn_gate_shexp": "Q8_0", "ffn_up_shexp": "Q8_0", "ffn_down_shexp": "Q8_0",
            "attn_qkv": "Q8_0", "attn_gate": "Q8_0", "attn_k": "BF16", "ssm_out": "Q4_0",
            "hc_attn_down": "Q8_0", "hc_ffn_up": "F16", "output": "Q8_0",
            "ple_key": "Q8_0"}  # fmt: skip


@functools.cache
def smallest_model(**changes) -> TinyModel:
    torch.set_num_threads(1)
    config = tiny_config(**SMALLEST | changes)
    hf = build(config)
    randomize(hf, seed=5)
    return TinyModel(hf, spec_of(config), gguf_weights(hf))


def formats_of(weights) -> dict[str, str]:
    """The formats of a file with these weights; what is not named is float32."""
    stems = {name: name.removesuffix(".weight").split(".")[-1] for name in weights}
    return {name: _FORMATS[stem] for name, stem in stems.items() if stem in _FORMATS}


def write_smallest(folder: Path) -> Path:
    model = smallest_model()
    return write_model(folder / "model.gguf", model, formats_of(model.weights))
