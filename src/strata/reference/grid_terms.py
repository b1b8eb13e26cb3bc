"""Integers and scales of the i-quants whose codes are points of a lattice table.

The tables come from ``formats.grids``; how indices, signs and scales are packed is written here
apart from ``formats.grid_decode``, so that each checks the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strata.formats.grids import GRIDS
from strata.reference.term_fields import Decoded, half, words

if TYPE_CHECKING:
    from collections.abc import Callable

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

_LANE = np.arange(4)  # four groups of eight weights in a block of 32
_EIGHTH = np.float32(0.125)
_QUARTER = np.float32(0.25)


def _signs_of_seven_bits(field: Ints) -> Ints:
    """[..., 8] of +1 and -1: bits 0..6 as stored, bit 7 makes the number of minus signs even."""
    bits = field[..., None] >> np.arange(7) & 1
    last = bits.sum(axis=-1, keepdims=True) & 1
    return 1 - 2 * np.concatenate([bits, last], axis=-1)


def _signs_of_bytes(field: Ints) -> Ints:
    """[..., 8] of +1 and -1 from eight stored bits, lowest first."""
    return 1 - 2 * (field[..., None] >> np.arange(8) & 1)


def _nibble_pairs(packed: Bytes) -> Ints:
    """Low then high nibble of every byte: [n, k] to [n, 2k]."""
    return (
        (packed[:, :, None] >> np.array([0, 4], np.uint8) & 15)
        .reshape(len(packed), -1)
        .astype(np.int64)
    )


def _odd(field: Ints) -> NDArray[np.float32]:
    return (2 * field + 1).astype(np.float32)


def _iq2_xxs(b: Bytes) -> Decoded:
    pairs = words(b, 2, 16, "<u4").reshape(-1, 8, 2)
    index = pairs[:, :, :1] >> 8 * _LANE & 255
    signs = _signs_of_seven_bits(pairs[:, :, 1:] >> 7 * _LANE & 127)
    codes = GRIDS["iq2xxs"][index] * signs
    return Decoded(codes, half(b, 0) * _EIGHTH * _odd(pairs[:, :, 1] >> 28))


def _iq2_xs(b: Bytes) -> Decoded:
    fields = words(b, 2, 32, "<u2")
    codes = GRIDS["iq2xs"][fields & 511] * _signs_of_seven_bits(fields >> 9)
    sub = 2 * _nibble_pairs(b[:, 66:74]) + 1
    return Decoded(codes, np.repeat(half(b, 0) * _EIGHTH, 8, axis=1), sub)


def _iq2_s(b: Bytes) -> Decoded:
    low = b[:, 2:34].astype(np.int64).reshape(-1, 8, 4)
    high = b[:, 66:74].astype(np.int64)[:, :, None] >> 2 * _LANE & 3
    signs = _signs_of_bytes(b[:, 34:66].astype(np.int64).reshape(-1, 8, 4))
    codes = GRIDS["iq2s"][low | high << 8] * signs
    sub = 2 * _nibble_pairs(b[:, 74:82]) + 1
    return Decoded(codes, np.repeat(half(b, 0) * _EIGHTH, 8, axis=1), sub)


def _iq3_xxs(b: Bytes) -> Decoded:
    points = GRIDS["iq3xxs"][b[:, 2:66]].reshape(-1, 8, 4, 8)  # two points of four make eight
    fields = words(b, 66, 8, "<u4")[:, :, None]
    codes = points * _signs_of_seven_bits(fields >> 7 * _LANE & 127)
    return Decoded(codes, half(b, 0) * _QUARTER * _odd(fields[:, :, 0] >> 28))


def _iq3_s(b: Bytes) -> Decoded:
    high = np.unpackbits(b[:, 66:74], axis=1, bitorder="little").astype(np.int64)
    points = GRIDS["iq3s"][b[:, 2:66] | high << 8].reshape(-1, 32, 8)
    codes = points * _signs_of_bytes(b[:, 74:106].astype(np.int64))
    return Decoded(codes, half(b, 0) * _odd(_nibble_pairs(b[:, 106:110])))


def _iq1_s(b: Bytes) -> Decoded:
    fields = words(b, 34, 8, "<u2")
    index = b[:, 2:34].reshape(-1, 8, 4) | (fields[:, :, None] >> 3 * _LANE & 7) << 8
    shift = np.where(fields & 0x8000, -1, 1)[:, :, None, None]
    codes = 8 * GRIDS["iq1s"][index].astype(np.int64) + shift
    return Decoded(codes, half(b, 0) * _EIGHTH * _odd(fields >> 12 & 7))


def _iq1_m(b: Bytes) -> Decoded:
    scale_words = words(b, 48, 4, "<u2")
    bits = (scale_words >> 12 << 4 * _LANE).sum(axis=1, keepdims=True)
    d = bits.astype("<u2").view("<f2").astype(np.float32)
    fields = _nibble_pairs(b[:, 32:48])  # three bits of index, one of shift, per eight weights
    index = b[:, :32] | (fields & 7) << 8
    shift = np.where(fields & 8, -1, 1)[:, :, None]
    codes = 8 * GRIDS["iq1s"][index].astype(np.int64) + shift
    sub = (2 * (scale_words[:, :, None] >> 3 * _LANE & 7) + 1).reshape(len(b), 16)
    return Decoded(codes, np.repeat(d * _EIGHTH, 8, axis=1), sub)


DECODERS: dict[str, tuple[int, Callable[[Bytes], Decoded]]] = {
    "IQ1_S": (50, _iq1_s),
    "IQ1_M": (56, _iq1_m),
    "IQ2_XXS": (66, _iq2_xxs),
    "IQ2_XS": (74, _iq2_xs),
    "IQ2_S": (82, _iq2_s),
    "IQ3_XXS": (98, _iq3_xxs),
    "IQ3_S": (110, _iq3_s),
}
