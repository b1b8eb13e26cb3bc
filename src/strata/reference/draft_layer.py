"""The draft layer (multi-token prediction): one more layer that guesses the token after the next.

Cell i pairs the trunk's streams at position i with the token at i + 1 and gives logits for the
token at i + 2. Owns how a cell is made and how drafts follow one another. Whether a draft is kept
is not decided here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import CheckpointError
from strata.reference.experts import mixture
from strata.reference.hyper_connections import HyperConnection, write
from strata.reference.norms import rms_norm, sigmoid, softmax
from strata.reference.rope import rope_tables, rotate
from strata.reference.sparse_attention import attend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.model_spec import ModelSpec

Array = NDArray[Any]


@dataclass(slots=True)
class DraftState:
    """Cells of the layer, oldest first.

    Attributes:
        keys: [N, Hkv, Dh], normalised and rotated.
        values: [N, Hkv, Dh].
        streams: [c, D], what the layer gave for the last cell; None before the first.
        logits: [V], likewise.
    """

    keys: Array
    values: Array
    streams: Array | None = None
    logits: Array | None = None

    @property
    def num_cells(self) -> int:
        """Cells made so far, N."""
        return len(self.keys)

    def copy(self) -> DraftState:
        """An independent state of the same content."""
        return copy.deepcopy(self)


class ReferenceDraftLayer:
    """The first draft layer of a model in plain numpy; it is block ``num_layers`` of the file.

    Args:
        spec: geometry.
        weights: by GGUF name and in GGUF conventions, as for ``ReferenceDecoder``. The layer may
            have an embedding and a head of its own; indexer tensors of it are ignored.
        dtype: np.float32 or np.float64; everything but rotary angles is computed in it.

    Raises:
        CheckpointError: tensors are missing; names them all.
    """

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Array], dtype: type = np.float32
    ) -> None:
        self._layer = spec.num_layers
        self._prefix = f"blk.{self._layer}."
        shared_head = "token_embd.weight" if spec.is_head_tied else "output.weight"
        own_head = f"{self._prefix}nextn.shared_head_head.weight"
        own_embedding = f"{self._prefix}nextn.embed_tokens.weight"
        head = own_head if own_head in weights else shared_head
        embedding = own_embedding if own_embedding in weights else "token_embd.weight"
        needed = [head, embedding, *(self._prefix + name for name in _TENSORS)]
        missing = [name for name in needed if name not in weights]
        if missing:
            raise CheckpointError(
                f"the draft layer lacks {len(missing)} of {len(needed)} tensors: "
                f"{', '.join(missing)}.\n  Try: all shards of the file, or another copy of it."
            )
        self.spec = spec
        self.dtype = dtype
        self._weights: dict[str, Array] = {
            name: np.asarray(weights[name], dtype) for name in needed
        }
        self._head = self._weights[head]
        self._embedding = self._weights[embedding]

    def initial_state(self) -> DraftState:
        """No cells."""
        cells: Array = np.zeros((0, self.spec.num_kv_heads, self.spec.head_dim), self.dtype)
        return DraftState(cells, cells)

    def read(
        self, streams: Array, next_tokens: NDArray[np.int64], state: DraftState
    ) -> tuple[Array, Array]:
        """Appends T cells to ``state``; their streams [T, c, D] and logits [T, V].

        A cell's rotary position is its number. Attention is dense: a cell sees all before it.

        Args:
            streams: [T, c, D]: the trunk's after its last layer, or this layer's own when drafting.
            next_tokens: [T] int64, the token after each of them.
            state: of the cells before; modified.
        """
        spec, eps = self.spec, self.spec.rms_eps
        joined = self._joined(streams, np.asarray(next_tokens, np.int64))
        x, injection = self._connection("hc_attn").read(joined, eps)
        assert injection is not None  # noqa: S101 - the constructor asked for it
        joined = write(joined, self._attention(x, state), injection)
        x, injection = self._connection("hc_ffn").read(joined, eps)
        assert injection is not None  # noqa: S101
        joined = write(joined, mixture(x, self._weights, self._layer, spec), injection)
        final, _ = self._connection("nextn.hc_head").read(joined, eps)
        logits = np.asarray(final @ self._head.T)
        state.streams, state.logits = joined[-1], logits[-1]
        return joined, logits

    def propose(self, num: int, state: DraftState) -> tuple[list[int], list[float]]:
        """The ``num`` likeliest next tokens, one after the other, and how likely each is.

        The first is the token after the last one read; the others follow from cells made of
        drafts. ``state`` stays as it is: true cells take the place of drafted ones later.
        """
        drafted = state.copy()
        ids: list[int] = []
        probs: list[float] = []
        for _ in range(num):
            if drafted.streams is None or drafted.logits is None:
                break
            if ids:
                self.read(drafted.streams[None], np.array(ids[-1:], np.int64), drafted)
            ids.append(int(np.argmax(drafted.logits)))
            probs.append(float(softmax(drafted.logits)[ids[-1]]))
        return ids, probs

    def _joined(self, streams: Array, next_tokens: NDArray[np.int64]) -> Array:
        """What the layer reads, [T, c, D]: eh_proj . (normed embedding | normed stream).

        The streams' norm is one over all c * D values.
        """
        spec, eps = self.spec, self.spec.rms_eps
        enorm, hnorm, projection = (
            self._weights[f"{self._prefix}nextn.{name}.weight"]
            for name in ("enorm", "hnorm", "eh_proj")
        )
        embedded = rms_norm(self._embedding[next_tokens], enorm, eps)
        streams = np.asarray(streams, self.dtype)
        hidden = rms_norm(streams.reshape(len(streams), -1), hnorm, eps).reshape(streams.shape)
        of_token, of_stream = np.split(projection, [spec.hidden_size], axis=1)
        return np.asarray((embedded @ of_token.T)[:, None] + hidden @ of_stream.T)

    def _attention(self, x: Array, state: DraftState) -> Array:
        """Dense attention [T, D] of new cells; appends them."""
        spec, num, past = self.spec, len(x), state.num_cells
        cos, sin = rope_tables(spec.rope, np.arange(past, past + num), self.dtype)

        def project(name: str, heads: int) -> Array:
            weight = self._weights[f"{self._prefix}{name}.weight"]
            return np.asarray(x @ weight.T).reshape(num, heads, -1)

        def normed_and_turned(a: Array, norm: str) -> Array:
            gamma = self._weights[f"{self._prefix}{norm}.weight"]
            return rotate(rms_norm(a, gamma, spec.rms_eps), cos, sin)

        q, gate = np.split(project("attn_q", spec.num_heads), 2, axis=-1)
        q = normed_and_turned(q, "attn_q_norm")
        k = normed_and_turned(project("attn_k", spec.num_kv_heads), "attn_k_norm")
        state.keys = np.concatenate([state.keys, k])
        state.values = np.concatenate([state.values, project("attn_v", spec.num_kv_heads)])
        heads_per_kv = spec.num_heads // spec.num_kv_heads
        out = np.stack(
            [
                attend(q[t], state.keys, state.values, np.arange(past + t + 1), heads_per_kv)
                for t in range(num)
            ]
        )
        gated = (out * sigmoid(gate)).reshape(num, -1)
        return np.asarray(gated @ self._weights[f"{self._prefix}attn_output.weight"].T)

    def _connection(self, name: str) -> HyperConnection:
        return HyperConnection.from_weights(self._weights, self._prefix + name)


_HC = ("norm", "down", "up")
_TENSORS = (
    *(f"nextn.{name}.weight" for name in ("enorm", "hnorm", "eh_proj")),
    *(f"nextn.hc_head_{part}.weight" for part in _HC),
    *(f"hc_{block}_{part}.weight" for block in ("attn", "ffn") for part in (*_HC, "inject")),
    *(f"attn_{name}.weight" for name in ("q", "k", "v", "output", "q_norm", "k_norm")),
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    *(f"ffn_{role}_{kind}.weight" for role in ("gate", "up", "down") for kind in ("exps", "shexp")),
)
