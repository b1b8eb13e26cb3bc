"""Agreement against scipy-free formulas worked by hand, and against a fake session."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.fakes import AS_PROMPT, DECODED, FakeSession

from strata.engine.agreement import Agreement, logits_along


def test_equal_distributions_have_no_divergence():
    logits = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    result = Agreement.of(logits, logits + 7)  # a shift changes no probability
    assert result.mean_kl == pytest.approx(0, abs=1e-12)
    assert result.argmax_share == 1.0
    assert result.num_positions == 5


def test_divergence_worked_by_hand():
    theirs = np.log(np.array([[0.5, 0.5], [0.9, 0.1]]))
    ours = np.log(np.array([[0.25, 0.75], [0.9, 0.1]]))
    result = Agreement.of(theirs, ours)
    by_hand = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert result.max_kl == pytest.approx(by_hand)
    assert result.mean_kl == pytest.approx(by_hand / 2)
    assert result.argmax_share == 0.5


def test_an_impossible_token_costs_nothing():
    theirs = np.array([[0.0, -np.inf]])
    assert Agreement.of(theirs, np.array([[3.0, 3.0]])).mean_kl == pytest.approx(math.log(2))


def test_logits_along_are_those_of_prompt_and_answer():
    session = FakeSession(50, 100)
    prompt, answer = np.arange(5, dtype=np.int32), np.array([7, 8, 9], dtype=np.int32)
    rows = logits_along(session, prompt, answer)
    for index in range(3):
        history = [*prompt.tolist(), *answer[:index].tolist()]
        ways = [AS_PROMPT] * 5 + [DECODED] * index
        assert np.array_equal(rows[index], FakeSession(50, 100).logits_after(history, ways))
