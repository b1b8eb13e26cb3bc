"""The whole network for training: trunk, draft layer and all losses of one batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from strata.model_spec import LayerKind, ModelSpec
from strata.reference.rope import rope_tables
from training.layers import HyperConnection, Layer, NgramMemory
from training.parts import Norm, Segments, linear
from training.sparse_attention import INDEX_QUERIES

# Rows whose logits exist at a time.
_LOSS_ROWS = 16_384
# Weight of the loss of a token, by its kind: not learned, plain text, an answer, an answer that is
# looked up in the question.
NOT_LEARNED, TEXT, ANSWER, LOOK_UP = 0, 1, 2, 3
_KIND_WEIGHT = (0.0, 1.0, 2.0, 2.0)


@dataclass(slots=True)
class Batch:
    """Rows of packed documents.

    Attributes:
        tokens: [B, T] int64.
        offset: [B, T] int64, tokens since the beginning of the document.
        kind: [B, T] int64, how the prediction of this token is learned.
    """

    tokens: Tensor
    offset: Tensor
    kind: Tensor


@dataclass(slots=True)
class Losses:
    """Means over a batch, scalars in float32.

    Attributes:
        text: over plain text.
        answer: over answers.
        look_up: over those answers that are looked up in the question.
        weighted: over all that is learned, by the weights of the kinds.
        draft: of each draft step, over all that is learned.
        draft_hits: how often each step's best guess is right, over answers.
        index: of the indexers.
        balance: of the load of the experts.
    """

    text: Tensor
    answer: Tensor
    look_up: Tensor
    weighted: Tensor
    draft: list[Tensor]
    draft_hits: list[Tensor]
    index: Tensor
    balance: Tensor


class DraftLayer(nn.Module):
    """Predicts the token after next from the trunk's streams and the next token."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        hidden = spec.hidden_size
        self.pre_fc_norm_embedding = Norm(hidden, hidden, spec.rms_eps)
        self.pre_fc_norm_hidden = Norm(spec.hyper_size, spec.hyper_size, spec.rms_eps)
        self.fc_embedding = linear(hidden, hidden)
        self.fc_hidden = linear(hidden, hidden)
        self.layers = nn.ModuleList([Layer(spec, is_attention=True)])
        self.hyper_connection_mixer = HyperConnection(spec, has_inject=False)
        self._streams = spec.num_streams

    def forward(
        self, streams: Tensor, embedded: Tensor, segments: Segments
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Its streams [B, T, c D], the indexer's loss and the load's."""
        hidden = self.pre_fc_norm_hidden(streams).unflatten(-1, (self._streams, -1))
        token = self.fc_embedding(self.pre_fc_norm_embedding(embedded)).unsqueeze(-2)
        mixed = (self.fc_hidden(hidden) + token).flatten(-2).to(streams.dtype)
        out: tuple[Tensor, Tensor, Tensor] = self.layers[0](mixed, segments, is_sparse=False)
        return out


class Trunk(nn.Module):
    """Embedding, layers and the last read."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(
            Layer(spec, is_attention=kind is LayerKind.QSA) for kind in spec.layer_kinds
        )
        if spec.ngram is not None:
            self.layers[spec.ngram.layer].ple = NgramMemory(spec)
        self.hyper_connection_mixer = HyperConnection(spec, has_inject=False)


