"""Experts at home, cached and in files: what is found where, what is read, what is given up.

The cache is checked against a list that is walked through (``History``); counts are exact.
Bytes are compared with the file's.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.cpu.expert_blobs import BLOB, EXPERTS, LAYERS, NUM_KEYS, shapes

from strata import _native
from strata.cpu import expert_layers
from strata.cpu.expert_files import ExpertsOnDisk
from strata.cpu.expert_tier import ExpertTier
from strata.errors import CheckpointError, DeviceError
from strata.tiers.resident_plan import resident_plan
from strata.tiers.slots import Residency, shared_slots

if TYPE_CHECKING:
    from pathlib import Path

MOST_OF_A_RUN = 32


def tier_of(path: Path, num_places: int, kept: dict[int, list[int]] | None = None) -> ExpertTier:
    """Experts in that file; ``kept`` by layer are in memory."""
    ctx = _native.Context(1, "scalar")
    extents = [[(0, key * BLOB, BLOB)] for key in range(NUM_KEYS)]
    own = [np.array((kept or {}).get(layer, []), np.int64) for layer in range(LAYERS)]
    tier = ExpertTier(ctx, shapes(), ExpertsOnDisk((path,), np.array(extents)), own, num_places)
    for layer, experts in enumerate(own):
        places = [tier.kept_addresses[layer] + number * BLOB for number in range(len(experts))]
        tier.read(layer, experts.tolist(), places)
        for expert, place in zip(experts.tolist(), places, strict=True):
            tier.source.set_home(layer, expert, place)
    return tier


def reads_of(tier: ExpertTier, layer: int, experts: list[int], *, is_scan: bool = False) -> int:
    """Files read for these experts."""
    before = tier.counts().file_reads
    tier.source.fetch(layer, experts, is_scan)
    return tier.counts().file_reads - before


class Unreadable(Exception):
    """A read failed."""


class History:
    """The cache as it is described: a list of keys, the one used last first.

    Attributes:
        num_reserved: places of what is on its way to somebody's copies.
        unreadable: keys whose reads fail.
    """

    def __init__(self, num_places: int, unreadable: frozenset[int] = frozenset()) -> None:
        self.num_places, self.unreadable = num_places, unreadable
        self.cached: list[int] = []
        self.num_reads = self.num_reserved = 0

    def fetch(self, layer: int, experts: list[int], *, is_scan: bool) -> list[list[int]]:
        keys = [layer * EXPERTS + expert for expert in experts]
        hits = [i for i, key in enumerate(keys) if key in self.cached]
        missing = [i for i, key in enumerate(keys) if key not in self.cached]
        held = [keys[i] for i in hits]
        self.cached = [key for key in self.cached if key not in held]
        flights: list[list[int]] = []

        def in_use() -> int:
            return self.num_reserved + len(held) + sum(map(len, flights))

        most = min(MOST_OF_A_RUN, max(1, self.num_places // (12 if is_scan else 3)))

        def begin() -> None:
            while missing and (not is_scan or len(flights) < 3):
                flight: list[int] = []
                while missing and len(flight) < most:
                    if in_use() + len(flight) + len(self.cached) >= self.num_places:
                        if not self.cached:
                            break
                        self.cached.pop()
                    flight.append(missing.pop(0))
                if not flight:
                    return
                flights.append(flight)

        runs = []
        are_hits = True
        if hits:
            begin()
            runs.append(hits)
        while True:
            for key in held:
                if are_hits or not is_scan:
                    self.cached.insert(0, key)
                else:
                    self.cached.append(key)
            held, are_hits = [], False
            begin()
            if not flights:
                return runs
            flight = flights.pop(0)
            if self.unreadable & {keys[i] for i in flight}:
                raise Unreadable
            self.num_reads += len(flight)
            runs.append(flight)
            held = [keys[i] for i in flight]


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, LAYERS - 1),
        st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=EXPERTS, unique=True),
        st.booleans(),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(requests=REQUESTS, num_places=st.integers(1, NUM_KEYS + 2))
def test_the_cache_is_what_its_rules_say(path: Path, requests, num_places: int) -> None:
    tier, history = tier_of(path, num_places), History(num_places)
    for layer, experts, is_scan in requests:
        runs = tier.source.fetch(layer, experts, is_scan)
        assert runs == history.fetch(layer, experts, is_scan=is_scan)
        assert tier.source.cached_keys == history.cached
        # Everyone comes exactly once, whatever room there is.
        assert sorted(item for run in runs for item in run) == list(range(len(experts)))
    assert tier.counts().file_reads == history.num_reads
    tier.close()


def test_bytes_are_the_file_s_wherever_they_are_found(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 3, {0: [2, 5]})
    tier.source.fetch(0, [1, 7], False)
    out = np.zeros((EXPERTS, BLOB), np.uint8)
    tier.read(0, list(range(EXPERTS)), [row.ctypes.data for row in out])
    used = shapes()[0].native.expert_bytes
    assert np.array_equal(out[:, :used], content[:EXPERTS, :used])
    counts = tier.counts()
    assert (counts.kept, counts.cached) == (2, 2)
    # Two kept ones were read at the start, two were fetched, four only copied: those take no place.
    assert counts.file_reads == 2 + 2 + 4
    assert tier.source.cached_keys == [7, 1]
    tier.close()


def test_a_scan_leaves_what_was_cached_before(path: Path) -> None:
    tier = tier_of(path, 6)
    tier.source.fetch(0, [0, 1, 2], False)
    tier.source.fetch(1, list(range(EXPERTS)), True)
    assert set(tier.source.cached_keys) >= {0, 1, 2}
    assert reads_of(tier, 0, [0, 1, 2]) == 0
    tier.close()


def split_stages() -> list[Residency]:
    """Two cards, each with the experts of one layer in its slots but for one."""
    stages = [Residency(shared_slots(LAYERS, EXPERTS, EXPERTS - 1)) for _ in range(2)]
    for layer, stage in enumerate(stages):
        for slot in range(EXPERTS - 1):
            stage.place(layer * EXPERTS + slot, slot)
    return stages


def kept_of(keys: np.ndarray) -> dict[int, list[int]]:
    return {
        layer: sorted(int(key) % EXPERTS for key in keys if key // EXPERTS == layer)
        for layer in range(LAYERS)
    }


def test_lend_regions_in_memory_cost_no_read(path: Path) -> None:  # B4
    stages = split_stages()
    plan = resident_plan(stages, [3, 2], [BLOB] * LAYERS, 10**9)
    assert kept_of(plan.keys) == {0: [4, 5, 6, 7], 1: [5, 6, 7]}
    tier = tier_of(path, 1, kept_of(plan.keys))
    # A prompt takes the last slots of each stage away and asks for what was in them.
    assert reads_of(tier, 0, [6, 5, 4, 7], is_scan=True) == 0
    assert reads_of(tier, 1, [6, 5, 7], is_scan=True) == 0
    tier.close()


def test_one_beyond_the_cap_costs_one_read(path: Path) -> None:  # B5
    stages = split_stages()
    # Both complements and five lent experts would be wanted; there is room for one less.
    plan = resident_plan(stages, [3, 2], [BLOB] * LAYERS, 6 * BLOB)
    assert kept_of(plan.keys) == {0: [4, 5, 6, 7], 1: [6, 7]}
    assert plan.num_bytes == 6 * BLOB
    assert (plan.num_lent, plan.num_wanted) == (4, 5)
    tier = tier_of(path, 1, kept_of(plan.keys))
    assert reads_of(tier, 0, [6, 5, 4, 7], is_scan=True) == 0
    assert reads_of(tier, 1, [6, 5, 7], is_scan=True) == 1
    tier.close()


def test_without_regions_each_lent_expert_is_read(path: Path) -> None:
    plan = resident_plan(split_stages(), [0, 0], [BLOB] * LAYERS, 10**9)
    tier = tier_of(path, 1, kept_of(plan.keys))
    assert reads_of(tier, 0, [6, 5, 4, 7], is_scan=True) == 3
    tier.close()


def test_a_failed_read_is_named_and_leaves_nothing_behind(
    tmp_path: Path, content: np.ndarray
) -> None:
    file = tmp_path / "blobs"
    file.write_bytes(content.tobytes())
    tier = tier_of(file, 6)
    tier.source.fetch(0, [0, 1], False)
    os.truncate(file, 3 * BLOB + 100)
    with pytest.raises(_native.ExpertsNotRead, match=r"expert 3 of layer 0: expected 4096 bytes"):
        tier.source.fetch(0, [0, 2, 3, 4], False)
    # What was there and what came is right; what did not come is in no place.
    assert set(tier.source.cached_keys) <= {0, 1, 2}
    assert {0, 1} <= set(tier.source.cached_keys)
    file.write_bytes(content.tobytes())
    out = np.zeros((EXPERTS, BLOB), np.uint8)
    tier.source.fetch(0, [3, 4], False)
    tier.read(0, list(range(EXPERTS)), [row.ctypes.data for row in out])
    used = shapes()[0].native.expert_bytes
    assert np.array_equal(out[:, :used], content[:EXPERTS, :used])
    tier.close()


def test_a_failed_copy_is_told(tmp_path: Path, content: np.ndarray) -> None:
    file = tmp_path / "blobs"
    file.write_bytes(content[:2].tobytes())
    tier = tier_of(file, 1)
    place = np.zeros(BLOB, np.uint8)
    with pytest.raises(CheckpointError, match="cannot read expert 1 of layer 1") as told:
        tier.read(1, [1], [place.ctypes.data])
    assert "Try:" in str(told.value)
    assert tier.take_failure() == ""
    tier.close()


def test_many_may_ask_at_once(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 4)
    used = shapes()[0].native.expert_bytes
    wrong: list[int] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        out = np.zeros((3, BLOB), np.uint8)
        for _ in range(60):
            layer = int(rng.integers(LAYERS))
            experts = rng.permutation(EXPERTS)[:3].tolist()
            if rng.integers(2):
                tier.source.fetch(layer, experts, bool(rng.integers(2)))
                continue
            targets = [row.ctypes.data for row in out]
            tier.read(layer, experts, targets, is_passing=bool(rng.integers(2)))
            keys = [layer * EXPERTS + expert for expert in experts]
            if not np.array_equal(out[:, :used], content[keys, :used]):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    # No place was lost.
    for layer in range(LAYERS):
        tier.source.fetch(layer, list(range(EXPERTS)), False)
    assert len(tier.source.cached_keys) == 4
    tier.close()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot open the experts' file: No such file"):
        tier_of(tmp_path / "gone", 1)


@pytest.mark.parametrize(("layer", "expert"), [(-1, 0), (LAYERS, 0), (0, -1), (0, EXPERTS)])
def test_what_there_is_not_is_refused(path: Path, layer: int, expert: int) -> None:
    tier = tier_of(path, 1)
    with pytest.raises(ValueError, match="there is no"):
        tier.source.fetch(layer, [expert], False)
    tier.close()


def test_reads_that_may_not_pass_the_page_cache_go_through_it(
    path: Path, content: np.ndarray
) -> None:
    tier = tier_of(path, 4)
    if len(tier._descriptors) < 2:
        pytest.skip("this file system has no direct reads to refuse")
    _, direct = tier._descriptors
    refusing = os.open("/proc/self/ns/mnt", os.O_RDONLY)  # EINVAL for every read
    os.dup2(refusing, direct)
    os.close(refusing)
    used = shapes()[0].native.expert_bytes
    out = np.zeros((2, BLOB), np.uint8)
    assert reads_of(tier, 0, [0, 1, 2]) == 3
    tier.read(0, [2, 6], [row.ctypes.data for row in out])
    assert np.array_equal(out[:, :used], content[[2, 6], :used])
    tier.close()


def test_memory_that_is_refused_is_one_error(path: Path, monkeypatch) -> None:
    def refuse(*_rest, **_options):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(expert_layers.mmap, "mmap", refuse)
    with pytest.raises(DeviceError, match=r"refused .* of memory for experts"):
        tier_of(path, 4)
