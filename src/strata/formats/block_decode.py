"""Blocks to float32, in numpy: the readable definition of every block format.

Owns what the stored bits of a block mean. Exact: each product is rounded as the format's own
reference rounds it. Formats with vector codebooks are in grid_decode. Speed is the kernels' job.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError, UnsupportedError
from strata.formats import grid_decode
from strata.formats.block_formats import BlockFormat
from strata.formats.grids import E2M1_DOUBLED, E8M0_HALF, IQ4_NL_LEVELS, UE4M3_HALF

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

# Weights decoded at a time: the temporaries then stay within a second-level cache.
_CHUNK_WEIGHTS = 1 << 18


def dequantize(fmt: BlockFormat, raw: Bytes) -> Floats:
    """Weights of the rows in ``raw``, in file order.

    Args:
        fmt: format of every row.
        raw: [..., row_bytes] uint8; not modified.

    Returns:
        [..., n] float32, new array.

    Raises:
        CheckpointError: a row is not a whole number of blocks.
        UnsupportedError: ``fmt`` holds integers, not weights.
    """
    decode = _DECODERS.get(fmt.name)
    if decode is None:
        raise UnsupportedError(
            f"{fmt.name} cannot be read as weights.\n  Try: one of {', '.join(_DECODERS)}."
        )
    row_bytes = raw.shape[-1]
    if row_bytes % fmt.block_bytes:
        raise CheckpointError(
            f"a row of {row_bytes} bytes is not a whole number of {fmt.name} blocks "
            f"of {fmt.block_bytes} bytes."
        )
    blocks = np.ascontiguousarray(raw).reshape(-1, fmt.block_bytes)
    out = np.empty((len(blocks), fmt.block_size), np.float32)
    step = max(1, _CHUNK_WEIGHTS // fmt.block_size)
    # A damaged scale may be infinite or NaN; the values are passed on, not announced.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = decode(blocks[start : start + step])
    return out.reshape(*raw.shape[:-1], row_bytes // fmt.block_bytes * fmt.block_size)


def f16_scale(blocks: Bytes, offset: int) -> Floats:
    """[blocks, 1] float32 of the half-precision number at byte ``offset`` of each block."""
    return blocks[:, offset : offset + 2].copy().view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """[..., 2 m]: the low halves of m bytes, then their high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _bits(packed: Bytes, num_bits: int) -> Bytes:
    """[..., 8 / num_bits, m]: field j of every byte, lowest first."""
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8)[:, None]
    return (packed[..., None, :] >> shifts) & np.uint8((1 << num_bits) - 1)


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4")


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    codes = nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    return f16_scale(blocks, 0) * codes


def _q4_1(blocks: Bytes) -> Floats:
    return f16_scale(blocks, 0) * nibbles(blocks[:, 4:]) + f16_scale(blocks, 2)


def _five_bit_codes(high: Bytes, low: Bytes) -> Bytes:
    """[blocks, 32]: bit j of the 4 bytes ``high`` on top of nibble j of the 16 bytes ``low``."""
    return nibbles(low) | (np.unpackbits(high, axis=-1, bitorder="little") << np.uint8(4))


def _q5_0(blocks: Bytes) -> Floats:
    codes = _five_bit_codes(blocks[:, 2:6], blocks[:, 6:]).astype(np.int8) - np.int8(16)
    return f16_scale(blocks, 0) * codes


