"""Norms and pointwise functions of the model, in the dtype of their input."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

L2_EPS = 1e-6  # fixed in the original network, unlike the RMS epsilon, which is metadata
SOFTPLUS_LINEAR_ABOVE = 20.0  # the original network's softplus is the identity from here on


def rms_norm(x: Array, gamma: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * gamma over the last axis; gamma is the stored 1 + w."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(mean_square + x.dtype.type(eps)) * gamma)


def l2_norm(x: Array) -> Array:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    square = np.sum(x * x, axis=-1, keepdims=True)
    return np.asarray(x / np.sqrt(square + x.dtype.type(L2_EPS)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return np.asarray(x * sigmoid(x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) up to 20, x above."""
    bounded = np.minimum(x, x.dtype.type(SOFTPLUS_LINEAR_ABOVE))
    return np.where(x > SOFTPLUS_LINEAR_ABOVE, x, np.log1p(np.exp(bounded)))


def softmax(x: Array) -> Array:
    """exp(x - max) / sum over the last axis."""
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
