"""Float32 values as pairs of halves: high and low part, 22 bits together, for tensor cores.

A product of pairs is three products of halves added up in float32; the one of both low parts would
be below the last bit. Values must be brought to a range first, by powers of two, which is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED

# Four bytes with their sign bits turned become 1024 + 128 + code as halves, by placing them under
# the exponent of 1024; taking 1152 away is exact.
_CODES_TO_HALVES = tl.constexpr("""{
    .reg .b32 bytes, offset;
    xor.b32 bytes, $2, 0x80808080;
    mov.b32 offset, 0x64806480;
    prmt.b32 $0, bytes, 0x64646464, 0x4140;
    prmt.b32 $1, bytes, 0x64646464, 0x4342;
    sub.rn.f16x2 $0, $0, offset;
    sub.rn.f16x2 $1, $1, offset;
}""")


@triton.jit
def split(x):
    """High and low float16 part of x; |x| below 65504, and best above 1e-3."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def load_pair(ptr, plane, at, mask):
    """High and low halves, whose planes lie ``plane`` apart."""
    return tl.load(ptr + at, mask, 0.0), tl.load(ptr + plane + at, mask, 0.0)


@triton.jit
def dot_pairs(a_hi, a_lo, b_hi, b_lo):
    """a @ b in float32, smallest terms first."""
    small = tl.dot(a_hi, b_lo)
    small = tl.dot(a_lo, b_hi, small)
    return tl.dot(a_hi, b_hi, small)


@triton.jit
def add_pairs(a_hi, a_lo, b_hi, b_lo, total):
    """total + a @ b."""
    total = tl.dot(a_hi, b_lo, total)
    total = tl.dot(a_lo, b_hi, total)
    return tl.dot(a_hi, b_hi, total)


@triton.jit
def power_scale(largest):
    """Power of two that brings ``largest`` (at least 0) to 256 .. 512, and its inverse."""
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.minimum(tl.maximum(exponent, 20), 240)
    up = ((262 - exponent) << 23).to(tl.float32, bitcast=True)
    return up, ((exponent - 8) << 23).to(tl.float32, bitcast=True)


@triton.jit
def halves_of(cells):
    """float16 as it is, or int8 codes as float16; exact."""
    if cells.dtype != tl.int8 or INTERPRETED:
        halves = cells.to(tl.float16)
    else:
        halves = tl.inline_asm_elementwise(
            _CODES_TO_HALVES, "=r,=r,r", [cells], dtype=tl.float16, is_pure=True, pack=4
        )
    return halves
