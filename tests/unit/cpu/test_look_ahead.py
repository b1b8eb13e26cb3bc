"""Experts read before they are asked for: exact counts, the same bytes, faults that stay unseen.

Bytes are the file's; what is cached is compared with a source that reads nothing ahead. A router's
choice is compared with a product in numpy, a server's answers with one that has all in memory.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.cpu.expert_blobs import BLOB, EXPERTS, LAYERS, NUM_KEYS, SIZE, shapes
from tests.unit.cpu.test_expert_server import (
    ANSWER_SECONDS,
    GOOD,
    MAX_ROWS,
    NUM_EXPERTS,
    TOP_K,
    UNWRITTEN,
    Card,
)

from strata import _native
from strata.cpu.expert_files import ExpertsOnDisk
from strata.cpu.expert_tier import ExpertTier
from strata.cpu.look_ahead import AheadCounts, LookAhead, look_ahead_of
from strata.errors import CheckpointError
from strata.formats.block_formats import FORMATS
from strata.formats.quantize import quantize
from strata.formats.synth import GEOMETRIES, spec_of

if TYPE_CHECKING:
    from pathlib import Path


# Reads of some pages that lie in memory have ended long before.
READ_S = 0.1
FAILED = 4
# Of a blob; the rest fills the page.
USED = shapes()[0].native.expert_bytes


@pytest.fixture
def path(tmp_path: Path, content: np.ndarray) -> Path:
    """A file of a test's own, since some make it shorter."""
    file = tmp_path / "blobs"
    file.write_bytes(content.tobytes())
    return file


def tier_of(path: Path, num_places: int, num_ahead: int) -> ExpertTier:
    ctx = _native.Context(1, "scalar")
    extents = np.array([[(0, key * BLOB, BLOB)] for key in range(NUM_KEYS)])
    none = [np.zeros(0, np.int64)] * LAYERS
    ahead = LookAhead(num_ahead, 2)
    return ExpertTier(ctx, shapes(), ExpertsOnDisk((path,), extents), none, num_places, ahead)


def bytes_of(tier: ExpertTier, layer: int, expert: int) -> np.ndarray:
    room = np.zeros(2 * BLOB, np.uint8)
    first = -room.ctypes.data % BLOB
    tier.read(layer, [expert], [room.ctypes.data + first])
    return room[first : first + USED]


def test_what_was_guessed_right_is_not_read_again(path: Path) -> None:
    tier = tier_of(path, 6, 3)
    tier.source.fetch(0, [0, 1], False, [4, 5, 6])
    assert tier.ahead_counts() == AheadCounts(3, 0, 0, 0)
    assert tier.counts().file_reads == 2
    tier.source.fetch(1, [5, 6, 7], False)
    assert tier.ahead_counts()[:2] == (3, 2)
    # Two of the five were read ahead; they are counted as read when they are taken.
    assert tier.counts()[2:4] == (5, 5 * BLOB)
    tier.close()


def test_wrong_guesses_make_way_for_others(path: Path) -> None:
    tier = tier_of(path, 6, 2)
    tier.source.fetch(0, [0], False, [1, 2, 3])
    assert tier.ahead_counts() == AheadCounts(2, 0, 0, 0)  # as many as there are places
    tier.source.fetch(1, [0], False)
    time.sleep(READ_S)
    tier.source.fetch(0, [0], False, [4, 5])
    found = tier.ahead_counts()
    assert found[:3] == (4, 0, 2)
    assert found.dropped_bytes <= 2 * BLOB
    assert tier.counts().file_reads == 2
    tier.close()


def test_a_right_guess_that_comes_late_is_kept_meanwhile(path: Path) -> None:
    tier = tier_of(path, 6, 4)
    tier.source.fetch(0, [0], False, [3])
    bytes_of(tier, 0, 1)
    before = tier.counts().file_reads
    assert tier.source.fetch(1, [0], False) == [[0]]
    tier.source.fetch(1, [3], False)
    used = tier.ahead_counts().used
    assert used in (0, 1)  # it was on its way still, and given up; or it was there
    assert tier.counts().file_reads == before + 2
    tier.close()


def test_what_is_in_memory_is_not_read_ahead(path: Path) -> None:
    tier = tier_of(path, 6, 3)
    tier.source.fetch(1, [1, 2], False)
    tier.source.fetch(0, [0], False, [1, 2])
    assert tier.ahead_counts().begun == 0
    tier.source.fetch(0, [0], False, [1, 3])
    time.sleep(READ_S)
    tier.source.fetch(0, [0], False, [1, 3])
    assert tier.ahead_counts().begun == 1
    tier.close()


