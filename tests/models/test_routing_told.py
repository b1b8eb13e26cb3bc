"""The experts a CPU session tells of, against those the float64 reference chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.model_files import cpu_model, write_model
from tests.models.tiny_models import VOCAB_SIZE, tiny_model

from strata.reference import experts
from strata.reference.decoder import ReferenceDecoder
from strata.reference.router import route

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 60


@pytest.mark.parametrize("name", ["plain", "random-1"])
def test_experts_of_every_token_and_layer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = np.random.default_rng(3).integers(0, VOCAB_SIZE, NUM_TOKENS).astype(np.int32)
    expected: list[np.ndarray] = []

    def told_route(*arguments):
        routing = route(*arguments)
        expected.append(routing.expert_ids)
        return routing

    monkeypatch.setattr(experts, "route", told_route)
    exact = tiny_model(name, "float64")
    decoder = ReferenceDecoder(exact.spec, exact.weights, np.float64)
    decoder.forward(tokens, decoder.initial_state())

    path = tmp_path / "model.gguf"
    write_model(path, tiny_model(name))
    model = cpu_model(path, tiny_model(name))
    session = model.new_session(NUM_TOKENS)
    told: dict[int, list[np.ndarray]] = {}
    session.on_routing = lambda layer, ids: told.setdefault(layer, []).append(ids.copy())
    session.prefill(tokens[:33])
    session.prefill(tokens[33:50])
    for i in range(50, NUM_TOKENS, 5):
        session.decode(tokens[i : i + 5])
        session.commit(5)
    model.close()

    assert sorted(told) == list(range(exact.spec.num_layers))
    ours = np.stack([np.concatenate(told[layer]) for layer in sorted(told)])
    theirs = np.array(expected)
    assert ours.shape == theirs.shape == (exact.spec.num_layers, NUM_TOKENS, exact.spec.top_k)
    # float32 against float64: two experts of nearly equal weight may change places.
    same = (np.sort(ours) == np.sort(theirs)).all(axis=-1)
    assert same.mean() > 0.99
