"""The reference's draft layer against one assembled from transformers' modules, and its state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.models.draft_oracle import draft_model
from tests.models.tiny_models import TINY, VOCAB_SIZE

from strata.errors import CheckpointError
from strata.reference.decoder import ReferenceDecoder
from strata.reference.draft_layer import ReferenceDraftLayer

NAMES = [*TINY, *(f"random-{seed}" for seed in range(6))]
NUM_TOKENS = 70
ATOL = {"float64": 1e-9, "float32": 2e-4}


def some_tokens(seed: int, num: int = NUM_TOKENS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, num)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_streams_and_logits_equal_transformers(name: str, dtype: str) -> None:
    model = draft_model(name, dtype)
    tokens = some_tokens(1)
    decoder = ReferenceDecoder(model.tiny.spec, model.tiny.weights, getattr(np, dtype))
    streams, trunk_logits = decoder.forward_streams(tokens, decoder.initial_state())
    theirs = model.oracle.trunk_streams(tokens)
    np.testing.assert_allclose(streams, theirs, rtol=0, atol=ATOL[dtype])
    np.testing.assert_array_equal(trunk_logits, decoder.forward(tokens, decoder.initial_state()))

    layer = ReferenceDraftLayer(model.tiny.spec, model.tiny.weights, getattr(np, dtype))
    state = layer.initial_state()
    # In pieces: cells of earlier calls are seen by later ones.
    cuts = [0, 1, 2, 40, NUM_TOKENS - 1]
    found = [
        layer.read(streams[a:b], tokens[a + 1 : b + 1], state) for a, b in itertools.pairwise(cuts)
    ]
    expected = model.oracle.forward(theirs[:-1], tokens[1:])
    for part, wanted in enumerate(expected):
        ours = np.concatenate([piece[part] for piece in found])
        np.testing.assert_allclose(ours, wanted, rtol=0, atol=ATOL[dtype])
    assert state.num_cells == NUM_TOKENS - 1


@pytest.mark.parametrize("name", ["plain", "many-qsa", "random-1"])
def test_drafts_equal_transformers(name: str) -> None:
    model = draft_model(name, "float64")
    tokens = some_tokens(2, 30)
    streams = model.oracle.trunk_streams(tokens)[:-1]
    layer = ReferenceDraftLayer(model.tiny.spec, model.tiny.weights, np.float64)
    state = layer.initial_state()
    layer.read(streams, tokens[1:], state)
    ids, probs = layer.propose(4, state)
    next_tokens = tokens[1:]
    for token, prob in zip(ids, probs, strict=True):
        out, logits = model.oracle.forward(streams, next_tokens)
        assert token == int(logits[-1].argmax())
        powers = np.exp(logits[-1] - logits[-1].max())
        assert prob == pytest.approx(powers.max() / powers.sum(), abs=1e-9)
        # The layer goes on from its own streams and its own pick.
        streams = np.concatenate([streams, out[-1:]])
        next_tokens = np.append(next_tokens, token)
    assert len(set(ids)) > 1


def test_the_layer_may_have_its_own_embedding_and_head() -> None:
    model = draft_model("plain", "float64", has_own_ends=True)
    tokens = some_tokens(3, 20)
    streams = model.oracle.trunk_streams(tokens)[:-1]
    layer = ReferenceDraftLayer(model.tiny.spec, model.tiny.weights, np.float64)
    _, logits = layer.read(streams, tokens[1:], layer.initial_state())
    _, expected = model.oracle.forward(streams, tokens[1:], has_own_ends=True)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-9)
    _, shared = model.oracle.forward(streams, tokens[1:])
    assert np.abs(logits - shared).max() > 1e-2


def test_drafting_leaves_the_true_cells_alone() -> None:
    model = draft_model("plain", "float64")
    tokens = some_tokens(4, 24)
    streams = model.oracle.trunk_streams(tokens)
    layer = ReferenceDraftLayer(model.tiny.spec, model.tiny.weights, np.float64)
    plain, drafting = layer.initial_state(), layer.initial_state()
    assert layer.propose(3, plain) == ([], [])
    for at in range(20):
        expected = layer.read(streams[at : at + 1], tokens[at + 1 : at + 2], plain)
        found = layer.read(streams[at : at + 1], tokens[at + 1 : at + 2], drafting)
        np.testing.assert_array_equal(found[1], expected[1])
        layer.propose(3, drafting)
        assert drafting.num_cells == at + 1


def test_missing_tensors_are_all_named() -> None:
    tiny = draft_model("plain").tiny
    lacking = ("blk.4.nextn.hnorm.weight", "blk.4.attn_q.weight", "output.weight")
    weights = {name: w for name, w in tiny.weights.items() if name not in lacking}
    with pytest.raises(CheckpointError) as caught:
        ReferenceDraftLayer(tiny.spec, weights)
    assert all(name in str(caught.value) for name in lacking)
