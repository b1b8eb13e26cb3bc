"""Experts copied for who passes by: what stays in the cache, what is read again, what goes back.

The cache is checked against a list that is walked through (``PassingHistory``), walks also against
sums; counts are exact. Bytes are compared with the file's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.failing_reads import failing_reads
from tests.unit.cpu.expert_blobs import BLOB, EXPERTS, LAYERS, NUM_KEYS, shapes
from tests.unit.cpu.test_expert_server import NUM_EXPERTS
from tests.unit.cpu.test_expert_server_files import PAGE, RawCard
from tests.unit.cpu.test_expert_source import History, Unreadable, tier_of

from strata import _native

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from strata._native import ExpertCopies
    from strata.cpu.expert_tier import ExpertTier

# Of a blob; the rest fills the page.
USED = shapes()[0].native.expert_bytes
NOT_READ = r"cannot read expert \d of layer 1"
# The file ends before them.
UNREADABLE = frozenset({NUM_KEYS - 2, NUM_KEYS - 1})


@pytest.fixture(scope="module")
def short_path(tmp_path_factory, content: np.ndarray) -> Path:
    file = tmp_path_factory.mktemp("copies") / "short"
    file.write_bytes(content[: NUM_KEYS - len(UNREADABLE)].tobytes())
    return file


class Pending(NamedTuple):
    """Copies on their way: of which keys, and which of them have a place."""

    keys: list[int]
    missing: list[int]
    placed: list[int]
    num_drops: int


class PassingHistory(History):
    """``History`` with copies beside the fetches."""

    num_drops = 0

    def begin(self, layer: int, experts: Sequence[int], *, is_passing: bool) -> Pending:
        keys = [layer * EXPERTS + expert for expert in experts]
        missing = [key for key in keys if key not in self.cached]
        placed: list[int] = []
        if is_passing:
            hits = [key for key in keys if key in self.cached]
            others = [key for key in self.cached if key not in hits]
            num_taken = len(self.cached) + self.num_reserved
            # One place is left to fetches.
            num = min(self.num_places - num_taken, self.num_places - 1 - self.num_reserved)
            placed = missing[: max(0, num)]
            self.num_reserved += len(placed)
            self.cached = hits[::-1] + others
        return Pending(keys, missing, placed, self.num_drops)

    def end(self, pending: Pending, *, is_waited: bool) -> bool:
        """Whether they came."""
        is_there = is_waited and not self.unreadable & set(pending.missing)
        self.num_reads += is_there * len(pending.missing)
        self.num_reserved -= len(pending.placed)
        if is_there and pending.num_drops == self.num_drops:
            for key in pending.placed:
                if key not in self.cached:
                    self.cached.insert(0, key)
        return is_there

    def drop(self) -> None:
        self.cached = []
        self.num_drops += 1


class Copies:
    """Copies of a tier's experts into memory of a test."""

    def __init__(self, tier: ExpertTier, layer: int, experts: list[int], *, is_passing: bool):
        out = np.zeros((len(experts), BLOB), np.uint8)
        targets = [row.ctypes.data for row in out]
        # Ends before the memory that is written to.
        self.native: ExpertCopies = tier.begin_read(layer, experts, targets, is_passing=is_passing)
        self.out = out

    def wait(self) -> np.ndarray:
        """[n, USED] bytes of each."""
        self.native.wait()
        return self.out[:, :USED]


def passed(tier: ExpertTier, layer: int, experts: list[int], *, is_passing: bool = True) -> int:
    """Files read for experts that are copied."""
    before = tier.counts().file_reads
    Copies(tier, layer, experts, is_passing=is_passing).wait()
    return tier.counts().file_reads - before


def walk(keys: Sequence[int], at_once: int) -> Iterator[tuple[int, list[int]]]:
    """A chunk's way through layers: experts of these keys, so many of a layer at a time."""
    for layer in range(LAYERS):
        own = [key % EXPERTS for key in keys if key // EXPERTS == layer]
        for first in range(0, len(own), at_once):
            yield layer, own[first : first + at_once]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    keys=st.lists(st.integers(0, NUM_KEYS - 1), min_size=1, unique=True),
    num_places=st.integers(1, NUM_KEYS + 2),
    at_once=st.integers(1, EXPERTS),
)
def test_chunks_read_again_what_a_model_says(
    path: Path, keys: list[int], num_places: int, at_once: int
) -> None:
    tier, history = tier_of(path, num_places), PassingHistory(num_places)
    rounds = []
    for _ in range(4):
        num = 0
        for layer, experts in walk(keys, at_once):
            num += passed(tier, layer, experts)
            history.end(history.begin(layer, experts, is_passing=True), is_waited=True)
            assert tier.source.cached_keys == history.cached
        rounds.append(num)
    assert sum(rounds) == history.num_reads
    assert rounds[0] == len(keys)
    if len(keys) < num_places:
        assert rounds[1:] == [0, 0, 0]
    elif at_once == 1 and num_places > 1:
        assert rounds[1:] == [len(keys) - num_places] * 3
    tier.close()