def _q5_1(blocks: Bytes) -> Floats:
    codes = _five_bit_codes(blocks[:, 4:8], blocks[:, 8:])
    return f16_scale(blocks, 0) * codes + f16_scale(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    values: Floats = f16_scale(blocks, 0) * blocks[:, 2:].view(np.int8)
    return values


def _q2_0(blocks: Bytes) -> Floats:
    # Byte j holds weights 4j .. 4j+3, so the field index runs fastest.
    codes = _bits(blocks[:, 2:], 2).swapaxes(-1, -2).reshape(-1, 64).astype(np.int8)
    values: Floats = f16_scale(blocks, 0) * (codes - np.int8(1))
    return values


def _q2_k(blocks: Bytes) -> Floats:
    scales = blocks[:, :16]
    codes = _bits(blocks[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    step: Floats = f16_scale(blocks, 80) * (scales & 15)
    low: Floats = f16_scale(blocks, 82) * (scales >> 4)
    values: Floats = step[:, :, None] * codes - low[:, :, None]
    return values.reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Floats:
    high = _bits(blocks[:, :32], 1).reshape(-1, 16, 16)
    low = _bits(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    codes = (low | (high << 2)).astype(np.int8) - np.int8(4)
    packed = blocks[:, 96:108]
    scales = nibbles(packed[:, :8]) | (_bits(packed[:, 8:], 2).reshape(-1, 16) << 4)
    step: Floats = f16_scale(blocks, 108) * (scales.astype(np.int8) - np.int8(32))
    return (step[:, :, None] * codes).reshape(-1, 256)


def six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima, each [blocks, 8] of 0..63, from the 12 bytes Q4_K and Q5_K keep them in.

    The first four of each fill the low six bits of bytes 0..7; the last four have their low
    halves in bytes 8..11 and their top two bits above the first four.
    """
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    return scales, minima


def _scaled_minus_minimum(blocks: Bytes, codes: Bytes) -> Floats:
    scales, minima = six_bit_scales(blocks[:, 4:16])
    step = f16_scale(blocks, 0) * scales
    low = f16_scale(blocks, 2) * minima
    return (step[:, :, None] * codes - low[:, :, None]).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> Floats:
    codes = _bits(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _scaled_minus_minimum(blocks, codes)


def _q5_k(blocks: Bytes) -> Floats:
    low = _bits(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    high = _bits(blocks[:, 16:48], 1)
    return _scaled_minus_minimum(blocks, low | (high << np.uint8(4)))


def _q6_k(blocks: Bytes) -> Floats:
    # Two halves of 128 weights; in each, 32 columns of four weights share the two high bits' byte.
    low = _bits(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    high = _bits(blocks[:, 128:192].reshape(-1, 2, 32), 2)
    codes = (low | (high << 4)).astype(np.int8) - np.int8(32)
    step = f16_scale(blocks, 208) * blocks[:, 192:208].view(np.int8)
    values: Floats = (step[:, :, None] * codes.reshape(-1, 16, 16)).reshape(-1, 256)
    return values


def _iq4_nl(blocks: Bytes) -> Floats:
    return f16_scale(blocks, 0) * IQ4_NL_LEVELS[nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    top = (blocks[:, 2:4].copy().view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    low = _bits(blocks[:, 4:8], 4).swapaxes(-1, -2).reshape(-1, 8)
    scales = (low | (top.astype(np.uint8) << 4)).astype(np.int8) - np.int8(32)
    levels = IQ4_NL_LEVELS[nibbles(blocks[:, 8:].reshape(-1, 8, 16))]
    step: Floats = f16_scale(blocks, 0) * scales
    return (step[:, :, None] * levels).reshape(-1, 256)


def _mxfp4(blocks: Bytes) -> Floats:
    return E8M0_HALF[blocks[:, :1]] * E2M1_DOUBLED[nibbles(blocks[:, 1:])]


def _nvfp4(blocks: Bytes) -> Floats:
    levels = E2M1_DOUBLED[nibbles(blocks[:, 4:].reshape(-1, 4, 8))]
    return (UE4M3_HALF[blocks[:, :4]][:, :, None] * levels).reshape(-1, 64)


_DECODERS: Mapping[str, Callable[[Bytes], Floats]] = MappingProxyType(
    {
        "F32": _f32,
        "F16": _f16,
        "BF16": _bf16,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q8_0": _q8_0,
        "Q2_0": _q2_0,
        "Q2_K": _q2_k,
        "Q3_K": _q3_k,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
        "IQ4_NL": _iq4_nl,
        "IQ4_XS": _iq4_xs,
        "MXFP4": _mxfp4,
        "NVFP4": _nvfp4,
        "IQ1_S": grid_decode.iq1_s,
        "IQ1_M": grid_decode.iq1_m,
        "IQ2_XXS": grid_decode.iq2_xxs,
        "IQ2_XS": grid_decode.iq2_xs,
        "IQ2_S": grid_decode.iq2_s,
        "IQ3_XXS": grid_decode.iq3_xxs,
        "IQ3_S": grid_decode.iq3_s,
    }
)
