"""A draft layer assembled from transformers' modules, and tiny models that have one.

transformers runs no draft layer, but it has every part: the layer is a model of one sparse layer
whose budget holds all cells, with a projection before it. Names and order follow the checkpoint's
``mtp.*`` tensors; the norms are transformers' own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tests.models.hf_oracle import stable_block_choice, widened
from tests.models.tiny_models import (
    TINY,
    TinyModel,
    build,
    gguf_weights,
    random_changes,
    randomize,
    tiny_config,
    tiny_model,
)
from torch import nn
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextRMSNorm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import Qwen4ExpForCausalLM

MAX_CELLS = 1024  # the oracle attends densely up to here


class _Draft(nn.Module):
    """The four tensors before the layer, named as in a checkpoint."""

    def __init__(self, width: int, streams: int, eps: float) -> None:
        super().__init__()
        self.pre_fc_norm_embedding = Qwen4ExpTextRMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = Qwen4ExpTextRMSNorm(streams * width, eps=eps)
        self.fc_embedding = nn.Linear(width, width, bias=False)
        self.fc_hidden = nn.Linear(width, width, bias=False)


class HfDraft:
    """Runs the draft layer over whole sequences in transformers' modules."""

    def __init__(self, trunk: Qwen4ExpForCausalLM, body: Qwen4ExpForCausalLM, fusion: _Draft):
        self._trunk, self.body, self.fusion = trunk, body, fusion

    def trunk_streams(self, tokens: np.ndarray) -> np.ndarray:
        """[T, c, D] after the trunk's last layer."""
        seen: list[torch.Tensor] = []
        hook = self._trunk.model.layers[-1].register_forward_hook(
            lambda _module, _inputs, output: seen.append(output)
        )
        with self._computing():
            self._trunk(torch.from_numpy(np.asarray(tokens, np.int64))[None])
        hook.remove()
        return seen[0][0].reshape(len(tokens), self._trunk.config.hc_count, -1).numpy()

    def forward(
        self, streams: np.ndarray, next_tokens: np.ndarray, *, has_own_ends: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Streams [T, c, D] and logits [T, V] of cells 0 to T - 1."""
        num, fusion = len(streams), self.fusion
        ends = self.body if has_own_ends else self._trunk
        with self._computing():
            wide = torch.from_numpy(np.ascontiguousarray(streams)).flatten(1)
            ids = torch.from_numpy(np.asarray(next_tokens, np.int64))
            e = fusion.fc_embedding(fusion.pre_fc_norm_embedding(ends.model.embed_tokens(ids)))
            h = fusion.pre_fc_norm_hidden(wide).unflatten(-1, (streams.shape[1], -1))
            joined = (fusion.fc_hidden(h) + e[:, None]).flatten(1)[None]
            positions = torch.arange(num).expand(3, 1, -1)
            mask = torch.full((num, num), torch.finfo(joined.dtype).min).triu(1)[None, None]
            out = self.body.model.layers[0](
                joined,
                position_embeddings=self.body.model.rotary_emb(joined, positions),
                attention_mask=mask.to(joined.dtype),
            )
            logits = ends.lm_head(self.body.model.hyper_connection_mixer(out))[0]
        return out[0].reshape(streams.shape).numpy(), logits.numpy()

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        is_wide = self._trunk.dtype == torch.float64
        wide = widened() if is_wide else contextlib.nullcontext()
        with torch.no_grad(), stable_block_choice(), wide:
            yield


@dataclass(frozen=True)
class DraftModel:
    """A tiny model with a draft layer, and the oracle of the layer."""

    tiny: TinyModel
    oracle: HfDraft


@functools.cache
def draft_model(name: str, dtype: str = "float32", *, has_own_ends: bool = False) -> DraftModel:
    """``tiny_model(name, dtype)`` with a random draft layer; read-only.

    ``has_own_ends``: the layer has its own embedding and head.
    """
    trunk = tiny_model(name, dtype)
    drawn = name.removeprefix("random-")
    changes: dict[str, Any] = TINY[name] if drawn == name else random_changes(int(drawn))
    return with_draft(trunk, changes, name, dtype, has_own_ends=has_own_ends)


def with_draft(
    trunk: TinyModel,
    changes: dict[str, Any],
    name: str,
    dtype: str = "float32",
    *,
    has_own_ends: bool = False,
) -> DraftModel:
    """``trunk``, whose config is ``tiny_config(**changes)``, with a random draft layer.

    ``name`` seeds it.
    """
    block = changes.get("indexer_compress_ratio", 4)
    one_layer = {
        "num_hidden_layers": 1,
        "layer_types": ["indexed_attention"],
        "ple_layer_ids": None,
        "indexer_budget": block * MAX_CELLS,
        "tie_word_embeddings": False,
    }
    config = tiny_config(**(changes | one_layer))
    is_wide = dtype == "float64"
    with widened() if is_wide else contextlib.nullcontext():
        body = build(config)
        fusion = _Draft(config.hidden_size, config.hc_count, config.rms_norm_eps)
    if is_wide:
        body, fusion = body.double(), fusion.double()
    seed = zlib.crc32(f"draft of {name}".encode())
    randomize(body, seed)
    randomize(fusion, seed + 1)
    spec = dataclasses.replace(trunk.spec, num_draft_layers=1)
    weights = dict(trunk.weights) | _renamed(
        body, fusion, spec.num_layers, has_own_ends=has_own_ends
    )
    return DraftModel(TinyModel(trunk.hf, spec, weights), HfDraft(trunk.hf, body, fusion))


def _renamed(
    body: Qwen4ExpForCausalLM, fusion: _Draft, layer: int, *, has_own_ends: bool
) -> dict[str, np.ndarray]:
    prefix = f"blk.{layer}."
    named = gguf_weights(body)
    embedding, head = named.pop("token_embd.weight"), named.pop("output.weight")
    out = {
        key.replace("blk.0.", prefix).replace("output_hc", f"{prefix}nextn.hc_head"): weight
        for key, weight in named.items()
    }
    if has_own_ends:
        out[f"{prefix}nextn.embed_tokens.weight"] = embedding
        out[f"{prefix}nextn.shared_head_head.weight"] = head
    own = {key: tensor.detach().numpy() for key, tensor in fusion.state_dict().items()}
    out[f"{prefix}nextn.enorm.weight"] = own["pre_fc_norm_embedding.weight"] + 1
    out[f"{prefix}nextn.hnorm.weight"] = own["pre_fc_norm_hidden.weight"] + 1
    halves = [own["fc_embedding.weight"], own["fc_hidden.weight"]]
    out[f"{prefix}nextn.eh_proj.weight"] = np.concatenate(halves, axis=1)
    return out
