"""Random weights made directly as stored blocks, as fast as random bytes can be drawn.

Owns which bytes of a block are scales and how large they must be. Codes, grid indices, signs and
sub-scales are random bits; the block scale is set so that decoded weights have the wanted size.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS, BlockFormat

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Offset of the block's float16 scale.
_SCALE_AT = {
    "Q4_0": 0, "Q4_1": 0, "Q5_0": 0, "Q5_1": 0, "Q8_0": 0, "Q2_0": 0, "Q4_K": 0, "Q5_K": 0,
    "Q2_K": 80, "Q3_K": 108, "Q6_K": 208, "IQ4_NL": 0, "IQ4_XS": 0, "IQ1_S": 0, "IQ2_XXS": 0,
    "IQ2_XS": 0, "IQ2_S": 0, "IQ3_XXS": 0, "IQ3_S": 0,
}  # fmt: skip

# Offset of a second float16 and its ratio to the scale: the mean code, so that weights centre on 0.
_MINIMUM_AT = {
    "Q4_1": (2, -7.5), "Q5_1": (2, -15.5), "Q2_K": (82, 1.5), "Q4_K": (2, 7.5), "Q5_K": (2, 15.5),
}  # fmt: skip

# Codes of these do not centre on zero; blocks of either sign do.
_SIGNED_SCALE = frozenset({"Q4_0", "Q5_0", "Q2_0", "IQ4_NL", "IQ4_XS"})

# Spread of scales between blocks, as in trained weights; the second moment is taken out again.
_SPREAD = 0.25


def random_blocks(fmt: BlockFormat, num_blocks: int, std: float, rng: np.random.Generator) -> Bytes:
    """[num_blocks, block_bytes] uint8; decoded weights have mean 0 and deviation ``std``."""
    if fmt.is_plain:
        return plain_weights(fmt, rng.standard_normal(num_blocks, np.float32) * np.float32(std))
    blocks = random_bytes(num_blocks * fmt.block_bytes, rng).reshape(num_blocks, fmt.block_bytes)
    if fmt.name in ("MXFP4", "NVFP4"):
        _set_small_scales(fmt, blocks, std, rng)
        return blocks
    _repair_codes(fmt, blocks)
    spread = rng.uniform(1 - _SPREAD, 1 + _SPREAD, num_blocks) / np.sqrt(1 + _SPREAD**2 / 3)
    scale = spread * (std / _unit_deviation(fmt.name))
    if fmt.name in _SIGNED_SCALE:
        scale *= rng.integers(0, 2, num_blocks) * 2 - 1
    _set_scale(fmt, blocks, scale)
    return blocks


def random_bytes(count: int, rng: np.random.Generator) -> Bytes:
    """``count`` random bytes, a new array."""
    words = rng.bit_generator.random_raw(-(-count // 8))
    return np.asarray(words, np.uint64).view(np.uint8)[:count]


def plain_weights(fmt: BlockFormat, values: Floats) -> Bytes:
    """float32 values as [n, block_bytes] uint8 of F32, F16 or BF16 (BF16 cut, not rounded)."""
    if fmt.name == "F32":
        return values.view(np.uint8).reshape(-1, 4)
    if fmt.name == "F16":
        return values.astype("<f2").view(np.uint8).reshape(-1, 2)
    if fmt.name == "BF16":
        return (values.view("<u4") >> 16).astype("<u2").view(np.uint8).reshape(-1, 2)
    raise ValueError(f"{fmt.name} is not a plain format of weights")


def _repair_codes(fmt: BlockFormat, blocks: Bytes) -> None:
    """Keeps to the values a quantiser writes where random bits would leave them."""
    if fmt.name == "Q8_0":
        # Quantisers write -127 to 127.
        codes = blocks[:, 2:]
        codes[codes == 128] = 129
    elif fmt.name == "Q2_K":
        # Low nibble scales the codes, high nibble the minimum: equal, so that both centre.
        blocks[:, :16] = (blocks[:, :16] & 15) * 17
    elif fmt.name in ("Q4_K", "Q5_K"):
        # Eight six-bit scales and eight minima, packed; equal for the same reason.
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17


def _set_scale(fmt: BlockFormat, blocks: Bytes, scale: NDArray[np.float64]) -> None:
    """Stores one float16 scale (and its minimum) in each block."""
    if fmt.name == "IQ1_M":
        _scatter_scale(blocks, scale)
        return
    at = _SCALE_AT[fmt.name]
    blocks[:, at : at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    if fmt.name in _MINIMUM_AT:
        at, ratio = _MINIMUM_AT[fmt.name]
        blocks[:, at : at + 2] = (scale * ratio).astype("<f2").view(np.uint8).reshape(-1, 2)


def _scatter_scale(blocks: Bytes, scale: NDArray[np.float64]) -> None:
    """IQ1_M keeps its float16 in the top nibbles of the last four 16-bit words, lowest first."""
    half = scale.astype("<f2").view("<u2")
    words = blocks[:, 48:56].copy().view("<u2")
    for part in range(4):
        nibble = half >> np.uint16(4 * part) & np.uint16(15)
        words[:, part] = words[:, part] & np.uint16(0x0FFF) | nibble << np.uint16(12)
    blocks[:, 48:56] = words.view(np.uint8)


@cache
def _unit_deviation(name: str) -> float:
    """Deviation of the decoded weights of random blocks whose scale is one."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(0)
    blocks = random_bytes(4096 * fmt.block_bytes, rng).reshape(4096, fmt.block_bytes)
    _repair_codes(fmt, blocks)
    _set_scale(fmt, blocks, np.ones(4096))
    return float(np.sqrt(np.mean(np.square(dequantize(fmt, blocks.ravel()), dtype=np.float64))))


def _set_small_scales(
    fmt: BlockFormat, blocks: Bytes, std: float, rng: np.random.Generator
) -> None:
    """Draws each one-byte scale from the two neighbours whose mixture has the wanted deviation."""
    codes, values = _small_scales(fmt.name)
    above = min(max(int(np.searchsorted(values, std)), 1), len(values) - 1)
    low, high = float(values[above - 1]) ** 2, float(values[above]) ** 2
    share = min(max((std**2 - low) / (high - low), 0.0), 1.0)
    num_scales = 1 if fmt.name == "MXFP4" else 4
    is_high = rng.random((len(blocks), num_scales), np.float32) < share
    blocks[:, :num_scales] = np.where(is_high, codes[above], codes[above - 1])


@cache
def _small_scales(name: str) -> tuple[Bytes, Floats]:
    """Scale bytes and the deviation of random codes under each, ascending."""
    fmt = FORMATS[name]
    # Exponents near one for MXFP4; every finite positive byte for NVFP4.
    codes = np.arange(64, 192) if name == "MXFP4" else np.arange(1, 127)
    blocks = np.zeros((len(codes), 8192 // fmt.block_size, fmt.block_bytes), np.uint8)
    blocks[:] = random_bytes(blocks[0].size, np.random.default_rng(0)).reshape(blocks.shape[1:])
    blocks[:, :, : 1 if name == "MXFP4" else 4] = codes[:, None, None]
    values = dequantize(fmt, blocks.ravel()).reshape(len(codes), -1)
    deviations = np.sqrt(np.mean(np.square(values, dtype=np.float64), axis=1))
    return codes.astype(np.uint8), deviations.astype(np.float32)
