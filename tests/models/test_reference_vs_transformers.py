"""The numpy reference against transformers' own ``Qwen4ExpForCausalLM`` on tiny random models.

Both sides hold the same float32-representable weights. Contexts run from one token to many times
the indexer's budget; end-of-sequence tokens are sprinkled in, because they cut n-grams.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.hf_oracle import HfRun
from tests.models.tiny_models import EOS_ID, TINY, VOCAB_SIZE, TinyModel, tiny_model

from strata.errors import CheckpointError
from strata.reference.decoder import ReferenceDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_TOKENS = 150
NAMES = [*TINY, *(f"random-{seed}" for seed in range(6))]
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}


def some_tokens(seed: int, num: int = NUM_TOKENS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB_SIZE, num)
    tokens[rng.choice(num, num // 12, replace=False)] = EOS_ID
    return tokens


def reference(model: TinyModel, dtype: str) -> ReferenceDecoder:
    return ReferenceDecoder(model.spec, model.weights, getattr(np, dtype))


def in_pieces(run, tokens: np.ndarray, cuts: Sequence[int]) -> np.ndarray:
    """Logits of all tokens, read in pieces that end at ``cuts``."""
    return np.concatenate([run(piece) for piece in np.split(tokens, cuts)])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_a_whole_prompt(name: str, dtype: str) -> None:
    model = tiny_model(name, dtype)
    assert model.spec.index_budget * 4 < NUM_TOKENS  # the selection must leave cells out
    tokens = some_tokens(1)
    decoder = reference(model, dtype)
    ours = decoder.forward(tokens, decoder.initial_state())
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, HfRun(model.hf).forward(tokens), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_prompt_split_at_odd_places_then_decode(name: str) -> None:
    model = tiny_model(name, "float64")
    tokens = some_tokens(2)
    decoder = reference(model, "float64")
    state = decoder.initial_state()
    # Single tokens first, pieces that end inside a block, then one token at a time.
    ours = in_pieces(
        lambda piece: decoder.forward(piece, state), tokens, [1, 2, 5, 18, 19, 61, *range(120, 150)]
    )
    assert state.num_tokens == NUM_TOKENS
    whole = HfRun(model.hf).forward(tokens)
    np.testing.assert_allclose(ours, whole, rtol=0, atol=1e-9)
    # transformers, cut elsewhere, agrees with itself too: its cache is part of the oracle.
    run = HfRun(model.hf)
    theirs = in_pieces(run.forward, tokens, [3, 40, 41, 100, *range(130, 150)])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "dtype"), [("plain", "float32"), ("long-ngram", "float64")])
def test_greedy_answer_token_for_token(name: str, dtype: str) -> None:
    model = tiny_model(name, dtype)
    decoder = reference(model, dtype)
    state, run = decoder.initial_state(), HfRun(model.hf)
    prompt = some_tokens(3, 23)
    ours, theirs = decoder.forward(prompt, state)[-1], run.forward(prompt)[-1]
    answer = []
    for _ in range(200):
        token = int(theirs.argmax())
        assert int(ours.argmax()) == token, f"after {len(answer)} tokens"
        answer.append(token)
        ours = decoder.forward(np.array([token]), state)[-1]
        theirs = run.forward(np.array([token]))[-1]
    assert len(set(answer)) > 20  # an answer that repeats itself would compare little


@pytest.mark.parametrize("name", ["plain", "no-memory", "yarn"])
def test_picture_positions(name: str) -> None:
    model = tiny_model(name, "float64")
    tokens = some_tokens(4, 60)
    # Ten of text, a picture of 6 by 5, then text from 10 + max(6, 5) on.
    text = np.repeat(np.arange(10)[:, None], 3, axis=1)
    y, x = np.divmod(np.arange(30), 6)
    picture = 10 + np.stack([np.zeros(30, int), y, x], axis=1)
    after = np.repeat(16 + np.arange(20)[:, None], 3, axis=1)
    positions = np.concatenate([text, picture, after])
    decoder = reference(model, "float64")
    state = decoder.initial_state()
    ours = np.concatenate(
        [
            decoder.forward(tokens[part], state, positions[part])
            for part in (slice(0, 33), slice(33, 60))
        ]
    )
    theirs = HfRun(model.hf).forward(tokens, positions)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    plain = decoder.forward(tokens, decoder.initial_state())
    assert np.abs(plain - ours).max() > 1e-3  # positions matter at all


@pytest.mark.parametrize("name", ["plain", "many-qsa", "long-ngram"])
def test_selection_acts_exactly_beyond_the_budget(name: str) -> None:
    model = tiny_model(name, "float64")
    spec = model.spec
    tokens = some_tokens(5)
    everything = dataclasses.replace(spec, index_budget=spec.index_block * NUM_TOKENS)
    sparse = reference(model, "float64")
    dense = ReferenceDecoder(everything, model.weights, np.float64)
    a = sparse.forward(tokens, sparse.initial_state())
    b = dense.forward(tokens, dense.initial_state())
    same = np.abs(a - b).max(axis=1) < 1e-12
    first_cut = spec.index_budget + spec.index_block - 1  # cells that always fit
    assert same[:first_cut].all()
    assert not same[first_cut]
    assert same[first_cut:].mean() < 0.1


def test_a_copied_state_is_independent() -> None:
    model = tiny_model("plain", "float64")
    decoder = reference(model, "float64")
    state = decoder.initial_state()
    decoder.forward(some_tokens(6, 31), state)
    kept = state.copy()
    first = decoder.forward(some_tokens(7, 9), state)
    assert kept.num_tokens == 31
    np.testing.assert_array_equal(decoder.forward(some_tokens(7, 9), kept), first)


def test_missing_tensors_are_all_named() -> None:
    model = tiny_model("plain")
    lacking = ("output_hc_up.weight", "blk.1.ple_key.weight", "blk.3.indexer.k_proj.weight")
    weights = {name: w for name, w in model.weights.items() if name not in lacking}
    with pytest.raises(CheckpointError) as caught:
        ReferenceDecoder(model.spec, weights)
    assert all(name in str(caught.value) for name in lacking)
    assert "lacks 3 of" in str(caught.value)
