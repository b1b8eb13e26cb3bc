"""The likeliest token of each row and how likely it is: greedy decoding and drafts.

Equal logits: lower id. Plus and minus zero are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, exp
from strata.gpu.kernels.ordering import ordered_key

if TYPE_CHECKING:
    from torch import Tensor

_TILE = 4096


def num_parts(vocab_size: int) -> int:
    """Width of the scratch of ``argmax``."""
    return -(-vocab_size // _TILE)


def argmax(
    logits: Tensor, best: Tensor, sums: Tensor, ids: Tensor, probs: Tensor, bad: Tensor
) -> None:
    """ids = the largest logit of each row, probs = its softmax.

    Bytes: logits once, 1 MB a row at V = 248,320. Grid: (61, N), then (N).

    Args:
        logits: [N, V] float32; minus infinity is never chosen, unless there is nothing else.
        best: [at least N, parts] int64 scratch, parts of ``num_parts``.
        sums: [at least N, parts] float32 scratch.
        ids: [N] int32; -1 where every logit is minus infinity.
        probs: [N] float32.
        bad: [1] int32, becomes 1 when a logit is NaN or plus infinity.
    """
    num_rows, vocab_size = logits.shape
    parts = num_parts(vocab_size)
    _argmax_part_kernel[(parts, num_rows)](
        logits, best, sums, bad, logits.stride(0), best.stride(0), VOCAB=vocab_size, TILE=_TILE,
        num_warps=8, **LAUNCH,
    )  # fmt: skip
    _argmax_join_kernel[(num_rows,)](
        best, sums, ids, probs, best.stride(0), PARTS=parts, TILE=triton.next_power_of_2(parts),
        num_warps=1, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _value_of(best):
    """The logit in a key and id packed together."""
    key = (best >> 32).to(tl.int32)
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _argmax_part_kernel(
    logits_ptr, best_ptr, sums_ptr, bad_ptr, stride, part_stride, VOCAB: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    ids = part * TILE + tl.arange(0, TILE)
    x = tl.load(logits_ptr + row * stride + ids, ids < VOCAB, float("-inf"))
    is_bad = (x != x) | (x == float("inf"))
    tl.store(bad_ptr, 1, tl.max(is_bad.to(tl.int32), axis=0) == 1)
    x = tl.where(is_bad, float("-inf"), x)
    # The id is turned round, so that the lower one is the larger of equals.
    packed = (ordered_key(x).to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
    best = tl.max(packed, axis=0)
    largest = _value_of(best)
    powers = tl.where(x == float("-inf"), 0.0, exp(x - largest))
    tl.store(best_ptr + row * part_stride + part, best)
    tl.store(sums_ptr + row * part_stride + part, tl.sum(powers, axis=0))


@triton.jit
def _argmax_join_kernel(
    best_ptr, sums_ptr, ids_ptr, probs_ptr, part_stride, PARTS: tl.constexpr, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, TILE)
    is_part = offs < PARTS
    best = tl.load(best_ptr + row * part_stride + offs, is_part, -(2**63))
    sums = tl.load(sums_ptr + row * part_stride + offs, is_part, 0.0)
    top = tl.max(best, axis=0)
    shrink = tl.where(sums == 0.0, 0.0, exp(_value_of(best) - _value_of(top)))
    total = tl.sum(sums * shrink, axis=0)
    is_any = total > 0.0
    index = 0x7FFFFFFF - (top & 0x7FFFFFFF).to(tl.int32)
    tl.store(ids_ptr + row, tl.where(is_any, index, -1))
    tl.store(probs_ptr + row, tl.where(is_any, div(1.0, tl.where(is_any, total, 1.0)), 0.0))
