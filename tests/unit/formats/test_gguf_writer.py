"""The GGUF writer: what the (separately tested) reader finds, and what stays after a failure."""

import resource

import numpy as np
import pytest

from strata.errors import CheckpointError
from strata.formats import gguf_writer
from strata.formats.block_formats import FORMATS
from strata.formats.gguf import read_gguf
from strata.formats.gguf_values import encode_value
from strata.formats.gguf_writer import GgufWriter, ShardedGgufWriter, TensorPlan

F32 = FORMATS["F32"]
PLANS = [TensorPlan("a", (3,), F32), TensorPlan("b", (2, 32), FORMATS["Q4_0"])]
A = np.array([1, 2, 3], np.float32)
B = np.arange(36, dtype=np.uint8).reshape(2, 18)


def test_bytes_of_a_small_file(tmp_path):
    path = tmp_path / "m.gguf"
    with GgufWriter(path, {"k": np.uint16(5)}, PLANS) as writer:
        writer.write("b", B)
        writer.write("a", A)
    expected = (
        b"GGUF" + bytes([3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"k" + bytes([2, 0, 0, 0, 5, 0])
        + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"a" + bytes([1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0])
        + bytes([0, 0, 0, 0]) + bytes(8)
        + bytes([1, 0, 0, 0, 0, 0, 0, 0]) + b"b"
        + bytes([2, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])
        + bytes([2, 0, 0, 0]) + bytes([32, 0, 0, 0, 0, 0, 0, 0])
    )  # fmt: skip
    expected += b"\0" * (-len(expected) % 32)
    expected += A.tobytes() + b"\0" * 20 + B.tobytes() + b"\0" * 28
    assert path.read_bytes() == expected


@pytest.mark.parametrize(
    ("value", "type_id", "read"),
    [
        (7, 4, 7),
        (-7, 5, -7),
        (2**40, 10, 2**40),
        (-(2**40), 11, -(2**40)),
        (0.5, 6, 0.5),
        (True, 7, True),
        ("text", 8, "text"),
        (np.uint8(3), 0, 3),
        (np.int8(-3), 1, -3),
        (np.int16(-3), 3, -3),
        (np.float64(0.1), 12, 0.1),
        (["a", "ö"], 9, ["a", "ö"]),
    ],
)
def test_value_types(tmp_path, value, type_id, read):
    assert int.from_bytes(encode_value(value)[:4], "little") == type_id
    with GgufWriter(tmp_path / "m", {"k": value}, []):
        pass
    assert read_gguf(tmp_path / "m").metadata["k"] == read


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([11, 11, 10, 0], np.int32),
        ([20_000_003, 2**45], np.uint64),
        ([-1, 2**45], np.int64),
        ([0.5, 1], np.float32),
        ([True, False], np.bool_),
        ([], np.int32),
        (np.array([1, 2], np.uint16), np.uint16),
        (np.array([1, 2], ">i4"), np.int32),
    ],
)
def test_array_types(tmp_path, value, dtype):
    with GgufWriter(tmp_path / "m", {"k": value}, []):
        pass
    read = read_gguf(tmp_path / "m").metadata["k"]
    assert read.dtype == dtype
    assert read.tolist() == list(value)


@pytest.mark.parametrize("value", [None, {"a": 1}, [1, "a"], 2**64, np.zeros((2, 2)), [True, 2]])
def test_value_without_a_type_is_refused(tmp_path, value):
    with pytest.raises(CheckpointError, match="no GGUF metadata type holds"):
        GgufWriter(tmp_path / "m", {"k": value}, [])
    assert list(tmp_path.iterdir()) == []


