"""The next token of every row of a window: penalties, mask, candidates and the draw, on the card.

The tokens are those of ``strata.engine.sampler``: same order of steps, float64 where it has it,
sums in its order, the same random numbers. Options, seed, history and mask are read from the
device, so that one graph serves all requests. Log-probabilities are not made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH
from strata.gpu.kernels.ordering import NO_KEY, ordered_key, take_largest
from strata.gpu.kernels.philox import uniform

if TYPE_CHECKING:
    from torch import Tensor

MAX_CANDIDATES = 64
MAX_PENALTY_TOKENS = 4096
# The best candidates lie in the blocks with the best largest logits: one of 64 neighbours each.
_BLOCK = tl.constexpr(64)
_BLOCKS = tl.constexpr(64)  # of one program that looks for the largest
_HISTORY_TILE = tl.constexpr(64)
_CANDIDATES = tl.constexpr(MAX_CANDIDATES)
_LARGEST = tl.constexpr(3.4028234663852886e38)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Options of one conversation on the device.

    Attributes:
        reals: [6] float64: temperature, top_p, min_p, repeat, frequency, presence penalty. Greedy
            is one candidate at temperature 1.
        integers: [4] int64: candidates 1..64, tokens that are penalised (0: no penalties), seed
            (its 64 bits), 1 where ``mask`` is in force.
        tokens: [capacity] int32, token ids by position; the window's rows are in it.
        mask: [N, ceil(V / 32)] int32, allowed tokens, lowest bit first.
    """

    reals: Tensor
    integers: Tensor
    tokens: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class SamplingScratch:
    """Room between launches and steps, for at least N rows.

    Attributes:
        maxima: [N, num_blocks(V)] int32.
        ints: [N, 3, 64] int32.
        reals: [N, 3, 64] float64.
    """

    maxima: Tensor
    ints: Tensor
    reals: Tensor


