"""The whole network on float weights: token ids to logits, with a state that can be copied.

Owns the order of the layers. The draft layer is ``draft_layer``.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import CheckpointError
from strata.model_spec import LayerKind, ModelSpec
from strata.reference import gated_delta, ngram_memory, sparse_attention
from strata.reference.experts import mixture
from strata.reference.hyper_connections import HyperConnection, write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.reference.gated_delta import GdnState
    from strata.reference.ngram_memory import NgramState
    from strata.reference.sparse_attention import QsaState

Array = NDArray[Any]

_TABLE = "per_layer_token_embd.weight"


@dataclass(slots=True)
class State:
    """Everything a conversation has left behind.

    Attributes:
        positions: [S, 3] int64, rotary position (t, h, w) of every cell.
        layers: one entry for each layer, by kind.
        ngram: of the n-gram memory, if the model has one.
    """

    positions: NDArray[np.int64]
    layers: list[GdnState | QsaState]
    ngram: NgramState | None

    @property
    def num_tokens(self) -> int:
        """Tokens read so far, S."""
        return len(self.positions)

    def copy(self) -> State:
        """An independent state of the same content."""
        return copy.deepcopy(self)


class ReferenceDecoder:
    """The model in plain numpy.

    Args:
        spec: geometry.
        weights: by GGUF name and in GGUF conventions (gammas 1 + w, ``ssm_a`` = -exp(A_log), value
            heads tiled, indexer projections apart), numpy shape [out, in] or [E, out, in].
        dtype: np.float32 or np.float64; everything but rotary angles is computed in it.

    Raises:
        CheckpointError: tensors are missing; names them all.
    """

    def __init__(
        self, spec: ModelSpec, weights: Mapping[str, Array], dtype: type = np.float32
    ) -> None:
        _require(weights, spec)
        self.spec = spec
        self.dtype = dtype
        # The table is the bulk of a model's bytes; its rows are widened as they are read.
        self._table = weights.get(_TABLE)
        self._weights: dict[str, Array] = {
            name: np.asarray(weight, dtype) for name, weight in weights.items() if name != _TABLE
        }
        head = "token_embd.weight" if spec.is_head_tied else "output.weight"
        self._head = self._weights[head]

    def initial_state(self) -> State:
        """The state of an empty conversation."""
        layers: list[GdnState | QsaState] = [
            gated_delta.initial_state(self.spec, self.dtype)
            if kind is LayerKind.GDN
            else sparse_attention.initial_state(self.spec, self.dtype)
            for kind in self.spec.layer_kinds
        ]
        ngram = self.spec.ngram
        return State(
            positions=np.zeros((0, 3), np.int64),
            layers=layers,
            ngram=None
            if ngram is None
            else ngram_memory.initial_state(self.spec, ngram, self.dtype),
        )

    def forward(
        self,
        tokens: NDArray[np.int64],
        state: State,
        positions: NDArray[np.int64] | None = None,
    ) -> Array:
        """Logits [T, V] of every token; arguments as ``forward_streams``."""
        return self.forward_streams(tokens, state, positions)[1]

    def forward_streams(
        self,
        tokens: NDArray[np.int64],
        state: State,
        positions: NDArray[np.int64] | None = None,
    ) -> tuple[Array, Array]:
        """The streams after the last layer, [T, c, D], and the logits [T, V] of every token.

        Advances ``state`` by T tokens. A draft layer continues from the streams.

        Args:
            tokens: [T] int64 ids, T >= 1.
            state: of the tokens before; modified.
            positions: [T, 3] rotary positions; None counts on from the number of tokens.
        """
        spec, eps = self.spec, self.spec.rms_eps
        tokens = np.asarray(tokens, np.int64)
        if positions is None:
            counted = np.arange(state.num_tokens, state.num_tokens + len(tokens))
            positions = np.repeat(counted[:, None], 3, axis=1)
        state.positions = np.concatenate([state.positions, positions])

        embedded = self._weights["token_embd.weight"][tokens]
        streams = np.repeat(embedded[:, None], spec.num_streams, axis=1)
        for layer in range(spec.num_layers):
            streams = self._layer(layer, streams, tokens, state)
        final, _ = HyperConnection.from_weights(self._weights, "output_hc").read(streams, eps)
        return streams, np.asarray(final @ self._head.T)

    def _layer(self, layer: int, streams: Array, tokens: NDArray[np.int64], state: State) -> Array:
        spec, weights = self.spec, self._weights
        if spec.ngram is not None and spec.ngram.layer == layer:
            assert state.ngram is not None  # noqa: S101 - initial_state makes both or neither
            assert self._table is not None  # noqa: S101 - the constructor asked for it
            streams = ngram_memory.ngram_memory(
                streams, tokens, state.ngram, weights, self._table, spec, spec.ngram
            )

        x, injection = self._read(f"blk.{layer}.hc_attn", streams)
        layer_state = state.layers[layer]
        if isinstance(layer_state, gated_delta.GdnState):
            mixed = gated_delta.gated_delta_net(x, layer_state, weights, layer, spec)
        else:
            mixed = sparse_attention.sparse_attention(
                x, state.positions, layer_state, weights, layer, spec
            )
        streams = write(streams, mixed, injection)

        x, injection = self._read(f"blk.{layer}.hc_ffn", streams)
        return write(streams, mixture(x, weights, layer, spec), injection)

    def _read(self, prefix: str, streams: Array) -> tuple[Array, Array]:
        connection = HyperConnection.from_weights(self._weights, prefix)
        x, injection = connection.read(streams, self.spec.rms_eps)
        assert injection is not None, prefix  # noqa: S101 - the constructor asked for it
        return x, injection


_HC = ("norm", "down", "up")
_EVERY_LAYER = (
    *(f"hc_{block}_{part}.weight" for block in ("attn", "ffn") for part in (*_HC, "inject")),
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    *(f"ffn_{role}_{kind}.weight" for role in ("gate", "up", "down") for kind in ("exps", "shexp")),
)
_GDN_LAYER = (
    "attn_qkv.weight",
    "attn_gate.weight",
    "ssm_conv1d.weight",
    "ssm_dt.bias",
    "ssm_a",
    "ssm_alpha.weight",
    "ssm_beta.weight",
    "ssm_norm.weight",
    "ssm_out.weight",
)
_QSA_LAYER = (
    *(f"attn_{name}.weight" for name in ("q", "k", "v", "output", "q_norm", "k_norm")),
    *(f"indexer.{name}.weight" for name in ("q_proj", "k_proj", "q_norm", "k_norm")),
)
_NGRAM_LAYER = (
    "ple_key.weight",
    "ple_value.weight",
    "ple_conv1d.weight",
    *(f"ple_norm_{name}.weight" for name in ("key", "query", "conv")),
)


def _require(weights: Mapping[str, Array], spec: ModelSpec) -> None:
    """Raises CheckpointError naming every tensor that is not there."""
    needed = ["token_embd.weight", *(f"output_hc_{part}.weight" for part in _HC)]
    if not spec.is_head_tied:
        needed.append("output.weight")
    for layer, kind in enumerate(spec.layer_kinds):
        own = _GDN_LAYER if kind is LayerKind.GDN else _QSA_LAYER
        needed += [f"blk.{layer}.{name}" for name in (*_EVERY_LAYER, *own)]
    if spec.ngram is not None:
        needed += [_TABLE, *(f"blk.{spec.ngram.layer}.{name}" for name in _NGRAM_LAYER)]
    missing = [name for name in needed if name not in weights]
    if missing:
        raise CheckpointError(
            f"the model lacks {len(missing)} of {len(needed)} tensors: {', '.join(missing)}.\n"
            "  Try: all shards of the file, or another copy of it."
        )
