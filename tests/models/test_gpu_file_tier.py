"""Experts on a disk while a card asks for them: the same bits, counted reads, faults told once.

Runs on a card, or in Triton's interpreter where there is none; thread, files and reads are the real
ones in both. The yardstick is a model of the same file whose experts are all in slots.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.failing_reads import failing_reads
from tests.models.bits import one_by_one, same_bits
from tests.models.on_card import DEVICE, PROMPT, gpu_model, per_layer
from tests.models.smallest_model import EXPERTS, LAYERS, smallest_model

from strata import _native
from strata.cpu.expert_files import fingerprint, in_place
from strata.cpu.expert_host import TieredExperts
from strata.cpu.expert_layers import layer_shapes
from strata.cpu.expert_store import make_store, store_layout
from strata.cpu.expert_tier import ExpertTier
from strata.errors import CheckpointError
from strata.formats.tensor_index import open_model
from strata.gpu.expert_cache import CacheOptions
from strata.tiers.hand_off import SERVED
from strata.tiers.resident_plan import complement, first_filling, resident_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from strata.gpu.model import GpuModel

SLOTS = per_layer(1)
NUM_TOKENS = 5


def kept_of(keys: np.ndarray) -> list[np.ndarray]:
    """For each layer the experts of these keys."""
    return [
        np.sort(keys[keys // EXPERTS == layer] % EXPERTS).astype(np.int64)
        for layer in range(LAYERS)
    ]


class Made:
    """Models that a test makes; their threads are ended."""

    def __init__(self, path: Path, store: Path) -> None:
        self._path, self._store = path, store
        self.models: list[GpuModel] = []

    def model(
        self, *, keys: np.ndarray, num_places: int, is_packed: bool = True, **options
    ) -> tuple[GpuModel, TieredExperts]:
        """One slot a layer, these keys kept in RAM, a cache of so many places."""
        with open_model(self._path) as index:
            spec = smallest_model().spec
            ctx = _native.Context(2, "scalar")
            shapes = layer_shapes(index, spec)
            disk = in_place(index, shapes)
            if is_packed:
                layout = store_layout(ctx, shapes, fingerprint(index, shapes))
                disk = make_store(self._store, layout, ctx, index, spec)
            tier = ExpertTier(ctx, shapes, disk, kept_of(keys), num_places)
            host = TieredExperts(ctx, spec, shapes, tier)
        chosen = CacheOptions(num_stages=3, **options)
        model = gpu_model(self._path, host=host, slots=SLOTS, cache_options=chosen)
        self.models.append(model)
        return model, host


@pytest.fixture
def made(smallest_path: Path, tmp_path: Path) -> Iterator[Made]:
    one = Made(smallest_path, tmp_path / "model.experts")
    yield one
    for model in one.models:
        model.close()


NONE = np.empty(0, np.int64)


@pytest.mark.parametrize(
    ("keys", "num_places", "is_packed"),
    [(NONE, 1, True), pytest.param(NONE, 8, False, marks=pytest.mark.long)],
)
def test_experts_on_a_disk_have_the_bits_of_all_resident(
    single, tokens, made: Made, keys, num_places: int, *, is_packed: bool
) -> None:
    model, host = made.model(keys=keys, num_places=num_places, is_packed=is_packed)
    before = host.tier.counts()
    assert same_bits(one_by_one(model.new_session(16), tokens[:NUM_TOKENS]), single[:NUM_TOKENS])
    after = host.tier.counts()
    assert after.file_reads > before.file_reads
    # The server counts the misses it read itself; slots that change hands read as well.
    served = dict(zip(SERVED, model.experts.counts().sum(axis=0).tolist(), strict=True))
    assert 0 < served["from_file"] <= after.file_reads - before.file_reads
    assert after.kept == 0
    if num_places == 8:
        # Each is read once at most: six that are in no slot, and those the slots were filled with.
        assert after.file_reads - before.file_reads <= LAYERS * (EXPERTS - 1)


@pytest.mark.long
def test_the_complement_in_memory_reads_no_file(single, tokens, made: Made) -> None:
    blob_bytes = [4096] * LAYERS
    plan = resident_plan([first_filling(SLOTS, None)], [0], blob_bytes, 1 << 40)
    assert plan.keys.tolist() == complement([first_filling(SLOTS, None)]).tolist()
    model, host = made.model(keys=plan.keys, num_places=1, staged_share=0.5)
    before = host.tier.counts()
    assert same_bits(one_by_one(model.new_session(16), tokens[:NUM_TOKENS]), single[:NUM_TOKENS])
    after = host.tier.counts()
    assert (after.file_reads - before.file_reads, after.cached) == (0, 0)
    assert after.kept > before.kept


def test_what_copies_take_is_measured_with_experts_the_card_can_read(made: Made) -> None:
    keys = np.array([0, 3, 2]) + EXPERTS  # of layer 1 alone
    model, host = made.model(keys=keys, num_places=2)
    cache = model.experts
    assert [tier.num_reachable for tier in cache.layers[:2]] == [0, 3]
    best = cache.split._best_reached
    assert best is cache.layers[1]
    places = host.tier.kept_addresses[1] + np.arange(3) * best.home.blob_bytes
    for num in (3, 2):
        best.name_first(num)
        best.rehearse()
        assert cache._hand_off.sources.tolist() == [*places[:num].tolist(), *[0] * (3 - num)]
    # The same bytes that come to a slot of the layer.
    slots, blobs = best.slots, best.staged.blobs
    (expert,) = np.flatnonzero(cache._table.on_host[1] >= 0).tolist()
    assert expert == 0
    assert (blobs[0] == slots.blobs[0]).all()
    assert blobs[0].any()


def test_a_disk_error_ends_the_request_and_the_next_is_right(single, tokens, made: Made) -> None:
    model, host = made.model(keys=NONE, num_places=2)
    session = model.new_session(16)
    first = one_by_one(session, tokens[:2])
    with (
        failing_reads(host.tier),
        pytest.raises(CheckpointError, match=r"cannot read expert \d of layer 0: .*error") as told,
    ):
        one_by_one(session, tokens[2:NUM_TOKENS])
    assert "model.experts, offset 0x" in str(told.value)
    assert "Try:" in str(told.value)
    assert session.position == 2
    rest = one_by_one(session, tokens[2:NUM_TOKENS])
    assert same_bits(np.concatenate([first, rest]), single[:NUM_TOKENS])


@pytest.mark.long
def test_a_store_that_was_cut_off_is_told_likewise(single, tokens, made: Made, tmp_path) -> None:
    model, host = made.model(keys=NONE, num_places=2)
    session = model.new_session(16)
    first = one_by_one(session, tokens[:2])
    store = tmp_path / "model.experts"
    content = store.read_bytes()
    host.tier.source.drop_cached()
    os.truncate(store, 4096)
    with pytest.raises(CheckpointError, match="the file has become shorter"):
        one_by_one(session, tokens[2:NUM_TOKENS])
    store.write_bytes(content)
    rest = one_by_one(session, tokens[2:NUM_TOKENS])
    assert same_bits(np.concatenate([first, rest]), single[:NUM_TOKENS])


@pytest.mark.long
@pytest.mark.parametrize(("num_places", "is_packed"), [(1, True), (4, True), (4, False)])
def test_a_prompt_is_streamed_from_the_disk(
    made: Made, prompt_logits, num_places: int, *, is_packed: bool
) -> None:
    model, host = made.model(keys=NONE, num_places=num_places, is_packed=is_packed)
    before = host.tier.counts()
    assert same_bits(model.new_session(80).prefill(PROMPT), prompt_logits)
    assert host.tier.counts().file_reads > before.file_reads


def test_chunks_of_a_prompt_read_what_is_in_no_memory_once(made: Made) -> None:
    # Slots hold one expert of each layer; of the others, each chunk wants all.
    num_missing = LAYERS * (EXPERTS - 1)
    model, host = made.model(keys=NONE, num_places=num_missing + 1, num_streamed=1)
    # What came to slots is not cached, only what was computed to be measured, of layer 0.
    assert all(key < EXPERTS for key in host.tier.source.cached_keys)
    host.tier.source.drop_cached()
    cache = model.experts
    ahead = cache.layers[0].ahead
    reads = []
    for _ in range(3):
        before = host.tier.counts().file_reads
        ahead.begin(64, [EXPERTS] * LAYERS)
        assert ahead.is_open
        for number in range(LAYERS):
            for _ in ahead.steps(number):
                pass
        reads.append(host.tier.counts().file_reads - before)
    assert reads == [num_missing, 0, 0]
    # Shorter chunks come by them another way, but for the one that is in a slot.
    host.tier.source.drop_cached()
    counts = torch.ones(EXPERTS, dtype=torch.int32, device=DEVICE)
    assert np.count_nonzero(cache.layers[1].table.on_host[1, :3] >= 0) == 1
    for num_read in (2, 0):
        before = host.tier.counts().file_reads
        cache.layers[1].stream(0, 3, counts)
        assert host.tier.counts().file_reads - before == num_read