def num_blocks(vocab_size: int) -> int:
    """Width of ``SamplingScratch.maxima``."""
    return -(-vocab_size // _BLOCK.value)


def note_tokens(window: Tensor, position: Tensor, tokens: Tensor) -> None:
    """tokens[position + n] = window[n]: the rows' ids become history.

    Args:
        window: [N] int32, N <= 8.
        position: [1] int64, position of row 0.
        tokens: [capacity] int32.
    """
    _note_kernel[(1,)](window, position, tokens, len(window), TILE=8, num_warps=1, **LAUNCH)


@triton.jit
def _note_kernel(window_ptr, position_ptr, tokens_ptr, num_rows, TILE: tl.constexpr):
    offs = tl.arange(0, TILE)
    ids = tl.load(window_ptr + offs, offs < num_rows, 0)
    tl.store(tokens_ptr + tl.load(position_ptr) + offs, ids, offs < num_rows)


def sample(
    logits: Tensor,
    options: SamplingOptions,
    position: Tensor,
    scratch: SamplingScratch,
    ids: Tensor,
    bad: Tensor,
) -> None:
    """ids = the token picked behind each row; row n is at position + n, its pick one further.

    Bytes: logits once (1 MB a row). Grid: (64, N) of which one works at the usual 64 penalised
    tokens; (61, N); (N).

    Args:
        logits: [N, V] float32; those of penalised tokens are changed.
        options: of the conversation.
        position: [1] int64, position of row 0.
        scratch: room.
        ids: [N] int32; -1 where no token is allowed.
        bad: [1] int32, becomes 1 when a logit is NaN or plus infinity.
    """
    num_rows, vocab_size = logits.shape
    blocks = num_blocks(vocab_size)
    _penalty_kernel[(MAX_PENALTY_TOKENS // _HISTORY_TILE.value, num_rows)](
        logits, options.tokens, options.reals, options.integers, position, logits.stride(0),
        VOCAB=vocab_size, num_warps=4, **LAUNCH,
    )  # fmt: skip
    _maxima_kernel[(triton.cdiv(blocks, _BLOCKS.value), num_rows)](
        logits, options.mask, options.integers, scratch.maxima, bad, logits.stride(0),
        options.mask.stride(0), scratch.maxima.stride(0), VOCAB=vocab_size, NUM_BLOCKS=blocks,
        num_warps=8, **LAUNCH,
    )  # fmt: skip
    _pick_kernel[(num_rows,)](
        logits, options.mask, options.reals, options.integers, position, scratch.maxima,
        scratch.ints, scratch.reals, ids, logits.stride(0), options.mask.stride(0),
        scratch.maxima.stride(0), VOCAB=vocab_size, NUM_BLOCKS=blocks,
        BLOCK_TILE=max(64, triton.next_power_of_2(blocks)), num_warps=8, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _history(tokens_ptr, start, offs, length):
    """Ids at places of the history; -1 where there is none."""
    is_there = (offs < length) & (start + offs >= 0)
    return tl.load(tokens_ptr + start + offs, is_there, -1)


@triton.jit
def _penalty_kernel(
    logits_ptr, tokens_ptr, reals_ptr, integers_ptr, position_ptr, stride, VOCAB: tl.constexpr
):
    length = tl.load(integers_ptr + 1)
    first = tl.program_id(0) * _HISTORY_TILE
    if first >= length:
        return
    row = tl.program_id(1).to(tl.int64)
    start = tl.load(position_ptr) + row + 1 - length
    offs = first + tl.arange(0, _HISTORY_TILE)
    ids = _history(tokens_ptr, start, offs, length)
    count = tl.zeros([_HISTORY_TILE], tl.int32)
    earlier = tl.zeros([_HISTORY_TILE], tl.int32)
    other = tl.zeros([], tl.int64)
    while other < length:
        others = other + tl.arange(0, _HISTORY_TILE)
        is_same = ids[:, None] == _history(tokens_ptr, start, others, length)[None, :]
        count += tl.sum(is_same.to(tl.int32), axis=1)
        is_earlier = is_same & (others[None, :] < offs[:, None])
        earlier += tl.sum(is_earlier.to(tl.int32), axis=1)
        other += _HISTORY_TILE
    # A token that occurs often is changed once, by its first occurrence.
    is_mine = (ids >= 0) & (ids < VOCAB) & (earlier == 0)
    logits = tl.load(logits_ptr + row * stride + ids, is_mine, 0.0)
    x = logits.to(tl.float64)
    repeat = tl.load(reals_ptr + 3)
    x = tl.where(x > 0, x / repeat, x * repeat)
    x -= count.to(tl.float64) * tl.load(reals_ptr + 4) + tl.load(reals_ptr + 5)
    # A strong penalty must not turn into "never", nor a damaged logit into a sound one.
    x = tl.where(x > _LARGEST, _LARGEST, tl.where(x < -_LARGEST, -_LARGEST, x))
    is_kept = (tl.abs(logits) <= _LARGEST) == 0
    x = tl.where(is_kept, logits, x.to(tl.float32))
    tl.store(logits_ptr + row * stride + ids, x, is_mine)


@triton.jit
def _keys(logits_ptr, mask_ptr, has_mask, ids, is_id):
    """Ordered keys of a row's logits, and the logits; NO_KEY where a token is not allowed."""
    x = tl.load(logits_ptr + ids, is_id, float("-inf"))
    words = tl.load(mask_ptr + ids // 32, is_id & has_mask, -1)
    # What is no number is told of by the flag and never picked.
    is_allowed = (((words >> (ids % 32)) & 1) == 1) & (x < float("inf"))
    return tl.where(is_allowed, ordered_key(x), NO_KEY), x


@triton.jit
def _maxima_kernel(
    logits_ptr, mask_ptr, integers_ptr, maxima_ptr, bad_ptr, stride, mask_stride, maxima_stride,
    VOCAB: tl.constexpr, NUM_BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    blocks = tl.program_id(0) * _BLOCKS + tl.arange(0, _BLOCKS)
    ids = blocks[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    has_mask = tl.load(integers_ptr + 3) != 0
    keys, x = _keys(
        logits_ptr + row * stride, mask_ptr + row * mask_stride, has_mask, ids, ids < VOCAB
    )
    is_bad = ((x != x) | (x == float("inf"))).to(tl.int32)
    tl.store(bad_ptr, 1, tl.max(tl.max(is_bad, axis=1), axis=0) == 1)
    at = maxima_ptr + row * maxima_stride + blocks
    tl.store(at, tl.max(keys, axis=1), blocks < NUM_BLOCKS)


@triton.jit
def _sorted_candidates(
    logits_ptr, mask_ptr, has_mask, maxima_ptr, ints_ptr, reals_ptr, wanted, VOCAB: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCK_TILE: tl.constexpr,
):  # fmt: skip
    """Leaves the best ids in ints[2] and their logits in reals[0], best first; how many."""
    offs = tl.arange(0, BLOCK_TILE)
    maxima = tl.load(maxima_ptr + offs, offs < NUM_BLOCKS, NO_KEY)
    is_key = maxima > NO_KEY
    num = tl.minimum(wanted, tl.sum(is_key.to(tl.int32), axis=0))
    is_taken, place = take_largest(maxima, is_key, num, NO_KEY, 31)
    tl.store(ints_ptr + place, offs, is_taken)
    tl.debug_barrier()
    block = tl.load(ints_ptr + tl.arange(0, _CANDIDATES), tl.arange(0, _CANDIDATES) < num, 0)
    is_block = (tl.arange(0, _CANDIDATES) < num)[:, None]
    ids = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    keys, _ = _keys(logits_ptr, mask_ptr, has_mask, ids, is_block & (ids < VOCAB))
    keys = tl.reshape(tl.where(is_block, keys, NO_KEY), [_CANDIDATES * _BLOCK])
    ids = tl.reshape(ids, [_CANDIDATES * _BLOCK])
    is_key = keys > NO_KEY
    num = tl.minimum(wanted, tl.sum(is_key.to(tl.int32), axis=0))
    is_taken, place = take_largest(keys, is_key, num, NO_KEY, 31)
    tl.debug_barrier()
    tl.store(ints_ptr + place, keys, is_taken)
    tl.store(ints_ptr + _CANDIDATES + place, ids, is_taken)
    tl.debug_barrier()
    # By index now; a candidate's rank is the number of better ones.
    offs = tl.arange(0, _CANDIDATES)
    keys = tl.load(ints_ptr + offs, offs < num, NO_KEY)
    ids = tl.load(ints_ptr + _CANDIDATES + offs, offs < num, 0)
    others = tl.load(ints_ptr + offs, offs < num, NO_KEY)
    is_better = (others[None, :] > keys[:, None]) | (
        (others[None, :] == keys[:, None]) & (offs[None, :] < offs[:, None])
    )
    rank = tl.sum(is_better.to(tl.int32), axis=1)
    tl.store(ints_ptr + 2 * _CANDIDATES + rank, ids, offs < num)
    values = tl.load(logits_ptr + ids, offs < num, 0.0).to(tl.float64)
    tl.store(reals_ptr + rank, values, offs < num)
    tl.debug_barrier()
    return num


@triton.jit
def _running_sums(weights_ptr, num):
    """Sums of the first weights, added one by one as the specification does, and the last."""
    offs = tl.arange(0, _CANDIDATES)
    sums = tl.zeros([_CANDIDATES], tl.float64)
    total = tl.zeros([], tl.float64)
    index = tl.zeros([], tl.int32)
    while index < num:
        total += tl.load(weights_ptr + index)
        sums = tl.where(offs == index, total, sums)
        index += 1
    return sums, total


@triton.jit
def _pick_kernel(
    logits_ptr, mask_ptr, reals_ptr, integers_ptr, position_ptr, maxima_ptr, scratch_ints_ptr,
    scratch_reals_ptr, ids_ptr, stride, mask_stride, maxima_stride, VOCAB: tl.constexpr,
    NUM_BLOCKS: tl.constexpr, BLOCK_TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    ints = scratch_ints_ptr + row * 3 * _CANDIDATES
    reals = scratch_reals_ptr + row * 3 * _CANDIDATES
    wanted = tl.load(integers_ptr).to(tl.int32)
    has_mask = tl.load(integers_ptr + 3) != 0
    num = _sorted_candidates(
        logits_ptr + row * stride, mask_ptr + row * mask_stride, has_mask,
        maxima_ptr + row * maxima_stride, ints, reals, wanted, VOCAB, NUM_BLOCKS, BLOCK_TILE,
    )  # fmt: skip
    if num == 0:
        tl.store(ids_ptr + row, -1)
        return
    offs = tl.arange(0, _CANDIDATES)
    best = tl.load(reals)
    difference = tl.load(reals + offs, offs < num, best) - best
    weights = tl.exp(difference)
    tl.store(reals + _CANDIDATES + offs, weights, offs < num)
    tl.debug_barrier()
    top_p = tl.load(reals_ptr + 1)
    if top_p < 1.0:
        sums, total = _running_sums(reals + _CANDIDATES, num)
        is_enough = (sums >= top_p * total) & (offs < num)
        num = tl.min(tl.where(is_enough, offs + 1, num), axis=0)
    is_kept = (offs < num) & (weights >= tl.load(reals_ptr + 2))
    num = tl.sum(is_kept.to(tl.int32), axis=0)
    weights = tl.exp(difference / tl.load(reals_ptr))
    tl.store(reals + 2 * _CANDIDATES + offs, weights, offs < num)
    tl.debug_barrier()
    sums, total = _running_sums(reals + 2 * _CANDIDATES, num)
    seed = tl.load(integers_ptr + 2).to(tl.uint64, bitcast=True)
    at = (tl.load(position_ptr) + row + 1).to(tl.uint64)
    threshold = uniform(seed, at) * total
    picked = tl.min(tl.where((sums > threshold) & (offs < num), offs, num - 1), axis=0)
    tl.store(ids_ptr + row, tl.load(ints + 2 * _CANDIDATES + picked))
