"""A model larger than the memory it may take, on the processor: the same text, faults told once.

The yardstick is the same file with every expert in memory.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.failing_reads import failing_reads
from tests.models.bits import read_in_all_ways, same_bits

from strata import Engine, SamplingParams
from strata.cpu.build import open_context
from strata.cpu.expert_build import cache_places, open_tier, other_bytes
from strata.cpu.expert_files import fingerprint, in_place
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_store import make_store, open_store, store_layout
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.model import CpuModel
from strata.engine.default_model import default_model
from strata.engine.model_file import open_file
from strata.errors import CheckpointError, PlanError
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize, uniform_mix
from strata.settings import Settings
from strata.units import MiB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CAPACITY = 400
# Formats whose rows are packed in different ways, and plain floats.
MIXES = ["q4_k", "Q5_1", "IQ3_S", "BF16"]


def write_tiny(path: Path, mix: str) -> Path:
    types = TypePlan.preset(mix) if mix.islower() else uniform_mix(mix)
    synthesize(path, GEOMETRIES["tiny"], types)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("file-tier") / "tiny.gguf", "q4_k")


def with_tier(path: Path, source: str, num_places: int, kept: int = 0) -> CpuModel:
    """The model with the first ``kept`` experts of each layer in memory, and a cache."""
    with open_file(path) as file:
        index, spec = file.index, file.spec
        ctx = open_context(2, None)
        shapes = layer_shapes(index, spec)
        disk = in_place(index, shapes)
        if source == "store":
            layout = store_layout(ctx, shapes, fingerprint(index, shapes))
            store = path.with_suffix(".experts")
            there = store.exists()
            disk = (
                open_store(store, layout) if there else make_store(store, layout, ctx, index, spec)
            )
        own = [np.arange(kept, dtype=np.int64)] * spec.num_layers
        tier = ExpertTier(ctx, shapes, disk, own, num_places)
        return CpuModel(ctx, index, spec, tier=tier, chunk_tokens=48)


def whole(path: Path) -> CpuModel:
    with open_file(path) as file:
        return CpuModel(open_context(2, None), file.index, file.spec, chunk_tokens=48)


def logits_of(model: CpuModel) -> np.ndarray:
    """Of a prompt of some chunks, single tokens, and windows."""
    tokens = np.random.default_rng(1).integers(0, model.spec.vocab_size, 200).astype(np.int32)
    return read_in_all_ways(model.new_session(CAPACITY), tokens[:164], 130, 10, 8, 3)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("source", ["store", "file"])
def test_any_source_and_cache_have_the_bits_of_memory(
    tmp_path: Path, mix: str, source: str
) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", mix)
    expected = logits_of(whole(path))
    for num_places, kept in [(1, 0), (3, 0), (7, 2), (100, 0)]:
        model = with_tier(path, source, num_places, kept)
        assert same_bits(logits_of(model), expected), (num_places, kept)
        model.close()


def test_what_is_kept_is_not_read(tiny: Path) -> None:
    with open_file(tiny) as file:
        num_experts, num_layers = file.spec.num_experts, file.spec.num_layers
    model = with_tier(tiny, "store", 1, num_experts)
    before = model.expert_tier.counts()
    assert before.file_reads == num_experts * num_layers
    logits_of(model)
    after = model.expert_tier.counts()
    assert (after.file_reads, after.cached) == (before.file_reads, 0)
    model.close()


def test_a_cache_for_all_reads_each_once(tiny: Path) -> None:
    model = with_tier(tiny, "store", 1000)
    logits_of(model)
    first = model.expert_tier.counts()
    with open_file(tiny) as file:
        assert first.file_reads <= file.spec.num_experts * file.spec.num_layers
    session = model.new_session(CAPACITY)
    session.prefill(np.arange(100, dtype=np.int32))
    session.prefill(np.arange(100, dtype=np.int32))
    assert model.expert_tier.counts().cached > first.cached
    model.close()


@pytest.mark.parametrize("source", ["store", "file"])
def test_a_disk_error_in_a_window_leaves_the_state_as_it_was(tiny: Path, source: str) -> None:
    tokens = np.random.default_rng(2).integers(0, 500, 60).astype(np.int32)

    def run(model: CpuModel, *, is_disturbed: bool) -> np.ndarray:
        session = model.new_session(CAPACITY)
        session.prefill(tokens[:40])
        found = []
        for token in tokens[40:]:
            if is_disturbed:
                with (
                    failing_reads(model.expert_tier),
                    pytest.raises(CheckpointError, match=r"cannot read expert \d+ of layer \d+"),
                ):
                    session.decode(np.array([token], np.int32))
            found.append(session.decode(np.array([token], np.int32))[0])
            session.commit(1)
        return np.stack(found)

    expected = run(whole(tiny), is_disturbed=False)
    model = with_tier(tiny, source, 6)
    assert same_bits(run(model, is_disturbed=True), expected)
    model.close()


GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, seed=9, max_tokens=16, ignore_eos=True)


def limit_for(path: Path, num_experts: int) -> int:
    """MiB with room for so many experts and what else there is."""
    with open_file(path) as file:
        place = max(shape.blob_bytes for shape in layer_shapes(file.index, file.spec))
        others = other_bytes(file.index, file.spec, Settings(context_len=CAPACITY))
    return -(-(others + num_experts * place) // MiB)


def test_the_engine_ends_a_request_and_answers_the_next(
    tmp_path: Path, tiny: Path, monkeypatch
) -> None:
    prompt = list(range(30, 90))
    with Engine.open(tiny, context_len=CAPACITY, threads=1) as engine:
        expected = [
            engine.generate_text(prompt, sampling).token_ids for sampling in (GREEDY, SAMPLED)
        ]
    monkeypatch.setattr("strata.cpu.expert_build.ram_budget", budget_of(tiny, 8))
    with Engine.open(tiny, context_len=CAPACITY, threads=1, expert_store=tmp_path) as engine:
        model = engine._parts.model
        assert engine.generate_text(prompt, GREEDY).token_ids == expected[0]
        for is_in_answer in (False, True):
            request = prompt if is_in_answer else [*prompt[:-1], 7]
            generation = engine.generate(request, GREEDY)
            events = iter(generation)
            if is_in_answer:
                next(events)
            with (
                failing_reads(model.expert_tier),
                pytest.raises(CheckpointError, match="cannot read expert"),
            ):
                list(events)
            # The same conversation and another go on as if nothing had been.
            assert engine.generate_text(prompt, GREEDY).token_ids == expected[0]
            assert engine.generate_text(prompt, SAMPLED).token_ids == expected[1]
        assert model.expert_tier.counts().file_reads > 0


def budget_of(path: Path, num_experts: int) -> Callable[[int, int | None], int]:
    """A machine that leaves room for so many experts."""
    with open_file(path) as file:
        place = max(shape.blob_bytes for shape in layer_shapes(file.index, file.spec))
        others = other_bytes(file.index, file.spec, Settings(context_len=CAPACITY))
    return lambda _available, _wished: others + num_experts * place


def test_memory_smaller_than_the_least_is_refused(tiny: Path, monkeypatch) -> None:
    with open_file(tiny) as file:
        top_k = file.spec.top_k
    monkeypatch.setattr("strata.cpu.expert_build.ram_budget", budget_of(tiny, top_k - 1))
    with pytest.raises(PlanError, match="even where its experts stay on the disk") as told:
        Engine.open(tiny, context_len=CAPACITY)
    assert "Try: a larger --ram-limit" in str(told.value)


def test_a_limit_with_room_for_all_keeps_all(tiny: Path) -> None:
    with open_file(tiny) as file:
        ctx = open_context(1, None)
        settings = Settings(ram_limit=limit_for(tiny, 10_000), context_len=CAPACITY)
        assert open_tier(ctx, file.index, file.spec, settings) is None
        settings = Settings(context_len=CAPACITY)
        assert open_tier(ctx, file.index, file.spec, settings) is None


PROMPTS = [
    "Once upon a time", "Reverse: abcd", "12 + 30 =", "Sort: 5 3 9 1", "The dog",
    "Tell me a story about a fox.", "What is 7 + 8?", "Upper case: hello", "One day, a girl",
    "Count to five.", "There was a boy", "What comes after Monday?", "Spell: cat", "9 - 4 =",
    "In the wood", "Say hello.", "Why did the bird sing?", "2, 4, 6,", "A little boat", "Morning",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("is_mapped", [False, True])
def test_the_demo_says_the_same_from_any_source(tmp_path: Path, *, is_mapped: bool) -> None:
    def answers(**options) -> list[tuple[int, ...]]:
        with Engine.open(default_model(), context_len=512, threads=1, **options) as engine:
            found = []
            for prompt in PROMPTS:
                for temperature in (0.0, 0.8):
                    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=24)
                    found.append(engine.generate_text(prompt, sampling).token_ids)
        return found

    with open_file(default_model()) as file:
        others = other_bytes(file.index, file.spec, Settings(context_len=512))
    # A fifth of the experts and less.
    limit = -(-others // MiB) + 2
    options = {"ram_limit": limit, "expert_store": tmp_path, "mmap_experts": is_mapped}
    assert answers(**options) == answers()
    assert len(list(tmp_path.iterdir())) == (0 if is_mapped else 1)


def test_a_model_with_shards_is_read_in_place() -> None:
    with open_file(default_model()) as file:
        shapes = layer_shapes(file.index, file.spec)
        disk = in_place(file.index, shapes)
        rows = disk.extents.reshape(file.spec.num_layers, file.spec.num_experts, 3, 3)
        for layer, shape in enumerate(shapes):
            for role, name in enumerate(shape.names):
                raw = file.index.raw(name)
                for expert in (0, file.spec.num_experts - 1):
                    number, offset, size = rows[layer, expert, role].tolist()
                    with disk.paths[number].open("rb") as shard:
                        shard.seek(offset)
                        stored = np.frombuffer(shard.read(size), np.uint8)
                    own = raw[expert].reshape(-1)
                    if shape.is_fused and role < 2:
                        own = own.reshape(2, -1)[role]
                    assert np.array_equal(stored, own)


def test_places_leave_room_for_what_is_packed_on_arrival() -> None:
    assert cache_places(1000, 10, is_packed=True) == 100
    assert cache_places(1000, 10, is_packed=False) == 50
    assert cache_places(10_000, 10, is_packed=False) == 1000 - 96


def test_settings_of_the_tier_reach_it(tiny: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("strata.cpu.expert_build.ram_budget", budget_of(tiny, 8))
    settings = Settings(context_len=CAPACITY, mmap_experts=True, look_ahead=False)
    with open_file(tiny) as file:
        ctx = open_context(1, None)
        tier = open_tier(ctx, file.index, file.spec, settings)
        assert tier is not None
        # Half of the room is for what passes through as the file has it.
        assert tier.num_places == 4
        tier.close()
        stored = dataclasses.replace(settings, mmap_experts=False, expert_store=tmp_path)
        tier = open_tier(ctx, file.index, file.spec, stored)
        assert tier is not None
        assert tier.num_places == 8
        tier.close()
    assert [path.suffix for path in tmp_path.iterdir()] == [".experts"]


def test_a_request_s_experts_are_counted(tiny: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("strata.cpu.expert_build.ram_budget", budget_of(tiny, 8))
    with open_file(tiny) as file:
        top_k, num_layers = file.spec.top_k, file.spec.num_layers
    prompt = list(range(30, 90))
    with Engine.open(tiny, context_len=CAPACITY, threads=1, expert_store=tmp_path) as engine:
        tier = engine._parts.model.expert_tier
        before = tier.counts()
        counts = engine.generate_text(prompt, GREEDY).timings.experts
        after = tier.counts()
    # The first token comes with the prompt; each of the others is a window of one row.
    assert counts.windows == GREEDY.max_tokens - 1
    assert counts.total("lookups") == counts.windows * num_layers * top_k
    assert counts.total("hits") == counts.total("copied") == 0
    assert 0 < counts.total("from_file") <= counts.total("lookups")
    assert counts.total("file_bytes") == after.file_bytes - before.file_bytes
    asked = counts.total("lookups") + counts.total("prompt_lookups")
    found = after.cached - before.cached + after.file_reads - before.file_reads
    assert asked == found


def test_all_in_memory_counts_nothing(tiny: Path) -> None:
    with Engine.open(tiny, context_len=CAPACITY, threads=1) as engine:
        assert engine.generate_text(list(range(9)), GREEDY).timings.experts is None
