"""The GGUF reader against files laid out byte by byte from the format's description."""

import struct

import numpy as np
import pytest

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.block_formats import FORMATS
from strata.formats.gguf import read_gguf


def text(value):
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def key(name, type_id, payload):
    return text(name) + struct.pack("<I", type_id) + payload


def record(name, dims, type_id, offset):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def build(keys=(), records=(), data=b"", version=3, alignment=32, counts=None):
    num_tensors, num_keys = counts or (len(records), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)
    head += b"".join(keys) + b"".join(records)
    return head + b"\0" * (-len(head) % alignment) + data


SOUND = {
    "keys": [
        key("general.architecture", 8, text("qwen4exp")),
        key("x.u8", 0, b"\xff"),
        key("x.i8", 1, b"\xff"),
        key("x.u16", 2, struct.pack("<H", 65535)),
        key("x.i16", 3, struct.pack("<h", -2)),
        key("x.u32", 4, struct.pack("<I", 2**32 - 1)),
        key("x.i32", 5, struct.pack("<i", -3)),
        key("x.f32", 6, struct.pack("<f", 0.25)),
        key("x.bool", 7, b"\1"),
        key("x.u64", 10, struct.pack("<Q", 2**64 - 1)),
        key("x.i64", 11, struct.pack("<q", -(2**63))),
        key("x.f64", 12, struct.pack("<d", 0.1)),
        key("x.words", 9, struct.pack("<IQ", 8, 2) + text("é") + text("")),
        key("x.multipliers", 9, struct.pack("<IQ3Q", 10, 3, 23703573157769, 2, 2**63)),
        key("x.sections", 9, struct.pack("<IQ4i", 5, 4, 11, 11, 10, 0)),
        key("x.flags", 9, struct.pack("<IQ", 7, 2) + b"\1\0"),
        key("x.nested", 9, struct.pack("<IQIQiIQ", 9, 2, 5, 1, -7, 4, 0)),
    ],
    "records": [record("a", (4, 3), 0, 0), record("b", (64, 2), 8, 64)],
    "data": np.arange(12, dtype="<f4").tobytes() + b"\0" * 16 + bytes(range(136)),
}


@pytest.fixture
def write(tmp_path):
    def write(raw):
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return write


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_and_tensor_is_read(write, version):
    file = read_gguf(write(build(**SOUND, version=version)))
    metadata = dict(file.metadata)
    numbers = {name: metadata.pop(name) for name in ("x.multipliers", "x.sections", "x.flags")}
    nested = metadata.pop("x.nested")
    assert metadata == {
        "general.architecture": "qwen4exp",
        "x.u8": 255, "x.i8": -1, "x.u16": 65535, "x.i16": -2, "x.u32": 2**32 - 1, "x.i32": -3,
        "x.f32": 0.25, "x.bool": True, "x.u64": 2**64 - 1, "x.i64": -(2**63), "x.f64": 0.1,
        "x.words": ["é", ""],
    }  # fmt: skip
    assert numbers["x.multipliers"].dtype == np.uint64
    assert numbers["x.multipliers"].tolist() == [23703573157769, 2, 2**63]
    assert numbers["x.sections"].tolist() == [11, 11, 10, 0]
    assert numbers["x.flags"].tolist() == [True, False]
    assert [part.tolist() for part in nested] == [[-7], []]
    a, b = file.tensors
    assert (a.name, a.shape, a.format, a.num_bytes) == ("a", (3, 4), FORMATS["F32"], 48)
    assert (b.name, b.shape, b.format, b.num_bytes) == ("b", (2, 64), FORMATS["Q8_0"], 136)
    assert file.data[a.offset : a.offset + 48].view("<f4").tolist() == list(range(12))
    assert file.data[b.offset : b.offset + 136].tolist() == list(range(136))
    assert not file.data.flags.writeable


def test_other_alignment_is_honoured(write):
    keys = [key("general.alignment", 4, struct.pack("<I", 128))]
    records = [record("a", (1,), 0, 0), record("b", (1,), 0, 128)]
    data = struct.pack("<f", 5) + b"\0" * 124 + struct.pack("<f", 6)
    file = read_gguf(write(build(keys, records, data, alignment=128)))
    values = [file.data[t.offset : t.offset + 4].view("<f4")[0] for t in file.tensors]
    assert values == [5, 6]


def test_file_without_tensors_may_end_before_the_padding(write):
    raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("x", 0, b"\1")
    assert read_gguf(write(raw)).tensors == ()


