"""Codes and scales of the i-quants whose codes are points of a lattice.

``words`` are a group's words in the order of the planes of ``gpu.packing_fields``; B is the number
of a block of 32 in the group. Points come from ``lattices.lattice``: positive where the format
stores signs, times eight in IQ1. ``table`` is one of these, as ``tables.point_at`` takes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.tables import offset_of, point_at
from strata.gpu.kernels.words import byte_of, byte_times, half_of, permute_bytes, shifted


@triton.jit
def _negated(codes, signs):
    """Codes with the signs of a spread word: minus where its bit is set; no code is zero."""
    signed = ()
    for k in tl.static_range(8):
        bit = shifted(signs, k) & 0x01010101
        # A byte is turned over and one added; never a carry, since no code is zero.
        signed = signed + ((codes[k] ^ bit * 255) + bit,)
    return signed


@triton.jit
def _negated_odd(codes, signs):
    """The same for codes that are all odd: turning over all bits but the last negates them."""
    signed = ()
    for k in tl.static_range(8):
        # Nibbles of 8 and more spread the top bit of a byte.
        minus = permute_bytes(shifted(signs, k - 7), signs & 0, (signs & 0) + 0xBA98)
        signed = signed + (codes[k] ^ (minus & -0x01010102),)
    return signed


@triton.jit
def _with_parities(signs):
    """A spread word of seven signs for each eight: the eighth makes the number of ones even.

    The eighth bits (25, 27, 29, 31) hold something else and are overwritten.
    """
    kept = signs & 0x55FFFFFF
    folded = kept ^ (kept >> 16)
    folded = folded ^ (folded >> 8)
    folded = folded ^ (folded >> 1)
    return kept | ((folded & 0x55) << 25)


@triton.jit
def _scale_of_signs(signs):
    """Four bits that lie where the eighth signs would, as 2 s + 1."""
    bits = (signs >> 25) & 0x55
    bits = (bits | (bits >> 1)) & 0x33
    return ((bits | (bits >> 2)) & 15) * 2 + 1


@triton.jit
def codes_iq2_xxs(words, B: tl.constexpr, table):
    """Four points of eight, a byte of index each."""
    codes = ()
    for i in tl.static_range(4):
        codes = codes + point_at(table, byte_times(words[B], i, 8, offset_of(table, words[B])), 2)
    return _negated(codes, _with_parities(words[8 + B]))


@triton.jit
def codes_iq2_xs(words, B: tl.constexpr, table):
    """Four points of eight; the ninth bit of an index is the rest of its signs."""
    codes = ()
    for i in tl.static_range(4):
        ninth = shifted(words[8 + B], 25 + 2 * i - 11) & 0x800
        start = offset_of(table, ninth) + ninth
        codes = codes + point_at(table, byte_times(words[B], i, 8, start), 2)
    return _negated(codes, _with_parities(words[8 + B]))


@triton.jit
def codes_iq2_s(words, B: tl.constexpr, table):
    """Four points of eight; two high bits of each index share a byte."""
    codes = ()
    for i in tl.static_range(4):
        high = shifted(words[16 + B // 4], 8 * (B % 4) + 2 * i - 11) & 0x1800
        start = offset_of(table, high) + high
        codes = codes + point_at(table, byte_times(words[B], i, 8, start), 2)
    return _negated(codes, words[8 + B])


@triton.jit
def codes_iq3_xxs(words, B: tl.constexpr, table, COPIES: tl.constexpr):
    """Eight points of four, a byte of index each."""
    codes = ()
    for k in tl.static_range(8):
        word = words[2 * B + k // 4]
        index = byte_times(word, k % 4, 4 * COPIES, offset_of(table, word))
        codes = codes + point_at(table, index, 1)
    return _negated(codes, _with_parities(words[16 + B]))


@triton.jit
def codes_iq3_s(words, B: tl.constexpr, table, COPIES: tl.constexpr):
    """Eight points of four; bit i of the bytes of a word are the ninth ones of the four of word i,
    or 8 + i."""
    codes = ()
    for half in tl.static_range(2):
        word = words[2 * B + half]
        ninths = shifted(words[24 + B // 4], (2 * B + half) % 8 - 7) & -0x7F7F7F80
        for j in tl.static_range(4):
            start = byte_times(ninths, j, 8 * COPIES, offset_of(table, word))
            index = byte_times(word, j, 4 * COPIES, start)
            codes = codes + point_at(table, index, 1)
    return _negated_odd(codes, words[16 + B])


@triton.jit
def _one_more_or_less(words, is_less):
    """Bytes that are multiples of eight, plus one, or minus one where ``is_less``."""
    # The top bit keeps a borrow from leaving its byte and is put right afterwards.
    less0 = ((words[0] | -0x7F7F7F80) - 0x01010101) ^ ((words[0] ^ -1) & -0x7F7F7F80)
    less1 = ((words[1] | -0x7F7F7F80) - 0x01010101) ^ ((words[1] ^ -1) & -0x7F7F7F80)
    first = tl.where(is_less, less0, words[0] | 0x01010101)
    second = tl.where(is_less, less1, words[1] | 0x01010101)
    return first, second


@triton.jit
def _field_iq1_s(words, B: tl.constexpr):
    return (words[8 + B // 2] >> (16 * (B % 2))) & 0xFFFF


@triton.jit
def codes_iq1_s(words, B: tl.constexpr, table):
    """Eight times a point, plus or minus one alike in the block."""
    field = _field_iq1_s(words, B)
    codes = ()
    for i in tl.static_range(4):
        high = shifted(field, 3 * i - 11) & 0x3800
        start = offset_of(table, high) + high
        point = point_at(table, byte_times(words[B], i, 8, start), 2)
        codes = codes + _one_more_or_less(point, field >= 0x8000)
    return codes


@triton.jit
def codes_iq1_m(words, B: tl.constexpr, table):
    """Eight times a point, plus or minus one for each eight."""
    codes = ()
    for i in tl.static_range(4):
        field = words[8 + B // 2] >> (16 * (B % 2) + 4 * i)
        high = shifted(words[8 + B // 2], 16 * (B % 2) + 4 * i - 11) & 0x3800
        start = offset_of(table, high) + high
        point = point_at(table, byte_times(words[B], i, 8, start), 2)
        codes = codes + _one_more_or_less(point, (field & 8) != 0)
    return codes


@triton.jit
def scale_iq2_xxs(words, B: tl.constexpr):
    """d / 8 * (2 s + 1)."""
    return half_of(words[16], 0) * 0.125 * _scale_of_signs(words[8 + B]).to(tl.float32)


@triton.jit
def scale_iq3_xxs(words, B: tl.constexpr):
    """d / 4 * (2 s + 1)."""
    return half_of(words[24], 0) * 0.25 * _scale_of_signs(words[16 + B]).to(tl.float32)


@triton.jit
def scale_iq3_s(words, B: tl.constexpr):
    """d * (2 s + 1)."""
    return half_of(words[27], 0) * (((words[26] >> (4 * B)) & 15) * 2 + 1).to(tl.float32)


@triton.jit
def scale_iq1_s(words, B: tl.constexpr):
    """d / 8 * (2 s + 1), three bits of s."""
    odd = (_field_iq1_s(words, B) >> 12 & 7) * 2 + 1
    return half_of(words[12], 0) * 0.125 * odd.to(tl.float32)


@triton.jit
def two_odd_scales(word, BYTE: tl.constexpr):
    """2 s + 1 of the two nibbles of a byte."""
    both = byte_of(word, BYTE)
    return (both & 15) * 2 + 1, (both >> 4) * 2 + 1


@triton.jit
def scales_iq1_m(words, B: tl.constexpr):
    """d / 8, whose bits lie in the top nibbles of four halves; two scales 2 s + 1."""
    low, high = words[12], words[13]
    bits = (low >> 12 & 0xF) | (low >> 24 & 0xF0) | (high >> 4 & 0xF00) | (high >> 16 & 0xF000)
    field = words[12 + B // 4] >> (16 * (B // 2 % 2) + 6 * (B % 2))
    return (half_of(bits, 0) * 0.125,), ((field & 7) * 2 + 1, (field >> 3 & 7) * 2 + 1), ()
