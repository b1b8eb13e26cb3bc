"""The n-gram memory ("PLE"): hashed rows of a large table, gated into every residual stream.

``ngram_rows`` is exact integer arithmetic; the CPU engine uses it to know which rows to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from strata.reference.gated_delta import causal_conv
from strata.reference.norms import Array, rms_norm, sigmoid, silu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from strata.model_spec import ModelSpec, NgramSpec

# Keeps the square root of a vanishing gate away from zero.
_MIN_GATE = 1e-6


@dataclass(slots=True)
class NgramState:
    """Running state of the block.

    Attributes:
        tokens: [ngram_size - 1] int64, the newest token ids, oldest first.
        conv: [conv_history, c * D], the newest inputs of the convolution, oldest first.
    """

    tokens: NDArray[np.int64]
    conv: Array


def initial_state(spec: ModelSpec, ngram: NgramSpec, dtype: type) -> NgramState:
    """Before the first token: end-of-sequence ids and zeros."""
    tokens = np.full(ngram.ngram_size - 1, ngram.eos_id, np.int64)
    width = spec.num_streams * spec.hidden_size
    return NgramState(tokens, np.zeros((ngram.conv_history, width), dtype))


def ngram_rows(
    spec: NgramSpec, tokens: NDArray[np.int64], history: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Table rows of each token.

    mix_n = XOR over j < n of token[t - j] * multiplier[j], modulo 2^64, for n = 2 .. ngram_size;
    row = mix_n mod vocab_size[h] + offset[h]. An end-of-sequence token before t hides itself and
    everything older: those places read as end-of-sequence. At t itself it hides nothing.

    Args:
        spec: multipliers, sizes and offsets.
        tokens: [T] int64 ids; a picture's cells carry its placeholder id.
        history: [ngram_size - 1] int64, the ids before, oldest first; end-of-sequence if none.

    Returns:
        [T, num_heads] int64, heads of the shortest n-gram first.
    """
    multipliers, sizes, offsets = _hash_tables(spec)
    known = np.concatenate([history, tokens]).astype(np.int64, copy=False)
    first = len(history)
    mixes = np.empty((len(tokens), spec.ngram_size - 1, 1), np.uint64)
    mix = tokens.astype(np.uint64) * multipliers[0]
    is_hidden: NDArray[np.bool_] | None = None
    for j in range(1, spec.ngram_size):
        ids = known[first - j : len(known) - j]
        is_end = ids == spec.eos_id
        is_hidden = is_end if is_hidden is None else is_hidden | is_end
        mix = mix ^ np.where(is_hidden, spec.eos_id, ids).astype(np.uint64) * multipliers[j]
        mixes[:, j - 1, 0] = mix
    rows = (mixes % sizes).astype(np.int64) + offsets
    return rows.reshape(len(tokens), spec.num_heads)


@lru_cache(maxsize=16)
def _hash_tables(
    spec: NgramSpec,
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Multipliers [ngram_size]; sizes and offsets [ngram_size - 1, heads_per_ngram]."""
    shape = (spec.ngram_size - 1, spec.heads_per_ngram)
    return (
        np.array(spec.multipliers, np.uint64),
        np.array(spec.head_vocab_sizes, np.uint64).reshape(shape),
        np.array(spec.head_offsets, np.int64).reshape(shape),
    )


def ngram_memory(
    streams: Array,
    tokens: NDArray[np.int64],
    state: NgramState,
    weights: Mapping[str, Array],
    table: Array,
    spec: ModelSpec,
    ngram: NgramSpec,
) -> Array:
    """The streams with the memory added, [T, c, D]; advances ``state`` by T tokens.

    s = norm(query) . norm(key) / sqrt(D) per stream; gate = sigmoid(sign(s) sqrt(max(|s|, 1e-6)));
    out = gate * value + silu(dilated causal convolution of norm(gate * value)).

    Args:
        streams: [T, c, D]; not modified.
        tokens: [T] int64.
        state: of the tokens before.
        weights: by GGUF name.
        table: [rows, row_size], any float dtype.
        spec: geometry of the model.
        ngram: geometry of the memory.
    """
    prefix, shape = f"blk.{ngram.layer}.", streams.shape

    def normed(a: Array, name: str) -> Array:
        gamma = weights[f"{prefix}ple_norm_{name}.weight"].reshape(shape[1:])
        return rms_norm(a.reshape(shape), gamma, spec.rms_eps)

    rows = ngram_rows(ngram, tokens, state.tokens)
    embedding = table[rows].reshape(len(tokens), -1).astype(streams.dtype)
    key = normed(embedding @ weights[f"{prefix}ple_key.weight"].T, "key")
    value = embedding @ weights[f"{prefix}ple_value.weight"].T
    s = (key * normed(streams, "query")).sum(axis=-1) * spec.hidden_size**-0.5
    gate = sigmoid(np.sign(s) * np.sqrt(np.maximum(np.abs(s), streams.dtype.type(_MIN_GATE))))
    gated = gate[:, :, None] * value[:, None, :]

    conv_input = normed(gated, "conv").reshape(len(tokens), -1)
    weight = weights[f"{prefix}ple_conv1d.weight"]
    local = silu(causal_conv(conv_input, state.conv, weight, dilation=ngram.ngram_size))
    state.conv = np.concatenate([state.conv, conv_input])[len(tokens) :]
    state.tokens = np.concatenate([state.tokens, tokens])[len(tokens) :]
    return np.asarray(streams + gated + local.reshape(shape))
