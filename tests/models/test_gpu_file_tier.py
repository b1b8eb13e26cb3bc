"""Experts on a disk while a card asks for them: the same bits, counted reads, faults told once.

Runs on a card, or in Triton's interpreter where there is none; thread, files and reads are the real
ones in both. The yardstick is a model of the same file whose experts are all in slots.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
from tests.models.model_files import write_model  # noqa: E402
from tests.models.test_gpu_session import (  # noqa: E402
    DEVICE,
    formats_of,
    one_by_one,
    same_bits,
    smallest_model,
)
from tests.models.tiny_models import VOCAB_SIZE  # noqa: E402

from strata import _native  # noqa: E402
from strata.cpu.expert_files import fingerprint, in_place  # noqa: E402
from strata.cpu.expert_host import TieredExperts  # noqa: E402
from strata.cpu.expert_layers import layer_shapes  # noqa: E402
from strata.cpu.expert_store import make_store, store_layout  # noqa: E402
from strata.cpu.expert_tier import ExpertTier  # noqa: E402
from strata.errors import CheckpointError  # noqa: E402
from strata.formats.tensor_index import open_model  # noqa: E402
from strata.gpu.expert_cache import CacheOptions  # noqa: E402
from strata.gpu.model import GpuModel  # noqa: E402
from strata.tiers.hand_off import SERVED  # noqa: E402
from strata.tiers.resident_plan import complement, resident_plan  # noqa: E402
from strata.tiers.slots import Residency, layer_slots  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAYERS, EXPERTS = 2, 4
SLOTS = layer_slots(LAYERS, EXPERTS, LAYERS)  # one a layer


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    model = smallest_model()
    file = tmp_path_factory.mktemp("file-tier") / "model.gguf"
    return write_model(file, model, formats_of(model.weights))


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, VOCAB_SIZE, 5).astype(np.int32)


@pytest.fixture(scope="module")
def resident(path: Path, tokens: np.ndarray) -> np.ndarray:
    """Logits of the tokens decoded one by one, all experts on the card."""
    with open_model(path) as index:
        model = GpuModel(index, smallest_model().spec, DEVICE)
    return one_by_one(model.new_session(16), tokens)


def first_filling() -> Residency:
    """Who is in the slots of such a model as it starts."""
    residency = Residency(SLOTS)
    keys = np.arange(LAYERS * EXPERTS).reshape(LAYERS, EXPERTS)
    residency.fill(keys.T.reshape(-1).tolist())
    return residency


def kept_of(keys: np.ndarray) -> list[np.ndarray]:
    """For each layer the experts of these keys."""
    return [
        np.sort(keys[keys // EXPERTS == layer] % EXPERTS).astype(np.int64)
        for layer in range(LAYERS)
    ]


class Made:
    """Models that a test makes; their threads are ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.models: list[GpuModel] = []

    def model(
        self, *, keys: np.ndarray, num_places: int, is_packed: bool = True, **options
    ) -> tuple[GpuModel, TieredExperts]:
        """One slot a layer, these keys kept in memory, a cache of so many places."""
        with open_model(self._path) as index:
            spec = smallest_model().spec
            ctx = _native.Context(2, "scalar")
            shapes = layer_shapes(index, spec)
            disk = in_place(index, shapes)
            if is_packed:
                layout = store_layout(ctx, shapes, fingerprint(index, shapes))
                disk = make_store(self._path.with_suffix(".experts"), layout, ctx, index, spec)
            tier = ExpertTier(ctx, shapes, disk, kept_of(keys), num_places)
            host = TieredExperts(ctx, spec, shapes, tier)
            chosen = CacheOptions(num_stages=3, **options)
            model = GpuModel(index, spec, DEVICE, host=host, slots=SLOTS, cache_options=chosen)
        self.models.append(model)
        return model, host


@pytest.fixture
def made(path: Path) -> Iterator[Made]:
    one = Made(path)
    yield one
    for model in one.models:
        model.close()


NONE = np.empty(0, np.int64)


