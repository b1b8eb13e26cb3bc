"""Integers times scales against libgguf (the public C decoders) and our own float decoder."""

from __future__ import annotations

import libgguf
import numpy as np
import pytest
from tests.unit.reference.stored_rows import random_rows

from strata.errors import UnsupportedError
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.reference.block_terms import (
    QUANTISED_FORMATS,
    block_terms,
    is_float_format,
    widen_floats,
)

TWO_SUB_SCALES = {"Q2_K", "Q3_K", "Q6_K", "IQ2_XS", "IQ2_S", "IQ1_M"}
MINIMA = {"Q4_1": 32, "Q5_1": 32, "Q4_K": 32, "Q5_K": 32, "Q2_K": 16}
INNER = 512


def rebuilt(name: str, raw: np.ndarray) -> np.ndarray:
    """Weights from the terms: integers multiplied as integers, then one float32 product."""
    terms = block_terms(name, raw)
    whole = terms.codes.astype(np.int32)
    if terms.sub_scales is not None:
        whole = whole * np.repeat(terms.sub_scales, 16, axis=1)
    values = whole.astype(np.float32) * np.repeat(terms.scales, INNER // terms.scales.shape[1], 1)
    if terms.min_scales is not None:
        values = values + np.repeat(terms.min_scales, INNER // terms.min_scales.shape[1], 1)
    return values


@pytest.mark.parametrize("name", QUANTISED_FORMATS)
def test_bits_equal_the_float_decoder(name: str) -> None:
    raw = random_rows(name, 64, INNER, seed=11)
    np.testing.assert_array_equal(rebuilt(name, raw), dequantize(FORMATS[name], raw))


@pytest.mark.parametrize("name", [name for name in QUANTISED_FORMATS if name != "Q2_0"])
def test_bits_equal_libgguf(name: str) -> None:
    raw = random_rows(name, 64, INNER, seed=12)
    theirs = libgguf.dequantize_rows(raw, FORMATS[name].ggml_id)
    np.testing.assert_array_equal(rebuilt(name, raw), theirs)


def test_q2_0_by_its_formula() -> None:
    raw = np.zeros((1, 18), np.uint8)
    raw[0, :2] = np.array([0.5], "<f2").view(np.uint8)
    raw[0, 2:4] = [0b11100100, 0b00000001]
    terms = block_terms("Q2_0", raw)
    assert terms.codes[0, :8].tolist() == [-1, 0, 1, 2, 0, -1, -1, -1]
    assert terms.scales.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("name", QUANTISED_FORMATS)
def test_shapes_of_the_contract(name: str) -> None:
    terms = block_terms(name, random_rows(name, 3, INNER, seed=13))
    assert terms.codes.shape == (3, INNER)
    assert (terms.sub_scales is not None) == (name in TWO_SUB_SCALES)
    assert terms.scales.shape == (3, INNER // (16 if name == "NVFP4" else 32))
    assert (terms.min_scales is not None) == (name in MINIMA)
    if terms.min_scales is not None:
        assert terms.min_scales.shape == (3, INNER // MINIMA[name])


def test_every_weight_format_is_either_float_or_quantised() -> None:
    weights = {name for name, fmt in FORMATS.items() if fmt.is_weights}
    assert weights == {*QUANTISED_FORMATS, "F32", "F16", "BF16"}
    assert all(is_float_format(name) != (name in QUANTISED_FORMATS) for name in weights)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_widen_exactly(name: str) -> None:
    raw = random_rows(name, 4, 96, seed=14)
    np.testing.assert_array_equal(widen_floats(name, raw), dequantize(FORMATS[name], raw))


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)Q9_Z.*Q4_K.*Try:"):
        block_terms("Q9_Z", np.zeros((1, 18), np.uint8))
