"""Quantisers: their error against libgguf's, or a brute-force search where it has none."""

import libgguf
import numpy as np
import pytest
import torch

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.formats.quantize import QUANTIZABLE, quantize

BLOCKED = [name for name in QUANTIZABLE if not FORMATS[name].is_plain]
ORACLE_NAMES = [name for name in BLOCKED if name != "Q2_0"]


def relative_error(x, decoded):
    x = x.astype(np.float64)
    return np.sqrt(np.square(x - decoded).sum() / np.square(x).sum())


def round_trip(name, x):
    return dequantize(FORMATS[name], quantize(FORMATS[name], x))


def gaussian(rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    return (0.02 * rng.standard_normal((rows, columns))).astype(np.float32)


@pytest.mark.parametrize("name", ORACLE_NAMES)
@pytest.mark.parametrize("draw", ["normal", "laplace", "uniform", "positive"])
def test_error_is_no_worse_than_libgguf(name, draw):
    rng = np.random.default_rng(7)
    x = {
        "normal": rng.standard_normal,
        "laplace": lambda size: rng.laplace(size=size),
        "uniform": lambda size: rng.uniform(-1, 1, size),
        "positive": lambda size: rng.uniform(0.5, 1, size),
    }[draw]((32, 1024)).astype(np.float32) * np.float32(0.02)
    number = FORMATS[name].ggml_id
    theirs = libgguf.dequantize_rows(libgguf.quantize_rows(x, number), number)
    ours = relative_error(x, round_trip(name, x))
    # Never worse by a percent; on the draws weights resemble, not worse at all but for noise.
    allowed = 1.002 if draw in ("normal", "laplace") else 1.01
    assert ours <= allowed * relative_error(x, theirs)


def test_q2_0_is_near_the_best_scale_of_a_fine_search():
    x = gaussian(16, 64)
    ours = relative_error(x, round_trip("Q2_0", x))
    unit = x.astype(np.float64) / np.abs(x).max(axis=1, keepdims=True)
    scales = np.linspace(0.2, 1.2, 400)
    best = np.full(len(x), np.inf)
    for scale in (*scales, *-scales):
        levels = np.clip(np.rint(unit / scale), -1, 2)
        best = np.minimum(best, np.square(unit - scale * levels).sum(axis=1))
    least = np.sqrt((best * np.square(np.abs(x).max(axis=1))).sum() / np.square(x).sum())
    assert ours <= 1.02 * least


def test_q2_0_keeps_its_own_levels():
    levels = np.random.default_rng(0).integers(-1, 3, (8, 128)).astype(np.float32) * 0.25
    levels[:, ::64] = 0.5
    assert np.array_equal(round_trip("Q2_0", levels), levels)
    assert np.array_equal(round_trip("Q2_0", -levels), -levels)


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_decoded_weights_survive_a_second_round(name):
    x = gaussian(8, 512)
    once = round_trip(name, x)
    # The second error is far below the first, so codes and scales go where decode looks.
    assert relative_error(once, round_trip(name, once)) <= 0.25 * relative_error(x, once)


def test_plain_formats_round_as_torch_does():
    bits = np.random.default_rng(1).integers(0, 2**32, 20_000, dtype=np.uint32)
    # Ties of both kinds: exactly half of bfloat16's last place above an even and an odd one.
    bits[:2] = 0x3F808000, 0x3F818000
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) < 3.3e38)]
    brain = quantize(FORMATS["BF16"], x).view(np.int16)
    assert np.array_equal(brain, torch.from_numpy(x).bfloat16().view(torch.int16).numpy())
    assert np.array_equal(quantize(FORMATS["F32"], x).view(np.float32), x)
    small = np.concatenate([x[np.abs(x) < 60_000], gaussian(1, 5000)[0]])
    half = quantize(FORMATS["F16"], small).view(np.int16)
    assert np.array_equal(half, torch.from_numpy(small).half().view(torch.int16).numpy())


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_a_block_gives_the_same_bytes_alone_and_in_company(name):
    fmt = FORMATS[name]
    x = gaussian(700, max(fmt.block_size, 32), seed=3)
    whole = quantize(fmt, x)
    for start, stop in ((0, 1), (1, 3), (297, 304), (699, 700)):
        assert np.array_equal(quantize(fmt, x[start:stop]), whole[start:stop])
    assert np.array_equal(quantize(fmt, x), whole)


@pytest.mark.parametrize("name", BLOCKED)
def test_zero_constant_and_extreme_rows_stay_finite(name):
    x = np.zeros((8, 512), np.float32)
    x[1], x[2], x[3] = 0.5, -0.5, 1e-38
    x[4, ::7] = 1e-42
    x[5, 100] = 32768
    x[6] = np.where(np.arange(512) % 2, 32768, -32768)
    x[7] = 3e-6
    decoded = round_trip(name, x)
    assert np.isfinite(decoded).all()
    assert not decoded[0].any()
    for row in (1, 2, 5, 6):
        # Two bits hold +d and -d badly when the levels are -1, 0, 1, 2 or start at a minimum.
        assert relative_error(x[row], decoded[row]) < 0.36
    # Below a half's smallest step nothing is left, and nothing may appear.
    assert np.abs(decoded[3:5]).max() < 1e-6
    assert np.abs(decoded[7]).max() < 1e-4


@pytest.mark.parametrize("name", QUANTIZABLE)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_with_their_place(name, value):
    x = gaussian(3, 2 * 65536)
    x[2, 70_000] = value
    with pytest.raises(
        CheckpointError, match=rf"to {name}: the value at \[2, 70000\] is NaN or inf"
    ):
        quantize(FORMATS[name], x)


@pytest.mark.parametrize("name", [name for name in QUANTIZABLE if name not in ("F32", "MXFP4")])
def test_value_beyond_the_format_is_refused(name):
    x = gaussian(2, 256)
    x[1, 3] = 3.4e38
    with pytest.raises(CheckpointError, match=r"the value at \[1, 3\] is above"):
        quantize(FORMATS[name], x)


def test_leading_axes_strides_and_empty_input():
    x = gaussian(12, 128).reshape(2, 6, 128)
    fmt = FORMATS["Q4_0"]
    raw = quantize(fmt, x)
    assert raw.shape == (2, 6, 72)
    assert np.array_equal(quantize(fmt, x[:, ::2]), raw[:, ::2])
    assert quantize(fmt, x[:0]).shape == (0, 6, 72)


def test_row_that_does_not_fill_blocks_and_unknown_target():
    with pytest.raises(CheckpointError, match="a row of 100 weights"):
        quantize(FORMATS["Q4_K"], np.zeros((2, 100), np.float32))
    with pytest.raises(UnsupportedError, match=r"cannot quantise to IQ2_XS.*\n.*one of F32, F16"):
        quantize(FORMATS["IQ2_XS"], np.zeros((2, 256), np.float32))
