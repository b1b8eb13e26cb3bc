"""The trace file: what is written is read back; damage gives our error, in bounded memory."""

from __future__ import annotations

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import CheckpointError
from strata.tiers.recorder import RoutingRecorder
from strata.tiers.routing_trace import (
    RoutingTrace,
    RoutingWindow,
    WindowKind,
    read_trace,
    write_trace,
)

NUMBERS = [0, 1, 2, 3, 7, 255, 256, 2**15, 2**16 - 1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1]
MAX_BYTES = 3_000_000


def random_trace(seed, num_layers=3, num_experts=9, top_k=4, num_windows=5):
    rng = np.random.default_rng(seed)
    windows = []
    for number in range(num_windows):
        rows = int(rng.integers(1, 6))
        ids = rng.random((num_layers, rows, num_experts)).argsort(axis=-1)[..., :top_k]
        kind = WindowKind.PROMPT if number == 0 else WindowKind.DECODE
        kept = rows if kind is WindowKind.PROMPT else int(rng.integers(0, rows + 1))
        windows.append(RoutingWindow(kind, 7 * number, kept, ids.astype(np.uint16)))
    return RoutingTrace("a \u00e9 model", num_layers, num_experts, top_k, tuple(windows))


def same(a, b):
    heads = [(t.model_name, t.num_layers, t.num_experts, t.top_k) for t in (a, b)]
    assert heads[0] == heads[1]
    assert len(a.windows) == len(b.windows)
    for x, y in zip(a.windows, b.windows, strict=True):
        assert (x.kind, x.position, x.num_kept) == (y.kind, y.position, y.num_kept)
        np.testing.assert_array_equal(x.ids, y.ids)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shape=st.sampled_from([(1, 1, 1), (3, 9, 4), (2, 512, 10), (1, 65536, 3)]),
    num_windows=st.integers(0, 4),
)
def test_round_trip(seed, shape, num_windows, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "t.strt"
    trace = random_trace(seed, *shape, num_windows)
    write_trace(path, trace)
    same(read_trace(path), trace)


def test_bytes_are_as_documented(tmp_path):
    """Against a file put together by hand."""
    ids = np.array([[[1, 300]], [[2, 0]]], np.uint16)
    trace = RoutingTrace("m", 2, 301, 2, (RoutingWindow(WindowKind.DECODE, 5, 1, ids),))
    path = tmp_path / "t.strt"
    write_trace(path, trace)
    data = path.read_bytes()
    assert data[:29] == b"STRT" + struct.pack("<6I", 1, 2, 301, 2, 1, 1) + b"m"
    kind, position, rows, kept, size = struct.unpack_from("<5I", data, 29)
    assert (kind, position, rows, kept) == (1, 5, 1, 1)
    block = zlib.decompress(data[49 : 49 + size])
    assert block == bytes([1, 300 & 255, 2, 0, 0, 1, 0, 0])
    assert data[49 + size :] == struct.pack("<I", zlib.crc32(data[: 49 + size]))


def test_a_token_of_the_real_geometry_takes_little_more_than_its_bits(tmp_path):
    path = tmp_path / "t.strt"
    write_trace(path, random_trace(1, 48, 512, 10, 40))
    num_ids = sum(w.ids.size for w in random_trace(1, 48, 512, 10, 40).windows)
    assert path.stat().st_size < num_ids * 9 / 8 * 1.2


def test_uses_are_those_of_kept_rows():
    trace = random_trace(4)
    expected = np.zeros((3, 9), int)
    for window in trace.windows:
        for layer in range(3):
            for row in range(window.num_kept):
                for expert in window.ids[layer, row]:
                    expected[layer, expert] += 1
    np.testing.assert_array_equal(trace.uses(), expected)


def sealed(body):
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"GGUF" + d[4:], "begins with b'GGUF'"),
        (lambda d: b"", "begins with b''"),
        (lambda d: d[:20], "the head needs 28 bytes"),
        (lambda d: d[:4] + b"\2" + d[5:], "version 2, expected 1"),
        (lambda d: d[:-1], "checksum"),
        (lambda d: d[:60] + bytes([d[60] ^ 1]) + d[61:], "checksum"),
        (lambda d: sealed(d[:8] + b"\0\0\0\0" + d[12:-4]), "layers: 0, expected 1 to 4096"),
        (lambda d: sealed(d[:16] + b"\x0a\0\0\0" + d[20:-4]), "experts of a row: 10"),
        (lambda d: sealed(d[:-4] + b"\0"), "1 bytes follow the last window"),
        (lambda d: sealed(d[:-8]), "bytes, "),
        (lambda d: sealed(d[:12] + b"\4\0\0\0" + d[16:-4]), "of 4"),
    ],
)
def test_refusals(change, message, tmp_path):
    path = tmp_path / "t.strt"
    write_trace(path, random_trace(2))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CheckpointError, match="routing trace cannot be used") as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "Try:" in str(caught.value)


