"""What is counted of windows and prompts, against sets of what layers asked for.

Runs on a card, or in Triton's interpreter where there is none.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.on_card import PROMPT, per_layer
from tests.models.smallest_model import EXPERTS, LAYERS, smallest_model
from tests.models.tiny_models import VOCAB_SIZE

from strata.gpu import window_meter
from strata.gpu.layer_tier import LayerTier
from strata.tiers.hand_off import SERVED

COUNTED = ("lookups", "hits", "copied", "computed")


def expected_of(cache, num_rows: int, share: list[int]) -> np.ndarray:
    """[4, L] of the window that was just run, by sets; three staging slots."""
    found = np.zeros((4, LAYERS), np.int64)
    top_k = smallest_model().spec.top_k
    for layer, tier in enumerate(cache.layers):
        asked = set(cache._routed[layer, : num_rows * top_k].tolist())
        hits = {expert for expert in asked if int(tier.slots.slot_of[expert]) >= 0}
        copied = min(share[len(asked) - len(hits)], 3)
        found[:, layer] = len(asked), len(hits), copied, len(asked) - len(hits) - copied
    return found


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_windows_are_counted_as_they_were(tiered, monkeypatch, share: float) -> None:
    monkeypatch.setattr(window_meter, "_LONGEST_S", 1e9)  # the interpreter takes its time
    one = tiered(per_layer(1), staged_share=share, policy="lru")
    cache = one.model.experts
    session = one.model.new_session(32)
    rng = np.random.default_rng(6)
    expected = np.zeros((4, LAYERS), np.int64)
    before = one.arena.counts()
    for rows, kept in ((1, 1), (3, 2), (1, 1), (1, 0), (2, 2)):
        session.decode(rng.integers(0, VOCAB_SIZE, rows).astype(np.int32))
        expected += expected_of(cache, rows, cache.staged_counts)
        session.commit(kept)
    # A window that is replaced before it is accepted is none.
    session.decode(rng.integers(0, VOCAB_SIZE, 1).astype(np.int32))
    counts = one.model.tier_counts()
    assert counts.windows == 5
    for name, of_layers in zip(COUNTED, expected, strict=True):
        assert counts.of(name).tolist() == of_layers.tolist(), name
    assert counts.total("computed") > 0
    assert (counts.total("copied") > 0) == (share > 0)
    assert counts.total("moved") > 0
    # On a card windows also run to be captured, which the host serves and nobody counts.
    served = (one.arena.counts() - before)[:, SERVED.index("experts")]
    assert (served >= counts.of("computed")).all()
    assert (counts.of("answers") > 0).any()
    assert (counts.of("wait_ns") >= 0).all()
    assert counts.total("answer_ns") > 0
    rates = one.model.tier_rates()
    assert rates is not None
    assert rates.window_s > 0
    assert rates.asked.each > 0
    assert (cache.split.beside.weight > 0) == (share > 0)
    assert (rates.beside is None) == (share == 0)
    assert (cache.split.asked.weight > 0) == (share == 0)  # of two misses one is copied
    assert (cache.split.staged.weight > 0) == (share > 0)


def test_whole_layers_are_hits_and_wait_for_nobody(tiered) -> None:
    one = tiered(per_layer(EXPERTS))
    session = one.model.new_session(16)
    for token in (3, 4):
        session.decode(np.array([token], np.int32))
        session.commit(1)
    counts = one.model.tier_counts()
    assert counts.hit_rate == 1.0
    assert counts.total("lookups") == 2 * LAYERS * smallest_model().spec.top_k
    assert counts.total("answers") == counts.total("wait_ns") == 0


def test_a_prompt_is_counted_and_leaves_its_experts(tiered, monkeypatch) -> None:
    one = tiered(per_layer(2), policy="lfu")
    cache = one.model.experts
    told: dict[int, tuple[set[int], list[int]]] = {}
    real = LayerTier.note

    def note(tier, ids, counts) -> None:
        flat = ids.reshape(-1).tolist()
        told[tier._number] = set(flat), [flat.count(expert) for expert in range(EXPERTS)]
        hits[tier._number] = sum(int(tier.slots.slot_of[expert]) >= 0 for expert in set(flat))
        real(tier, ids, counts)

    hits: dict[int, int] = {}
    monkeypatch.setattr(LayerTier, "note", note)
    session = one.model.new_session(80)
    session.prefill(PROMPT[:64])
    counts = one.model.tier_counts()
    assert counts.windows == 0
    for layer in range(LAYERS):
        asked, uses = told[layer]
        assert counts.of("prompt_lookups")[layer] == len(asked)
        assert counts.of("prompt_hits")[layer] == hits[layer]
        # The two that rows asked for most are to be in the slots; of equals, those that were.
        worst_kept = min(
            uses[expert]
            for expert in range(EXPERTS)
            if cache.residency.slot_of[layer * EXPERTS + expert] >= 0
        )
        left_out = [
            uses[expert]
            for expert in range(EXPERTS)
            if cache.residency.slot_of[layer * EXPERTS + expert] < 0
        ]
        assert worst_kept >= max(left_out)
    learned = one.model.learned()
    resident = set(cache.residency.resident_keys.tolist())
    assert set(learned.keys[: len(resident)].tolist()) == resident