@pytest.mark.parametrize("num_places", [12, 16, 40])
def test_a_walk_past_the_places_hits_most_of_them(path: Path, num_places: int) -> None:
    tier = tier_of(path, num_places)
    keys = list(range(NUM_KEYS))
    for number in range(4):
        num = sum(passed(tier, *some) for some in walk(keys, 3))
        if number:
            assert num <= max(0, NUM_KEYS - num_places + 3)
    tier.close()


def test_what_windows_left_stays_when_a_prompt_passes(path: Path) -> None:
    tier = tier_of(path, 8)
    tier.source.fetch(0, list(range(EXPERTS)), False)
    left = tier.source.cached_keys
    for layer, experts in [*walk(range(EXPERTS, NUM_KEYS), 4)] * 3:
        passed(tier, layer, experts)
    assert tier.source.cached_keys == left
    tier.close()


def test_what_comes_to_stay_elsewhere_leaves_the_cache_as_it_is(path: Path) -> None:
    tier = tier_of(path, 6)
    tier.source.fetch(0, [0, 1, 2], False)
    assert passed(tier, 0, [0, 3, 4], is_passing=False) == 2
    assert tier.source.cached_keys == [2, 1, 0]
    assert passed(tier, 0, [0, 3], is_passing=True) == 1
    assert tier.source.cached_keys == [3, 0, 2, 1]
    tier.close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["window", "scan", "pass", "copy"]),
            st.integers(0, LAYERS - 1),
            st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=EXPERTS, unique=True),
        ),
        st.tuples(st.sampled_from(["wait", "abandon"]), st.integers(0, 5), st.just([])),
        st.tuples(st.just("drop"), st.just(0), st.just([])),
    ),
    max_size=30,
)


class Both:
    """A source and what is said of it, asked the same."""

    def __init__(self, path: Path, num_places: int, content: np.ndarray) -> None:
        self.tier = tier_of(path, num_places)
        self.history = PassingHistory(num_places, UNREADABLE)
        self.content = content
        self.on_their_way: list[tuple[Copies, Pending]] = []

    def fetch(self, layer: int, experts: list[int], *, is_scan: bool) -> None:
        try:
            runs = self.history.fetch(layer, experts, is_scan=is_scan)
        except Unreadable:
            with pytest.raises(_native.ExpertsNotRead, match=NOT_READ):
                self.tier.source.fetch(layer, experts, is_scan)
            return
        assert self.tier.source.fetch(layer, experts, is_scan) == runs
        # Everyone comes exactly once, whatever is on its way to others.
        assert sorted(item for run in runs for item in run) == list(range(len(experts)))

    def begin(self, layer: int, experts: list[int], *, is_passing: bool) -> None:
        copies = Copies(self.tier, layer, experts, is_passing=is_passing)
        pending = self.history.begin(layer, experts, is_passing=is_passing)
        self.on_their_way.append((copies, pending))

    def end(self, number: int, *, is_waited: bool) -> None:
        if not self.on_their_way:
            return
        copies, pending = self.on_their_way.pop(number % len(self.on_their_way))
        if not self.history.end(pending, is_waited=is_waited):
            if is_waited:
                with pytest.raises(_native.ExpertsNotRead, match=NOT_READ):
                    copies.wait()
            return
        assert np.array_equal(copies.wait(), self.content[pending.keys, :USED])

    def do(self, what: str, number: int, experts: list[int]) -> None:
        if what in {"window", "scan"}:
            self.fetch(number, experts, is_scan=what == "scan")
        elif what in {"pass", "copy"}:
            self.begin(number, experts, is_passing=what == "pass")
        elif what == "drop":
            self.tier.source.drop_cached()
            self.history.drop()
        else:
            self.end(number, is_waited=what == "wait")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(operations=OPERATIONS, num_places=st.integers(1, NUM_KEYS + 2))
