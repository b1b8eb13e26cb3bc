"""Experts read ahead of the layers that ask for them: the same bits, and most guesses are right.

The model is the shipped one, whose routers were trained: guesses of made-up weights are chance. The
yardstick is the same file with every expert in memory.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models.bits import read_in_all_ways, same_bits

from strata import Engine, SamplingParams
from strata.cpu.build import open_context
from strata.cpu.expert_files import fingerprint, in_place
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_store import make_store, open_store, store_layout
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.look_ahead import LookAhead
from strata.cpu.model import CpuModel
from strata.engine.default_model import default_model
from strata.engine.model_file import open_file
from strata.tiers.forced_routing import RoutingFeed
from strata.tiers.synthetic import SyntheticText, synthetic_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NUM_PLACES, CAPACITY = 96, 256
TOKENS = np.random.default_rng(3).integers(0, 400, 80).astype(np.int32)
NUM_PROMPT = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    """Of the shipped model."""
    return tmp_path_factory.mktemp("look-ahead") / "demo.experts"


@pytest.fixture
def made(store: Path) -> Iterator[Callable[..., CpuModel]]:
    """Makes models with so many places for what is read ahead; None: all in memory."""
    models: list[CpuModel] = []

    def make(num_ahead: int | None, *, source: str = "store") -> CpuModel:
        with open_file(default_model()) as file:
            index, spec = file.index, file.spec
            ctx = open_context(2, None)
            tier = None
            if num_ahead is not None:
                shapes = layer_shapes(index, spec)
                disk = in_place(index, shapes)
                if source == "store":
                    layout = store_layout(ctx, shapes, fingerprint(index, shapes))
                    is_there = store.exists()
                    disk = (
                        open_store(store, layout)
                        if is_there
                        else make_store(store, layout, ctx, index, spec)
                    )
                none = [np.zeros(0, np.int64)] * spec.num_layers
                ahead = LookAhead(num_ahead, spec.top_k)
                tier = ExpertTier(ctx, shapes, disk, none, NUM_PLACES, ahead)
            models.append(CpuModel(ctx, index, spec, tier=tier, chunk_tokens=64))
        return models[-1]

    yield make
    for model in models:
        model.close()


def logits_of(model: CpuModel) -> np.ndarray:
    """Of a prompt, single tokens, and windows of three rows of which two are kept."""
    return read_in_all_ways(
        model.new_session(CAPACITY), TOKENS[:78], NUM_PROMPT, 60 - NUM_PROMPT, 3, 2
    )


@pytest.mark.parametrize("source", ["store", "file"])
def test_the_bits_are_those_of_memory_and_most_guesses_are_taken(made, source: str) -> None:
    expected = logits_of(made(None))
    plain, ahead = made(0, source=source), made(12, source=source)
    for model in (plain, ahead):
        assert same_bits(logits_of(model), expected)
    counts, without = ahead.expert_tier.counts(), plain.expert_tier.counts()
    # Places are given up in another order now and then, no more.
    assert abs(counts.file_reads - without.file_reads) <= without.file_reads // 50
    found = ahead.expert_tier.ahead_counts()
    assert 0 <= found.begun - found.used - found.dropped <= 12
    assert found.used > found.begun / 2
    told = ahead.expert_places().tier_counts()
    names = ("ahead", "ahead_used", "ahead_dropped", "ahead_bytes")
    assert tuple(told.total(name) for name in names) == found
    assert told.tier_bytes["disk"] == counts.file_bytes + found.dropped_bytes
    # The prompt reads nothing ahead: its misses are most of all.
    prompt = dict(
        zip(
            ("scanned", "scan_read"),
            ahead.expert_tier.counts_by_layer().sum(axis=0)[5:7],
            strict=True,
        )
    )
    assert found.used > (counts.file_reads - prompt["scan_read"]) / 3
    assert plain.expert_tier.ahead_counts().begun == 0


def test_nothing_is_read_ahead_where_others_than_routers_choose(made) -> None:
    model = made(12)
    spec = model.spec
    text = SyntheticText(spec.num_layers, spec.num_experts, spec.top_k, 40)
    model.force_routing(RoutingFeed(synthetic_trace(text), spec))
    session = model.new_session(CAPACITY)
    for token in TOKENS[:5]:
        session.decode(np.array([token], np.int32))
        session.commit(1)
    assert model.expert_tier.ahead_counts().begun == 0


def test_a_store_that_is_cut_off_under_reads_ahead_ends_one_request(made, store: Path) -> None:
    """What was read ahead in vain is no error; what was asked for is one, and the next is right."""
    expected = logits_of(made(None))
    model = made(12)
    content = store.read_bytes()
    session = model.new_session(CAPACITY)
    session.prefill(TOKENS[:NUM_PROMPT])
    try:
        os.truncate(store, len(content) // 2)
        model.expert_tier.source.drop_cached()
        with pytest.raises(Exception, match="cannot read expert"):
            session.decode(TOKENS[NUM_PROMPT : NUM_PROMPT + 1])
    finally:
        store.write_bytes(content)
    assert same_bits(logits_of(model), expected)


def test_what_was_foretold_of_a_limit_is_near_what_was(tmp_path: Path) -> None:
    """By rates of the run itself; the demo's own routing is not the made-up one, hence twice."""
    with Engine.open(device="cpu", ram_limit=430, expert_store=tmp_path, threads=1) as engine:
        assert engine.tier_rates() is None
        assert engine.foretold(50) is None
        answer = engine.generate_text("Tell me", SamplingParams(max_tokens=100, ignore_eos=True))
        rates, foretold = engine.tier_rates(), engine.foretold(100)
    counts = answer.timings.experts
    assert not rates.is_divided
    assert rates.disk_bytes_per_s > 0
    assert foretold.hit_rate == 0.0
    assert foretold.limits["card"] == foretold.limits["link"] == 0.0
    read = counts.total("from_file") / counts.total("lookups")
    assert read / 2 < foretold.file_rate < 2 * read
    assert foretold.disk_bound == pytest.approx(foretold.file_bytes_per_s / foretold.file_bytes)
