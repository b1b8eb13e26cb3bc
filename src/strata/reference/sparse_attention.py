"""Block-sparse attention (QSA): an indexer picks blocks of cells, attention sees only those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.reference.norms import Array, rms_norm, sigmoid, softmax
from strata.reference.rope import rope_tables, rotate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from strata.model_spec import ModelSpec


@dataclass(slots=True)
class QsaState:
    """Cells of one layer, oldest first; S cells.

    Attributes:
        keys: [S, Hkv, Dh], normalised and rotated.
        values: [S, Hkv, Dh].
        index_keys: [S, index_dim], as projected: pooling comes before norm and rotation.
    """

    keys: Array
    values: Array
    index_keys: Array


def initial_state(spec: ModelSpec, dtype: type) -> QsaState:
    """No cells."""
    cells: Array = np.zeros((0, spec.num_kv_heads, spec.head_dim), dtype)
    return QsaState(cells, cells, np.zeros((0, spec.index_dim), dtype))


def pooled_keys(
    index_keys: Array, positions: NDArray[np.int64], gamma: Array, spec: ModelSpec
) -> Array:
    """One key for each complete block: mean of its raw keys, normed, rotated at its first cell.

    Args:
        index_keys: [S, index_dim] raw.
        positions: [S, 3] rotary positions of the cells.
        gamma: [index_dim].
        spec: geometry.

    Returns:
        [S // index_block, index_dim].
    """
    block = spec.index_block
    num_blocks = len(index_keys) // block
    complete = index_keys[: num_blocks * block].reshape(num_blocks, block, spec.index_dim)
    normed = rms_norm(complete.mean(axis=1), gamma, spec.rms_eps)
    cos, sin = rope_tables(spec.rope, positions[: num_blocks * block : block], normed.dtype.type)
    return rotate(normed[:, None], cos, sin)[:, 0]


def select_cells(scores: Array, num_cells: int, budget: int, block: int) -> NDArray[np.int64]:
    """Cells one query attends to, ascending: the best blocks and the incomplete tail.

    Args:
        scores: [num_cells // block], one for each complete block.
        num_cells: cells the query can see, its own included.
        budget: cells chosen from complete blocks.
        block: cells in a block.

    Returns:
        [min(num_cells, budget + num_cells % block)] cell numbers. Equal scores: lower block first.
    """
    num_blocks = num_cells // block
    best = np.sort(np.argsort(-scores[:num_blocks], kind="stable")[: budget // block])
    chosen = (best[:, None] * block + np.arange(block)).reshape(-1)
    return np.concatenate([chosen, np.arange(num_blocks * block, num_cells)]).astype(np.int64)


def attend(
    q: Array, keys: Array, values: Array, cells: NDArray[np.int64], num_heads_per_kv: int
) -> Array:
    """softmax(q . k / sqrt(Dh)) v over the chosen cells, for one query.

    Args:
        q: [H, Dh].
        keys: [S, Hkv, Dh].
        values: [S, Hkv, Dh].
        cells: which of the S to use.
        num_heads_per_kv: query head h uses key/value head h // num_heads_per_kv.

    Returns:
        [H, Dh].
    """
    k = np.repeat(keys[cells], num_heads_per_kv, axis=1)
    v = np.repeat(values[cells], num_heads_per_kv, axis=1)
    probs = softmax(np.einsum("hd,shd->hs", q, k) * q.shape[-1] ** -0.5)
    return np.asarray(np.einsum("hs,shd->hd", probs, v))


def sparse_attention(
    x: Array,
    positions: NDArray[np.int64],
    state: QsaState,
    weights: Mapping[str, Array],
    layer: int,
    spec: ModelSpec,
) -> Array:
    """The layer's output [T, D]; appends T cells to ``state``.

    Block score = sum over index heads of max(0, q . k), no scale.

    Args:
        x: [T, D].
        positions: [S + T, 3] rotary positions of all cells, the new ones last.
        state: the S cells before x.
        weights: by GGUF name.
        layer: index of the layer.
        spec: geometry.
    """
    prefix, eps, num_tokens = f"blk.{layer}.", spec.rms_eps, len(x)
    cos, sin = rope_tables(spec.rope, positions[-num_tokens:], x.dtype.type)

    def project(name: str, heads: int) -> Array:
        return (x @ weights[f"{prefix}{name}.weight"].T).reshape(num_tokens, heads, -1)

    def normed_and_turned(a: Array, norm: str) -> Array:
        return rotate(rms_norm(a, weights[f"{prefix}{norm}.weight"], eps), cos, sin)

    q, gate = np.split(project("attn_q", spec.num_heads), 2, axis=-1)
    q = normed_and_turned(q, "attn_q_norm")
    k = normed_and_turned(project("attn_k", spec.num_kv_heads), "attn_k_norm")
    q_index = normed_and_turned(project("indexer.q_proj", spec.index_heads), "indexer.q_norm")

    past = len(state.keys)
    state.keys = np.concatenate([state.keys, k])
    state.values = np.concatenate([state.values, project("attn_v", spec.num_kv_heads)])
    raw_index_keys = x @ weights[f"{prefix}indexer.k_proj.weight"].T
    state.index_keys = np.concatenate([state.index_keys, raw_index_keys])

    pooled = pooled_keys(
        state.index_keys, positions, weights[f"{prefix}indexer.k_norm.weight"], spec
    )
    out = np.zeros_like(q)
    for t in range(num_tokens):
        num_cells = past + t + 1
        visible = pooled[: num_cells // spec.index_block]
        scores = np.maximum(q_index[t] @ visible.T, 0).sum(axis=0)
        cells = select_cells(scores, num_cells, spec.index_budget, spec.index_block)
        out[t] = attend(q[t], state.keys, state.values, cells, spec.num_heads // spec.num_kv_heads)
    gated = (out * sigmoid(gate)).reshape(num_tokens, -1)
    return np.asarray(gated @ weights[f"{prefix}attn_output.weight"].T)
