"""Float32 to the K formats: blocks of 256 with quantised scales of their 8 or 16 parts.

Owns their two-level scales and bit layout (the inverse of block_decode); the search for each
part's scale is scale_search's. Called by quantize only: [blocks, 256] float32 in, bytes out.
"""

import numpy as np
import numpy.typing as npt

from strata.formats.scale_search import (
    Floats,
    columns,
    fit_scale,
    fit_scale_and_minimum,
    ratio,
    rounded,
    signed_peak,
)

Bytes = npt.NDArray[np.uint8]


def _half(scales: Floats) -> Floats:
    return scales.astype(np.float16).astype(np.float32)


def _half_bytes(scales: Floats) -> Bytes:
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)


def _shared(parts: Floats, top: int) -> tuple[Floats, Bytes]:
    """One half-precision factor per block and unsigned multiples of it for its parts.

    Args:
        parts: [blocks, parts] float32, not negative.
        top: largest multiple.
    """
    factor = _half(parts.max(axis=1) / np.float32(top))
    multiples = rounded(0, top)(parts * ratio(1.0, factor)[:, None])
    return factor, multiples.astype(np.uint8)


def _minimum_form(
    blocks: Floats, group: int, top: int, top_multiple: int, spans: tuple[float, ...]
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Encode as factor * scale * code - low_factor * low.

    Returns:
        The two factors as bytes [blocks, 4], scales and lows [blocks, 256 / group] of
        0..top_multiple, and codes [blocks, 256 / group, group] of 0..top.
    """
    x = columns(blocks, group)
    scale, minimum = fit_scale_and_minimum(x, top, spans, can_be_positive=False)
    low_factor, lows = _shared(-minimum.reshape(len(blocks), -1), top_multiple)
    # The rounded minimum changes which scale is best, so that one is fitted again before it too
    # is rounded.
    above = x + (low_factor[:, None] * lows).reshape(-1)
    codes = rounded(0, top)(above * ratio(1.0, scale))
    scale = ratio(np.einsum("ng,ng->g", above, codes), np.einsum("ng,ng->g", codes, codes))
    factor, scales = _shared(scale.reshape(len(blocks), -1), top_multiple)
    codes = rounded(0, top)(above * ratio(1.0, (factor[:, None] * scales).reshape(-1)))
    factors = np.concatenate([_half_bytes(factor), _half_bytes(low_factor)], axis=1)
    return factors, scales, lows, codes.T.astype(np.uint8).reshape(len(blocks), -1, group)


def _signed_form(
    blocks: Floats, top: int, bottom_multiple: int, tries: tuple[float, ...]
) -> tuple[Bytes, npt.NDArray[np.int8], Bytes]:
    """Encode as factor * scale * (code - top) with 16 signed scales.

    Returns:
        The factor's bytes [blocks, 2], scales [blocks, 16] of bottom_multiple..-bottom_multiple-1,
        and codes [blocks, 16, 16] of 0 .. 2 top - 1.
    """
    x = columns(blocks, 16)
    scale = fit_scale(x, rounded(-top, top - 1), [-top + shift for shift in tries])
    parts = np.ascontiguousarray(scale.reshape(len(blocks), 16))
    factor = _half(signed_peak(parts.T) / np.float32(bottom_multiple))
    to_multiples = rounded(bottom_multiple, -bottom_multiple - 1)
    scales = to_multiples(parts * ratio(1.0, factor)[:, None])
    step = (factor[:, None] * scales).reshape(-1)
    codes = rounded(-top, top - 1)(x * ratio(1.0, step)) + np.float32(top)
    return (
        _half_bytes(factor),
        scales.astype(np.int8),
        codes.T.astype(np.uint8).reshape(len(blocks), 16, 16),
    )


def _fields(codes: npt.NDArray[np.integer], num_bits: int) -> Bytes:
    """[..., m]: fields [..., 8 / num_bits, m] put into bytes, first field lowest."""
    unsigned: Bytes = codes.astype(np.uint8)
    packed = unsigned[..., 0, :].copy()
    for j in range(1, 8 // num_bits):
        packed |= unsigned[..., j, :] << np.uint8(num_bits * j)
    return packed


def _six_bit_bytes(scales: Bytes, lows: Bytes) -> Bytes:
    """[blocks, 12] from two times eight numbers of 0..63; see block_decode.six_bit_scales."""
    first = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    second = lows[:, :4] | (lows[:, 4:] >> 4 << 6)
    third = (scales[:, 4:] & 15) | (lows[:, 4:] << 4)
    return np.concatenate([first, second, third], axis=1)


def q2_k(blocks: Floats) -> Bytes:
    """84 bytes: 16 of scale and minimum (4 bits each), 64 of codes, two factors."""
    spans = (2.3, 2.6, 2.9, 3.1, 3.3, 3.5, 3.7, 3.9, 4.1, 4.5)
    factors, scales, lows, codes = _minimum_form(blocks, 16, 3, 15, spans)
    packed = _fields(codes.reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    return np.concatenate([scales | (lows << 4), packed, factors], axis=1)


def q3_k(blocks: Floats) -> Bytes:
    """110 bytes: 32 of high bits, 64 of low bits, 12 of six-bit scales, the factor."""
    tries = (-1.2, -0.9, -0.6, -0.3, 0, 0.3, 0.6, 0.9, 1.2)
    factor, scales, codes = _signed_form(blocks, 4, -32, tries)
    high = _fields((codes >> 2).reshape(-1, 8, 32), 1)
    low = _fields((codes & 3).reshape(-1, 2, 4, 32), 2).reshape(-1, 64)
    shifted = (scales + np.int8(32)).astype(np.uint8)
    nibbles = shifted[:, :8] & 15 | (shifted[:, 8:] & 15) << 4
    tops = _fields((shifted >> 4).reshape(-1, 4, 4), 2)
    return np.concatenate([high, low, nibbles, tops, factor], axis=1)


def q4_k(blocks: Floats) -> Bytes:
    """144 bytes: two factors, 12 of scales and minima, 128 of codes."""
    spans = (14.2, 14.6, 15, 15.4, 15.8, 16.2, 16.6, 17, 17.4, 18)
    factors, scales, lows, codes = _minimum_form(blocks, 32, 15, 63, spans)
    packed = _fields(codes.reshape(-1, 4, 2, 32), 4).reshape(-1, 128)
    return np.concatenate([factors, _six_bit_bytes(scales, lows), packed], axis=1)


def q5_k(blocks: Floats) -> Bytes:
    """176 bytes: two factors, 12 of scales and minima, 32 of high bits, 128 of low bits."""
    spans = (30.4, 31, 31.4, 31.8, 32.2, 32.6, 33, 33.5, 34)
    factors, scales, lows, codes = _minimum_form(blocks, 32, 31, 63, spans)
    high = _fields((codes >> 4).reshape(-1, 8, 32), 1)
    low = _fields((codes & 15).reshape(-1, 4, 2, 32), 4).reshape(-1, 128)
    return np.concatenate([factors, _six_bit_bytes(scales, lows), high, low], axis=1)


def q6_k(blocks: Floats) -> Bytes:
    """210 bytes: 128 of low bits, 64 of high bits, 16 scales, the factor."""
    tries = (-0.8, -0.4, 0, 0.4, 0.8)
    factor, scales, codes = _signed_form(blocks, 32, -128, tries)
    halves = codes.reshape(-1, 2, 4, 32)
    low = _fields((halves & 15).reshape(-1, 2, 2, 64), 4).reshape(-1, 128)
    high = _fields(halves >> 4, 2).reshape(-1, 64)
    return np.concatenate([low, high, scales.view(np.uint8), factor], axis=1)
