"""Rotary positions: tables of cosine and sine, and how a head is rotated with them.

Angles are float64 whatever the result's dtype; float32 angles are off by 0.02 rad at 262,144.
The CPU engine uses these tables too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strata.errors import SettingsError
from strata.model_spec import RopeScaling, RopeSpec

Array = NDArray[Any]

# Keeps the YaRN ramp finite when both ends fall on one pair.
_MIN_RAMP_PAIRS = 0.001


def check_rope_scaling(rope: RopeSpec) -> None:
    """Refuses knobs that would give no usable angle.

    Raises:
        SettingsError: a knob is not finite or out of range; names it.
    """
    if rope.scaling is RopeScaling.NONE:
        return
    limits: dict[str, tuple[float, float]] = {
        "factor": (rope.factor, 1.0),
        "attn_factor": (rope.attn_factor, math.ulp(0.0)),
        "ext_factor": (rope.ext_factor, 0.0),
    }
    if rope.scaling is RopeScaling.YARN:
        limits["original_context_len"] = (rope.original_context_len, 1)
        limits["beta_slow"] = (rope.beta_slow, math.ulp(0.0))
        limits["beta_fast"] = (rope.beta_fast, rope.beta_slow)
    for name, (value, least) in limits.items():
        if not (math.isfinite(value) and value >= least):
            raise SettingsError(
                f"rope scaling {rope.scaling.value} cannot use {name} = {value}: "
                f"expected a finite number of at least {least:g}.\n"
                "  Try: correct the rope scaling settings, or leave them out."
            )


def pair_frequencies(rope: RopeSpec) -> tuple[NDArray[np.float64], float]:
    """Radians per position of each pair, [dim / 2] float64, and the magnitude of cos and sin.

    YaRN keeps fast pairs (many turns within the trained context), stretches slow ones by
    ``factor`` and blends linearly in between. Source: Peng et al. 2023 (arXiv 2309.00071).
    """
    check_rope_scaling(rope)
    pair = np.arange(rope.dim // 2, dtype=np.float64)
    plain = rope.base ** (-2 * pair / rope.dim)
    if rope.scaling is RopeScaling.NONE:
        return plain, 1.0
    stretched = plain / rope.factor
    if rope.scaling is RopeScaling.LINEAR:
        return stretched, rope.attn_factor

    def pair_with_turns(turns: float) -> float:
        """Pair index that makes this many turns within the trained context."""
        longest = rope.original_context_len / (turns * 2 * math.pi)
        return rope.dim * math.log(longest) / (2 * math.log(rope.base))

    low = max(math.floor(pair_with_turns(rope.beta_fast)), 0)
    high = min(math.ceil(pair_with_turns(rope.beta_slow)), rope.dim - 1)
    ramp = 1 - np.clip((pair - low) / max(_MIN_RAMP_PAIRS, high - low), 0, 1)
    mix = ramp * rope.ext_factor
    magnitude = rope.attn_factor
    if rope.ext_factor != 0:
        magnitude *= 1 + 0.1 * math.log(rope.factor)
    return stretched * (1 - mix) + plain * mix, magnitude


def rope_tables(rope: RopeSpec, positions: NDArray[np.int64], dtype: type) -> tuple[Array, Array]:
    """Cosine and sine of every position and pair.

    Args:
        rope: pairs, base and scaling. Pair i turns with t, h or w for i % 3 = 0, 1, 2, as long
            as i < 3 * sections[i % 3]; with t otherwise.
        positions: [T] text positions, or [T, 3] as t, h, w.
        dtype: of the result; angles are float64.

    Returns:
        cos and sin, each [T, dim / 2], magnitude included.
    """
    frequencies, magnitude = pair_frequencies(rope)
    pair = np.arange(rope.dim // 2)
    axis = np.where(pair < 3 * np.asarray(rope.sections)[pair % 3], pair % 3, 0)
    coordinates = positions if positions.ndim == 2 else np.repeat(positions[:, None], 3, axis=1)
    angles = coordinates[:, axis].astype(np.float64) * frequencies
    return (np.cos(angles) * magnitude).astype(dtype), (np.sin(angles) * magnitude).astype(dtype)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """The first 2 * pairs values of the last axis turned; value i is paired with i + pairs.

    Args:
        x: [T, heads, width].
        cos: [T, pairs].
        sin: [T, pairs].

    Returns:
        [T, heads, width], a new array.
    """
    pairs = cos.shape[-1]
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([first * c - second * s, second * c + first * s, rest], axis=-1)
