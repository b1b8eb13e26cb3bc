"""Checked against the known-answer vectors of Random123."""

from __future__ import annotations

import numpy as np
import pytest

from strata.engine.philox import philox4x32, uniform

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PI_KEY = (0xA4093822, 0x299F31D0)
ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (PI, PI_KEY, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert philox4x32(counter, key) == words


def test_uniform_is_53_bits_of_the_first_two_words() -> None:
    seed, position = 0x0123456789ABCDEF, (5 << 32) + 9
    words = philox4x32((9, 5, 0, 0), (0x89ABCDEF, 0x01234567))
    top = (words[0] >> 5) << 26 | words[1] >> 6
    assert uniform(seed, position) == top / 2**53


def test_uniform_covers_the_unit_interval_evenly() -> None:
    draws = np.array([uniform(7, position) for position in range(20_000)])
    assert draws.min() >= 0
    assert draws.max() < 1
    counts, _ = np.histogram(draws, bins=50, range=(0, 1))
    # 49 degrees of freedom: 99.99 % of fair generators stay below 93.
    assert ((counts - 400) ** 2 / 400).sum() < 93


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    by_position = np.array([uniform(1, position) for position in range(4000)])
    by_seed = np.array([uniform(seed, 1) for seed in range(4000)])
    # Correlation of independent draws has deviation 1/sqrt(n) = 0.016.
    assert abs(np.corrcoef(by_position[1:], by_position[:-1])[0, 1]) < 0.07
    assert abs(np.corrcoef(by_seed[1:], by_seed[:-1])[0, 1]) < 0.07
    assert abs(np.corrcoef(by_seed, by_position)[0, 1]) < 0.07