def test_copies_and_fetches_share_the_cache_as_its_rules_say(
    short_path: Path, content: np.ndarray, operations, num_places: int
) -> None:
    both = Both(short_path, num_places, content)
    for operation in operations:
        both.do(*operation)
        assert both.tier.source.cached_keys == both.history.cached
    while both.on_their_way:
        both.end(0, is_waited=False)
    assert both.tier.counts().file_reads == both.history.num_reads
    # No place was lost.
    readable = NUM_KEYS - len(UNREADABLE)
    for layer in range(LAYERS):
        both.fetch(layer, list(range(min(EXPERTS, readable - layer * EXPERTS))), is_scan=False)
    assert len(both.tier.source.cached_keys) == min(num_places, readable)
    both.tier.close()


def test_one_place_is_left_to_fetches(path: Path) -> None:
    tier = tier_of(path, 4)
    copies = Copies(tier, 0, list(range(EXPERTS)), is_passing=True)
    assert tier.source.fetch(1, [3, 1, 4], False) == [[0], [1], [2]]
    copies.wait()
    assert tier.source.cached_keys == [2, 1, 0, EXPERTS + 4]
    tier.close()


def test_a_disk_error_gives_the_places_back(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 4)
    with failing_reads(tier):
        copies = Copies(tier, 0, [0, 1, 2], is_passing=True)
        with pytest.raises(_native.ExpertsNotRead, match="cannot read expert 0 of layer 0"):
            copies.wait()
        assert tier.source.cached_keys == []
    assert np.array_equal(
        Copies(tier, 0, [0, 1, 2], is_passing=True).wait(), content[[0, 1, 2], :USED]
    )
    assert tier.source.cached_keys == [2, 1, 0]
    tier.close()


def test_what_got_a_home_meanwhile_is_not_cached(path: Path) -> None:
    tier = tier_of(path, 4)
    home = np.zeros(BLOB, np.uint8)
    copies = Copies(tier, 0, [0, 1], is_passing=True)
    tier.source.set_home(0, 1, home.ctypes.data)
    copies.wait()
    assert tier.source.cached_keys == [0]
    assert passed(tier, 0, [2, 3, 4]) == 3  # three places were free
    assert tier.source.cached_keys == [4, 3, 2, 0]
    tier.close()


def test_what_was_on_its_way_is_forgotten_as_well(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 4)
    copies = Copies(tier, 0, [0, 1], is_passing=True)
    tier.source.drop_cached()
    assert np.array_equal(copies.wait(), content[[0, 1], :USED])
    assert tier.source.cached_keys == []
    tier.close()


def test_an_expert_that_is_asked_for_twice_has_one_place(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 4)
    for num_reads in (2, 0):
        before = tier.counts().file_reads
        copies = Copies(tier, 0, [5, 5], is_passing=True)
        assert np.array_equal(copies.wait(), content[[5, 5], :USED])
        assert tier.counts().file_reads - before == num_reads
        assert tier.source.cached_keys == [5]
    tier.close()


def test_copies_on_their_way_outlive_the_end(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 6)
    some = [Copies(tier, layer, [1, 2], is_passing=True) for layer in range(LAYERS)]
    tier.close()
    assert np.array_equal(some[1].wait(), content[[EXPERTS + 1, EXPERTS + 2], :USED])
    assert tier.source.cached_keys == [EXPERTS + 2, EXPERTS + 1]
    del tier, some  # one was never waited for


def test_what_is_packed_on_arrival_is_cached_as_well(tmp_path: Path) -> None:
    card = RawCard(_native.Context(2, "scalar"), tmp_path / "raw", 0)
    size = card.layer.expert_bytes
    out = np.zeros((NUM_EXPERTS - 1, -(-size // PAGE) * PAGE), np.uint8)
    counts = np.zeros((2, 8), np.int64)
    for _ in range(2):
        out[:] = 0
        targets = [row.ctypes.data for row in out]
        card.source.copy(1, list(range(1, NUM_EXPERTS)), targets, True).wait()
        assert np.array_equal(out[:, :size], card.blobs[1:, :size])
        card.source.read_counts(counts)
        assert counts[1, 2] == NUM_EXPERTS - 1
    assert counts[1, 1] == NUM_EXPERTS - 1
    assert card.source.cached_keys == [NUM_EXPERTS + i for i in reversed(range(1, NUM_EXPERTS))]
    os.close(card.descriptor)
