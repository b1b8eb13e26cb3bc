"""The thread that answers a card from files: the same answers, exact reads, faults with a status.

The yardstick is the server of test_expert_server, whose experts are all in memory.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.unit.cpu.test_expert_server import (
    ANSWER_SECONDS,
    GOOD,
    NUM_EXPERTS,
    TOP_K,
    UNWRITTEN,
    Card,
    rows_of,
)

from strata import _native
from strata.tiers.hand_off import SERVED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOT_READ = 3
PAGE = 4096
# Width of experts whose blocks are megabytes.
LARGE = 1024


class FileCard(Card):
    """The same mailbox, answered from a file by a cache of so many places."""

    def __init__(self, ctx: _native.Context, path: Path, num_places: int) -> None:
        super().__init__(ctx)
        blobs, layer = self.blobs, self.layer
        padded = np.zeros((NUM_EXPERTS, PAGE), np.uint8)
        padded[:, : blobs.shape[1]] = blobs
        path.write_bytes(padded.tobytes())
        self.descriptor = os.open(path, os.O_RDONLY)
        self.memory = np.zeros((num_places + 2) * PAGE, np.uint8)
        first = self.memory.ctypes.data + -self.memory.ctypes.data % PAGE
        extents = np.array([[(0, expert * PAGE, PAGE)] for expert in range(NUM_EXPERTS)])
        files = [(str(path), -1, self.descriptor)]
        self.source = _native.ExpertSource(
            ctx, [layer], files, extents, first, num_places, PAGE, self.memory
        )
        owners = (self.factors, self.box, self.memory)
        self.server = _native.ExpertServer(
            ctx, [layer], self.addresses, 2, TOP_K, owners, self.source
        )

    def counts(self) -> dict[str, int]:
        out = np.zeros((1, len(SERVED)), np.int64)
        self.server.read_counts(out)
        return dict(zip(SERVED, out[0].tolist(), strict=True))


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[Callable[[int], tuple[Card, FileCard]]]:
    """Makes both servers, given the places of the second."""
    made: list[Card] = []

    def make(num_places: int) -> tuple[Card, FileCard]:
        ctx = _native.Context(2, "scalar")
        pair = Card(ctx), FileCard(ctx, tmp_path / "blobs", num_places)
        for card in pair:
            card.start()
            made.append(card)
        return pair

    yield make
    for card in made:
        assert card.server.stop(ANSWER_SECONDS)
        if isinstance(card, FileCard):
            os.close(card.descriptor)


REQUESTS = [(0, 1, 1, 2), (3, -1, 2, 1), (2, 0, 0, 2), (3, 3, 3, 3), (-1, 0, 1, -1)]


@pytest.mark.parametrize("num_places", [1, 2, 3, NUM_EXPERTS])
def test_answers_are_those_from_memory(cards, num_places: int) -> None:
    memory, files = cards(num_places)
    for ids in REQUESTS:
        status, outputs = files.ask(*ids)
        assert status == GOOD
        assert np.array_equal(outputs, memory.ask(*ids)[1])
        assert (outputs[[i for i, expert in enumerate(ids) if expert < 0]] == UNWRITTEN).all()


def test_each_miss_is_read_once_and_counted(cards) -> None:
    _, files = cards(NUM_EXPERTS)
    expected = 0
    known: set[int] = set()
    for ids in REQUESTS:
        files.ask(*ids)
        expected += len({expert for expert in ids if expert >= 0} - known)
        known |= set(ids)
        counts = files.counts()
        assert (counts["from_file"], counts["file_bytes"]) == (expected, expected * PAGE)
    assert expected == NUM_EXPERTS
    assert files.counts()["experts"] == 3 + 3 + 2 + 1 + 2


def test_a_file_that_ends_has_a_status_of_its_own_and_the_next_is_right(
    cards, tmp_path: Path
) -> None:
    memory, files = cards(2)
    path = tmp_path / "blobs"
    content = path.read_bytes()
    os.truncate(path, PAGE)
    assert files.ask(0, 3)[0] == NOT_READ
    failure = files.source.take_failure()
    assert failure.startswith(f"cannot read expert 3 of layer 0: expected {PAGE} bytes, found 0")
    assert str(path) in failure
    assert files.source.take_failure() == ""
    # What is in memory is answered still.
    assert files.ask(0, 0)[0] == GOOD
    path.write_bytes(content)
    status, outputs = files.ask(0, 3)
    assert status == GOOD
    assert np.array_equal(outputs, memory.ask(0, 3)[1])


def test_a_value_that_is_not_finite_is_told_from_files_too(cards) -> None:
    _, files = cards(2)
    files.factors[1, 0] = np.inf
    assert files.ask(0, 1)[0] == 1
    assert files.ask(0, 2)[0] == GOOD


class RawCard(Card):
    """Two layers of the same large experts, as a GGUF stores them: to be packed, in more memory."""

    def __init__(self, ctx: _native.Context, path: Path, num_ahead: int) -> None:
        super().__init__(ctx, LARGE, LARGE)
        raw = [
            rows_of(10 * expert + role, LARGE, LARGE)
            for expert in range(NUM_EXPERTS)
            for role in range(3)
        ]
        path.write_bytes(b"".join(part.tobytes() for part in raw))
        size = raw[0].nbytes
        extents = np.array([(0, part * size, size) for part in range(len(raw))] * 2).reshape(
            -1, 3, 3
        )
        self.descriptor = os.open(path, os.O_RDONLY)
        place, num_places = -(-self.layer.expert_bytes // PAGE) * PAGE, NUM_EXPERTS + num_ahead
        self.memory = np.zeros(num_places * place + 2 * PAGE, np.uint8)
        first = self.memory.ctypes.data + -self.memory.ctypes.data % PAGE
        layers, files = [self.layer] * 2, [(str(path), -1, self.descriptor)]
        self.source = _native.ExpertSource(
            ctx, layers, files, extents, first, num_places, place, self.memory, num_ahead
        )
        owners = (self.factors, self.box, self.memory)
        self.server = _native.ExpertServer(
            ctx, layers, self.addresses, 2, TOP_K, owners, self.source
        )


def serve_without_memory(path: Path) -> None:
    """In a process of its own, whose memory is limited while it is asked."""
    ctx = _native.Context(2, "scalar")
    memory, files = Card(ctx, LARGE, LARGE), RawCard(ctx, path, 1)
    for card in (memory, files):
        card.start()
    assert files.ask(0, -1)[0] == GOOD
    # One that was read ahead, and did not come.
    content = path.read_bytes()
    os.truncate(path, 0)
    files.source.fetch(0, [], False, [1])
    time.sleep(0.2)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + (1 << 20), limits[1]))
    for ids in [(1, -1), (2, 3)]:
        assert files.ask(*ids, layer=1)[0] == NOT_READ
        assert files.source.take_failure() == (
            "cannot read experts of layer 1: the system gave no memory for them."
        )
        assert files.source.cached_keys == [0]
    out = np.zeros(2 * len(files.blobs[0]), np.uint8)
    targets = [out.ctypes.data, out.ctypes.data + out.nbytes // 2]
    for _ in range(NUM_EXPERTS):
        try:
            files.source.copy(1, [1, 2], targets, True)
            raise AssertionError("copies that need memory began")
        except MemoryError:
            pass
    resource.setrlimit(resource.RLIMIT_AS, limits)
    path.write_bytes(content)
    files.source.copy(1, [1, 2], targets, True).wait()
    # The places that were refused their bytes are free again: none of them was lost.
    assert files.source.cached_keys == [NUM_EXPERTS + 2, NUM_EXPERTS + 1, 0]
    for ids in REQUESTS:
        status, outputs = files.ask(*ids, layer=1)
        assert status == GOOD
        assert np.array_equal(outputs, memory.ask(*ids)[1])
    for card in (memory, files):
        assert card.server.stop(ANSWER_SECONDS)
    print("served")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are Linux's")
def test_memory_that_is_refused_has_a_status_and_the_next_is_right(tmp_path: Path) -> None:
    module = "tests.unit.cpu.test_expert_server_files"
    code = f"import sys, {module} as t; t.serve_without_memory(t.Path(sys.argv[1]))"
    # Large pieces come from the system each time, and go back to it; no thread has room in reserve.
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # noqa: TID251 - of a child
    env["MALLOC_ARENA_MAX"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "raw")],
        capture_output=True, text=True, timeout=60, check=False,
        env=env, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
