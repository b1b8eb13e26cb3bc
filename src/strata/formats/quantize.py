"""Float32 rows to blocks, in numpy: deterministic, with scales chosen for least squared error.

Owns the formats with one scale (and minimum) per block, and the choice by format; quantize_k has
the K formats. Callers: strata convert, strata synth, tests.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError, UnsupportedError
from strata.formats import quantize_k
from strata.formats.block_formats import BlockFormat
from strata.formats.grids import E2M1_DOUBLED, E8M0_HALF, IQ4_NL_LEVELS
from strata.formats.scale_search import (
    Floats,
    columns,
    fit_scale,
    fit_scale_and_minimum,
    ratio,
    rounded,
)

Bytes = npt.NDArray[np.uint8]

# Weights encoded at a time: the search's temporaries then stay within a second-level cache.
_CHUNK_WEIGHTS = 1 << 16


def quantize(fmt: BlockFormat, x: Floats) -> Bytes:
    """Rows encoded as ``fmt``.

    Args:
        fmt: one of QUANTIZABLE.
        x: [..., n] float32, n a multiple of the block; not modified.

    Returns:
        [..., row_bytes] uint8, new array. The same input always gives the same bytes.

    Raises:
        CheckpointError: NaN or infinity in ``x``, a value the format cannot hold, or a row that
            does not fill blocks.
        UnsupportedError: no quantiser for ``fmt``.
    """
    encode = _ENCODERS.get(fmt.name)
    if encode is None:
        raise UnsupportedError(
            f"cannot quantise to {fmt.name}.\n  Try: one of {', '.join(_ENCODERS)}."
        )
    row_bytes = fmt.row_bytes(x.shape[-1])
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, fmt.block_size)
    out = np.empty((len(blocks), fmt.block_bytes), np.uint8)
    step = max(1, _CHUNK_WEIGHTS // fmt.block_size)
    limit = _LARGEST.get(fmt.name, _LARGEST_HALF_SCALED)
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step]
        # A NaN makes the comparison false too.
        if not max(part.max(), -part.min()) <= limit:
            _refuse(part, limit, start, fmt, x.shape)
        out[start : start + step] = encode(part)
    return out.reshape(*x.shape[:-1], row_bytes)


def _refuse(
    part: Floats, limit: float, start: int, fmt: BlockFormat, shape: tuple[int, ...]
) -> NoReturn:
    """Raise for the first value of ``part`` (from block ``start`` on) that cannot be stored."""
    at = int((~(np.abs(part) <= limit)).argmax())
    place = [int(i) for i in np.unravel_index(start * fmt.block_size + at, shape)]
    value = part.reshape(-1)[at]
    wrong = f"above {limit:.6g}" if np.isfinite(value) else "NaN or infinite"
    raise CheckpointError(
        f"cannot quantise to {fmt.name}: the value at {place} is {wrong}.\n"
        "  Try: another copy of the source; weights must be ordinary numbers."
    )


def _half_bytes(scales: Floats) -> Bytes:
    """[groups, 2]: half-precision numbers, little endian."""
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)


def _as_half(scales: Floats) -> Floats:
    return scales.astype(np.float16).astype(np.float32)


def _codes(x: Floats, scale: Floats, low: int, high: int) -> npt.NDArray[np.int8]:
    """[groups, n]: nearest integer of x / scale in low..high, for x [n, groups]."""
    return rounded(low, high)(x * ratio(1.0, scale)).T.astype(np.int8)


def _join_nibbles(codes: npt.NDArray[np.integer]) -> Bytes:
    """[groups, n / 2]: code j below code j + n / 2."""
    unsigned: Bytes = codes.astype(np.uint8)
    half = unsigned.shape[1] // 2
    return unsigned[:, :half] | (unsigned[:, half:] << np.uint8(4))


def _f32(blocks: Floats) -> Bytes:
    return blocks.astype("<f4").view(np.uint8)


def _f16(blocks: Floats) -> Bytes:
    return blocks.astype("<f2").view(np.uint8)


def _bf16(blocks: Floats) -> Bytes:
    bits = blocks.view(np.uint32)
    # Half of the last kept place, less one unless that place is odd: ties go to even.
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return nearest.astype("<u2").view(np.uint8)


def _q8_0(blocks: Floats) -> Bytes:
    x = columns(blocks, 32)
    scale = _as_half(np.abs(x).max(axis=0) / np.float32(127))
    codes = _codes(x, scale, -127, 127)
    return np.concatenate([_half_bytes(scale), codes.view(np.uint8)], axis=1)


def _symmetric(blocks: Floats, top: int, tries: tuple[float, ...]) -> tuple[Floats, Bytes]:
    """Scale [groups] and codes [groups, 32] of 0 .. 2 top - 1, meaning scale * (code - top)."""
    x = columns(blocks, 32)
    # The peak takes the negative end, which reaches one step further; d carries its sign.
    scale = _as_half(fit_scale(x, rounded(-top, top - 1), [-top + shift for shift in tries]))
    return scale, (_codes(x, scale, -top, top - 1) + np.int8(top)).astype(np.uint8)


def _q4_0(blocks: Floats) -> Bytes:
    scale, codes = _symmetric(blocks, 8, (-0.8, -0.4, 0, 0.3, 0.6, 0.9, 1.2))
    return np.concatenate([_half_bytes(scale), _join_nibbles(codes)], axis=1)


def _high_bits(codes: Bytes) -> Bytes:
    """[groups, 4]: bit 4 of each of 32 codes, first code lowest."""
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _q5_0(blocks: Floats) -> Bytes:
    scale, codes = _symmetric(blocks, 16, (-0.8, -0.4, 0, 0.4, 0.8))
    parts = [_half_bytes(scale), _high_bits(codes), _join_nibbles(codes & 15)]
    return np.concatenate(parts, axis=1)


def _affine(blocks: Floats, top: int, spans: tuple[float, ...]) -> tuple[Bytes, Bytes]:
    """Bytes of scale and minimum [groups, 4], and codes [groups, 32] of 0..top."""
    x = columns(blocks, 32)
    scale, minimum = fit_scale_and_minimum(x, top, spans, can_be_positive=True)
    scale, minimum = _as_half(scale), _as_half(minimum)
    codes = _codes(x - minimum, scale, 0, top).astype(np.uint8)
    return np.concatenate([_half_bytes(scale), _half_bytes(minimum)], axis=1), codes


def _q4_1(blocks: Floats) -> Bytes:
    scales, codes = _affine(blocks, 15, (15, 15.4, 15.8, 16.4, 17))
    return np.concatenate([scales, _join_nibbles(codes)], axis=1)


def _q5_1(blocks: Floats) -> Bytes:
    scales, codes = _affine(blocks, 31, (31, 31.5, 32, 32.8))
    return np.concatenate([scales, _high_bits(codes), _join_nibbles(codes & 15)], axis=1)


def _q2_0(blocks: Floats) -> Bytes:
    x = columns(blocks, 64)
    tries = (1, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8, 3.2)
    # Levels -1, 0, 1, 2: the scale's sign decides which side gets the further one.
    scale = _as_half(fit_scale(x, rounded(-1, 2), [*tries, *(-level for level in tries)]))
    codes = (_codes(x, scale, -1, 2) + np.int8(1)).astype(np.uint8).reshape(-1, 16, 4)
    packed = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    return np.concatenate([_half_bytes(scale), packed], axis=1)


class _LevelTable:
    """Nearest of some integer levels, by lookup in cells of one half.

    Midpoints between integer levels are multiples of one half, so a cell has one nearest level.
    """

    def __init__(self, levels: npt.NDArray[np.int8]) -> None:
        reach = int(np.abs(levels.astype(np.int16)).max())
        self._offset = np.float32(2 * reach)
        centres = (np.arange(-2 * reach, 2 * reach + 1) + 0.5) / 2
        distance = np.abs(centres[:, None] - levels.astype(np.float64))
        self._codes = distance.argmin(axis=1).astype(np.uint8)
        self._levels = levels.astype(np.float32)[self._codes]

    def codes(self, y: Floats) -> Bytes:
        """Index of the nearest level."""
        return np.take(self._codes, self._cells(y), mode="clip")

    def nearest(self, y: Floats) -> Floats:
        """The nearest level."""
        return np.take(self._levels, self._cells(y), mode="clip")

    def _cells(self, y: Floats) -> npt.NDArray[np.int32]:
        shifted = y + y
        shifted += self._offset
        # Truncation is downward rounding once negative cells are cut off.
        np.maximum(shifted, 0, out=shifted)
        return shifted.astype(np.int32)


_IQ4_NL_TABLE = _LevelTable(IQ4_NL_LEVELS)
_E2M1_TABLE = _LevelTable(E2M1_DOUBLED)


def _iq4_nl(blocks: Floats) -> Bytes:
    x = columns(blocks, 32)
    tries = (-131, -127, -122, -116, 108, 113, 118)
    scale = _as_half(fit_scale(x, _IQ4_NL_TABLE.nearest, tries))
    codes = _IQ4_NL_TABLE.codes(x * ratio(1.0, scale)).T
    return np.concatenate([_half_bytes(scale), _join_nibbles(codes)], axis=1)


def _mxfp4(blocks: Floats) -> Bytes:
    x = columns(blocks, 32)
    # Level 6 is the largest, so a peak of 4 .. 8 units needs this exponent or the next.
    exponent = np.frexp(np.abs(x).max(axis=0))[1] - 1 - 2
    best_code = np.zeros(x.shape[1], np.uint8)
    best_error = np.full(x.shape[1], np.inf, np.float32)
    for shift in (0, 1):
        code = np.clip(exponent + 127 + shift, 0, 254).astype(np.uint8)
        scale = E8M0_HALF[code]
        residual = x * ratio(1.0, scale)
        unit = residual - _E2M1_TABLE.nearest(residual)
        error = np.einsum("ng,ng->g", unit, unit) * np.float32(4.0**shift)
        better = error < best_error
        best_code[better], best_error[better] = code[better], error[better]
    codes = _E2M1_TABLE.codes(x * ratio(1.0, E8M0_HALF[best_code])).T
    return np.concatenate([best_code[:, None], _join_nibbles(codes)], axis=1)


# Scales and fitted minima must fit a half, which ends at 65504.
_LARGEST_HALF_SCALED = 32768.0
# The largest value that bfloat16 does not round to infinity is just below float32's own.
_LARGEST: Mapping[str, float] = {
    "F16": 65504.0,
    "F32": float(np.finfo(np.float32).max),
    "BF16": float(np.uint32(0x7F7F7FFF).view(np.float32)),
    "MXFP4": 2.0**127,
}

_ENCODERS: Mapping[str, Callable[[Floats], Bytes]] = MappingProxyType(
    {
        "F32": _f32,
        "F16": _f16,
        "BF16": _bf16,
        "Q8_0": _q8_0,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "IQ4_NL": _iq4_nl,
        "Q2_0": _q2_0,
        "MXFP4": _mxfp4,
        "Q2_K": quantize_k.q2_k,
        "Q3_K": quantize_k.q3_k,
        "Q4_K": quantize_k.q4_k,
        "Q5_K": quantize_k.q5_k,
        "Q6_K": quantize_k.q6_k,
    }
)

QUANTIZABLE = tuple(_ENCODERS)
"""Names of the formats `quantize` can write."""
