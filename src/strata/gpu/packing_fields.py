"""Which bits of a stored group of 256 weights go into which plane of a packed matrix.

Owns the arrangement only; ``packing`` moves the bits. Every bit of a block lands in exactly one
place, so nothing is widened. The top bit of codes with an offset of half their range is turned
over, which makes them two's complement. A plane is what one row's group is loaded by: ``loads``
times ``load_bytes`` bytes. Names of layouts of words, as the unpacking kernels use them:

    file          the bytes as the format has them
    weight order  nibble t of a block is weight t, so four neighbours make one byte selector
    spread        bit 8 * (w % 4) + w // 4 of a 32-bit word belongs to weight w: one shift puts the
                  bits of four neighbours at the same place of four bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strata.errors import UnsupportedError
from strata.formats.block_formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 256  # weights whose blocks are summed before they join the total
Bits = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plane:
    """One plane of a group of one row.

    Attributes:
        load_bytes: bytes of one load (2, 4, 8 or 16); a panel's rows lie side by side in it.
        loads: loads of a full group, in the order of its blocks.
        bits: [loads * load_bytes * 8] positions of the bits in the stored group.
        bytes: the same as whole bytes, or None where bits move inside bytes.
        flips: bits turned over in every byte of the plane.
    """

    load_bytes: int
    loads: int
    bits: Bits
    bytes: Bits | None
    flips: int = 0


class _Group:
    """Bit positions in the stored bytes of one group."""

    def __init__(self, format_name: str) -> None:
        fmt = FORMATS[format_name]
        self.block_bytes = fmt.block_bytes
        self.num_blocks = GROUP // fmt.block_size
        self.num_bits = self.num_blocks * fmt.block_bytes * 8

    def file(self, first: int, count: int) -> Bits:
        """[blocks, count * 8]: bytes first .. first + count - 1 of every block."""
        start = np.arange(self.num_blocks)[:, None] * self.block_bytes + first
        return (8 * start + np.arange(8 * count)).astype(np.int64)

    def nibbles(self, first: int, run: int) -> Bits:
        """[blocks, 2 * run * 4] in weight order: bytes hold weight j low and j + run high."""
        low = self.file(first, run).reshape(self.num_blocks, run, 2, 4)
        return low.transpose(0, 2, 1, 3).reshape(self.num_blocks, -1)


def spread(bits: Bits) -> Bits:
    """[..., 32] bits of weights 0..31 in the order of a spread word."""
    return bits.reshape(*bits.shape[:-1], 8, 4).swapaxes(-1, -2).reshape(bits.shape)


def _plane(load_bytes: int, bits: Bits, flips: int = 0) -> Plane:
    flat = bits.reshape(-1)
    whole = flat.reshape(-1, 8)
    is_bytes = bool((whole % 8 == np.arange(8)).all())
    bytes_ = whole[:, 0] // 8 if is_bytes else None
    return Plane(load_bytes, len(flat) // (8 * load_bytes), flat, bytes_, flips)


def _nibble_blocks(
    *scales: int, nibbles: int, high: int | None = None, flips: int = 0
) -> Callable[[_Group], tuple[Plane, ...]]:
    """Codes in file order, then fifth bits (spread), then planes of one half a block."""

    def planes(g: _Group) -> tuple[Plane, ...]:
        halves = tuple(_plane(16, g.file(first, 2)) for first in scales)
        if high is None:
            return (_plane(16, g.file(nibbles, 16), flips), *halves)
        return (
            _plane(16, g.file(nibbles, 16)),
            _plane(16, spread(g.file(high, 4)), flips),
            *halves,
        )

    return planes


def _q2_0(g: _Group) -> tuple[Plane, ...]:
    # Weight 16p + 4s + t of a block of 32: bits 2s, 2s + 1 of byte t of word p.
    codes = g.file(2, 16).reshape(g.num_blocks, 4, 4, 4, 2).transpose(0, 1, 3, 2, 4)
    return _plane(16, codes), _plane(8, g.file(0, 2))


def _nvfp4(g: _Group) -> tuple[Plane, ...]:
    codes = [g.nibbles(4 + 8 * s, 8) for s in range(4)]
    return _plane(16, np.concatenate(codes, axis=1)), _plane(16, g.file(0, 4))


def _signs_and_rest(signs: list[Bits], rest: list[Bits]) -> Bits:
    """[blocks, 32] spread words: 7 signs for each of four eights; the eighth bit is ``rest``."""
    eights = [np.concatenate([s, r], axis=-1) for s, r in zip(signs, rest, strict=True)]
    return spread(np.concatenate(eights, axis=-1))


def _signs_and_scale(words: Bits) -> Bits:
    """Words of 4 x 7 signs and a 4-bit scale: [..., 32] bits."""
    signs = [words[..., 7 * i : 7 * i + 7] for i in range(4)]
    return _signs_and_rest(signs, [words[..., 28 + i : 29 + i] for i in range(4)])


def _iq2_xxs(g: _Group) -> tuple[Plane, ...]:
    pairs = g.file(2, 64).reshape(8, 2, 32)
    return (
        _plane(16, pairs[:, 0]),
        _plane(16, _signs_and_scale(pairs[:, 1])),
        _plane(2, g.file(0, 2)),
    )


def _iq2_xs(g: _Group) -> tuple[Plane, ...]:
    fields = g.file(2, 64).reshape(8, 4, 16)
    signs = [fields[:, i, 9:] for i in range(4)]
    words = _signs_and_rest(signs, [fields[:, i, 8:9] for i in range(4)])
    scales, d = _plane(8, g.file(66, 8)), _plane(2, g.file(0, 2))
    return _plane(16, fields[:, :, :8]), _plane(16, words), scales, d


def _iq2_s(g: _Group) -> tuple[Plane, ...]:
    signs = spread(g.file(34, 32).reshape(8, 32))
    head = _plane(16, g.file(66, 16))  # high bits of the indices, then scales
    return _plane(16, g.file(2, 32)), _plane(16, signs), head, _plane(2, g.file(0, 2))


def _iq3_xxs(g: _Group) -> tuple[Plane, ...]:
    words = _signs_and_scale(g.file(66, 32).reshape(8, 32))
    return _plane(16, g.file(2, 64)), _plane(16, words), _plane(2, g.file(0, 2))


def _iq3_s(g: _Group) -> tuple[Plane, ...]:
    signs = spread(g.file(74, 32).reshape(8, 32))
    # Bit i of a word's four bytes: ninth bits of the indices in word i (or 8 + i).
    ninths = g.file(66, 8).reshape(2, 8, 4).swapaxes(1, 2)
    high, scales = _plane(8, ninths), _plane(4, g.file(106, 4))
    return _plane(16, g.file(2, 64)), _plane(16, signs), high, scales, _plane(2, g.file(0, 2))


def _in_file_order(*fields: tuple[int, ...]) -> Callable[[_Group], tuple[Plane, ...]]:
    """Planes of (load bytes, first byte, bytes[, flips]) as stored."""
    return lambda g: tuple(
        _plane(load, g.file(first, count), *flips) for load, first, count, *flips in fields
    )


_ARRANGEMENTS: dict[str, Callable[[_Group], tuple[Plane, ...]]] = {
    "Q4_0": _nibble_blocks(0, nibbles=2, flips=0x88),
    "Q4_1": _nibble_blocks(0, 2, nibbles=4),
    "Q5_0": _nibble_blocks(0, nibbles=6, high=2, flips=0xFF),
    "Q5_1": _nibble_blocks(0, 2, nibbles=8, high=4),
    "Q8_0": _in_file_order((16, 2, 32), (16, 0, 2)),
    "Q2_0": _q2_0,
    "IQ4_NL": lambda g: (_plane(16, g.nibbles(2, 16)), _plane(16, g.file(0, 2))),
    "MXFP4": lambda g: (_plane(16, g.nibbles(1, 16)), _plane(8, g.file(0, 1))),
    "NVFP4": _nvfp4,
    "Q2_K": _in_file_order((16, 16, 64), (16, 0, 16), (4, 80, 4)),
    "Q3_K": _in_file_order((16, 32, 64), (16, 0, 32, 0xFF), (4, 96, 12), (2, 108, 2)),
    "Q4_K": _in_file_order((16, 16, 128), (16, 0, 16)),
    "Q5_K": _in_file_order((16, 48, 128), (16, 16, 32), (16, 0, 16)),
    "Q6_K": _in_file_order((16, 0, 128), (16, 128, 64, 0xAA), (16, 192, 16), (2, 208, 2)),
    "IQ4_XS": lambda g: (
        _plane(16, np.concatenate([g.nibbles(8 + 16 * b, 16) for b in range(8)], axis=1)),
        _plane(8, g.file(0, 8)),
    ),
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _in_file_order((16, 2, 32), (16, 34, 16), (2, 0, 2)),
    "IQ1_M": _in_file_order((16, 0, 32), (16, 32, 16), (8, 48, 8)),
}

BLOCK_FORMATS = tuple(_ARRANGEMENTS)
"""Quantised formats that can be packed."""


@cache
def planes_of(format_name: str) -> tuple[Plane, ...]:
    """The planes of a format, in the order a panel holds them.

    Raises:
        UnsupportedError: no quantised format of this name.
    """
    if format_name not in _ARRANGEMENTS:
        raise UnsupportedError(
            f"block format {format_name} has no packed form; known are "
            f"{', '.join(_ARRANGEMENTS)}.\n  Try: a file quantised to one of these."
        )
    return _ARRANGEMENTS[format_name](_Group(format_name))