def test_a_row_that_names_an_expert_twice_is_refused(tmp_path):
    ids = np.array([[[1, 1]]], np.uint16)
    path = tmp_path / "t.strt"
    write_trace(path, RoutingTrace("", 1, 4, 2, (RoutingWindow(WindowKind.DECODE, 0, 1, ids),)))
    with pytest.raises(CheckpointError, match="a row that names an expert twice"):
        read_trace(path)


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(["put", "insert", "delete", "cut"]),
            st.floats(0, 1, exclude_max=True),
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from(NUMBERS).map(lambda n: struct.pack("<I", n)),
            ),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    is_sealed=st.booleans(),
)
def test_mutated_file(edits, is_sealed, tmp_path_factory):
    """With a right checksum half of the time, so that what lies behind it is reached."""
    path = tmp_path_factory.getbasetemp() / "mutated.strt"
    write_trace(path, random_trace(3))
    raw = bytearray(path.read_bytes()[:-4])
    for kind, place, payload, is_aligned in edits:
        at = int(place * len(raw))
        at -= at % 4 if is_aligned else 0
        if kind == "put":
            raw[at : at + len(payload)] = payload
        elif kind == "insert":
            raw[at:at] = payload
        elif kind == "delete":
            del raw[at : at + len(payload)]
        else:
            del raw[at:]
    path.write_bytes(sealed(bytes(raw)) if is_sealed else bytes(raw))
    message = "Try:"
    tracemalloc.start()
    try:
        trace = read_trace(path)
        assert all(w.ids.shape[0] == trace.num_layers for w in trace.windows)
    except CheckpointError as error:
        message = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MAX_BYTES
    assert "Try:" in message


def test_a_block_that_unpacks_to_more_than_it_claims_is_not_unpacked_further(tmp_path):
    bomb = zlib.compress(bytes(200_000_000), 9)
    head = b"STRT" + struct.pack("<6I", 1, 1, 4, 1, 1, 0)
    path = tmp_path / "bomb.strt"
    path.write_bytes(sealed(head + struct.pack("<5I", 1, 0, 1, 1, len(bomb)) + bomb))
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="other than the 2 bytes it claims"):
        read_trace(path)
    assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    tracemalloc.stop()


def test_recorder_joins_layers_to_windows():
    recorder = RoutingRecorder(2, 8, 2, "m")
    ids = np.arange(2, dtype=np.int32).reshape(1, 2)
    recorder.begin(WindowKind.PROMPT, 0)
    for rows in (3, 2):
        for layer in range(2):
            recorder.add(layer, np.tile(ids + layer, (rows, 1)))
    recorder.begin(WindowKind.DECODE, 5)
    recorder.add(0, ids)  # a window that was interrupted leaves nothing
    recorder.begin(WindowKind.DECODE, 5)
    shared = np.tile(ids, (3, 1))
    for layer in range(2):
        recorder.add(layer, shared)
    shared[:] = 7  # the session reuses its buffers
    recorder.keep(2)
    trace = recorder.trace()
    told = [(w.kind.name, w.position, w.num_rows, w.num_kept) for w in trace.windows]
    assert told == [("PROMPT", 0, 3, 3), ("PROMPT", 3, 2, 2), ("DECODE", 5, 3, 2)]
    assert trace.windows[0].ids[1, 0].tolist() == [1, 2]
    assert trace.windows[2].ids[0].tolist() == [[0, 1]] * 3
    assert trace.num_decoded == 2
    assert trace.num_prompt == 5
    with pytest.raises(ValueError, match="layer 1 told, expected 0"):
        recorder.add(1, ids)
