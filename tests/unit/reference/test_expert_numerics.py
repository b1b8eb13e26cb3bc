"""The exact expert arithmetic against float64, against scalar loops, and against known bits."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from tests.unit.reference.stored_rows import random_rows

from strata.errors import StrataError
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.reference.block_terms import QUANTISED_FORMATS, block_terms
from strata.reference.expert_numerics import (
    StoredMatrix,
    combine,
    exp_f32,
    expert_mlp,
    product,
    quantize_activations,
    sigmoid_f32,
    silu_f32,
)

f32 = np.float32
WHERE = "layer 3, expert 17"


def ulps(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    return np.abs(found.astype(np.float64) - exact) / np.spacing(exact.astype(f32)).astype(float)


def test_exp_is_within_one_unit_of_float64() -> None:
    x = np.linspace(-87.3, 88.7, 400_001).astype(f32)
    assert ulps(exp_f32(x), np.exp(x.astype(np.float64))).max() < 1.0


def test_exp_of_subnormal_results_rounds_once() -> None:
    x = np.linspace(-103.9, -87.3, 100_001).astype(f32)
    # One unit of the normal range is less than a subnormal step, so half a step and that.
    assert ulps(exp_f32(x), np.exp(x.astype(np.float64))).max() < 1.0


def test_exp_at_the_ends() -> None:
    x = np.array([0.0, -0.0, -104.0, -1e30, -np.inf, 88.7, 1e30, np.inf], f32)
    found = exp_f32(x)
    assert found[:2].tolist() == [1.0, 1.0]
    assert found[2:5].tolist() == [0.0, 0.0, 0.0]
    assert np.isfinite(found).all()
    assert len(set(found[5:].tolist())) == 1


def test_exp_never_decreases_between_neighbours() -> None:
    start = np.array([-20.0, -1.0, -0.35, -0.34, 0.34, 0.35, 1.0, 30.0], f32)
    x = (start.view(np.int32)[:, None] + np.arange(-500, 500, dtype=np.int32)).view(f32)
    y = exp_f32(np.sort(x.reshape(-1)))
    assert (np.diff(y.astype(np.float64)) >= -np.spacing(y[1:])).all()


def test_exp_keeps_these_bits() -> None:
    """The bits every other implementation has to meet; a change here is a change of contract."""
    x = np.array([1.0, -1.0, 0.5, 10.0, -10.0, 87.0, -87.0, -100.0, 1e-3, -0.3466], f32)
    expected = [
        0x402DF854, 0x3EBC5AB2, 0x3FD3094C, 0x46AC14EE, 0x383E6BCE,
        0x7E36D809, 0x00B33687, 0x0000001B, 0x3F8020C9, 0x3F3503BA,
    ]  # fmt: skip
    assert [hex(v) for v in exp_f32(x).view(np.uint32)] == [hex(v) for v in expected]
    # One result in ten is not the correctly rounded one: a sum over many pins those as well.
    grid = np.arange(-104 * 512, 88 * 512).astype(f32) / f32(512)
    assert zlib.crc32(exp_f32(grid).tobytes()) == 0x2379F735


def test_sigmoid_and_silu_against_float64() -> None:
    x = np.linspace(-60, 60, 100_001).astype(f32)
    wide = x.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-wide))
    assert ulps(sigmoid_f32(x), sigmoid).max() < 2.5
    inner = np.abs(x) > 1e-6
    assert ulps(silu_f32(x), wide * sigmoid)[inner].max() < 2.5
    assert silu_f32(np.array([-200.0, 200.0], f32)).tolist()[1] == 200.0


def test_activations_known_blocks() -> None:
    x = np.zeros((2, 64), f32)
    x[0, :32] = np.arange(32) - 15  # amax 16
    x[0, 32:] = 127.0
    x[1, 5] = -254.0
    x[1, 40] = 0.5
    codes, scales = quantize_activations(x, WHERE)
    assert scales.tolist() == [[f32(16) / f32(127), 1.0], [2.0, f32(0.5) / f32(127)]]
    expected = np.rint((np.arange(32) - 15) / (f32(16) / f32(127)))
    assert codes[0, :32].tolist() == expected.tolist()
    assert (codes[0, 32:] == 127).all()
    assert (codes[1, 5], codes[1, 40], np.abs(codes[1]).sum()) == (-127, 127, 254)


def test_activations_zero_and_subnormal_blocks() -> None:
    step = np.spacing(f32(0))
    x = np.zeros((3, 32), f32)
    x[1, 0] = 40 * step  # amax / 127 rounds to zero
    x[2, :2] = [190 * step, -190 * step]  # and here to one step: 190 does not fit a code
    codes, scales = quantize_activations(x, WHERE)
    assert scales[:, 0].tolist() == [0.0, 0.0, step]
    assert not codes[:2].any()
    assert codes[2, :2].tolist() == [127, -127]


def test_activations_round_half_to_even() -> None:
    x = np.array([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, *[0.0] * 26]], f32)
    codes, _ = quantize_activations(x, WHERE)
    assert codes[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_no_numbers_name_the_expert(bad: float) -> None:
    x = np.zeros((2, 64), f32)
    x[1, 37] = bad
    with pytest.raises(StrataError, match=r"(?s)row 1, value 37.*layer 3, expert 17.*Try:"):
        quantize_activations(x, WHERE)


def scalar_product(name: str, raw: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The contract as loops over numpy scalars, one rounding a line."""
    terms = block_terms(name, raw)
    codes, a = quantize_activations(x, WHERE)
    inner = x.shape[1]
    sub = np.ones((len(raw), 1), int) if terms.sub_scales is None else terms.sub_scales
    per_sub = inner // sub.shape[1]
    per_scale = inner // terms.scales.shape[1]
    out = np.zeros((len(x), len(raw)), f32)
    for n in range(len(x)):
        for r in range(len(raw)):
            total, group = f32(0), f32(0)
            for b in range(inner // 32):
                for start in range(32 * b, 32 * b + 32, min(per_scale, 32)):
                    whole = 0
                    for k in range(start, start + min(per_scale, 32)):
                        sub = (
                            1
                            if terms.sub_scales is None
                            else int(terms.sub_scales[r, k // per_sub])
                        )
                        whole += int(codes[n, k]) * int(terms.codes[r, k]) * sub
                    assert abs(whole) <= 1 << 24
                    scale = f32(terms.scales[r, start // per_scale] * a[n, b])
                    group = f32(group + f32(f32(whole) * scale))
                if terms.min_scales is not None:
                    width = inner // terms.min_scales.shape[1]
                    for start in range(32 * b, 32 * b + 32, width):
                        s = f32(a[n, b] * f32(int(codes[n, start : start + width].sum(dtype=int))))
                        group = f32(group + f32(terms.min_scales[r, start // width] * s))
                if b % 8 == 7 or b == inner // 32 - 1:
                    total, group = f32(total + group), f32(0)
            out[n, r] = total
    return out


@pytest.mark.parametrize("name", QUANTISED_FORMATS)
def test_product_follows_the_written_order(name: str) -> None:
    # 320 and 768 end in a short and a whole group; formats of 256 take the latter only.
    inner = 320 if 320 % FORMATS[name].block_size == 0 else 768
    raw = random_rows(name, 3, inner, seed=1)
    x = np.random.default_rng(2).normal(size=(2, inner)).astype(f32)
    found = product(name, raw, x, WHERE)
    np.testing.assert_array_equal(
        found.view(np.uint32), scalar_product(name, raw, x).view(np.uint32)
    )


@pytest.mark.parametrize("name", QUANTISED_FORMATS)
def test_product_against_dequantised_float64(name: str) -> None:
    inner = 512
    raw = random_rows(name, 40, inner, seed=3)
    x = np.random.default_rng(4).normal(size=(3, inner)).astype(f32)
    codes, scales = quantize_activations(x, WHERE)
    seen = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)
    weights = dequantize(FORMATS[name], raw).astype(np.float64)
    exact, size = seen @ weights.T, np.abs(seen) @ np.abs(weights).T
    # A minimum can be far larger than the weight it leaves: judge by what was added.
    terms = block_terms(name, raw)
    if terms.min_scales is not None:
        size += 2 * np.abs(seen).sum() * np.abs(terms.min_scales).max()
    assert (np.abs(product(name, raw, x, WHERE) - exact) < 1e-6 * size).all()


@pytest.mark.parametrize("inner", [38, 319, 320, 321, 672])
def test_float_product_order(inner: int) -> None:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=(2, inner)).astype(f32)
    x = rng.normal(size=(2, inner)).astype(f32)
    found = product("F32", weights.view(np.uint8), x, WHERE)
    for n in range(2):
        for r in range(2):
            total, p = f32(0), [f32(0)] * 4
            for k in range(inner):
                p[k % 4] = f32(p[k % 4] + f32(weights[r, k] * x[n, k]))
                if (k + 1) % 320 == 0 or k + 1 == inner:
                    total = f32(total + f32(f32(p[0] + p[1]) + f32(p[2] + p[3])))
                    p = [f32(0)] * 4
            assert found[n, r] == total


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_half_floats_are_widened(name: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(2, 64)).astype(f32)
    raw = random_rows(name, 4, 64, seed=7)
    wide = dequantize(FORMATS[name], raw)
    np.testing.assert_array_equal(
        product(name, raw, x, WHERE), product("F32", wide.view(np.uint8), x, WHERE)
    )


@pytest.mark.parametrize("name", ["Q4_K", "NVFP4", "F16"])
def test_a_row_does_not_see_its_neighbours(name: str) -> None:
    raw = random_rows(name, 6, 256, seed=8)
    x = np.random.default_rng(9).normal(size=(8, 256)).astype(f32)
    together = product(name, raw, x, WHERE)
    for n in range(8):
        np.testing.assert_array_equal(product(name, raw, x[n : n + 1], WHERE)[0], together[n])


def test_expert_against_float64() -> None:
    rng = np.random.default_rng(10)
    gate, up, down = (
        rng.normal(size=shape).astype(f32) / 8 for shape in ((64, 96), (64, 96), (96, 64))
    )
    x = rng.normal(size=(4, 96)).astype(f32)
    stored = [StoredMatrix("F32", m.view(np.uint8)) for m in (gate, up, down)]
    found = expert_mlp(x, *stored, WHERE)
    wide = x.astype(np.float64)
    g, u = wide @ gate.T, wide @ up.T
    exact = (g / (1 + np.exp(-g)) * u) @ down.T
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-6)


def test_combine_adds_in_routing_order() -> None:
    # 1e8 + 1 - 1e8 is 0 in float32 in this order and 1 in the other.
    one = np.ones(2, f32)
    outputs = [one * f32(1e8), one, one * f32(-1e8)]
    weights = np.ones(3, f32)
    gate = np.array(0.0, f32)
    assert combine(outputs, weights, one * 4, gate).tolist() == [2.0, 2.0]
    reordered = [outputs[0], outputs[2], outputs[1]]
    assert combine(reordered, weights, one * 4, gate).tolist() == [3.0, 3.0]
