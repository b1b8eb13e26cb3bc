"""Random numbers of a seed and a position by Philox4x32-10, for use inside kernels.

Bit-equal to ``strata.engine.philox``. Source: Salmon et al. 2011, ten rounds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _product(x, multiplier: tl.constexpr):
    """High and low word of a product of 32-bit words held in uint64."""
    product = x * tl.full([], multiplier, tl.uint64)
    return product >> 32, product & 0xFFFFFFFF


@triton.jit
def uniform(seed, position):
    """float64 in [0, 1) with 53 random bits. seed: uint64; position: uint64, absolute."""
    word = tl.full([], 0xFFFFFFFF, tl.uint64)
    c0, c1 = position & word, position >> 32
    c2, c3 = position & 0, position & 0
    k0, k1 = seed & word, seed >> 32
    for _ in tl.static_range(10):
        high0, low0 = _product(c0, 0xD2511F53)
        high1, low1 = _product(c2, 0xCD9E8D57)
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = (k0 + tl.full([], 0x9E3779B9, tl.uint64)) & word
        k1 = (k1 + tl.full([], 0xBB67AE85, tl.uint64)) & word
    bits = (c0 >> 5) * 67108864 + (c1 >> 6)
    return bits.to(tl.float64) * 1.1102230246251565e-16
