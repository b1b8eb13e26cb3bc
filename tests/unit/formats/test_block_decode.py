"""Decoding of every block format: the bits of libgguf, or the formula where libgguf has none."""

import libgguf
import numpy as np
import pytest

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.formats.grids import E2M1_DOUBLED, GRIDS, IQ4_NL_LEVELS, SIGN_BYTES

PLAIN = ("F32", "F16", "BF16")
NOT_WEIGHTS = ("I8", "I16", "I32", "I64", "F64")
ORACLE_NAMES = [name for name in FORMATS if name not in (*PLAIN, *NOT_WEIGHTS, "Q2_0")]
# libgguf builds search tables for these before it quantises, up to eight seconds each.
SLOW_TO_QUANTISE = ("IQ1_S", "IQ1_M", "IQ2_S", "IQ2_XS")
# Byte offsets of half-precision scales in a block; E8M0 and UE4M3 scales are finite by themselves.
HALF_OFFSETS = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,),
    "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "Q2_0": (0,),
}  # fmt: skip


def same_bits(left, right):
    return np.array_equal(left.view(np.uint32), right.view(np.uint32))


def random_blocks(name, rows, blocks, rng):
    """Random bytes with finite scales, [rows, row_bytes]."""
    fmt = FORMATS[name]
    raw = rng.integers(0, 256, (rows * blocks, fmt.block_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS.get(name, ()):
        # Below 0x7c00 in magnitude: all finite halves, subnormal and negative ones included.
        half = rng.integers(0, 0x7C00, rows * blocks) | (rng.integers(0, 2, rows * blocks) << 15)
        raw[:, offset : offset + 2] = half.astype("<u2").view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":
        raw[:, 55] &= 0xBF  # the top exponent bit of the scattered half-precision scale
    if name == "MXFP4":
        raw[:, 0] %= 252  # above, twelve times the scale leaves float32
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", ORACLE_NAMES)
def test_random_blocks_decode_to_the_bits_of_libgguf(name):
    raw = random_blocks(name, 37, 6, np.random.default_rng(11))
    values = dequantize(FORMATS[name], raw)
    assert np.isfinite(values).all()
    assert same_bits(values, libgguf.dequantize_rows(raw, FORMATS[name].ggml_id))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_TO_QUANTISE else [])
        for name in ORACLE_NAMES
    ],
)
def test_quantised_weights_decode_to_the_bits_of_libgguf(name):
    number = FORMATS[name].ggml_id
    weights = np.random.default_rng(5).standard_normal((1, 256)).astype(np.float32)
    importance = np.ones(256, np.float32) if libgguf.quantize_requires_imatrix(number) else None
    raw = libgguf.quantize_rows(weights, number, importance)
    values = dequantize(FORMATS[name], raw)
    assert same_bits(values, libgguf.dequantize_rows(raw, number))
    # The decoded weights are near the originals, so the oracle itself was used rightly.
    assert np.corrcoef(values.ravel(), weights.ravel())[0, 1] > 0.8


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_byte_decodes_to_the_bits_of_libgguf(name):
    fmt = FORMATS[name]
    raw = np.random.default_rng(3).integers(0, 256, (256, fmt.block_bytes), dtype=np.uint8)
    raw[:, : 1 if name == "MXFP4" else 4] = np.arange(256)[:, None]
    assert same_bits(dequantize(fmt, raw), libgguf.dequantize_rows(raw, fmt.ggml_id))


def test_q2_0_follows_its_formula():
    # value = d * (code - 1); byte j of 16 holds weights 4j .. 4j+3, lowest bits first.
    raw = random_blocks("Q2_0", 3, 5, np.random.default_rng(2))
    expected = []
    for block in raw.reshape(-1, 18):
        d = np.frombuffer(block[:2].tobytes(), "<f2")[0].astype(np.float32)
        expected += [
            d * np.float32(((int(block[2 + i // 4]) >> (2 * (i % 4))) & 3) - 1) for i in range(64)
        ]
    values = dequantize(FORMATS["Q2_0"], raw)
    assert values.shape == (3, 320)
    assert np.array_equal(values.ravel(), np.array(expected, np.float32))


def test_plain_formats_follow_ieee():
    patterns = np.arange(1 << 16, dtype="<u2")
    raw = patterns.view(np.uint8)
    halves = dequantize(FORMATS["F16"], raw)
    assert np.array_equal(halves, patterns.view("<f2").astype(np.float32), equal_nan=True)
    brain = dequantize(FORMATS["BF16"], raw)
    assert np.array_equal(brain.view(np.uint32) >> 16, patterns)
    assert not (brain.view(np.uint32) & 0xFFFF).any()
    floats = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    assert np.array_equal(dequantize(FORMATS["F32"], floats.view(np.uint8)), floats)


def test_leading_axes_and_strides_are_kept():
    fmt = FORMATS["Q4_K"]
    raw = random_blocks("Q4_K", 24, 2, np.random.default_rng(9)).reshape(2, 3, 4, -1)
    values = dequantize(fmt, raw)
    assert values.shape == (2, 3, 4, 512)
    assert same_bits(dequantize(fmt, raw[:, ::2]), np.ascontiguousarray(values[:, ::2]))
    assert dequantize(fmt, raw[:0]).shape == (0, 3, 4, 512)


def test_many_chunks_equal_one_row_at_a_time():
    raw = random_blocks("Q8_0", 300, 64, np.random.default_rng(1))
    whole = dequantize(FORMATS["Q8_0"], raw)
    assert all(same_bits(whole[i], dequantize(FORMATS["Q8_0"], raw[i])) for i in (0, 127, 128, 299))


def test_partial_block_and_integer_formats_are_refused():
    with pytest.raises(CheckpointError, match="35 bytes is not a whole number of Q8_0 blocks"):
        dequantize(FORMATS["Q8_0"], np.zeros((2, 35), np.uint8))
    for name in NOT_WEIGHTS:
        with pytest.raises(UnsupportedError, match=f"{name} cannot be read as weights"):
            dequantize(FORMATS[name], np.zeros((2, 8), np.uint8))


def test_tables_have_the_published_shapes_and_cannot_be_changed():
    shapes = {name: grid.shape for name, grid in GRIDS.items()}
    assert shapes == {
        "iq2xxs": (256, 8), "iq2xs": (512, 8), "iq2s": (1024, 8),
        "iq3xxs": (256, 4), "iq3s": (512, 4), "iq1s": (2048, 8),
    }  # fmt: skip
    for table in (*GRIDS.values(), SIGN_BYTES, IQ4_NL_LEVELS, E2M1_DOUBLED):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0
    assert all(len(np.unique(grid, axis=0)) == len(grid) for grid in GRIDS.values())
