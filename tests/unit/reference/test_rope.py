"""Rotary tables against transformers' initialisers and its interleaving module."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextRotaryEmbedding

from strata.errors import SettingsError
from strata.model_spec import RopeScaling, RopeSpec
from strata.reference.rope import pair_frequencies, rope_tables, rotate

PLAIN = RopeSpec(dim=64, base=1e7, sections=(11, 11, 10))
YARN = dataclasses.replace(
    PLAIN, scaling=RopeScaling.YARN, factor=4.0, original_context_len=262_144
)


def hf_config(rope: RopeSpec) -> Qwen4ExpTextConfig:
    return Qwen4ExpTextConfig(
        head_dim=4 * rope.dim,
        max_position_embeddings=int(rope.original_context_len * rope.factor) or 262_144,
        rope_parameters={
            "rope_type": {"none": "default"}.get(rope.scaling.value, rope.scaling.value),
            "rope_theta": rope.base,
            "partial_rotary_factor": 0.25,
            "mrope_section": list(rope.sections),
            "factor": rope.factor,
            "original_max_position_embeddings": rope.original_context_len,
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
        },
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"factor": 1.0},
        {"factor": 16.0, "beta_fast": 16.0, "beta_slow": 2.0},
        {"dim": 32, "base": 1e4, "original_context_len": 4096},
        {"original_context_len": 64, "base": 1e4},
    ],
)
def test_yarn_against_transformers(changes: dict[str, float]) -> None:
    rope = dataclasses.replace(YARN, **changes)
    theirs, magnitude = ROPE_INIT_FUNCTIONS["yarn"](hf_config(rope), "cpu")
    frequencies, ours = pair_frequencies(rope)
    np.testing.assert_allclose(frequencies, theirs.numpy(), rtol=2e-6)
    assert ours == pytest.approx(magnitude, rel=1e-12)


def test_linear_against_transformers() -> None:
    rope = dataclasses.replace(YARN, scaling=RopeScaling.LINEAR, factor=2.5)
    theirs, magnitude = ROPE_INIT_FUNCTIONS["linear"](hf_config(rope), "cpu")
    frequencies, ours = pair_frequencies(rope)
    np.testing.assert_allclose(frequencies, theirs.numpy(), rtol=2e-6)
    assert ours == magnitude == 1.0


def test_yarn_without_extrapolation_is_linear() -> None:
    yarn = dataclasses.replace(YARN, ext_factor=0.0)
    linear = dataclasses.replace(YARN, scaling=RopeScaling.LINEAR)
    np.testing.assert_array_equal(pair_frequencies(yarn)[0], pair_frequencies(linear)[0])
    assert pair_frequencies(yarn)[1] == 1.0


@pytest.mark.parametrize("sections", [(11, 11, 10), (20, 6, 6), (12, 10, 10)])
def test_interleaved_sections_against_transformers(sections: tuple[int, int, int]) -> None:
    rope = dataclasses.replace(PLAIN, sections=sections)
    positions = np.random.default_rng(0).integers(0, 500, (40, 3))
    module = Qwen4ExpTextRotaryEmbedding(hf_config(rope))
    theirs = module(torch.zeros(1, 1), torch.from_numpy(positions.T.copy())[:, None])
    cos, sin = rope_tables(rope, positions, np.float32)
    for ours, wanted in zip((cos, sin), theirs, strict=True):
        np.testing.assert_allclose(ours, wanted[0, :, :32].numpy(), rtol=0, atol=1e-4)


def test_text_positions_are_equal_coordinates() -> None:
    positions = np.arange(100, 120)
    flat = rope_tables(PLAIN, positions, np.float64)
    threefold = rope_tables(PLAIN, np.repeat(positions[:, None], 3, axis=1), np.float64)
    np.testing.assert_array_equal(flat, threefold)


def test_angles_far_out_are_exact() -> None:
    """float32 angles are off by 0.02 rad here; math.cos on Python floats is the truth."""
    cos, sin = rope_tables(PLAIN, np.array([262_143]), np.float32)
    for pair in range(32):
        angle = 262_143 * 1e7 ** (-2 * pair / 64)
        assert cos[0, pair] == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[0, pair] == pytest.approx(math.sin(angle), abs=1e-7)


def test_rotation_is_complex_multiplication_of_half_split_pairs() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5, 2, 11))
    angles = rng.normal(size=(5, 4))
    turned = rotate(x, np.cos(angles), np.sin(angles))
    wanted = (x[..., :4] + 1j * x[..., 4:8]) * np.exp(1j * angles)[:, None]
    np.testing.assert_allclose(turned[..., :4], wanted.real, atol=1e-14)
    np.testing.assert_allclose(turned[..., 4:8], wanted.imag, atol=1e-14)
    np.testing.assert_array_equal(turned[..., 8:], x[..., 8:])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("factor", 0.5),
        ("factor", math.nan),
        ("factor", math.inf),
        ("attn_factor", 0.0),
        ("ext_factor", -1.0),
        ("original_context_len", 0),
        ("beta_slow", 0.0),
        ("beta_fast", 0.5),
    ],
)
def test_unusable_scaling_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(SettingsError, match=rf"yarn cannot use {name} = .*(?s:.*)Try:"):
        pair_frequencies(dataclasses.replace(YARN, **{name: value}))