class Network(nn.Module):
    """A ``qwen4exp`` model with one draft layer. State dict names are the checkpoint's."""

    _cos: Tensor
    _sin: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = Trunk(spec)
        self.lm_head = linear(spec.hidden_size, spec.vocab_size)
        self.mtp = DraftLayer(spec)
        cos, sin = rope_tables(spec.rope, np.arange(spec.context_len), np.float32)
        self.register_buffer("_cos", torch.from_numpy(cos), persistent=False)
        self.register_buffer("_sin", torch.from_numpy(sin), persistent=False)

    def segments(self, batch: Batch, *, is_sparse: bool) -> Segments:
        """What the layers need to know of the documents; draws the indexer's queries."""
        length = batch.tokens.shape[1]
        position = torch.arange(length, device=batch.tokens.device)
        start = position - batch.offset
        visible = (start.unsqueeze(-1) <= position) & (position.unsqueeze(-1) >= position)
        # Answers are what selection is for; early tokens have nothing to select.
        chance = torch.rand(batch.offset.shape, device=batch.offset.device)
        chance = chance + (batch.kind >= ANSWER) * 0.5 - (batch.offset < 32) * 1.0
        chosen = chance.topk(min(INDEX_QUERIES, length), -1).indices
        return Segments(
            offset=batch.offset,
            visible=visible.unsqueeze(1),
            index_queries=chosen,
            cos=self._cos[:length],
            sin=self._sin[:length],
            is_sparse=is_sparse,
        )

    def streams(
        self, tokens: Tensor, segments: Segments
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Residual streams [B, T, c D] after the last layer, and the layers' losses."""
        embedded = self.model.embed_tokens(tokens)
        dtype = torch.bfloat16 if torch.is_autocast_enabled(tokens.device.type) else torch.float32
        streams = embedded.to(dtype).repeat(1, 1, self.spec.num_streams)
        index_losses, balances = [], []
        for number, layer in enumerate(self.model.layers):
            if self.spec.ngram is not None and number == self.spec.ngram.layer:
                streams = layer.get_submodule("ple")(streams, tokens, segments)
            streams, index_loss, balance = layer(streams, segments, is_sparse=segments.is_sparse)
            balances.append(balance)
            if layer.is_attention:
                index_losses.append(index_loss)
        return streams, index_losses, balances

    def logits(self, batch: Batch, *, is_sparse: bool) -> Tensor:
        """[B, T, V], for tests and small evaluations."""
        streams, _, _ = self.streams(batch.tokens, self.segments(batch, is_sparse=is_sparse))
        mixed, _ = self.model.hyper_connection_mixer(streams)
        return self.lm_head(mixed)

    def forward(self, batch: Batch, *, is_sparse: bool, num_drafts: int) -> Losses:
        """All losses of a batch. The draft layer's gradients stop at the trunk."""
        segments = self.segments(batch, is_sparse=is_sparse)
        streams, index_losses, balances = self.streams(batch.tokens, segments)
        mixed, _ = self.model.hyper_connection_mixer(streams)
        losses, _ = _token_losses(mixed, self.lm_head.weight, _ahead(batch.tokens, 1))
        kind = _ahead_kind(batch, 1)
        weights = torch.tensor(_KIND_WEIGHT, device=losses.device)[kind]
        draft, hits = self._drafts(batch, segments, streams.detach(), num_drafts)
        return Losses(
            text=_mean(losses, kind == TEXT),
            answer=_mean(losses, kind >= ANSWER),
            look_up=_mean(losses, kind == LOOK_UP),
            weighted=(losses * weights).sum() / weights.sum().clamp_min(1),
            draft=draft[0],
            draft_hits=hits,
            index=torch.stack([*index_losses, *draft[1]]).sum(),
            balance=torch.stack([*balances, *draft[2]]).sum(),
        )

    def _drafts(
        self, batch: Batch, segments: Segments, streams: Tensor, num_drafts: int
    ) -> tuple[tuple[list[Tensor], list[Tensor], list[Tensor]], list[Tensor]]:
        losses, index_losses, balances, hits = [], [], [], []
        for step in range(1, num_drafts + 1):
            embedded = self.model.embed_tokens(_ahead(batch.tokens, step)).detach()
            streams, index_loss, balance = self.mtp(streams, embedded.to(streams.dtype), segments)
            mixed, _ = self.mtp.hyper_connection_mixer(streams)
            target = _ahead(batch.tokens, step + 1)
            each, hit = _token_losses(mixed, self.lm_head.weight.detach(), target)
            kind = _ahead_kind(batch, step + 1)
            losses.append(_mean(each, kind > 0))
            hits.append(_mean(hit, kind >= ANSWER))
            index_losses.append(index_loss)
            balances.append(balance)
        return (losses, index_losses, balances), hits


def _ahead(tokens: Tensor, by: int) -> Tensor:
    """The token ``by`` places later; at the end of a row whatever wraps around."""
    return tokens.roll(-by, 1)


def _ahead_kind(batch: Batch, by: int) -> Tensor:
    """How the token ``by`` places later is learned here; not at all in another document."""
    later = batch.offset.roll(-by, 1)
    kind = batch.kind.roll(-by, 1).masked_fill(later < by, NOT_LEARNED)
    kind = kind.clone()
    kind[:, -by:] = NOT_LEARNED
    return kind


def _mean(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values; 0 of none."""
    return (values * chosen).sum() / chosen.sum().clamp_min(1)


def _some_losses(x: Tensor, head: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(x, head.to(x.dtype)).float()
    hit = (logits.argmax(-1) == target).float()
    return F.cross_entropy(logits, target, reduction="none"), hit


def _token_losses(x: Tensor, head: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy and whether the best guess is right, [B, T] each, some rows at a time."""
    flat, wanted = x.flatten(0, 1), target.flatten()
    parts = [
        checkpoint(_some_losses, rows, head, ids, use_reentrant=False)
        for rows, ids in zip(flat.split(_LOSS_ROWS), wanted.split(_LOSS_ROWS), strict=True)
    ]
    losses = torch.cat([part[0] for part in parts]).view(target.shape)
    return losses, torch.cat([part[1] for part in parts]).view(target.shape)
