"""The layers of the architecture in PyTorch, for training: whole sequences, several documents each.

The maths is that of ``strata.reference``; parameter names are those of the Hugging Face
checkpoint, norms centred on zero as there. A row may hold several documents: ``Segments`` says
where each begins, and nothing sees past a beginning.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.gated_delta import gated_delta
from training.grouped_experts import mixture
from training.parts import BRANCH_GAIN, Norm, Segments, linear
from training.sparse_attention import SparseAttention

if TYPE_CHECKING:
    from strata.model_spec import ModelSpec

# The logarithm of the decay at a document's first token: nothing of the memory before is left.
_FORGET = -40.0


class Gamma(nn.Module):
    """Only a gamma, not centred; the norm is its owner's."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))


class HyperConnection(nn.Module):
    """How a block reads the residual streams, and how strongly each stream takes its output."""

    def __init__(self, spec: ModelSpec, *, has_inject: bool = True) -> None:
        super().__init__()
        width = spec.hyper_size
        self._streams = spec.num_streams
        self.hc_norm = Norm(width, spec.hidden_size, spec.rms_eps)
        self.input_mix_weight_down = linear(width, spec.hc_rank)
        self.input_mix_weight_up = linear(spec.hc_rank, width)
        self.block_inject_weight = linear(width, spec.num_streams) if has_inject else None

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor | None]:
        """Block input [B, T, D] and injection [B, T, c] from streams [B, T, c D]."""
        normed = self.hc_norm(streams)
        low = F.silu(self.input_mix_weight_down(normed) / self._streams)
        gate = torch.sigmoid(self.input_mix_weight_up(low))
        mixed = (normed * gate).unflatten(-1, (self._streams, -1)).mean(-2)
        if self.block_inject_weight is None:
            return mixed, None
        return mixed, 2 * torch.sigmoid(self.block_inject_weight(normed) / self._streams)


def write(streams: Tensor, block_output: Tensor, injection: Tensor) -> Tensor:
    """streams [B, T, c D] + injection [B, T, c] times output [B, T, D]."""
    added = injection.unsqueeze(-1) * block_output.unsqueeze(-2)
    return streams + added.flatten(-2).to(streams.dtype)


def causal_conv(x: Tensor, weight: Tensor, offset: Tensor, dilation: int = 1) -> Tensor:
    """Depthwise over each document's tokens: [B, T, C] by [C, 1, taps], last tap the present."""
    taps = weight.shape[-1]
    out = x * weight[:, 0, -1]
    for back in range(1, taps):
        shift = back * dilation
        past = F.pad(x, (0, 0, shift, 0))[:, : x.shape[1]]
        past = past.masked_fill((offset < shift).unsqueeze(-1), 0)
        out = out + past * weight[:, 0, -1 - back]
    return out


class GatedDeltaNet(nn.Module):
    """Gated delta net with its convolution and output gate."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        hidden, heads = spec.hidden_size, spec.gdn_value_heads
        self.in_proj_qkv = linear(hidden, spec.gdn_conv_channels)
        self.in_proj_z = linear(hidden, spec.gdn_value_size)
        self.in_proj_b = linear(hidden, heads)
        self.in_proj_a = linear(hidden, heads, 0.1)
        self.conv1d = nn.Conv1d(
            spec.gdn_conv_channels, spec.gdn_conv_channels, spec.gdn_conv_kernel,
            groups=spec.gdn_conv_channels, bias=False,
        )  # fmt: skip
        # Time constants from ten to a thousand tokens at first.
        step = torch.exp(torch.linspace(math.log(1e-3), math.log(1e-1), heads))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.norm = Gamma(spec.gdn_value_dim)
        self.out_proj = linear(spec.gdn_value_size, hidden, BRANCH_GAIN)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """[B, T, D] to the same."""
        spec = self._spec
        mixed = self.in_proj_qkv(x)
        mixed = F.silu(causal_conv(mixed, self.conv1d.weight.to(mixed.dtype), segments.offset))
        key_size = spec.gdn_key_heads * spec.gdn_key_dim
        q, k, v = mixed.split([key_size, key_size, spec.gdn_value_size], -1)
        per_key = spec.gdn_value_heads // spec.gdn_key_heads

        def normed(a: Tensor) -> Tensor:
            a = a.unflatten(-1, (spec.gdn_key_heads, -1)).float()
            a = a * torch.rsqrt(a.square().sum(-1, keepdim=True) + 1e-6)
            return a.repeat_interleave(per_key, 2).to(mixed.dtype)

        v = v.unflatten(-1, (spec.gdn_value_heads, -1))
        beta = torch.sigmoid(self.in_proj_b(x).float())
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        log_decay = torch.where(segments.offset.unsqueeze(-1) == 0, _FORGET, log_decay)
        out = gated_delta(normed(q), normed(k), v, log_decay, beta).float()
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + spec.rms_eps)
        gate = torch.sigmoid(self.in_proj_z(x)).view(out.shape)
        return self.out_proj((out * self.norm.weight * gate).to(mixed.dtype).flatten(-2))


class Experts(nn.Module):
    """Weights of all experts of a layer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden, size = spec.hidden_size, spec.expert_size
        gate_up = torch.randn(spec.num_experts, 2 * size, hidden) * hidden**-0.5
        down = torch.randn(spec.num_experts, hidden, size) * size**-0.5 * BRANCH_GAIN
        self.gate_up_proj = nn.Parameter(gate_up)
        self.down_proj = nn.Parameter(down)