F32_AT_0 = record("a", (8,), 0, 0)
DATA = b"\0" * 32
BAD = {
    "empty": (b"", "is empty"),
    "short magic": (b"GG", "truncated: magic needs 4 bytes, 2 are left"),
    "magic": (b"GGML" + b"\0" * 40, "is not a GGUF file: it begins with b'GGML'"),
    "version 1": (build(version=1), "version 0x1 is not known"),
    "version 4": (build(version=4), "version 0x4 is not known"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (build(counts=(2**63, 0)), "tensor count 9223372036854775808 is absurd"),
    "key count": (build(counts=(0, 2**40)), "metadata key count 1099511627776 is absurd"),
    "key length": (
        build(keys=[struct.pack("<Q", 2**50) + b"x" * 40]),
        "metadata key: byte count 1125899906842624 is absurd",
    ),
    "array length": (
        build(keys=[key("k", 9, struct.pack("<IQ", 8, 2**60))]),
        "'k': array item count 1152921504606846976 is absurd",
    ),
    "number array length": (
        build(keys=[key("k", 9, struct.pack("<IQ", 10, 2**61))]),
        "'k': array item count 2305843009213693952 is absurd",
    ),
    "deep arrays": (
        build(keys=[key("k", 9, struct.pack("<IQ", 9, 1) * 20 + struct.pack("<IQ", 0, 0))]),
        "'k' nests arrays deeper than 4",
    ),
    "value type": (build(keys=[key("k", 13, b"\0" * 8)]), "value of 'k' has unknown type 13"),
    "item type": (
        build(keys=[key("k", 9, struct.pack("<IQ", 77, 0))]),
        "value of 'k' has unknown type 77",
    ),
    "bool": (build(keys=[key("k", 7, b"\2")]), "'k' holds a bool other than 0 and 1"),
    "key twice": (build(keys=[key("k", 0, b"\1")] * 2), "metadata key 'k' appears twice"),
    "key empty": (build(keys=[key("", 0, b"\1")]), "metadata key has 0 characters"),
    "utf-8": (build(keys=[key("k", 8, text(b"\xff\xfe"))]), "value of 'k' is not valid UTF-8"),
    "alignment zero": (
        build(keys=[key("general.alignment", 4, b"\0" * 4)]),
        "general.alignment is 0; expected a power of two",
    ),
    "alignment odd": (
        build(keys=[key("general.alignment", 4, struct.pack("<I", 48))]),
        "general.alignment is 48",
    ),
    "alignment huge": (
        build(keys=[key("general.alignment", 10, struct.pack("<Q", 2**40))]),
        "general.alignment is 1099511627776",
    ),
    "alignment text": (
        build(keys=[key("general.alignment", 8, text("32"))]),
        "general.alignment is '32'",
    ),
    "no dims": (build(records=[record("a", (), 0, 0)], data=DATA), "a has 0 dimensions"),
    "five dims": (build(records=[record("a", (1,) * 5, 0, 0)], data=DATA), "a has 5 dimensions"),
    "zero dim": (
        build(records=[record("a", (4, 0), 0, 0)], data=DATA),
        r"a has shape \[0, 4\]; a size is zero",
    ),
    "overflow": (
        build(records=[record("a", (2**63, 2**63), 0, 0)], data=DATA),
        "truncated: a .* ends at byte",
    ),
    "tensor type": (
        build(records=[record("a", (8,), 35, 0)], data=DATA),
        r"tensor a: block format 35 \(TQ2_0\) is not known",
    ),
    "partial block": (
        build(records=[record("a", (33,), 8, 0)], data=DATA * 2),
        "tensor a: a row of 33 weights cannot be stored as Q8_0",
    ),
    "offset unaligned": (
        build(records=[record("a", (4,), 0, 4)], data=DATA),
        "a begins at 4, not a multiple of 32",
    ),
    "past the end": (
        build(records=[record("a", (8,), 0, 32)], data=DATA),
        r"truncated: a \(\[8\], F32\) ends at byte 128, the file has 96",
    ),
    "offset overflow": (
        build(records=[record("a", (8,), 0, 2**64 - 32)], data=DATA),
        "truncated: a .* ends at byte",
    ),
    "overlap": (
        build(records=[record("a", (16,), 0, 0), record("b", (8,), 0, 32)], data=DATA * 2),
        "tensors a and b overlap by 32 bytes",
    ),
    "name twice": (
        build(records=[F32_AT_0, record("a", (8,), 0, 32)], data=DATA * 2),
        "tensor a appears twice",
    ),
}


@pytest.mark.parametrize(("raw", "message"), BAD.values(), ids=BAD)
def test_bad_file_is_refused_by_name_and_place(write, raw, message):
    path = write(raw)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)
    assert "Try:" in str(caught.value)


def test_unknown_things_are_unsupported_rather_than_damage(write):
    for case in ("version 4", "value type", "tensor type"):
        with pytest.raises(UnsupportedError):
            read_gguf(write(BAD[case][0]))


def test_every_truncation_of_a_sound_file_is_refused(write):
    raw = build(**SOUND)
    for length in (*range(1, 300), *range(300, len(raw), 7), len(raw) - 1):
        with pytest.raises(CheckpointError, match=r"truncated|absurd"):
            read_gguf(write(raw[:length]))


def test_path_that_cannot_be_read(tmp_path):
    with pytest.raises(CheckpointError, match="No such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_gguf(tmp_path)
