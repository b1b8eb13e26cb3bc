"""Random numbers that depend on a seed and a position alone, by Philox4x32-10.

Owns the generator. Does not know tokens; the sampler draws from it.
"""

from __future__ import annotations

from typing import Final

_WORD: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_NUM_ROUNDS: Final = 10

Words = tuple[int, int, int, int]


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four random 32-bit words of a 128-bit counter under a 64-bit key.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", ten rounds.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        p0 = _MULTIPLIERS[0] * c0
        p1 = _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32) ^ c3 ^ k1, p0 & _WORD
        k0 = (k0 + _KEY_STEPS[0]) & _WORD
        k1 = (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same ``seed`` and ``position``.

    Both are below 2^64. The key is the seed, low word first; the counter is the position, low word
    first, then two zeros. The value is the top 27 bits of word 0 and the top 26 of word 1.
    """
    counter = (position & _WORD, position >> 32, 0, 0)
    high, low, _, _ = philox4x32(counter, (seed & _WORD, seed >> 32))
    return ((high >> 5) * (1 << 26) + (low >> 6)) / (1 << 53)