def test_text_without_a_utf8_form_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no UTF-8 form of the metadata text"):
        GgufWriter(tmp_path / "m", {"k": ["ok", "\ud800"]}, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_stays_after_an_exception(tmp_path, error):
    def fail():
        with GgufWriter(tmp_path / "m", {}, PLANS) as writer:
            writer.write("a", A)
            assert len(list(tmp_path.iterdir())) == 1
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_stays_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old")
    writer = GgufWriter(path, {}, PLANS)
    writer.write("a", A)
    with pytest.raises(CheckpointError, match="1 tensors were not written: b"):
        writer.close()
    assert path.read_bytes() == b"old"
    with GgufWriter(path, {}, PLANS[:1]) as writer:
        writer.write("a", A)
        assert path.read_bytes() == b"old"
    assert read_gguf(path).tensors[0].name == "a"
    assert list(tmp_path.iterdir()) == [path]


def test_misuse_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="two tensors have the same name"):
        GgufWriter(tmp_path / "m", {}, [PLANS[0], PLANS[0]])
    with pytest.raises(CheckpointError, match=r"general.alignment is 64, expected 32"):
        GgufWriter(tmp_path / "m", {"general.alignment": 64}, PLANS)
    with pytest.raises(CheckpointError, match="a row of 33 weights"):
        GgufWriter(tmp_path / "m", {}, [TensorPlan("x", (33,), FORMATS["Q8_0"])])
    for shape in ((), (0, 4), (1, 1, 1, 1, 1)):
        with pytest.raises(CheckpointError, match="cannot write tensor x: shape"):
            GgufWriter(tmp_path / "m", {}, [TensorPlan("x", shape, F32)])
    with pytest.raises(CheckpointError, match=r"cannot write to folder .*No such file"):
        GgufWriter(tmp_path / "absent" / "m", {}, PLANS)
    writer = GgufWriter(tmp_path / "m", {}, PLANS)
    with pytest.raises(CheckpointError, match="tensor c is not among the planned"):
        writer.write("c", A)
    with pytest.raises(CheckpointError, match=r"a has 8 bytes, expected 12 \(F32, \[3\]\)"):
        writer.write("a", A[:2])
    writer.write("a", A)
    with pytest.raises(CheckpointError, match="tensor a was written before"):
        writer.write("a", A)
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_foreseen(tmp_path, monkeypatch):
    monkeypatch.setattr(
        gguf_writer.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100})
    )
    with pytest.raises(CheckpointError, match=r"too full: 224 B \(224 bytes\) needed, 100 B free"):
        GgufWriter(tmp_path / "m", {}, PLANS)
    with pytest.raises(CheckpointError, match="too full"):
        ShardedGgufWriter(tmp_path, "m", {}, [PLANS[:1], PLANS[1:]])
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_while_writing(tmp_path):
    # A file size limit gives the error a full disk gives, at the same calls.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    plans = [TensorPlan("a", (1 << 16,), F32)]
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        with pytest.raises(CheckpointError, match=r"the disk is full; the file needs 256.06 KiB"):
            GgufWriter(tmp_path / "m", {}, plans)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_disk_that_refuses_a_tensor(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    plans = [TensorPlan("a", (1 << 16,), F32)]
    writer = GgufWriter(tmp_path / "m", {}, plans)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        with pytest.raises(CheckpointError, match="the disk is full"), writer:
            writer.write("a", np.zeros(1 << 16, np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_shards_hold_their_tensors_and_keys(tmp_path):
    with ShardedGgufWriter(tmp_path, "m", {"k": 1}, [[], PLANS[:1], PLANS[1:]]) as writer:
        writer.write("b", B)
        writer.write("a", A)
        with pytest.raises(CheckpointError, match="tensor z is not among the planned"):
            writer.write("z", A)
    assert [path.name for path in writer.paths] == [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    files = [read_gguf(path) for path in writer.paths]
    assert [[entry.name for entry in file.tensors] for file in files] == [[], ["a"], ["b"]]
    assert files[0].metadata == {
        "k": 1, "split.no": 0, "split.count": 3, "split.tensors.count": 2
    }  # fmt: skip
    assert files[2].metadata == {"split.no": 2, "split.count": 3, "split.tensors.count": 2}


def test_no_shard_stays_after_an_exception(tmp_path):
    def stop():
        with ShardedGgufWriter(tmp_path, "m", {}, [PLANS[:1], PLANS[1:]]) as writer:
            writer.write("a", A)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    # The second shard is complete, and still does not stay without the first.
    writer = ShardedGgufWriter(tmp_path, "m", {}, [PLANS[:1], PLANS[1:]])
    writer.write("b", B)
    with pytest.raises(CheckpointError, match="1 tensors were not written: a"):
        writer.close()
    with pytest.raises(CheckpointError, match="no shards are planned"):
        ShardedGgufWriter(tmp_path, "m", {}, [])
    with pytest.raises(CheckpointError, match="two tensors have the same name"):
        ShardedGgufWriter(tmp_path, "m", {}, [PLANS, PLANS])
    assert list(tmp_path.iterdir()) == []
