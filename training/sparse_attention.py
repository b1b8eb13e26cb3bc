"""Block-sparse attention with an indexer that learns to follow the attention's mass.

The maths is that of ``strata.reference.sparse_attention``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.parts import BRANCH_GAIN, Norm, Segments, linear, rotate

if TYPE_CHECKING:
    from strata.model_spec import ModelSpec

# Queries of a row whose block scores are compared with the attention's mass.
INDEX_QUERIES = 128


class Indexer(nn.Module):
    """Scores of blocks of cells, and the selection made from them."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        self.index_qk_proj = linear(spec.hidden_size, (spec.index_heads + 1) * spec.index_dim)
        self.q_layernorm = Norm(spec.index_dim, spec.index_dim, spec.rms_eps)
        self.k_layernorm = Norm(spec.index_dim, spec.index_dim, spec.rms_eps)

    def forward(self, x: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Queries [B, T, Hi, Di] and block keys [B, T / 4, Di], rotated. Gradients stop at x."""
        spec = self._spec
        projected = self.index_qk_proj(x.detach())
        q, raw = projected.split([spec.index_heads * spec.index_dim, spec.index_dim], -1)
        q = self.q_layernorm(q.unflatten(-1, (spec.index_heads, -1)))
        pooled = raw.float().unflatten(1, (-1, spec.index_block)).mean(2).to(raw.dtype)
        keys = self.k_layernorm(pooled).unsqueeze(2)
        cos, sin = segments.cos, segments.sin
        keys = rotate(keys, cos[:: spec.index_block], sin[:: spec.index_block])
        return rotate(q, cos, sin), keys.squeeze(2)


def block_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Sum over index heads of max(0, q . k), [B, Q, blocks] float32."""
    total = None
    for head in range(queries.shape[2]):
        part = F.relu(queries[:, :, head] @ keys.transpose(1, 2)).float()
        total = part if total is None else total + part
    assert total is not None  # noqa: S101 - there is at least one head
    return total


def complete_blocks(visible: Tensor, block: int) -> Tensor:
    """[..., T / 4]: the query sees all cells of the block."""
    return visible.unflatten(-1, (-1, block))[..., -1]


class SparseAttention(nn.Module):
    """Block-sparse attention with a trained indexer."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self._spec = spec
        hidden, width = spec.hidden_size, spec.head_dim
        self.q_proj = linear(hidden, 2 * spec.num_heads * width)
        self.k_proj = linear(hidden, spec.num_kv_heads * width)
        self.v_proj = linear(hidden, spec.num_kv_heads * width)
        self.o_proj = linear(spec.num_heads * width, hidden, BRANCH_GAIN)
        self.q_norm = Norm(width, width, spec.rms_eps)
        self.k_norm = Norm(width, width, spec.rms_eps)
        self.indexer = Indexer(spec)

    def forward(self, x: Tensor, segments: Segments, *, is_sparse: bool) -> tuple[Tensor, Tensor]:
        """Output [B, T, D] and the indexer's loss."""
        spec = self._spec
        q, gate = self.q_proj(x).unflatten(-1, (spec.num_heads, -1)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (spec.num_kv_heads, -1))
        v = self.v_proj(x).unflatten(-1, (spec.num_kv_heads, -1))
        q = rotate(self.q_norm(q), segments.cos, segments.sin)
        k = rotate(self.k_norm(k), segments.cos, segments.sin)
        shared = spec.num_heads // spec.num_kv_heads
        q, k, v = (a.transpose(1, 2) for a in (q, k, v))
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)

        index_q, index_k = self.indexer(x, segments)
        visible = segments.visible
        if is_sparse:
            visible = visible & self._selected(index_q, index_k, visible)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        out = out.transpose(1, 2) * torch.sigmoid(gate)
        loss = self._index_loss(q.detach(), k.detach(), index_q, index_k, segments)
        return self.o_proj(out.flatten(-2)), loss

    @torch.no_grad()
    def _selected(self, index_q: Tensor, index_k: Tensor, visible: Tensor) -> Tensor:
        """[B, 1, T, T] bool: cells of the best blocks, and of blocks that are not complete."""
        block = self._spec.index_block
        complete = complete_blocks(visible[:, 0], block)
        # Bits of a float that is not negative order as it does; below them the lower block first.
        bits = block_scores(index_q, index_k).view(torch.int32).long()
        blocks = torch.arange(bits.shape[-1], device=bits.device)
        ranking = (bits * len(blocks) + len(blocks) - 1 - blocks).masked_fill(~complete, -1)
        budget = min(self._spec.index_budget // block, len(blocks))
        best = ranking.topk(budget, -1, sorted=False).indices
        chosen = torch.zeros_like(complete).scatter_(-1, best, True) | ~complete
        return chosen.repeat_interleave(block, -1).unsqueeze(1)

    def _index_loss(
        self, q: Tensor, k: Tensor, index_q: Tensor, index_k: Tensor, segments: Segments
    ) -> Tensor:
        """KL divergence of the block scores' softmax from the attention's mass on the blocks."""
        chosen = segments.index_queries
        rows = chosen[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[-1])
        visible = segments.visible.gather(
            2, chosen[:, None, :, None].expand(-1, 1, -1, segments.visible.shape[-1])
        )
        with torch.no_grad():
            logits = (q.gather(2, rows) @ k.transpose(2, 3)).float() * q.shape[-1] ** -0.5
            mass = logits.masked_fill(~visible, -torch.inf).softmax(-1).sum(1)
            complete = complete_blocks(visible[:, 0], self._spec.index_block)
            target = mass.unflatten(-1, (-1, self._spec.index_block)).sum(-1) * complete
            target = target / target.sum(-1, keepdim=True).clamp_min(1e-6)
        some = chosen[:, :, None, None].expand(-1, -1, *index_q.shape[2:])
        scores = block_scores(index_q.gather(1, some), index_k) * self._spec.index_dim**-0.5
        # Not -inf: a query without a complete block would give NaN.
        log_probs = scores.masked_fill(~complete, -1e4).log_softmax(-1)
        divergence = (target * (target.clamp_min(1e-9).log() - log_probs)).sum(-1)
        return divergence.mean()