def test_nothing_is_read_ahead_without_places(path: Path) -> None:
    tier = tier_of(path, 6, 0)
    tier.source.fetch(0, [0], False, [1, 2])
    assert tier.ahead_counts() == AheadCounts(0, 0, 0, 0)
    tier.close()


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, LAYERS - 1),
        st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=EXPERTS, unique=True),
        st.booleans(),
        st.lists(st.integers(0, EXPERTS - 1), max_size=EXPERTS, unique=True),
    ),
    max_size=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(requests=REQUESTS, num_places=st.integers(1, NUM_KEYS), num_ahead=st.integers(1, 5))
def test_the_cache_is_what_it_is_without(
    path: Path, content: np.ndarray, requests: list, num_places: int, num_ahead: int
) -> None:
    plain, ahead = tier_of(path, num_places, 0), tier_of(path, num_places, num_ahead)
    for layer, experts, is_scan, guessed in requests:
        plain.source.fetch(layer, experts, is_scan)
        following = guessed if layer + 1 < LAYERS and not is_scan else []
        runs = ahead.source.fetch(layer, experts, is_scan, following)
        assert sorted(i for run in runs for i in run) == list(range(len(experts)))
        assert len(ahead.source.cached_keys) == len(plain.source.cached_keys)
    found = ahead.ahead_counts()
    assert 0 <= found.begun - found.used - found.dropped <= num_ahead
    for key in ahead.source.cached_keys:
        assert np.array_equal(bytes_of(ahead, *divmod(key, EXPERTS)), content[key, :USED])
    if num_places >= NUM_KEYS:
        # Nothing is given up, so what was read is what was asked for, once each.
        assert ahead.counts().file_reads == len(ahead.source.cached_keys)
        assert set(ahead.source.cached_keys) == set(plain.source.cached_keys)
    ahead.source.drop_cached()
    found = ahead.ahead_counts()
    assert found.begun == found.used + found.dropped
    for tier in (plain, ahead):
        tier.close()


def test_a_read_ahead_that_fails_is_read_again_by_who_asks(path: Path, content: np.ndarray) -> None:
    tier = tier_of(path, 6, 3)
    whole = path.read_bytes()
    os.truncate(path, (EXPERTS + 4) * BLOB + 100)
    tier.source.fetch(0, [0], False, [4, 5, 3])
    time.sleep(READ_S)
    assert tier.take_failure() == ""
    path.write_bytes(whole)
    tier.source.fetch(1, [3, 4, 5], False)
    assert tier.take_failure() == ""
    for expert in (3, 4, 5):
        assert np.array_equal(bytes_of(tier, 1, expert), content[EXPERTS + expert, :USED])
    # Each was read once for whoever asked.
    assert (tier.ahead_counts().used, tier.counts().file_reads) == (3, 4)
    tier.close()


def test_a_file_that_stays_short_is_an_error_of_who_asks_alone(path: Path) -> None:
    tier = tier_of(path, 6, 3)
    os.truncate(path, (EXPERTS + 4) * BLOB)
    tier.source.fetch(0, [0], False, [4])
    tier.source.fetch(0, [1], False)
    with pytest.raises(_native.ExpertsNotRead, match="cannot read expert 4 of layer 1"):
        tier.source.fetch(1, [4], False)
    tier.source.fetch(1, [3], False)
    with pytest.raises(CheckpointError, match="expert 5 of layer 1"):
        bytes_of(tier, 1, 5)
    tier.close()


def test_a_router_names_its_best(path: Path) -> None:
    tier = tier_of(path, 6, 3)
    rng = np.random.default_rng(4)
    weights = rng.standard_normal((EXPERTS, SIZE)).astype(np.float32)
    ctx = _native.Context(1, "scalar")
    fmt = FORMATS["Q8_0"]
    tier.source.set_router(1, _native.Matrix.pack(ctx, fmt.ggml_id, quantize(fmt, weights), SIZE))
    for rows in (1, 3):
        x = rng.standard_normal((rows, SIZE)).astype(np.float32)
        order = np.argsort(-(x @ weights.T), axis=1, kind="stable")[:, :2]
        # By rank, then by row; each once.
        expected = list(dict.fromkeys(order.T.reshape(-1).tolist()))
        assert tier.source.guess(ctx, 1, x) == expected
    with pytest.raises(ValueError, match="nobody guesses"):
        tier.source.guess(ctx, 0, x)
    tier.stop_look_ahead()
    with pytest.raises(ValueError, match="nobody guesses"):
        tier.source.guess(ctx, 1, x)
    tier.close()


