"""Pairs of row and expert sorted by expert, on the device: what a grouped product walks along.

A counting sort in three launches without atomics, so the order is the same in every run: within an
expert, pairs ascend. Owns ``ExpertPlan``. Pair ``t * K + k`` is row t's expert of rank k; ids
outside 0..E-1 belong to nobody here and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.gpu.kernels import arith
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

_CHUNK = 128  # pairs one program ranks among themselves


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """Where the pairs of each expert lie, and the tiles a product has to compute.

    Attributes:
        order: [P] int32, the pair at each sorted position; the last ones may be unused.
        counts: [E] int32, pairs of each expert.
        offsets: [E + 1] int32, first position of each expert; the last is the number sorted.
        tiles: [max_tiles, 2] int32, (expert, first position) of each tile; expert -1: no tile.
        histogram: [chunks, E] int32, scratch.
        tile_tokens: positions of a tile.
    """

    order: Tensor
    counts: Tensor
    offsets: Tensor
    tiles: Tensor
    histogram: Tensor
    tile_tokens: int

    @property
    def num_experts(self) -> int:
        """E."""
        return len(self.counts)

    def max_tiles(self, num_pairs: int) -> int:
        """Tiles that ``num_pairs`` pairs can need at most: every expert may end within one."""
        full = num_pairs // self.tile_tokens + min(self.num_experts, num_pairs)
        return min(full, len(self.tiles))


def empty_plan(
    max_pairs: int, num_experts: int, tile_tokens: int, device: torch.device | str
) -> ExpertPlan:
    """Room for a plan of up to ``max_pairs`` pairs."""

    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    return ExpertPlan(
        order=ints(max_pairs),
        counts=ints(num_experts),
        offsets=ints(num_experts + 1),
        tiles=ints(max_pairs // tile_tokens + min(num_experts, max_pairs), 2),
        histogram=ints(cdiv(max_pairs, _CHUNK), num_experts),
        tile_tokens=tile_tokens,
    )


@triton.jit
def _load_ids(
    ids_ptr, slot_of_ptr, pair, num_pairs, EXPERTS: tl.constexpr, HAS_SLOTS: tl.constexpr
):
    """Experts of pairs; -1 where there is none, or where it is in no slot."""
    ids = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=-1)
    is_here = (ids >= 0) & (ids < EXPERTS)
    if HAS_SLOTS:
        is_here = is_here & (tl.load(slot_of_ptr + ids, mask=is_here, other=-1) >= 0)
    return tl.where(is_here, ids, -1)


@triton.jit(do_not_specialize=["num_pairs"])
def _count_kernel(
    ids_ptr,
    slot_of_ptr,
    num_pairs,
    histogram_ptr,
    EXPERTS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    CHUNK: tl.constexpr,
    STEP: tl.constexpr,
):
    """How many pairs of each chunk want each expert."""
    chunk = tl.program_id(0)
    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = _load_ids(ids_ptr, slot_of_ptr, pair, num_pairs, EXPERTS, HAS_SLOTS)
    expert = tl.program_id(1) * STEP + tl.arange(0, STEP)
    counts = tl.sum((ids[:, None] == expert[None, :]).to(tl.int32), axis=0)
    tl.store(histogram_ptr + chunk * EXPERTS + expert, counts, mask=expert < EXPERTS)


@triton.jit(do_not_specialize=["num_chunks"])
def _scan_kernel(
    histogram_ptr, counts_ptr, num_chunks, EXPERTS: tl.constexpr, CHUNKS: tl.constexpr
):
    """Per expert: pairs in the chunks before each, in place, and pairs in all."""
    expert = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    place = histogram_ptr + chunk * EXPERTS + expert
    counts = tl.load(place, mask=chunk < num_chunks, other=0)
    tl.store(place, tl.cumsum(counts, 0) - counts, mask=chunk < num_chunks)
    tl.store(counts_ptr + expert, tl.sum(counts, axis=0))


@triton.jit(do_not_specialize=["num_pairs", "max_tiles"])
def _place_kernel(
    ids_ptr,
    slot_of_ptr,
    num_pairs,
    histogram_ptr,
    counts_ptr,
    order_ptr,
    offsets_ptr,
    tiles_ptr,
    max_tiles,
    EXPERTS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    TOKENS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Writes this chunk's pairs to their positions, and this program's share of the tiles."""
    chunk = tl.program_id(0)
    expert = tl.arange(0, WIDTH)
    counts = tl.load(counts_ptr + expert, mask=expert < EXPERTS, other=0)
    ends = tl.cumsum(counts, 0)
    tile_counts = (counts + TOKENS - 1) // TOKENS
    tile_ends = tl.cumsum(tile_counts, 0)
    if chunk == 0:
        tl.store(offsets_ptr + expert + 1, ends, mask=expert < EXPERTS)
        tl.store(offsets_ptr + expert * 0, 0, mask=expert == 0)

    pair = chunk * CHUNK + tl.arange(0, CHUNK)
    ids = _load_ids(ids_ptr, slot_of_ptr, pair, num_pairs, EXPERTS, HAS_SLOTS)
    is_here = ids >= 0
    index = tl.arange(0, CHUNK)
    is_before = (ids[None, :] == ids[:, None]) & (index[None, :] < index[:, None])
    rank = tl.sum(is_before.to(tl.int32), axis=1)
    before = tl.load(histogram_ptr + chunk * EXPERTS + ids, mask=is_here, other=0)
    starts = ends - counts
    first = tl.gather(starts, tl.maximum(ids, 0), 0)
    tl.store(order_ptr + first + before + rank, pair, mask=is_here)

    tile = chunk * TILES + tl.arange(0, TILES)
    owner = tl.sum((tile_ends[None, :] <= tile[:, None]).to(tl.int32), axis=1)
    is_tile = owner < EXPERTS
    owner = tl.minimum(owner, EXPERTS - 1)
    in_expert = tile - tl.gather(tile_ends - tile_counts, owner, 0)
    start = tl.gather(starts, owner, 0) + in_expert * TOKENS
    tl.store(tiles_ptr + 2 * tile, tl.where(is_tile, owner, -1), mask=tile < max_tiles)
    tl.store(tiles_ptr + 2 * tile + 1, tl.where(is_tile, start, 0), mask=tile < max_tiles)


