"""Comparison of sessions bit for bit."""

from __future__ import annotations

import numpy as np


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Also where they are NaN, and not where 0 has another sign."""
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def one_by_one(session, tokens: np.ndarray) -> np.ndarray:
    """[N, V] logits of tokens that are windows of their own."""
    logits = []
    for token in tokens:
        logits.append(session.decode(np.array([token], np.int32))[0])
        session.commit(1)
    return np.array(logits)
