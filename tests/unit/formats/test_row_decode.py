"""Rows decoded by the extension against block_decode, bit for bit, on any bytes."""

from __future__ import annotations

import numpy as np
import pytest

from strata import _native
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.formats.row_decode import decode_rows

WEIGHTS = sorted(name for name, fmt in FORMATS.items() if fmt.is_weights)
FAST = [name for name in WEIGHTS if _native.is_row_format(FORMATS[name].ggml_id)]


def test_most_formats_are_fast() -> None:
    """Those with grids are not: no public file stores an embedding or a table in them."""
    assert {name for name in WEIGHTS if name not in FAST} == {
        "IQ1_M", "IQ1_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ3_S", "IQ3_XXS",
    }  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_any_bytes(name: str) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(6)
    raw = rng.integers(0, 256, (700, fmt.row_bytes(512)), np.uint8)
    # Each byte in turn takes every value: scales are decoded by tables of 256.
    raw[:256, : fmt.block_bytes] = np.arange(256, dtype=np.uint8)[:, None]
    rows = rng.integers(0, 700, 41).astype(np.int32)
    with np.errstate(all="ignore"):
        expected = dequantize(fmt, raw)
        cases = [
            (decode_rows(fmt, raw), expected),
            (decode_rows(fmt, raw, rows), expected[rows]),
            (decode_rows(fmt, raw, rows, 0.3), expected[rows] * np.float32(0.3)),
            (decode_rows(fmt, raw[:, : fmt.block_bytes]), expected[:, : fmt.block_size]),
            (_between_gaps(fmt, raw, rows[:40], 1), expected[rows[:40]]),
            (_between_gaps(fmt, raw, rows[:40], 4), expected[rows[:40]].reshape(10, 2048)),
        ]
    for found, wanted in cases:
        assert found.dtype == np.float32
        is_nan = np.isnan(wanted)
        np.testing.assert_array_equal(np.isnan(found), is_nan)
        np.testing.assert_array_equal(
            np.where(is_nan, np.float32(0), found).view(np.uint32),
            np.where(is_nan, np.float32(0), wanted).view(np.uint32),
        )


def _between_gaps(fmt, raw: np.ndarray, rows: np.ndarray, each: int) -> np.ndarray:
    """So many rows side by side, written into a wider array, the rest of which stays as it is."""
    wide = np.full((len(rows) // each, each * 512 + 7), -7.0, np.float32)
    out = wide[:, 3:-4]
    assert decode_rows(fmt, raw, rows, out=out) is out
    assert (wide[:, :3] == -7).all()
    assert (wide[:, -4:] == -7).all()
    return out.copy()


@pytest.mark.parametrize("name", ["Q5_K", "IQ3_S"])
def test_no_rows_and_wrong_rows(name: str) -> None:
    fmt = FORMATS[name]
    raw = np.zeros((3, fmt.row_bytes(512)), np.uint8)
    raw.flags.writeable = False  # as in a mapped file
    assert decode_rows(fmt, raw, np.zeros(0, np.int32)).shape == (0, 512)
    with pytest.raises(IndexError):
        decode_rows(fmt, raw, np.array([3]))


def test_outputs_of_the_wrong_size() -> None:
    raw = np.zeros((3, 34), np.uint8)
    wide = np.zeros((6, 64), np.float32)
    for bad in (wide[:3, :31], wide[:2, :32], wide[:, :16], wide[:2, :48], wide[:3, ::2]):
        with pytest.raises(ValueError, match="wrong size"):
            _native.decode_rows(8, raw, None, 1.0, bad)
    with pytest.raises(ValueError, match="whole number of blocks"):
        _native.decode_rows(8, raw[:, :33].copy(), None, 1.0, np.zeros((3, 32), np.float32))
    with pytest.raises(ValueError, match="whole number of blocks"):
        _native.decode_rows(8, np.zeros((3, 0), np.uint8), None, 1.0, np.zeros((3, 0), np.float32))
    with pytest.raises(ValueError, match="not decoded here"):
        _native.decode_rows(21, raw, None, 1.0, np.zeros((3, 32), np.float32))