def sort_by_expert(ids: Tensor, plan: ExpertPlan, slot_of: Tensor | None = None) -> None:
    """Fills ``plan`` for the pairs of ``ids``.

    Args:
        ids: [T, K] int32, contiguous; T * K no more than the plan has room for.
        plan: of ``empty_plan``; every field is written as far as T * K pairs need it.
        slot_of: [E] int32; pairs of experts below zero there are left out. None: all are there.
    """
    num_pairs, num_experts = ids.numel(), plan.num_experts
    num_chunks = cdiv(num_pairs, _CHUNK)
    step = min(64, next_power_of_2(num_experts))
    _count_kernel[(num_chunks, cdiv(num_experts, step))](
        ids, slot_of, num_pairs, plan.histogram,
        EXPERTS=num_experts, HAS_SLOTS=slot_of is not None, CHUNK=_CHUNK, STEP=step, num_warps=4,
        **arith.LAUNCH,
    )  # fmt: skip
    _scan_kernel[(num_experts,)](
        plan.histogram, plan.counts, num_chunks,
        EXPERTS=num_experts, CHUNKS=next_power_of_2(num_chunks), num_warps=1,
        **arith.LAUNCH,
    )  # fmt: skip
    max_tiles = plan.max_tiles(num_pairs)
    _place_kernel[(num_chunks,)](
        ids, slot_of, num_pairs, plan.histogram, plan.counts, plan.order, plan.offsets,
        plan.tiles, max_tiles,
        EXPERTS=num_experts, HAS_SLOTS=slot_of is not None,
        WIDTH=next_power_of_2(num_experts), CHUNK=_CHUNK, TOKENS=plan.tile_tokens,
        TILES=next_power_of_2(cdiv(max_tiles, num_chunks)), num_warps=8,
        **arith.LAUNCH,
    )  # fmt: skip
