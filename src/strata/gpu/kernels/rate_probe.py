"""A kernel that does nothing but integer dot products: how fast the card is at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, dot4

if TYPE_CHECKING:
    from torch import Tensor

WORDS = 128
CHAINS = 8
_UNROLLED = tl.constexpr(8)  # the loop's own instructions shall not count


def many_dots(words: Tensor, out: Tensor, num_programs: int, rounds: int) -> int:
    """Starts it; gives how many multiplications of 8-bit integers it makes.

    Args:
        words: [WORDS] int32.
        out: [num_programs, WORDS] int32; the sums, so that nothing is left out.
        num_programs: four warps each, with ``CHAINS`` independent sums a lane.
        rounds: dot products of each sum, a multiple of 8.
    """
    _dots_kernel[(num_programs,)](
        words, out, ROUNDS=rounds, W=WORDS, N=CHAINS, num_warps=4, **LAUNCH
    )
    return 4 * WORDS * num_programs * rounds * CHAINS


@triton.jit
def _dots_kernel(words_ptr, out_ptr, ROUNDS: tl.constexpr, W: tl.constexpr, N: tl.constexpr):
    lane = tl.arange(0, W)
    word = tl.load(words_ptr + lane)
    sums = ()
    for chain in tl.static_range(N):
        sums = sums + (word + chain,)
    for _ in range(0, ROUNDS, _UNROLLED):
        for _ in tl.static_range(_UNROLLED):
            added = ()
            for chain in tl.static_range(N):
                added = added + (dot4(word, sums[chain], sums[chain]),)
            sums = added
    total = word * 0
    for chain in tl.static_range(N):
        total = total + sums[chain]
    tl.store(out_ptr + tl.program_id(0) * W + lane, total)
