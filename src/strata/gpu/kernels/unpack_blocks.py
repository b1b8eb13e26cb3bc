"""Codes and scales of the formats whose blocks are 32 or 64 weights, and of IQ4_XS.

``words`` are a group's words in the order of the planes of ``gpu.packing_fields``; B is the number
of a block of 32 in the group. Codes are eight words of four signed bytes, multiplied by 2^SHIFT of
``unpack.traits``: their sign bit is then the top bit of a byte.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

from strata.formats.grids import E2M1_DOUBLED, IQ4_NL_LEVELS
from strata.gpu.kernels.words import byte_of, half_of, look_up, shifted

_IQ4 = [tl.constexpr(int(v)) for v in np.array(IQ4_NL_LEVELS, np.int8).view(np.int32)]
_FP4 = [tl.constexpr(int(v)) for v in np.array(E2M1_DOUBLED, np.int8).view(np.int32)]
_IQ4_0, _IQ4_1, _IQ4_2, _IQ4_3 = _IQ4
_FP4_0, _FP4_1, _FP4_2, _FP4_3 = _FP4


@triton.jit
def nibbles_in_file_order(words, FIRST: tl.constexpr):
    """Four words hold codes p in their low, codes p + 4 in their high nibbles."""
    codes = ()
    for p in tl.static_range(4):
        codes = codes + (words[FIRST + p] & 0x0F0F0F0F,)
    for p in tl.static_range(4):
        codes = codes + ((words[FIRST + p] >> 4) & 0x0F0F0F0F,)
    return codes


@triton.jit
def nibbles_of_iq4(words, FIRST: tl.constexpr):
    """Four words of nibbles in weight order, as levels of IQ4_NL."""
    codes = ()
    for p in tl.static_range(4):
        codes = codes + look_up(words[FIRST + p], _IQ4_0, _IQ4_1, _IQ4_2, _IQ4_3)
    return codes


@triton.jit
def nibbles_of_fp4(words, FIRST: tl.constexpr):
    """Four words of nibbles in weight order, as doubled levels of E2M1."""
    codes = ()
    for p in tl.static_range(4):
        codes = codes + look_up(words[FIRST + p], _FP4_0, _FP4_1, _FP4_2, _FP4_3)
    return codes


@triton.jit
def codes_q4_0(words, B: tl.constexpr):
    """Codes - 8, times 16."""
    codes = ()
    for p in tl.static_range(4):
        codes = codes + ((words[4 * B + p] << 4) & -0x0F0F0F10,)
    for p in tl.static_range(4):
        codes = codes + (words[4 * B + p] & -0x0F0F0F10,)
    return codes


@triton.jit
def codes_q5_0(words, B: tl.constexpr):
    """Codes - 16, times 8; fifth bits are spread in word 32 + B."""
    codes = ()
    fifth = words[32 + B]
    for k in tl.static_range(8):
        low = shifted(words[4 * B + k % 4], k // 4 * 4 - 3) & 0x78787878
        codes = codes + (low | ((fifth << (7 - k)) & -0x7F7F7F80),)
    return codes


@triton.jit
def codes_q5_1(words, B: tl.constexpr):
    """Codes 0..31."""
    codes = ()
    fifth = words[32 + B]
    nibbles = nibbles_in_file_order(words, 4 * B)
    for k in tl.static_range(8):
        codes = codes + (nibbles[k] | (shifted(fifth, k - 4) & 0x10101010),)
    return codes


@triton.jit
def codes_q8_0(words, B: tl.constexpr):
    """Signed bytes as they are."""
    codes = ()
    for k in tl.static_range(8):
        codes = codes + (words[8 * B + k],)
    return codes


@triton.jit
def codes_q2_0(words, B: tl.constexpr):
    """Codes 0..3; the offset of one is taken away by the sum of activations."""
    codes = ()
    for k in tl.static_range(8):
        codes = codes + ((words[2 * B + k // 4] >> (2 * (k % 4))) & 0x03030303,)
    return codes


@triton.jit
def scale_mxfp4(words, B: tl.constexpr):
    """2^(e - 128): half the stored power; subnormal for e below 2."""
    e = byte_of(words[32 + B // 4], B % 4)
    bits = tl.where(e < 2, (e + 1) << 21, (e - 1) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def scale_nvfp4(words, SUB: tl.constexpr):
    """Half of an unsigned 8-bit float (four bits of exponent, three of mantissa); 0x7f is zero."""
    e = byte_of(words[32 + SUB // 4], SUB % 4)
    value = ((e & 127) << 20).to(tl.float32, bitcast=True)
    return tl.where(e == 127, 0.0, value * 6.646139978924579e35)  # 2^119


@triton.jit
def scale_iq4_xs(words, B: tl.constexpr):
    """d * (scale - 32); the scale's low four bits and high two bits lie apart."""
    low = (words[33] >> (4 * B)) & 15
    high = (words[32] >> (16 + 2 * B)) & 3
    return half_of(words[32], 0) * (low + high * 16 - 32).to(tl.float32)


@triton.jit
def half_at(words, FIRST: tl.constexpr, INDEX: tl.constexpr):
    """FP16 number INDEX of those packed two to a word from word FIRST on."""
    return half_of(words[FIRST + INDEX // 2], INDEX % 2)
