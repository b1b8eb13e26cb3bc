"""Stored blocks taken apart into integers and exact float32 scales.

Written apart from the float decoder of ``formats.block_decode`` on purpose: each checks the
other. The i-quants with lattice tables are in ``grid_terms``. Called by ``expert_numerics``.
Layouts are those of the GGUF block formats; ``n`` is the number of stored blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from strata.errors import UnsupportedError
from strata.reference import grid_terms
from strata.reference.term_fields import (
    ACTIVATION_BLOCK,
    Decoded,
    bit_planes,
    half,
    nibbles,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Bytes = NDArray[np.uint8]

_E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_IQ4_NL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)


@dataclass(frozen=True, slots=True)
class BlockTerms:
    """A quantised matrix: weight = code * sub_scale * scale + min_scale, each exact in float32.

    Attributes:
        codes: [out, inner] int8.
        sub_scales: [out, inner / 16] int32, or None for all ones.
        scales: [out, inner / g] float32, one for each term; g = 32, or 16 in NVFP4.
        min_scales: [out, inner / m] float32, m = 32 or 16, or None; added to every weight.
    """

    codes: NDArray[np.int8]
    sub_scales: NDArray[np.int32] | None
    scales: NDArray[np.float32]
    min_scales: NDArray[np.float32] | None


def is_float_format(format_name: str) -> bool:
    """Whether the format stores plain floats, so that activations stay unquantised."""
    return format_name in ("F32", "F16", "BF16")


def widen_floats(format_name: str, raw_rows: Bytes) -> NDArray[np.float32]:
    """[out, inner] float32 from rows of F32, F16 or BF16; exact."""
    raw_rows = np.ascontiguousarray(raw_rows)
    if format_name == "F32":
        return raw_rows.view("<f4").astype(np.float32)
    if format_name == "F16":
        return raw_rows.view("<f2").astype(np.float32)
    return (raw_rows.view("<u2").astype(np.uint32) << 16).view(np.float32)


def block_terms(format_name: str, raw_rows: Bytes) -> BlockTerms:
    """Integers and scales of stored rows [out, row_bytes].

    Raises:
        UnsupportedError: not a quantised format of this table.
    """
    if format_name not in _DECODERS:
        raise UnsupportedError(
            f"block format {format_name} has no expert arithmetic; known are "
            f"{', '.join(sorted(_DECODERS))}.\n  Try: a file quantised to one of these."
        )
    block_bytes, decode = _DECODERS[format_name]
    num_out = len(raw_rows)
    decoded = decode(raw_rows.reshape(-1, block_bytes))
    sub, minima = decoded.sub_scales, decoded.min_scales
    return BlockTerms(
        codes=decoded.codes.astype(np.int8).reshape(num_out, -1),
        sub_scales=None if sub is None else sub.astype(np.int32).reshape(num_out, -1),
        scales=decoded.scales.reshape(num_out, -1),
        min_scales=None if minima is None else minima.reshape(num_out, -1),
    )


def _q4_0(b: Bytes) -> Decoded:
    return Decoded(nibbles(b[:, 2:18]).astype(np.int8) - 8, half(b, 0))


def _q4_1(b: Bytes) -> Decoded:
    return Decoded(nibbles(b[:, 4:20]), half(b, 0), min_scales=half(b, 2))


def _fifth_bits(b: Bytes) -> Bytes:
    """Bit i of a 32-bit little-endian word belongs to weight i; [n, 4] to [n, 32]."""
    return np.unpackbits(b, axis=1, bitorder="little") << np.uint8(4)


def _q5_0(b: Bytes) -> Decoded:
    codes = nibbles(b[:, 6:22]) | _fifth_bits(b[:, 2:6])
    return Decoded(codes.astype(np.int8) - 16, half(b, 0))


def _q5_1(b: Bytes) -> Decoded:
    codes = nibbles(b[:, 8:24]) | _fifth_bits(b[:, 4:8])
    return Decoded(codes, half(b, 0), min_scales=half(b, 2))


def _q8_0(b: Bytes) -> Decoded:
    return Decoded(b[:, 2:34].copy().view(np.int8), half(b, 0))


def _q2_0(b: Bytes) -> Decoded:
    fields = b[:, 2:18, None] >> np.array([0, 2, 4, 6], np.uint8) & 3  # byte j: weights 4j .. 4j+3
    codes = fields.reshape(-1, 64).astype(np.int8) - 1
    return Decoded(codes, np.repeat(half(b, 0), 2, axis=1))


def _q2_k(b: Bytes) -> Decoded:
    codes = bit_planes(b[:, 16:80], (0, 2, 4, 6), 3)
    minima = -(half(b, 82) * (b[:, :16] >> 4))
    return Decoded(codes, np.repeat(half(b, 80), 8, axis=1), b[:, :16] & 15, minima)


def _q3_k(b: Bytes) -> Decoded:
    low = bit_planes(b[:, 32:96], (0, 2, 4, 6), 3).astype(np.int8)
    high = bit_planes(b[:, :32], range(8), 1).astype(np.int8)
    packed = b[:, 96:108]
    i = np.arange(16)
    sub_low = packed[:, i % 8] >> (4 * (i // 8)).astype(np.uint8) & 15
    sub_high = packed[:, 8 + i % 4] >> (2 * (i // 4)).astype(np.uint8) & 3
    sub = (sub_low | sub_high << 4).astype(np.int32) - 32
    return Decoded(low + 4 * high - 4, np.repeat(half(b, 108), 8, axis=1), sub)


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit minima from the 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6) << 4], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6) << 4], axis=1)
    return scales, minima


def _q4_k(b: Bytes) -> Decoded:
    scales, minima = _six_bit_pairs(b[:, 4:16])
    codes = bit_planes(b[:, 16:144], (0, 4), 15)
    return Decoded(codes, half(b, 0) * scales, min_scales=-(half(b, 2) * minima))


def _q5_k(b: Bytes) -> Decoded:
    scales, minima = _six_bit_pairs(b[:, 4:16])
    codes = bit_planes(b[:, 48:176], (0, 4), 15) | bit_planes(b[:, 16:48], range(8), 1) << 4
    return Decoded(codes, half(b, 0) * scales, min_scales=-(half(b, 2) * minima))


def _q6_k(b: Bytes) -> Decoded:
    low = bit_planes(b[:, :128], (0, 4), 15, run=64)
    high = bit_planes(b[:, 128:192], (0, 2, 4, 6), 3)
    codes = (low | high << 4).astype(np.int8) - 32
    sub = b[:, 192:208].copy().view(np.int8)
    return Decoded(codes, np.repeat(half(b, 208), 8, axis=1), sub)


def _iq4_nl(b: Bytes) -> Decoded:
    return Decoded(_IQ4_NL[nibbles(b[:, 2:18])], half(b, 0))


def _iq4_xs(b: Bytes) -> Decoded:
    i = np.arange(8)
    low = b[:, 4 + i // 2] >> (4 * (i % 2)).astype(np.uint8) & 15
    high = b[:, 2 + i // 4] >> (2 * (i % 4)).astype(np.uint8) & 3
    sub = (low | high << 4).astype(np.float32) - 32
    codes = _IQ4_NL[nibbles(b[:, 8:136].reshape(-1, 16))]
    return Decoded(codes, half(b, 0) * sub)


def _mxfp4(b: Bytes) -> Decoded:
    # Codes are doubled to be integers, so 2^(e - 127) becomes 2^(e - 128).
    scales = np.exp2(b[:, :1].astype(np.float64) - 128).astype(np.float32)
    return Decoded(_E2M1_DOUBLED[nibbles(b[:, 1:17])], scales)


def _nvfp4(b: Bytes) -> Decoded:
    field = (b[:, :4] & 127).astype(np.int32)
    exponent, mantissa = field >> 3, (field & 7).astype(np.float32)
    normal = np.ldexp(8 + mantissa, exponent - 10)
    scales = np.where(exponent == 0, np.ldexp(mantissa, -9), normal) / 2  # codes are doubled
    # 0x7f alone is not-a-number and reads as zero; elsewhere the sign bit is ignored.
    scales = np.where(b[:, :4] == 127, 0, scales)
    codes = _E2M1_DOUBLED[nibbles(b[:, 4:36].reshape(-1, 8))]
    return Decoded(codes, scales.astype(np.float32))


_DECODERS: dict[str, tuple[int, Callable[[Bytes], Decoded]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q2_0": (18, _q2_0),
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "IQ4_NL": (18, _iq4_nl),
    "IQ4_XS": (136, _iq4_xs),
    "MXFP4": (17, _mxfp4),
    "NVFP4": (36, _nvfp4),
    **grid_terms.DECODERS,
}

QUANTISED_FORMATS = tuple(_DECODERS)
"""Names with expert arithmetic on int8 activations."""

__all__ = [
    "ACTIVATION_BLOCK",
    "QUANTISED_FORMATS",
    "BlockTerms",
    "block_terms",
    "is_float_format",
    "widen_floats",
]
