"""Dispatch over block formats: what the products need to know of each.

Traits are plain numbers of a format's name, handed to kernels as a compile-time tuple:

    SHIFT       codes come multiplied by 2^SHIFT (it saves taking an offset away)
    NUM_SCALES  float scales a block of 32 (2: one for each sixteen)
    HAS_SUB     1 when each sixteen has an integer scale
    NUM_MINIMA  minima a block of 32
    SUM_FACTOR  multiple of the sum of activation codes that is added to the integer sum
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import unpack_blocks as blocks
from strata.gpu.kernels import unpack_grid as grid
from strata.gpu.kernels import unpack_k as k
from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.words import half_of

_SHIFTS = {"Q4_0": 4, "Q5_0": 3, "Q3_K": 5, "Q6_K": 2}
_SUB_SCALED = ("Q2_K", "Q3_K", "Q6_K", "IQ2_XS", "IQ2_S", "IQ1_M")
_COPIES = {"IQ3_S": 8, "IQ3_XXS": 8}
_MINIMA = {"Q4_1": 1, "Q5_1": 1, "Q4_K": 1, "Q5_K": 1, "Q2_K": 2}


def traits(format_name: str) -> tuple[int, int, int, int, int]:
    """(SHIFT, NUM_SCALES, HAS_SUB, NUM_MINIMA, SUM_FACTOR) of a format."""
    return (
        _SHIFTS.get(format_name, 0),
        2 if format_name == "NVFP4" else 1,
        int(format_name in _SUB_SCALED),
        _MINIMA.get(format_name, 0),
        -1 if format_name == "Q2_0" else 0,
    )


def copies_of(format_name: str) -> int:
    """How many times a program keeps the points of a format in shared memory."""
    return 1 if INTERPRETED else _COPIES.get(format_name, 1)


@triton.jit
def block_codes(FORMAT: tl.constexpr, words, B: tl.constexpr, table, COPIES: tl.constexpr = 1):
    """Eight words of four signed codes each: block B of a group's words.

    ``table`` is the format's lattice: a pointer to it, or what ``tables.copy_of`` gives, which
    holds each point COPIES times.
    """
    if FORMAT == "Q4_0":
        return blocks.codes_q4_0(words, B)
    elif FORMAT == "Q4_1":
        return blocks.nibbles_in_file_order(words, 4 * B)
    elif FORMAT == "Q5_0":
        return blocks.codes_q5_0(words, B)
    elif FORMAT == "Q5_1":
        return blocks.codes_q5_1(words, B)
    elif FORMAT == "Q8_0":
        return blocks.codes_q8_0(words, B)
    elif FORMAT == "Q2_0":
        return blocks.codes_q2_0(words, B)
    elif FORMAT == "IQ4_NL" or FORMAT == "IQ4_XS":
        return blocks.nibbles_of_iq4(words, 4 * B)
    elif FORMAT == "MXFP4" or FORMAT == "NVFP4":
        return blocks.nibbles_of_fp4(words, 4 * B)
    elif FORMAT == "Q2_K":
        return k.codes_q2_k(words, B)
    elif FORMAT == "Q3_K":
        return k.codes_q3_k(words, B)
    elif FORMAT == "Q4_K":
        return k.codes_q4_k(words, B)
    elif FORMAT == "Q5_K":
        return k.codes_q5_k(words, B)
    elif FORMAT == "Q6_K":
        return k.codes_q6_k(words, B)
    elif FORMAT == "IQ2_XXS":
        return grid.codes_iq2_xxs(words, B, table)
    elif FORMAT == "IQ2_XS":
        return grid.codes_iq2_xs(words, B, table)
    elif FORMAT == "IQ2_S":
        return grid.codes_iq2_s(words, B, table)
    elif FORMAT == "IQ3_XXS":
        return grid.codes_iq3_xxs(words, B, table, COPIES)
    elif FORMAT == "IQ3_S":
        return grid.codes_iq3_s(words, B, table, COPIES)
    elif FORMAT == "IQ1_S":
        return grid.codes_iq1_s(words, B, table)
    else:
        tl.static_assert(FORMAT == "IQ1_M")
        return grid.codes_iq1_m(words, B, table)


@triton.jit
def block_scales(FORMAT: tl.constexpr, words, B: tl.constexpr):
    """(scales, integer scales, minima) of a block, each a tuple as long as the traits say."""
    if FORMAT == "Q4_0" or FORMAT == "IQ4_NL":
        return (blocks.half_at(words, 32, B),), (), ()
    elif FORMAT == "Q4_1":
        return (blocks.half_at(words, 32, B),), (), (blocks.half_at(words, 36, B),)
    elif FORMAT == "Q5_0":
        return (blocks.half_at(words, 40, B),), (), ()
    elif FORMAT == "Q5_1":
        return (blocks.half_at(words, 40, B),), (), (blocks.half_at(words, 44, B),)
    elif FORMAT == "Q8_0":
        return (blocks.half_at(words, 64, B),), (), ()
    elif FORMAT == "Q2_0":
        return (blocks.half_at(words, 16, B // 2),), (), ()
    elif FORMAT == "IQ4_XS":
        return (blocks.scale_iq4_xs(words, B),), (), ()
    elif FORMAT == "MXFP4":
        return (blocks.scale_mxfp4(words, B),), (), ()
    elif FORMAT == "NVFP4":
        return (blocks.scale_nvfp4(words, 2 * B), blocks.scale_nvfp4(words, 2 * B + 1)), (), ()
    elif FORMAT == "Q2_K":
        return k.scales_q2_k(words, B)
    elif FORMAT == "Q3_K":
        return k.scales_q3_k(words, B)
    elif FORMAT == "Q4_K":
        return k.scales_q4_k(words, 32, B)
    elif FORMAT == "Q5_K":
        return k.scales_q4_k(words, 40, B)
    elif FORMAT == "Q6_K":
        return k.scales_q6_k(words, B)
    elif FORMAT == "IQ2_XXS":
        return (grid.scale_iq2_xxs(words, B),), (), ()
    elif FORMAT == "IQ2_XS":
        subs = grid.two_odd_scales(words[16 + B // 4], B % 4)
        return (half_of(words[18], 0) * 0.125,), subs, ()
    elif FORMAT == "IQ2_S":
        subs = grid.two_odd_scales(words[18 + B // 4], B % 4)
        return (half_of(words[20], 0) * 0.125,), subs, ()
    elif FORMAT == "IQ3_XXS":
        return (grid.scale_iq3_xxs(words, B),), (), ()
    elif FORMAT == "IQ3_S":
        return (grid.scale_iq3_s(words, B),), (), ()
    elif FORMAT == "IQ1_S":
        return (grid.scale_iq1_s(words, B),), (), ()
    else:
        tl.static_assert(FORMAT == "IQ1_M")
        return grid.scales_iq1_m(words, B)
