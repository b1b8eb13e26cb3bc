"""What is trained: the demo's geometry, as a checkpoint's config.json and as a ModelSpec.

Owns sizes and special token ids. The schedule is in ``training.schedule``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from strata.formats.convert_metadata import metadata_from_config
from strata.spec_reader import read_spec

if TYPE_CHECKING:
    from strata.model_spec import ModelSpec

# The byte-level BPE ends here; the family's special tokens follow (training/data/tokenizer.json).
NUM_BPE_TOKENS = 8128
END_OF_TEXT_ID = NUM_BPE_TOKENS
TURN_START_ID = NUM_BPE_TOKENS + 1
TURN_END_ID = NUM_BPE_TOKENS + 2
IMAGE_PAD_ID = NUM_BPE_TOKENS + 12


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes of a trained model; the defaults are the demo's."""

    vocab_size: int = 8192
    hidden_size: int = 256
    num_layers: int = 8
    attention_interval: int = 4
    context_len: int = 8192
    hc_rank: int = 32
    gdn_key_heads: int = 4
    gdn_value_heads: int = 8
    gdn_head_dim: int = 64
    num_heads: int = 8
    num_kv_heads: int = 2
    head_dim: int = 64
    rope_dim: int = 32
    # 8,192 positions turn the slowest of 16 pairs by a tenth of a circle.
    rope_base: float = 1e5
    index_heads: int = 4
    index_dim: int = 64
    index_budget: int = 512
    num_experts: int = 32
    top_k: int = 4
    expert_size: int = 96
    shared_expert_size: int = 256
    ngram_row_size: int = 32
    ngram_rows_per_head: int = 8192
    eos_id: int = END_OF_TEXT_ID
    image_id: int = IMAGE_PAD_ID

    def config(self) -> dict[str, object]:
        """The checkpoint's config.json."""
        pairs = self.rope_dim // 2
        return {
            "architectures": ["Qwen4ExpForCausalLM"],
            "model_type": "qwen4_exp_text",
            "dtype": "bfloat16",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_layers,
            "layer_types": [
                "linear_attention" if (layer + 1) % self.attention_interval else "indexed_attention"
                for layer in range(self.num_layers)
            ],
            "max_position_embeddings": self.context_len,
            "rms_norm_eps": 1e-6,
            "hc_count": 4,
            "hc_lowrank": self.hc_rank,
            "linear_num_key_heads": self.gdn_key_heads,
            "linear_num_value_heads": self.gdn_value_heads,
            "linear_key_head_dim": self.gdn_head_dim,
            "linear_value_head_dim": self.gdn_head_dim,
            "linear_conv_kernel_dim": 4,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_base,
                "partial_rotary_factor": self.rope_dim / self.head_dim,
                "mrope_section": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3],
                "mrope_interleaved": True,
            },
            "indexer_n_heads": self.index_heads,
            "indexer_kv_heads": 1,
            "indexer_head_dim": self.index_dim,
            "indexer_budget": self.index_budget,
            "indexer_compress_ratio": 4,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": True,
            "moe_intermediate_size": self.expert_size,
            "shared_expert_intermediate_size": self.shared_expert_size,
            "output_gate_type": "sigmoid",
            "ple_layer_ids": [2],
            "ple_embed_dim": self.ngram_row_size * 16,
            "ple_conv_kernel_size": 4,
            "ngram_size": 3,
            "heads_per_ngram": 8,
            "ngram_vocab_size_base": self.ngram_rows_per_head,
            "make_ngram_vocab_size_divisible_by": 128,
            "split_ngram_parts": 4,
            "seed": 1234,
            "bos_token_id": None,
            "eos_token_id": [self.eos_id, self.eos_id + 2],
            "pad_token_id": self.eos_id,
            "tie_word_embeddings": False,
        }

    def spec(self) -> ModelSpec:
        """The same geometry as the engine sees it, with one draft layer."""
        metadata = metadata_from_config(self.config(), name="strata-demo", num_draft_layers=1)
        shapes = {"output.weight": (), "blk.0.indexer.q_proj.weight": ()}
        return read_spec(metadata, tensor_shapes=shapes, source="training/config.py")


DEMO = Geometry()
# Small enough for a processor, with every part of the architecture.
TOY = replace(
    DEMO, hidden_size=64, num_layers=4, hc_rank=8,
    gdn_key_heads=2, gdn_value_heads=4, gdn_head_dim=16, num_heads=4, head_dim=16, rope_dim=8,
    index_heads=2, index_dim=16, index_budget=32, num_experts=8, top_k=2, expert_size=32,
    shared_expert_size=32, ngram_row_size=4, ngram_rows_per_head=64,
)  # fmt: skip
