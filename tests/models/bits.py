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


def read_in_all_ways(
    session, tokens: np.ndarray, num_prompt: int, num_single: int, num_rows: int, num_kept: int
) -> np.ndarray:
    """[N, V] logits: after a prompt, of single tokens, and of windows that keep some of their rows.

    Args:
        session: one that has read nothing.
        tokens: int32; windows take whole ``num_rows`` of what the others leave.
        num_prompt: tokens of the prompt.
        num_single: tokens that are windows of their own.
        num_rows: rows of a window.
        num_kept: rows that are kept of it.
    """
    first = num_prompt + num_single
    found = [session.prefill(tokens[:num_prompt])]
    found += list(one_by_one(session, tokens[num_prompt:first]))
    for begin in range(first, len(tokens) - num_rows + 1, num_rows):
        found += list(session.decode(tokens[begin : begin + num_rows]))
        session.commit(num_kept)
    return np.stack(found)
