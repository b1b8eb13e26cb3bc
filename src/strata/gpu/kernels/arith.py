"""Single operations: exp, sigmoid, silu, rounding, integer dot products, with promised bits.

The same sequences as ``reference.expert_numerics``, for use inside kernels; what is called near
has a card's own bits instead, for places where none are promised. Owns the two ways to
run a kernel (compiled, or in Triton's interpreter) as far as they differ: inline PTX is used when
compiled only. Kernels must be launched with ``**LAUNCH``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import interpreted
from strata.reference import expert_numerics as numerics

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run in the interpreter (TRITON_INTERPRET=1 before the first import)."""

LAUNCH = {"enable_fp_fusion": False}
"""Options every launch passes: no multiplication is contracted with an addition."""

_EXP_LO = tl.constexpr(float(numerics.EXP_LO))
_EXP_HI = tl.constexpr(float(numerics.EXP_HI))
_LOG2_E = tl.constexpr(float(numerics.LOG2_E))
_LN2_HI = tl.constexpr(float(numerics.LN2_HI))
_LN2_LO = tl.constexpr(float(numerics.LN2_LO))
_C2 = tl.constexpr(float(numerics.EXP_C2))
_C3 = tl.constexpr(float(numerics.EXP_C3))
_C4 = tl.constexpr(float(numerics.EXP_C4))
_C5 = tl.constexpr(float(numerics.EXP_C5))
_C6 = tl.constexpr(float(numerics.EXP_C6))
# Limits of the divisions in sigmoid and silu, whose divisor is at least 1.
_LARGE, _SMALL, _TINY = tl.constexpr(2.0**64), tl.constexpr(2.0**-64), tl.constexpr(2.0**-60)
_NO_NORMAL_INVERSE, _TO_UNITS = tl.constexpr(2.0**126), tl.constexpr(2.0**85)
# Added to a number from 0 to itself, it leaves a whole one.
_WHOLE = tl.constexpr(2.0**23)
# Adding 1.5 * 2^23 leaves a float whose last bit is worth one: rounded half to even.
_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.jit
def rint(x):
    """Nearest integer, half to even, as float32; |x| below 2^22, zero comes out as +0."""
    return (x + _MAGIC) - _MAGIC


@triton.jit
def div(x, y):
    """x / y rounded once (a plain ``/`` is an approximation on a card)."""
    return tl.div_rn(x, y)


@triton.jit
def power_of_two(n):
    """2^n as float32 for int32 n in -126..127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def exp(x):
    """exp(x) by the project's sequence; float32, bit-equal to ``exp_f32``. A NaN stays a NaN."""
    x = tl.maximum(x, _EXP_LO, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, _EXP_HI, propagate_nan=tl.PropagateNan.ALL)
    n = rint(x * _LOG2_E)
    r = (x - n * _LN2_HI) - n * _LN2_LO
    p = _C6 * r + _C5
    p = p * r + _C4
    p = p * r + _C3
    p = p * r + _C2
    y = (p * (r * r) + r) + 1.0
    # A NaN has no integer; y is one already.
    whole = tl.where(n == n, n, 0.0).to(tl.int32)
    half = whole >> 1
    return (y * power_of_two(half)) * power_of_two(whole - half)


@triton.jit
def quotient(x, y):
    """x / y rounded once, y in 2^-30 .. 2^64, |x| 0 or at least 2^-60, and finite.

    The very instructions that a card's division runs there, without its branch to the rest of all
    numbers: so several divisions run at once.
    """
    if INTERPRETED:
        return tl.div_rn(x, y)
    inverse = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
    )
    inverse = tl.fma(tl.fma(-y, inverse, 1.0), inverse, inverse)
    q = x * inverse
    return tl.fma(tl.fma(-y, q, x), inverse, q)


@triton.jit
def over(x, COUNT: tl.constexpr):
    """x / COUNT rounded once; a multiplication where that is the same."""
    if (COUNT & (COUNT - 1)) == 0:
        return x * (1.0 / COUNT)
    return tl.div_rn(x, float(COUNT))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), bit-equal to ``sigmoid_f32``."""
    y = 1.0 + exp(-x)
    if INTERPRETED:
        return tl.div_rn(1.0, y)
    is_large = y > _LARGE
    part = tl.where(is_large, y * _SMALL, y)
    q = quotient(y * 0.0 + 1.0, part)
    # A subnormal is a whole number of 2^-149, found by its remainder: no quotient lies half way.
    count = (q * _TO_UNITS + _WHOLE) - _WHOLE
    rest = tl.fma(-count, part, _TO_UNITS)
    count = tl.where(rest > part * 0.5, count + 1.0, count)
    count = tl.where(rest < part * -0.5, count - 1.0, count)
    subnormal = tl.where(y == y, count, 0.0).to(tl.int32).to(tl.float32, bitcast=True)
    small = tl.where(y > _NO_NORMAL_INVERSE, subnormal, q * _SMALL)
    return tl.where(is_large, small, q)


@triton.jit
def silu(x):
    """x / (1 + exp(-x)), bit-equal to ``silu_f32``: one division."""
    y = 1.0 + exp(-x)
    if INTERPRETED:
        return tl.div_rn(x, y)
    is_large = y > _LARGE
    q = quotient(x, tl.where(is_large, y * _SMALL, y))
    q = tl.where(is_large, q * _SMALL, q)
    # Below 2^-60, y is 2; an infinity or a NaN stays what it is.
    is_plain = (tl.abs(x) >= _TINY) & (tl.abs(x) < float("inf"))
    return tl.where(is_plain, q, x * 0.5)


@triton.jit
def near_exp(x):
    """exp(x), two instructions, where no bits are promised: to 2^-22 and |x| / 2^23 of itself."""
    return tl.exp2(x * _LOG2_E)


@triton.jit
def _near_inverse(y):
    """1 / y to a unit of the last place, y at least 1; zero from 2^126 on."""
    if INTERPRETED:
        return tl.div_rn(1.0, y)
    return tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [y], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def near_sigmoid(x):
    """1 / (1 + exp(-x)) to 2^-21 and |x| / 2^23 of itself, or to 2^-126; a NaN stays one."""
    return _near_inverse(1.0 + near_exp(-x))


@triton.jit
def signed_byte(words, index: tl.constexpr):
    """Byte ``index`` of int32 words, sign-extended."""
    return (words << (24 - 8 * index)) >> 24


if INTERPRETED:
    dot4 = interpreted.dp4a
else:

    @triton.jit
    def dot4(a, b, acc):
        """acc + sum of products of the four signed bytes of a and b; all int32."""
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [a, b, acc],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