def test_a_router_that_is_not_quantised_is_refused(path: Path) -> None:
    tier = tier_of(path, 6, 3)
    ctx = _native.Context(1, "scalar")
    raw = np.zeros((EXPERTS, 4 * SIZE), np.uint8)
    with pytest.raises(ValueError, match="must be quantised"):
        tier.source.set_router(1, _native.Matrix.pack(ctx, FORMATS["F32"].ggml_id, raw, SIZE))
    tier.close()


@pytest.mark.parametrize(("num_places", "num_ahead"), [(7, 0), (8, 1), (100, 12), (4000, 16)])
def test_reads_ahead_take_an_eighth_of_the_room(num_places: int, num_ahead: int) -> None:
    spec, _ = spec_of(GEOMETRIES["tiny"])
    assert look_ahead_of(num_places, spec).num_places == num_ahead


class TwoLayers(Card):
    """A mailbox of two layers with the same experts, on a disk; the second has a router."""

    def __init__(self, ctx: _native.Context, path: Path, num_ahead: int) -> None:
        super().__init__(ctx)
        padded = np.zeros((2 * NUM_EXPERTS, BLOB), np.uint8)
        padded[:, : self.blobs.shape[1]] = np.concatenate([self.blobs, self.blobs])
        path.write_bytes(padded.tobytes())
        extents = np.array([[(0, key * BLOB, BLOB)] for key in range(2 * NUM_EXPERTS)])
        self.descriptor = os.open(path, os.O_RDONLY)
        num_places = 2 * NUM_EXPERTS + num_ahead
        self.memory = np.zeros((num_places + 2) * BLOB, np.uint8)
        first = self.memory.ctypes.data + -self.memory.ctypes.data % BLOB
        layers = [self.layer, self.layer]
        self.source = _native.ExpertSource(
            ctx, layers, [(str(path), -1, self.descriptor)], extents, first, num_places, BLOB,
            self.memory, num_ahead,
        )  # fmt: skip
        # A router whose outputs are the first inputs of the rows: the largest is chosen.
        fmt = FORMATS["Q8_0"]
        weights = np.eye(NUM_EXPERTS, SIZE, dtype=np.float32)
        router = _native.Matrix.pack(ctx, fmt.ggml_id, quantize(fmt, weights), SIZE)
        self.source.set_router(1, router)
        self.source.look_ahead(TOP_K)
        owners = (self.factors, self.box, self.memory)
        self.server = _native.ExpertServer(
            ctx, layers, self.addresses, MAX_ROWS, TOP_K, owners, self.source
        )

    def guesses(self, rows: int) -> list[int]:
        """Whom the first rows in the mailbox make the router choose."""
        codes = self.field("codes", np.int8)[: rows * SIZE].reshape(rows, SIZE)[:, :NUM_EXPERTS]
        order = np.argsort(-codes.astype(int), axis=1, kind="stable")[:, :TOP_K]
        return list(dict.fromkeys(order.T.reshape(-1).tolist()))

    def counts(self) -> AheadCounts:
        out = np.zeros((2, 4), np.int64)
        self.source.read_ahead_counts(out)
        return AheadCounts(*out.sum(axis=0).tolist())


@pytest.mark.parametrize("num_ahead", [0, 3])
def test_a_card_s_answers_are_those_from_memory_and_guesses_are_taken(
    tmp_path: Path, num_ahead: int
) -> None:
    memory = Card(_native.Context(2, "scalar"))
    files = TwoLayers(_native.Context(2, "scalar"), tmp_path / "blobs", num_ahead)
    for card in (memory, files):
        card.start()
    guesses = files.guesses(1)
    # First with a read, then, of experts that have been read, without one.
    for number, first in enumerate([(0, 1), (1, 0)]):
        status, outputs = files.ask(*first, layer=0)
        assert status == GOOD
        assert np.array_equal(outputs, memory.ask(*first)[1])
        time.sleep(READ_S)
        begun = TOP_K if num_ahead else 0
        assert files.counts()[:2] == (begun, 0 if number == 0 else begun)
        status, outputs = files.ask(*guesses, layer=1)
        assert status == GOOD
        assert np.array_equal(outputs, memory.ask(*guesses)[1])
        assert (outputs != UNWRITTEN).all()
        assert files.counts() == AheadCounts(begun, begun, 0, 0)
    for card in (memory, files):
        assert card.server.stop(ANSWER_SECONDS)
    os.close(files.descriptor)