@pytest.mark.parametrize(
    ("keys", "num_places", "is_packed"),
    [(NONE, 1, True), pytest.param(NONE, 8, False, marks=pytest.mark.long)],
)
def test_experts_on_a_disk_have_the_bits_of_all_resident(
    resident, tokens, made: Made, keys, num_places: int, *, is_packed: bool
) -> None:
    model, host = made.model(keys=keys, num_places=num_places, is_packed=is_packed)
    before = host.file_counts()
    assert same_bits(one_by_one(model.new_session(16), tokens), resident)
    after = host.file_counts()
    assert after.file_reads > before.file_reads
    # The server counts the misses it read itself; slots that change hands read as well.
    served = dict(zip(SERVED, model.experts.counts().sum(axis=0).tolist(), strict=True))
    assert 0 < served["from_file"] <= after.file_reads - before.file_reads
    assert after.kept == 0
    if num_places == 8:
        # Each is read once at most: six that are in no slot, and those the slots were filled with.
        assert after.file_reads - before.file_reads <= LAYERS * (EXPERTS - 1)


@pytest.mark.long
def test_the_complement_in_memory_reads_no_file(resident, tokens, made: Made) -> None:
    blob_bytes = [4096] * LAYERS
    plan = resident_plan([first_filling()], [0], blob_bytes, 1 << 40)
    assert plan.keys.tolist() == complement([first_filling()]).tolist()
    model, host = made.model(keys=plan.keys, num_places=1, staged_share=0.5)
    before = host.file_counts()
    assert same_bits(one_by_one(model.new_session(16), tokens), resident)
    after = host.file_counts()
    assert (after.file_reads - before.file_reads, after.cached) == (0, 0)
    assert after.kept > before.kept


def broken_descriptors(host: TieredExperts) -> Callable[[], None]:
    """Every read gives EIO from now on, until the function returned is called."""
    saved = [(number, os.dup(number)) for number in host.tier.descriptors]
    bad = os.open("/proc/self/mem", os.O_RDONLY)  # address 0 and on is mapped to nothing
    for number, _ in saved:
        os.dup2(bad, number)
    os.close(bad)

    def mend() -> None:
        for number, good in saved:
            os.dup2(good, number)
            os.close(good)

    return mend


def test_a_disk_error_ends_the_request_and_the_next_is_right(resident, tokens, made: Made) -> None:
    model, host = made.model(keys=NONE, num_places=2)
    session = model.new_session(16)
    first = one_by_one(session, tokens[:2])
    host.tier.drop_cached()
    mend = broken_descriptors(host)
    with pytest.raises(CheckpointError, match=r"cannot read expert \d of layer 0: .*error") as told:
        one_by_one(session, tokens[2:])
    assert "model.experts, offset 0x" in str(told.value)
    assert "Try:" in str(told.value)
    assert session.position == 2
    mend()
    rest = one_by_one(session, tokens[2:])
    assert same_bits(np.concatenate([first, rest]), resident)


@pytest.mark.long
def test_a_store_that_was_cut_off_is_told_likewise(resident, tokens, made: Made, path) -> None:
    model, host = made.model(keys=NONE, num_places=2)
    session = model.new_session(16)
    first = one_by_one(session, tokens[:2])
    store = path.with_suffix(".experts")
    content = store.read_bytes()
    host.tier.drop_cached()
    os.truncate(store, 4096)
    with pytest.raises(CheckpointError, match="the file has become shorter"):
        one_by_one(session, tokens[2:])
    store.write_bytes(content)
    rest = one_by_one(session, tokens[2:])
    assert same_bits(np.concatenate([first, rest]), resident)


@pytest.mark.long
@pytest.mark.parametrize("is_packed", [True, False])
def test_a_prompt_is_streamed_from_the_disk(path: Path, made: Made, *, is_packed: bool) -> None:
    prompt = np.random.default_rng(4).integers(0, VOCAB_SIZE, 66).astype(np.int32)
    with open_model(path) as index:
        whole = GpuModel(index, smallest_model().spec, DEVICE)
    expected = whole.new_session(80).prefill(prompt)
    model, host = made.model(keys=NONE, num_places=1, is_packed=is_packed)
    before = host.file_counts()
    assert same_bits(model.new_session(80).prefill(prompt), expected)
    assert host.file_counts().file_reads > before.file_reads
