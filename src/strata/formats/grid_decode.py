"""Blocks of the formats with vector codebooks (IQ1_*, IQ2_*, IQ3_*) to float32, in numpy.

Owns where indices, signs and scales lie in those blocks; the codebooks are in grids. Called by
block_decode.dequantize only. Every function takes [blocks, block_bytes] uint8, gives [blocks, 256].
"""

import numpy as np
import numpy.typing as npt

from strata.formats.grids import GRIDS, SIGN_BYTES

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_DELTA = np.float32(0.125)


def _half(blocks: Bytes) -> Floats:
    """[blocks, 1]: the half-precision scale at the start of each block."""
    return blocks[:, :2].copy().view("<f2").astype(np.float32)


def _words(blocks: Bytes, start: int, stop: int, dtype: str) -> npt.NDArray[np.uint32]:
    return blocks[:, start:stop].copy().view(dtype).astype(np.uint32)


def _fields(words: npt.NDArray[np.integer], shifts: range, mask: int) -> npt.NDArray[np.uint32]:
    """[..., len(shifts)]: ``(word >> shift) & mask`` for each word."""
    amounts = np.array(shifts, np.uint32)
    return (words.astype(np.uint32)[..., None] >> amounts) & np.uint32(mask)


def _signed(grid: npt.NDArray[np.int8], signs: Bytes) -> npt.NDArray[np.int8]:
    """``grid`` [..., 8] with value j negated where bit j of ``signs`` [...] is set."""
    minus = np.unpackbits(signs[..., None], axis=-1, bitorder="little").astype(np.int8)
    return grid * (np.int8(1) - np.int8(2) * minus)


def _scaled(step: Floats, values: npt.NDArray[np.int8] | Floats) -> Floats:
    """[blocks, 256]: each of the g steps of a block times its run of 256 / g values."""
    num_blocks, num_steps = step.shape
    product: Floats = step[:, :, None] * values.reshape(num_blocks, num_steps, -1)
    return product.reshape(num_blocks, 256)


def iq2_xxs(blocks: Bytes) -> Floats:
    """Eight groups of 32: four indices of 8 bits, then four signs of 7 bits and a 4-bit scale."""
    words = _words(blocks, 2, 66, "<u4").reshape(-1, 8, 2)
    indices = _fields(words[..., 0], range(0, 32, 8), 255)
    signs = SIGN_BYTES[_fields(words[..., 1], range(0, 28, 7), 127)]
    scale = (words[..., 1] >> 28).astype(np.float32)
    step = _half(blocks) * (np.float32(0.5) + scale) * np.float32(0.25)
    return _scaled(step, _signed(GRIDS["iq2xxs"][indices], signs))


def iq2_xs(blocks: Bytes) -> Floats:
    """Thirty-two words: 9-bit index under 7 sign bits; sixteen 4-bit scales after them."""
    words = _words(blocks, 2, 66, "<u2")
    scale = _fields(blocks[:, 66:74], range(0, 8, 4), 15).reshape(-1, 16).astype(np.float32)
    step = _half(blocks) * (np.float32(0.5) + scale) * np.float32(0.25)
    return _scaled(step, _signed(GRIDS["iq2xs"][words & 511], SIGN_BYTES[words >> 9]))


def iq2_s(blocks: Bytes) -> Floats:
    """Low index bytes, whole sign bytes, then two high index bits each, then 4-bit scales."""
    high = _fields(blocks[:, 66:74], range(0, 8, 2), 3).reshape(-1, 32)
    indices = blocks[:, 2:34] | (high << np.uint32(8))
    scale = _fields(blocks[:, 74:82], range(0, 8, 4), 15).reshape(-1, 16).astype(np.float32)
    step = _half(blocks) * (np.float32(0.5) + scale) * np.float32(0.25)
    return _scaled(step, _signed(GRIDS["iq2s"][indices], blocks[:, 34:66]))


def iq3_xxs(blocks: Bytes) -> Floats:
    """Sixty-four index bytes of four weights each, then eight words of signs and a scale."""
    words = _words(blocks, 66, 98, "<u4")
    signs = SIGN_BYTES[_fields(words, range(0, 28, 7), 127)].reshape(-1, 32)
    scale = (words >> 28).astype(np.float32)
    step = _half(blocks) * (np.float32(0.5) + scale) * np.float32(0.5)
    grid = GRIDS["iq3xxs"][blocks[:, 2:66]].reshape(-1, 32, 8)
    return _scaled(step, _signed(grid, signs))


def iq3_s(blocks: Bytes) -> Floats:
    """Index bytes, one high index bit each, whole sign bytes, then odd 4-bit scales."""
    high = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    grid = GRIDS["iq3s"][blocks[:, 2:66] | (high << np.uint16(8))].reshape(-1, 32, 8)
    scale = _fields(blocks[:, 106:110], range(0, 8, 4), 15).reshape(-1, 8)
    step = _half(blocks) * (1 + 2 * scale).astype(np.float32)
    return _scaled(step, _signed(grid, blocks[:, 74:106]))


def _iq1(step: Floats, indices: npt.NDArray[np.uint32], minus: npt.NDArray[np.bool_]) -> Floats:
    """Steps [blocks, g] times (ternary vector + or - 1/8), one sign for each of 32 vectors."""
    delta = np.where(minus, -_DELTA, _DELTA)
    return _scaled(step, GRIDS["iq1s"][indices] + delta[..., None])


def iq1_s(blocks: Bytes) -> Floats:
    """Index bytes, then a word per 32 weights: four times 3 high bits, a 3-bit scale, the shift."""
    words = _words(blocks, 34, 50, "<u2")
    high = _fields(words, range(0, 12, 3), 7).reshape(-1, 32)
    indices = blocks[:, 2:34] | (high << np.uint32(8))
    scale = (2 * ((words >> 12) & 7) + 1).astype(np.float32)
    minus = np.repeat((words & 0x8000) != 0, 4, axis=1)
    return _iq1(_half(blocks) * scale, indices, minus)


def iq1_m(blocks: Bytes) -> Floats:
    """As IQ1_S with a shift per 8 and a scale per 16 weights; the block's scale is scattered.

    The half-precision scale takes the top four bits of each of the last four words.
    """
    nibble = _fields(blocks[:, 32:48], range(0, 8, 4), 15).reshape(-1, 32)
    indices = blocks[:, :32] | ((nibble & np.uint32(7)) << np.uint32(8))
    words = _words(blocks, 48, 56, "<u2")
    scattered = ((words >> 12) << np.arange(0, 16, 4, dtype=np.uint32)).sum(axis=1, keepdims=True)
    half = scattered.astype("<u2").view("<f2").astype(np.float32)
    scale = (2 * _fields(words, range(0, 12, 3), 7) + 1).reshape(-1, 16).astype(np.float32)
    return _iq1(half * scale, indices, (nibble & 8) != 0)
