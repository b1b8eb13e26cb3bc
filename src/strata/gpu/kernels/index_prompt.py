"""The indexer for the rows of a prompt chunk: keys and queries, block scores, chosen blocks.

Rows append what they would append one by one, bit for bit. Scores of a tile of rows at a time go
through tensor cores into scratch of bounded size, and the exact selection of the decode path reads
them from there; no mask is ever formed. Rows that see no more blocks than the budget are left out.

Reference: ``strata.reference.sparse_attention``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH
from strata.gpu.kernels.conv_prompt import keep_newest
from strata.gpu.kernels.halves import dot_pairs, split
from strata.gpu.kernels.indexer import INDEX_GROUP, candidate_shape, select_blocks
from strata.gpu.kernels.qsa_append import _normed_head, _pool
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.qsa_append import IndexInputs, IndexKeys, RopeTable

# Queries of a score tile: with more of them registers are spilled. Rows that are scored before the
# selection come in steps of 128, as many as scores of so many bytes are.
_SCORE_ROWS, _SCORE_WARPS = 32, 4
_TILE_ROWS = 128
_SCORE_BYTES = 64 << 20
# Brings normed vectors to where halves are finest.
_UNIT = tl.constexpr(16.0)
_PER_UNITS = tl.constexpr(1 / 256)


@dataclass(frozen=True, slots=True)
class IndexScratch:
    """Room for the scores of some rows, shared by all layers.

    Attributes:
        scores: [rows, S] float32, rows a multiple of 128, S a multiple of INDEX_GROUP.
        candidates: [2, rows, ...] int32, of the selection.
    """

    scores: Tensor
    candidates: Tensor


def index_scratch(
    capacity: int, budget_blocks: int, block: int, device: torch.device | str
) -> IndexScratch:
    """Room for a conversation of ``capacity`` cells: 64 MB of scores, or 128 rows if that is more.

    Candidates: 16 KB a row at 128K cells.
    """
    width = cdiv(capacity // block + 1, INDEX_GROUP) * INDEX_GROUP
    rows = min(max(_SCORE_BYTES // (4 * width) // _TILE_ROWS, 1), 8) * _TILE_ROWS
    shape = candidate_shape(rows, width, budget_blocks)
    return IndexScratch(
        torch.empty((rows, width), device=device),
        torch.empty(shape, dtype=torch.int32, device=device),
    )


def num_dense_rows(position: int, num_rows: int, budget_blocks: int, block: int) -> int:
    """Leading rows that see every cell: at most ``budget_blocks`` complete blocks."""
    return min(max((budget_blocks + 1) * block - 1 - position, 0), num_rows)


def append_index(
    inputs: IndexInputs,
    rope: RopeTable,
    positions: Tensor,
    position: int,
    eps: float,
    state: IndexKeys,
    queries: Tensor,
) -> None:
    """Pooled keys of the blocks that the rows complete; their queries; the ring moves on.

    Queries, keys, values and cells of the attention itself: ``qsa_append.append`` without index.

    Grid: (index heads + 1, rows).

    Args:
        inputs: N rows; ``inputs.out`` [N, index heads, index_dim] float32 as in decoding.
        rope: of all positions.
        positions: [N] int64, of the rows.
        position: of row 0.
        eps: of the norms.
        state: of the layer.
        queries: [2, N, index heads, index_dim] float16: pairs of halves, for ``select_prompt``.
    """
    num_rows, heads, dim = inputs.out.shape
    _index_kernel[(heads + 1, num_rows)](
        inputs.queries, inputs.keys, inputs.query_gamma, inputs.key_gamma, rope.cos, rope.sin,
        inputs.out, queries, state.ring, state.pooled, positions, inputs.queries.stride(0),
        inputs.keys.stride(0), queries.stride(0), eps,
        HEADS=heads, DI=dim, DI_TILE=next_power_of_2(dim), PAIRS=rope.cos.shape[1],
        BLOCK=inputs.block, RING=len(state.ring), INDEX_GROUP=INDEX_GROUP, num_warps=2, **LAUNCH,
    )  # fmt: skip
    keep_newest(inputs.keys, state.ring, position, len(state.ring))


def select_prompt(
    queries: Tensor,
    pooled: Tensor,
    positions: Tensor,
    position: int,
    budget_blocks: int,
    block: int,
    scratch: IndexScratch,
    chosen: Tensor,
) -> None:
    """chosen[n] = the best blocks of row n, ascending; nothing where a row sees no more than those.

    score[n, b] = sum over heads of max(0, q[n] . key[b]); equal scores: lower block first.

    Operations: 3 * 2 * 512 a row and visible block. Scores: 4 bytes each, written and read once.
    Grid of a tile: (64 blocks, 32 rows), then those of ``select_blocks``.

    Args:
        queries: [2, N, index heads, index_dim] float16 of ``append_index``.
        pooled: [groups, index_dim, INDEX_GROUP] float32.
        positions: [N] int64, of the rows.
        position: of row 0.
        budget_blocks: blocks to choose.
        block: cells in a block.
        scratch: for the conversation's cells.
        chosen: [N, budget_blocks] int32.
    """
    _, num_rows, heads, dim = queries.shape
    step, room = scratch.scores.shape
    first = num_dense_rows(position, num_rows, budget_blocks, block)
    while first < num_rows:
        rows = min(step, num_rows - first)
        groups = cdiv((position + first + rows) // block, INDEX_GROUP)
        width = min(groups * INDEX_GROUP, room)
        _score_prompt_kernel[(groups, cdiv(rows, _SCORE_ROWS))](
            queries[:, first:], pooled, scratch.scores, queries.stride(0), scratch.scores.stride(0),
            rows, HEADS=heads, DIM=dim, DIM_TILE=max(16, next_power_of_2(dim)),
            GROUP=INDEX_GROUP, ROWS=_SCORE_ROWS, num_warps=_SCORE_WARPS, num_stages=1, **LAUNCH,
        )  # fmt: skip
        select_blocks(
            scratch.scores[:rows, :width], positions[first : first + 1], rows, budget_blocks, block,
            scratch.candidates, chosen[first : first + rows],
        )  # fmt: skip
        first += rows


@triton.jit
def _index_kernel(
    q_ptr, k_ptr, q_gamma_ptr, k_gamma_ptr, cos_ptr, sin_ptr, out_ptr, pairs_ptr, ring_ptr,
    pooled_ptr, positions_ptr, q_stride, k_stride, plane, eps,
    HEADS: tl.constexpr, DI: tl.constexpr, DI_TILE: tl.constexpr, PAIRS: tl.constexpr,
    BLOCK: tl.constexpr, RING: tl.constexpr, INDEX_GROUP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    position = tl.load(positions_ptr)
    offs = tl.arange(0, DI_TILE)
    if head < HEADS:
        q = _normed_head(
            q_ptr + row * q_stride + head * DI, q_gamma_ptr, cos_ptr, sin_ptr, position + row,
            offs, eps, DI, PAIRS,
        )  # fmt: skip
        at = (row * HEADS + head) * DI + offs
        tl.store(out_ptr + at, q, offs < DI)
        high, low = split(q * _UNIT)
        tl.store(pairs_ptr + at, high, offs < DI)
        tl.store(pairs_ptr + plane + at, low, offs < DI)
    elif (position + row + 1) % BLOCK == 0:
        _pool(
            k_ptr, ring_ptr, k_stride, k_gamma_ptr, cos_ptr, sin_ptr, pooled_ptr, row, position,
            offs, eps, DI, PAIRS, BLOCK, RING, INDEX_GROUP,
        )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _score_prompt_kernel(
    pairs_ptr, pooled_ptr, scores_ptr, plane, score_stride, num_rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_TILE: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    offs_d = tl.arange(0, DIM_TILE)
    offs_b = tl.arange(0, GROUP)[None, :]
    at_keys = pooled_ptr + (group * DIM + offs_d[:, None]) * GROUP + offs_b
    k_hi, k_lo = split(tl.load(at_keys, offs_d[:, None] < DIM, 0.0) * _UNIT)
    is_q = (row < num_rows) & (offs_d[None, :] < DIM)
    at = row * (HEADS * DIM) + offs_d[None, :]
    total = tl.zeros([ROWS, GROUP], tl.float32)
    for head in tl.static_range(HEADS):
        q_hi = tl.load(pairs_ptr + at + head * DIM, is_q, 0.0)
        q_lo = tl.load(pairs_ptr + plane + at + head * DIM, is_q, 0.0)
        total += tl.maximum(dot_pairs(q_hi, q_lo, k_hi, k_lo) * _PER_UNITS, 0.0)
    at_scores = row.to(tl.int64) * score_stride + group * GROUP + offs_b
    tl.store(scores_ptr + at_scores, total, row < num_rows)
