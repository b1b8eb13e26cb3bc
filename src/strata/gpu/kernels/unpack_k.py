"""Codes and scales of the K formats: super-blocks of 256 weights, which are one group.

``words`` are a group's words in the order of the planes of ``gpu.packing_fields``; B is the number
of a block of 32 in the group. Codes are as in ``unpack_blocks``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import signed_byte
from strata.gpu.kernels.words import byte_of, half_of, shifted


@triton.jit
def codes_q2_k(words, B: tl.constexpr):
    """Codes 0..3."""
    codes = ()
    for j in tl.static_range(8):
        codes = codes + (shifted(words[8 * (B // 4) + j], 2 * (B % 4)) & 0x03030303,)
    return codes


@triton.jit
def codes_q3_k(words, B: tl.constexpr):
    """Codes - 4, times 32: the low two bits go to bits 5 and 6, the third to bit 7."""
    codes = ()
    for j in tl.static_range(8):
        low = shifted(words[8 * (B // 4) + j], 2 * (B % 4) - 5) & 0x60606060
        high = shifted(words[16 + j], B - 7) & -0x7F7F7F80
        codes = codes + (low | high,)
    return codes


@triton.jit
def codes_q4_k(words, B: tl.constexpr):
    """Codes 0..15; two blocks share their words."""
    codes = ()
    for j in tl.static_range(8):
        codes = codes + (shifted(words[8 * (B // 2) + j], 4 * (B % 2)) & 0x0F0F0F0F,)
    return codes


@triton.jit
def codes_q5_k(words, B: tl.constexpr):
    """Codes 0..31: bit B of the fifth bits' bytes."""
    codes = ()
    for j in tl.static_range(8):
        low = shifted(words[8 * (B // 2) + j], 4 * (B % 2)) & 0x0F0F0F0F
        codes = codes + (low | (shifted(words[32 + j], B - 4) & 0x10101010),)
    return codes


@triton.jit
def codes_q6_k(words, B: tl.constexpr):
    """Codes - 32, times 4: low nibbles go to bits 2..5, the other two to bits 6 and 7."""
    codes = ()
    for j in tl.static_range(8):
        low = shifted(words[16 * (B // 4) + 8 * (B % 2) + j], 4 * (B % 4 // 2) - 2) & 0x3C3C3C3C
        high = shifted(words[32 + 8 * (B // 4) + j], 2 * (B % 4) - 6) & -0x3F3F3F40
        codes = codes + (low | high,)
    return codes


@triton.jit
def scales_q2_k(words, B: tl.constexpr):
    """d; two scales of four bits; two minima."""
    d, dmin = half_of(words[20], 0), half_of(words[20], 1)
    first = byte_of(words[16 + B // 2], 2 * B % 4)
    second = byte_of(words[16 + B // 2], 2 * B % 4 + 1)
    minima = (-(dmin * (first >> 4).to(tl.float32)), -(dmin * (second >> 4).to(tl.float32)))
    return (d,), (first & 15, second & 15), minima


@triton.jit
def _sub_q3_k(words, SUB: tl.constexpr):
    low = byte_of(words[24 + SUB % 8 // 4], SUB % 4) >> (4 * (SUB // 8)) & 15
    high = byte_of(words[26], SUB % 4) >> (2 * (SUB // 4)) & 3
    return low + high * 16 - 32


@triton.jit
def scales_q3_k(words, B: tl.constexpr):
    """d; two scales of six bits, less 32."""
    return (half_of(words[27], 0),), (_sub_q3_k(words, 2 * B), _sub_q3_k(words, 2 * B + 1)), ()


@triton.jit
def scales_q4_k(words, HEAD: tl.constexpr, B: tl.constexpr):
    """d * scale and -(dmin * min), six bits each; word HEAD holds d and dmin, then three words."""
    first, second, third = words[HEAD + 1], words[HEAD + 2], words[HEAD + 3]
    if B < 4:
        scale = byte_of(first, B) & 63
        minimum = byte_of(second, B) & 63
    else:
        last = byte_of(third, B - 4)
        scale = (last & 15) | (byte_of(first, B - 4) >> 6 << 4)
        minimum = (last >> 4) | (byte_of(second, B - 4) >> 6 << 4)
    d, dmin = half_of(words[HEAD], 0), half_of(words[HEAD], 1)
    return (d * scale.to(tl.float32),), (), (-(dmin * minimum.to(tl.float32)),)


@triton.jit
def scales_q6_k(words, B: tl.constexpr):
    """d; two signed bytes."""
    word = words[48 + B // 2]
    subs = (signed_byte(word, 2 * B % 4), signed_byte(word, 2 * B % 4 + 1))
    return (half_of(words[52], 0),), subs, ()
