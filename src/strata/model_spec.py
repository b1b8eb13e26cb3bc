"""What a model is: sizes and kinds. Integers, floats and enums only.

Read from a file by ``spec_reader``. Does not know tensors, files or devices. Shape letters (D, H,
E, K, F, V ...) are those of docs/glossary.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ARCHITECTURE = "qwen4exp"


class LayerKind(Enum):
    """How a layer mixes tokens."""

    GDN = "gated delta net"
    QSA = "sparse attention"


class Gate(Enum):
    """Activation on the gate of a GDN layer's output."""

    SIGMOID = "sigmoid"
    SILU = "silu"


class RopeScaling(Enum):
    """How rotary angles are stretched past the trained context."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions. ``dim`` of every head's first values rotate, in half-split pairs."""

    dim: int
    base: float
    sections: tuple[int, int, int]  # pairs for t, h, w; interleaved by pair index modulo 3
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_context_len: int = 0
    attn_factor: float = 1.0
    ext_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class NgramSpec:
    """The n-gram memory ("PLE") of one layer."""

    layer: int
    ngram_size: int  # longest n-gram; also the dilation of the convolution
    heads_per_ngram: int
    row_size: int  # values in one table row
    conv_kernel: int
    eos_id: int
    image_id: int | None
    multipliers: tuple[int, ...]  # [ngram_size], unsigned 64 bit
    head_vocab_sizes: tuple[int, ...]  # [(ngram_size - 1) * heads_per_ngram]
    head_offsets: tuple[int, ...]

    @property
    def num_heads(self) -> int:
        """Table rows read for one token."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def conv_history(self) -> int:
        """Past rows the dilated convolution looks at."""
        return (self.conv_kernel - 1) * self.ngram_size


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Geometry of one ``qwen4exp`` model; nothing in it is particular to the 125B shape."""

    name: str
    vocab_size: int  # V
    hidden_size: int  # D
    layer_kinds: tuple[LayerKind, ...]  # [L], draft layers excluded
    context_len: int
    rms_eps: float
    # hyper-connections
    num_streams: int
    hc_rank: int
    # gated delta net
    gdn_key_heads: int
    gdn_value_heads: int
    gdn_key_dim: int
    gdn_value_dim: int
    gdn_conv_kernel: int
    gdn_gate: Gate
    # sparse attention
    num_heads: int  # H
    num_kv_heads: int  # Hkv
    head_dim: int  # Dh
    rope: RopeSpec
    index_heads: int
    index_dim: int
    index_budget: int  # tokens chosen from complete blocks
    index_block: int  # tokens pooled into one index key
    # experts
    num_experts: int  # E
    top_k: int  # K
    expert_size: int  # F
    shared_expert_size: int  # Fs
    expert_weights_scale: float
    ngram: NgramSpec | None
    num_draft_layers: int
    is_head_tied: bool

    @property
    def num_layers(self) -> int:
        """Decoder layers L, draft layers excluded."""
        return len(self.layer_kinds)

    @property
    def gdn_conv_channels(self) -> int:
        """Channels of the causal convolution: q | k | v."""
        return 2 * self.gdn_key_heads * self.gdn_key_dim + self.gdn_value_size

    @property
    def gdn_value_size(self) -> int:
        """Width of all value heads together."""
        return self.gdn_value_heads * self.gdn_value_dim

    @property
    def hyper_size(self) -> int:
        """Width of all residual streams laid end to end."""
        return self.num_streams * self.hidden_size
