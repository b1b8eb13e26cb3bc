"""The file of a conversation: what is written is read, and nothing else is.

Checked against the history that was written, array for array; damage is made byte by byte, at
random, and behind a right checksum.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.engine import conversation_file
from strata.engine.conversation_file import read_contents, read_history, write_conversation
from strata.engine.conversation_history import Checkpoint, History, Page
from strata.engine.conversation_points import PointKind
from strata.errors import CheckpointError
from strata.session_rules import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef"
IDENTITY = '["model", "cpu"]'


def a_history(num_tokens: int = 20, page: int = 8, seed: int = 0) -> History:
    rng = np.random.default_rng(seed)
    checkpoints = []
    for position, kind in ((5, PointKind.ROOT), (num_tokens, PointKind.END)):
        running = (
            rng.standard_normal((3, 4)).astype(np.float32),
            np.zeros((0, 7), np.float32),  # nothing waits
            np.array([position], np.int64),
        )
        checkpoints.append(Checkpoint(Snapshot(position, running), kind, 0))
    pages = []
    for start in range(0, num_tokens, page):
        stop = min(start + page, num_tokens + 2)
        cells = (
            rng.standard_normal((2, stop - start, 3)).astype(np.float16),
            rng.integers(-9, 9, (stop - start,)).astype(np.int8),
        )
        pages.append(Page(start, stop, cells, stop - start == page))
    tokens = rng.integers(0, 99, num_tokens).astype(np.int32)
    return History(KEY, tokens, checkpoints, pages)


def written(folder: Path, history: History) -> Path:
    path = folder / "one.conversation"
    with path.open("wb") as file:
        num_bytes = write_conversation(file, history, IDENTITY)
    assert path.stat().st_size == num_bytes
    return path


def assert_same(one: History, other: History) -> None:
    assert one.key == other.key
    assert np.array_equal(one.tokens, other.tokens)
    assert [(item.position, item.kind) for item in one.checkpoints] == [
        (item.position, item.kind) for item in other.checkpoints
    ]
    assert [(page.start, page.stop, page.is_whole) for page in one.pages] == [
        (page.start, page.stop, page.is_whole) for page in other.pages
    ]
    pairs = [
        *zip(one.checkpoints, other.checkpoints, strict=True),
        *zip(one.pages, other.pages, strict=True),
    ]
    for a, b in pairs:
        ours = a.cells if isinstance(a, Page) else a.snapshot.running
        theirs = b.cells if isinstance(b, Page) else b.snapshot.running
        for x, y in zip(ours, theirs, strict=True):
            assert x.dtype == y.dtype
            assert x.shape == y.shape
            assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("num_tokens", [6, 7, 8, 9, 20, 24])
def test_what_is_written_is_read(tmp_path: Path, num_tokens: int):
    history = a_history(num_tokens)
    path = written(tmp_path, history)
    assert_same(read_history(path, num_tokens), history)
    with path.open("rb") as file:
        contents = read_contents(file)
    assert contents.identity == IDENTITY
    assert np.array_equal(contents.tokens, history.tokens)


def test_only_what_is_needed_is_read(tmp_path: Path):
    part = read_history(written(tmp_path, a_history(20)), 6)
    assert [item.position for item in part.checkpoints] == [5]
    assert [page.start for page in part.pages] == [0]
    assert len(part.tokens) == 5


def test_arrays_that_are_not_contiguous_are_written_whole(tmp_path: Path):
    history = a_history()
    wide = np.arange(48, dtype=np.float32).reshape(4, 12)
    running = (wide[:, ::2], wide.T)
    history.checkpoints[0] = Checkpoint(Snapshot(5, running), PointKind.TURN, 0)
    again = read_history(written(tmp_path, history), 20).checkpoints[0].snapshot.running
    for x, y in zip(running, again, strict=True):
        assert np.array_equal(x, y)


def test_every_cut_is_noticed(tmp_path: Path):
    path = written(tmp_path, a_history())
    whole = path.read_bytes()
    for size in [*range(0, 700, 3), *range(700, len(whole), 41)]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            read_history(path, 20)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="bytes of"):
        read_history(path, 20)


def test_a_change_of_any_byte_is_noticed_or_changes_nothing(tmp_path: Path):
    history = a_history()
    path = written(tmp_path, history)
    whole = path.read_bytes()
    num_unseen = 0
    places = range(0, len(whole), 3)
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            again = read_history(path, 20)
        except CheckpointError:
            continue
        num_unseen += 1  # space between sections belongs to nothing
        assert_same(again, history)
    assert num_unseen < len(places) // 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not the file of a conversation"),
        (b"GGUF" + bytes(100), "not the file of a conversation"),
        (struct.pack("<8sIIQQ", b"STRATCNV", 2, 0, 0, 32), "version 2"),
        (struct.pack("<8sIIQQ", b"STRATCNV", 1, 0, 9, 40), "it has 32 bytes of 40"),
        (struct.pack("<8sIIQQ", b"STRATCNV", 1, 0, 1 << 60, 32), "header of"),
        (struct.pack("<8sIIQQ", b"STRATCNV", 1, 5, 0, 32), "header is damaged"),
        (struct.pack("<8sIIQQ", b"STRATCNV", 1, 0, 0, 32), "does not say"),
    ],
)
def test_messages_say_what_it_is(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_history(path, 20)


def rewritten(whole: bytes, change) -> bytes:
    """The file with another header, whose checksum and sizes are right."""
    _, version, _, num_header, num_bytes = struct.unpack_from("<8sIIQQ", whole)
    facts = json.loads(whole[32 : 32 + num_header])
    facts = change(facts)
    header = json.dumps(facts, separators=(",", ":")).encode()
    rest = whole[32 + num_header :]
    if len(header) <= num_header:
        header += b" " * (num_header - len(header))
        rest = whole[32 + num_header :]
    size = 32 + len(header) + len(rest)
    prefix = struct.pack("<8sIIQQ", b"STRATCNV", version, zlib.crc32(header), len(header), size)
    assert num_bytes == len(whole)
    return prefix + header + rest


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 1 << 70),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.lists(st.integers(-1, 30), max_size=4),
    st.lists(st.lists(st.one_of(st.integers(-1, 30), st.booleans(), st.just("end")), max_size=4)),
)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["identity", "key", "tokens", "checkpoints", "pages", "sections"]),
    value=values,
    place=st.integers(0, 9),
    is_deep=st.booleans(),
)
def test_a_header_that_lies_is_refused(tmp_path_factory, name, value, place, is_deep):
    folder = tmp_path_factory.mktemp("lies")
    history = a_history()
    path = written(folder, history)

    def change(facts):
        if is_deep and isinstance(facts[name], list):
            items = facts[name]
            items[place % len(items)] = value
        else:
            facts[name] = value
        return facts

    path.write_bytes(rewritten(path.read_bytes(), change))
    try:
        again = read_history(path, 20)
    except CheckpointError:
        return
    # Another name or model is no lie that can be seen here; nor is what came out the same.
    again.key = history.key
    for page in again.pages:
        assert page.stop > page.start
    assert np.array_equal(again.tokens, history.tokens)


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200))
def test_lists_of_arrays_are_read_or_refused(content: bytes):
    try:
        arrays = conversation_file._arrays(bytearray(content))
    except CheckpointError:
        return
    assert sum(item.nbytes for item in arrays) <= len(content)


def test_an_empty_array_of_impossible_sizes_is_refused():
    sizes = struct.pack("<IHHQQ", 1, 0, 2, 0, (1 << 64) - 1)
    with pytest.raises(CheckpointError, match="sizes"):
        conversation_file._arrays(bytearray(sizes))


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=300), begin=st.sampled_from([b"", b"STRATCNV\1\0\0\0"]))
def test_random_bytes_are_refused(tmp_path_factory, content: bytes, begin: bytes):
    path = tmp_path_factory.mktemp("random") / "x"
    path.write_bytes(begin + content)
    with pytest.raises(CheckpointError):
        read_history(path, 20)


def test_a_full_disk_is_an_error_of_the_system():
    class Full(io.BytesIO):
        def write(self, content):
            if self.tell() > 500:
                raise OSError(28, "No space left on device")
            return super().write(content)

    with pytest.raises(OSError, match="No space"):
        write_conversation(Full(), a_history(), IDENTITY)