class SharedExpert(nn.Module):
    """The expert every token uses."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden, size = spec.hidden_size, spec.shared_expert_size
        self.gate_proj = linear(hidden, size)
        self.up_proj = linear(hidden, size)
        self.down_proj = linear(size, hidden, BRANCH_GAIN)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    """Router, experts and the shared expert."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._top_k = spec.top_k
        self.gate = linear(spec.hidden_size, spec.num_experts)
        self.experts = Experts(spec)
        self.shared_expert = SharedExpert(spec)
        self.shared_expert_gate = linear(spec.hidden_size, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Output [B, T, D] and the loss that keeps the load even (1 when it is)."""
        flat = x.flatten(0, 1)
        probs = self.gate(flat).float().softmax(-1)
        weights, ids = probs.topk(self._top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        dtype = flat.dtype if not torch.is_autocast_enabled(flat.device.type) else torch.bfloat16
        routed = mixture(
            flat.to(dtype), ids, weights,
            self.experts.gate_up_proj.to(dtype), self.experts.down_proj.to(dtype),
        )  # fmt: skip
        shared = self.shared_expert(flat) * torch.sigmoid(self.shared_expert_gate(flat))
        used = torch.zeros_like(probs).scatter_(1, ids, 1.0).mean(0) / self._top_k
        balance = (used * probs.mean(0)).sum() * probs.shape[-1]
        return (routed + shared).view(x.shape), balance


class Layer(nn.Module):
    """One decoder layer on the residual streams."""

    def __init__(self, spec: ModelSpec, *, is_attention: bool) -> None:
        super().__init__()
        self.attn_hyper_connection = HyperConnection(spec)
        self.mlp_hyper_connection = HyperConnection(spec)
        if is_attention:
            self.self_attn = SparseAttention(spec)
        else:
            self.linear_attn = GatedDeltaNet(spec)
        self.mlp = Mixture(spec)
        self.is_attention = is_attention

    def forward(
        self, streams: Tensor, segments: Segments, *, is_sparse: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Streams [B, T, c D], the indexer's loss (0 without) and the load's."""
        x, injection = self.attn_hyper_connection(streams)
        if self.is_attention:
            mixed, index_loss = self.self_attn(x, segments, is_sparse=is_sparse)
        else:
            mixed, index_loss = self.linear_attn(x, segments), streams.new_zeros(())
        streams = write(streams, mixed, injection)
        x, injection = self.mlp_hyper_connection(streams)
        mixed, balance = self.mlp(x)
        return write(streams, mixed, injection), index_loss.float(), balance


class NgramMemory(nn.Module):
    """Hashed rows of a table, gated into every stream."""

    _sizes: Tensor
    _offsets: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.ngram is not None  # noqa: S101 - the caller asked for it
        self._spec = spec
        self._ngram = ngram = spec.ngram
        rows = ngram.head_offsets[-1] + ngram.head_vocab_sizes[-1]
        width = ngram.row_size * ngram.num_heads
        table = nn.Embedding(-(-rows // 128) * 128, ngram.row_size)
        nn.init.normal_(table.weight, std=0.02)
        self.ple_embedding = nn.ModuleDict({"ngram_embedding": table})
        self.key_proj = linear(width, spec.hyper_size)
        self.value_proj = linear(width, spec.hidden_size)
        self.norm_key = Norm(spec.hyper_size, spec.hidden_size, spec.rms_eps)
        self.norm_query = Norm(spec.hyper_size, spec.hidden_size, spec.rms_eps)
        self.norm_conv = Norm(spec.hyper_size, spec.hidden_size, spec.rms_eps)
        self.conv1d = nn.Conv1d(
            spec.hyper_size, spec.hyper_size, ngram.conv_kernel, groups=spec.hyper_size, bias=False
        )
        nn.init.zeros_(self.conv1d.weight)
        self.register_buffer("_sizes", torch.tensor(ngram.head_vocab_sizes), persistent=False)
        self.register_buffer("_offsets", torch.tensor(ngram.head_offsets), persistent=False)

    def rows(self, tokens: Tensor, offset: Tensor) -> Tensor:
        """Table rows [B, T, heads] of tokens [B, T]; see ``strata.reference.ngram_memory``."""
        ngram = self._ngram
        mix = tokens * ngram.multipliers[0]
        is_open = torch.ones_like(tokens, dtype=torch.bool)
        blocks = []
        for back in range(1, ngram.ngram_size):
            past = F.pad(tokens, (back, 0), value=ngram.eos_id)[:, : tokens.shape[1]]
            is_open = is_open & (past != ngram.eos_id) & (offset >= back)
            mix = mix ^ torch.where(is_open, past, ngram.eos_id) * ngram.multipliers[back]
            heads = slice((back - 1) * ngram.heads_per_ngram, back * ngram.heads_per_ngram)
            blocks.append(mix.unsqueeze(-1) % self._sizes[heads] + self._offsets[heads])
        return torch.cat(blocks, -1)

    def forward(self, streams: Tensor, tokens: Tensor, segments: Segments) -> Tensor:
        """Streams [B, T, c D] with the memory added."""
        count = self._spec.num_streams
        table = self.ple_embedding["ngram_embedding"]
        embedding = table(self.rows(tokens, segments.offset)).flatten(-2).to(streams.dtype)
        key = self.norm_key(self.key_proj(embedding)).unflatten(-1, (count, -1))
        query = self.norm_query(streams).unflatten(-1, (count, -1))
        strength = (key.float() * query.float()).sum(-1, keepdim=True)
        strength = strength * self._spec.hidden_size**-0.5
        gate = torch.sigmoid(strength.sign() * strength.abs().clamp_min(1e-6).sqrt())
        gated = (gate * self.value_proj(embedding).unsqueeze(-2)).flatten(-2)
        weight = self.conv1d.weight
        conv = causal_conv(self.norm_conv(gated), weight, segments.offset, self._ngram.ngram_size)
        return streams + (gated + F.silu(conv)).to(streams.dtype)