def test_guesses_after_an_answer_are_those_of_its_rows(tmp_path: Path) -> None:
    """A request that waits for no disk is answered first; its rows may be written over then."""
    files = TwoLayers(_native.Context(1, "scalar"), tmp_path / "blobs", 4)
    files.source.fetch(0, [0, 1], False)
    files.start()
    guesses = files.guesses(2)
    assert files.ask(0, 1, 1, 0, layer=0)[0] == GOOD
    time.sleep(READ_S)
    assert files.counts().begun == len(guesses)
    assert files.server.stop(ANSWER_SECONDS)
    files.source.fetch(1, guesses, False)
    assert files.counts() == AheadCounts(len(guesses), len(guesses), 0, 0)
    os.close(files.descriptor)


def test_wrong_guesses_are_given_up_for_a_while(tmp_path: Path) -> None:
    """256 reads are judged together; none was taken, so 2,048 layers are left alone."""
    files = TwoLayers(_native.Context(1, "scalar"), tmp_path / "blobs", 1)
    files.start()
    codes = files.field("codes", np.int8)
    begun: list[int] = []
    while len(begun) < 2048 + 700 and (len(begun) < 2000 or begun[-1] == begun[-2]):
        # Another expert is named each time, and never asked for.
        codes[:NUM_EXPERTS] = 0
        codes[len(begun) % NUM_EXPERTS] = 100
        assert files.ask(0, 1, layer=0)[0] == GOOD
        if len(begun) < 600:
            time.sleep(2e-4)
        begun.append(files.counts().begun)
    judged = begun.index(max(begun[:1000]))
    assert begun[judged] == 256
    assert begun[judged + 2000] == 256
    # A guess is made after its answer: one may be counted with the next.
    assert begun[-1] in (257, 258)
    assert files.counts().used == 0
    assert files.server.stop(ANSWER_SECONDS)
    os.close(files.descriptor)


def test_guesses_may_end_and_begin_while_requests_are_answered(tmp_path: Path) -> None:
    """What another thread turns, and looks at, while the one that answers reads it."""
    memory = Card(_native.Context(1, "scalar"))
    files = TwoLayers(_native.Context(2, "scalar"), tmp_path / "blobs", 3)
    for card in (memory, files):
        card.start()
    for number in range(60):
        ids = (number % NUM_EXPERTS, (number + 1) % NUM_EXPERTS)
        expected = memory.ask(*ids)[1]
        for layer in range(2):
            files.source.look_ahead((number + layer) % (TOP_K + 1))
            status, outputs = files.ask(*ids, layer=layer)
            assert status == GOOD
            assert np.array_equal(outputs, expected)
            keys = files.source.cached_keys
            assert {layer * NUM_EXPERTS + expert for expert in ids} <= set(keys)
    for card in (memory, files):
        assert card.server.stop(ANSWER_SECONDS)
    os.close(files.descriptor)


def test_what_goes_wrong_in_the_thread_that_answers_is_an_answer(tmp_path: Path) -> None:
    """A router of another width: its guesses throw, first before an answer, then after one."""
    ctx, fmt = _native.Context(2, "scalar"), FORMATS["Q8_0"]
    files = TwoLayers(ctx, tmp_path / "blobs", 2)
    weights = quantize(fmt, np.eye(NUM_EXPERTS, 2 * SIZE, dtype=np.float32))
    files.source.set_router(1, _native.Matrix.pack(ctx, fmt.ggml_id, weights, 2 * SIZE))
    files.start()
    assert files.ask(0, 1, layer=0)[0] == FAILED
    assert files.source.take_failure() == (
        "cannot read experts of layer 0: a router of another width."
    )
    # What was on its way for that request is no part of the cache; without reads nobody waits.
    assert files.source.cached_keys == []
    files.source.fetch(0, [0, 1], False)
    for _ in range(3):
        assert files.ask(0, 1, layer=0)[0] == GOOD
    assert files.ask(2, 3, layer=1)[0] == GOOD
    assert files.source.take_failure() == ""
    assert files.server.stop(ANSWER_SECONDS)
    os.close(files.descriptor)


def test_the_disk_s_time_is_that_of_reads_that_were_waited_for(path: Path) -> None:
    tier = tier_of(path, 2, 0)
    assert tier.disk_bytes_per_s() is None
    # On a busy machine nearly all may have come before anybody could wait for them.
    for number in range(50_000):
        tier.source.fetch(number % LAYERS, [number % EXPERTS, (number + 3) % EXPERTS], False)
        if number > 200 and tier.source.timed_reads[0]:
            break
    num_bytes, nanoseconds = tier.source.timed_reads
    # Some may have been there before anybody waited.
    assert 0 < num_bytes <= tier.counts().file_bytes
    assert num_bytes % BLOB == 0
    assert nanoseconds > 0
    assert tier.disk_bytes_per_s() == pytest.approx(1e9 * num_bytes / nanoseconds)
    tier.close()
