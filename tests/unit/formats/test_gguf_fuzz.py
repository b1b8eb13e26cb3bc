"""Mutated GGUF files: only the project's own errors come out, in bounded memory."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.errors import StrataError
from strata.formats.block_formats import FORMATS
from strata.formats.gguf_writer import GgufWriter, ShardedGgufWriter, TensorPlan
from strata.formats.tensor_index import open_model

METADATA = {
    "general.architecture": "qwen4exp",
    "general.alignment": 32,
    "tokenizer.ggml.tokens": ["a", "bc", "d", ""],
    "x.multipliers": np.array([23703573157769, 2**63], np.uint64),
    "x.sections": [11, 11, 10, 0],
    "x.flags": [True, False],
    "x.eps": 1e-6,
    "x.scalar": np.int8(-1),
    "split.count": np.uint16(1),
}
PLANS = [
    TensorPlan("norm", (8,), FORMATS["F32"]),
    TensorPlan("experts", (2, 2, 32), FORMATS["Q4_0"]),
    TensorPlan("table", (3, 256), FORMATS["IQ1_M"]),
    TensorPlan("ids", (3,), FORMATS["I64"]),
]
# What a reader without checks would multiply, allocate or seek by.
NUMBERS = [0, 1, 2, 7, 8, 9, 31, 33, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**33]
NUMBERS += [2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]
# The file has about a thousand bytes; parsing it takes some tens of kilobytes.
MAX_BYTES = 2_000_000


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of a small valid file with every kind of content."""
    path = tmp_path_factory.mktemp("sound") / "m.gguf"
    with GgufWriter(path, METADATA, PLANS) as writer:
        for plan in PLANS:
            writer.write(plan.name, np.full(plan.num_bytes, 17, np.uint8))
    return path.read_bytes()


@st.composite
def mutations(draw):
    """Edits as (kind, place from 0 to 1, payload)."""
    place = st.floats(0, 1, exclude_max=True)
    byte = st.tuples(st.just("put"), place, st.binary(min_size=1, max_size=1))
    number = st.tuples(
        st.just("put"),
        place,
        st.sampled_from(NUMBERS).map(lambda n: struct.pack("<Q", n)),
    )
    short = st.tuples(
        st.just("put"),
        place,
        st.sampled_from([n for n in NUMBERS if n < 2**32]).map(lambda n: struct.pack("<I", n)),
    )
    insert = st.tuples(st.just("insert"), place, st.binary(min_size=1, max_size=12))
    delete = st.tuples(st.just("delete"), place, st.binary(min_size=1, max_size=12))
    cut = st.tuples(st.just("cut"), place, st.just(b""))
    kinds = st.one_of(byte, number, number, short, short, insert, delete, cut)
    return draw(st.lists(kinds, min_size=1, max_size=4))


def mutate(raw, edits):
    raw = bytearray(raw)
    for kind, place, payload in edits:
        at = int(place * len(raw))
        if kind == "put":
            raw[at : at + len(payload)] = payload
        elif kind == "insert":
            raw[at:at] = payload
        elif kind == "delete":
            del raw[at : at + len(payload)]
        else:
            del raw[at:]
    return bytes(raw)


def read_everything(path):
    """Open and touch every tensor; the project's own errors are the expected outcome."""
    message = "sound"
    try:
        with open_model(path) as index:
            for name, entry in index.items():
                assert index.raw(name).nbytes == entry.num_bytes
                if entry.format.is_weights:
                    assert index.array(name).shape == entry.shape
    except StrataError as error:
        message = str(error)
    assert message


def check(folder, raw):
    # A new file each time: shortening one that is still mapped would be the test's own crash.
    path = folder / "m.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        read_everything(path)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


@settings(max_examples=400, deadline=None)
@given(edits=mutations())
def test_mutated_file(edits, sound, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "mutated"
    folder.mkdir(exist_ok=True)
    check(folder, mutate(sound, edits))


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=300), version=st.sampled_from([2, 3]))
def test_random_bytes_behind_the_magic(body, version, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "random"
    folder.mkdir(exist_ok=True)
    check(folder, b"GGUF" + struct.pack("<I", version) + body)


@settings(max_examples=60, deadline=None)
@given(edits=mutations(), which=st.integers(0, 2), given_shard=st.integers(0, 2))
def test_mutated_shard(edits, which, given_shard, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    with ShardedGgufWriter(
        folder, "m", METADATA | {"split.count": 0}, [[], PLANS[:2], PLANS[2:]]
    ) as writer:
        for plan in PLANS:
            writer.write(plan.name, np.full(plan.num_bytes, 17, np.uint8))
    path = writer.paths[which]
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(mutate(raw, edits))
    read_everything(writer.paths[given_shard])


def test_every_number_at_every_place_of_the_header(sound, tmp_path):
    """The same, exhaustively for one field at a time: counts, lengths, types, dims, offsets."""
    header_bytes = len(sound) - sum(-(-plan.num_bytes // 32) * 32 for plan in PLANS)
    for at in range(8, header_bytes - 8, 3):
        for number in (2**31, 2**40, 2**63):
            check(tmp_path, mutate(sound, [("put", at / len(sound), struct.pack("<Q", number))]))
