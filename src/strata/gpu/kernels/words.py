"""Words of packed planes and activation codes: vector loads and operations on four bytes at once.

Every function works on tensors with one element a thread. Compiled, a load is one instruction of
up to 16 bytes a thread, which Triton's own loads would not be for a tensor of this shape.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import interpreted
from strata.gpu.kernels.arith import INTERPRETED

# Weights are read once: they must not push activations and tables out of the first cache.
_STREAM = tl.constexpr("ld.global.L1::no_allocate.L2::128B")
_CACHED = tl.constexpr("ld.global")
_MAGIC = tl.constexpr(12582912.0)


@triton.jit
def load_words(ptr, NUM: tl.constexpr, HOW: tl.constexpr):
    """NUM (1, 2 or 4) int32 words at a byte pointer aligned to their size; HOW is a PTX load."""
    if INTERPRETED:
        words = ()
        at = ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        for i in tl.static_range(NUM):
            words = words + (tl.load(at + i),)
        return words
    elif NUM == 4:
        return tl.inline_asm_elementwise(
            HOW + ".v4.b32 {$0, $1, $2, $3}, [$4];",
            "=r,=r,=r,=r,l",
            [ptr],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    elif NUM == 2:
        return tl.inline_asm_elementwise(
            HOW + ".v2.b32 {$0, $1}, [$2];",
            "=r,=r,l",
            [ptr],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        return (
            tl.inline_asm_elementwise(
                HOW + ".b32 $0, [$1];", "=r,l", [ptr], dtype=tl.int32, is_pure=True, pack=1
            ),
        )


@triton.jit
def load_half_word(ptr):
    """A 16-bit value as the low half of an int32 word."""
    at = ptr.to(tl.pointer_type(tl.int16), bitcast=True)
    return tl.load(at).to(tl.int32)


@triton.jit
def load_plane(
    base,
    row,
    group,
    OFFSET: tl.constexpr,
    LOAD_BYTES: tl.constexpr,
    LOADS: tl.constexpr,
    TOTAL_LOADS: tl.constexpr,
    IS_SHORT: tl.constexpr,
):
    """One row's words of a group, for every thread; ``base`` points at its panel.

    OFFSET to TOTAL_LOADS are those of ``packing.PlanePlace``. With IS_SHORT a group may lie past
    the end, wholly or in part: the last load stands in for what is missing, so that every value is
    one of the matrix; activation scales of zero make its terms zero.
    """
    words = ()
    for i in tl.static_range(LOADS):
        load = group * LOADS + i
        if IS_SHORT:
            load = tl.minimum(load, TOTAL_LOADS - 1)
        at = base + (OFFSET + (load * 8 + row) * LOAD_BYTES)
        if LOAD_BYTES == 2:
            words = words + (load_half_word(at),)
        else:
            words = words + load_words(at, LOAD_BYTES // 4, _STREAM)
    return words


@triton.jit
def half_of(word, INDEX: tl.constexpr):
    """The low (0) or high (1) FP16 of words, as float32."""
    bits = (word >> (16 * INDEX)).to(tl.int16)
    return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def byte_of(word, INDEX: tl.constexpr):
    """Byte INDEX of words, unsigned."""
    return (word >> (8 * INDEX)) & 255


@triton.jit
def byte_times(word, INDEX: tl.constexpr, FACTOR: tl.constexpr, add):
    """Byte INDEX of words, unsigned, times FACTOR (below 256), plus ``add``: one instruction."""
    if INTERPRETED:
        return byte_of(word, INDEX) * FACTOR + add
    else:
        FACTORS: tl.constexpr = FACTOR << (8 * INDEX)
        return tl.inline_asm_elementwise(
            "dp4a.u32.u32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [word, word * 0 + FACTORS, add],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def shifted(word, RIGHT: tl.constexpr):
    """``word`` moved right by RIGHT bits, or left when that is negative."""
    if RIGHT < 0:
        return word << -RIGHT
    return word >> RIGHT


@triton.jit
def integer_sum(magic_sum, SHIFT: tl.constexpr):
    """An int32 sum begun at MAGIC_BITS, divided by 2^SHIFT, as float32: one exact operation.

    The bits of 1.5 * 2^23 plus a sum below 2^22 are the float of both added.
    """
    value = magic_sum.to(tl.float32, bitcast=True)
    if SHIFT == 0:
        return value - _MAGIC
    return tl.fma(value, 0.5**SHIFT, -_MAGIC * 0.5**SHIFT)


if INTERPRETED:
    permute_bytes = interpreted.prmt
else:

    @triton.jit
    def permute_bytes(low, high, selector):
        """Byte i of the result is byte (nibble i of selector) of the eight bytes high:low.

        Where bit 3 of a nibble is set, the sign of the byte picked fills the byte of the result.
        Only the low 16 bits of the selector are used.
        """
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [low, high, selector],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )


@triton.jit
def look_up(word, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr, T3: tl.constexpr):
    """Eight nibbles through a table of sixteen bytes (words T0..T3): two words, in order."""
    selector = word & 0x77777777
    # Nibble i chooses byte i of the lower or the upper half's result.
    choice = ((word & -0x77777778) >> 1) & 0x44444444 | 0x32103210
    zero = word & 0
    first = permute_bytes(
        permute_bytes(zero + T0, zero + T1, selector),
        permute_bytes(zero + T2, zero + T3, selector),
        choice,
    )
    selector = selector >> 16
    choice = choice >> 16
    second = permute_bytes(
        permute_bytes(zero + T0, zero + T1, selector),
        permute_bytes(zero + T2, zero + T3, selector),
        choice,
    )
    return first, second
