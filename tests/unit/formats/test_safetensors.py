"""The safetensors reader, against files the safetensors package and torch write."""

import json
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.convert_source import plain_name
from strata.formats.safetensors import SafetensorsSource, find_files, fp8_block_of, read_header


def written(folder, tensors):
    save_file(tensors, folder / "model.safetensors")
    return SafetensorsSource(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_rows_of_plain_types(tmp_path, dtype):
    stored = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    with written(tmp_path, {"model.a.weight": stored, "model.b": torch.ones(4)}) as source:
        assert source.shape("a.weight") == (3, 5, 7)
        assert sorted(source.names()) == ["a.weight", "b"]
        expected = stored.float().reshape(15, 7).numpy()
        np.testing.assert_array_equal(source.rows("a.weight", 4, 11), expected[4:11])
        np.testing.assert_array_equal(source.rows("b", 0, 4), np.ones((4, 1)))


def test_every_fp8_code(tmp_path):
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    with written(tmp_path, {"w": codes}) as source:
        np.testing.assert_array_equal(source.rows("w", 0, 256)[:, 0], codes.float().numpy())


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16])
def test_fp8_block_scales(tmp_path, scale_dtype):
    generator = torch.Generator().manual_seed(1)
    stored = torch.randn(300, 200, generator=generator).to(torch.float8_e4m3fn)
    scales = (torch.rand(3, 2, generator=generator) + 0.5).to(scale_dtype)
    expected = stored.float().numpy().copy()
    for i in range(300):
        for j in range(200):
            expected[i, j] *= scales[i // 128, j // 128].item()
    with written(tmp_path, {"q.weight": stored, "q.weight_scale_inv": scales}) as source:
        assert list(source.names()) == ["q.weight"]
        got = np.concatenate([source.rows("q.weight", i, i + 50) for i in range(0, 300, 50)])
    np.testing.assert_array_equal(got, expected)


def test_fp8_with_one_scale(tmp_path):
    stored = torch.ones(4, 6).to(torch.float8_e4m3fn)
    tensors = {"q.weight": stored, "q.weight_scale_inv": torch.tensor([0.25])}
    with written(tmp_path, tensors) as source:
        np.testing.assert_array_equal(source.rows("q.weight", 1, 3), np.full((2, 6), 0.25))


def test_fp8_scales_of_another_layout(tmp_path):
    tensors = {
        "q.weight": torch.ones(300, 200).to(torch.float8_e4m3fn),
        "q.weight_scale_inv": torch.ones(2, 2),
    }
    with (
        written(tmp_path, tensors) as source,
        pytest.raises(CheckpointError, match=r"weight_scale_inv has shape \[2, 2\].*\[3, 2\]"),
    ):
        source.rows("q.weight", 0, 1)


def test_block_size_from_the_configuration():
    assert fp8_block_of({"quantization_config": {"weight_block_size": [64, 32]}}) == (64, 32)
    assert fp8_block_of({"quantization_config": {"weight_block_size": "x"}}) == (128, 128)
    assert fp8_block_of({}) == (128, 128)


def test_integers(tmp_path):
    values = torch.tensor([1, -5, (1 << 62) + 3])
    with written(tmp_path, {"i": values, "f": torch.ones(1)}) as source:
        assert source.integers("i") == (1, -5, (1 << 62) + 3)
        with pytest.raises(CheckpointError, match="expected integers"):
            source.integers("f")


def test_integers_are_not_weights(tmp_path):
    with (
        written(tmp_path, {"m": torch.ones(2, dtype=torch.uint8)}) as source,
        pytest.raises(UnsupportedError, match="stored as U8"),
    ):
        source.rows("m", 0, 1)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("model.language_model.layers.0.x", "layers.0.x"),
        ("model.layers.0.x", "layers.0.x"),
        ("lm_head.weight", "lm_head.weight"),
        ("mtp.fc_hidden.weight", "mtp.fc_hidden.weight"),
        ("model.visual.blocks.0.x", None),
    ],
)
def test_plain_names(name, plain):
    assert plain_name(name) == plain


def raw_file(path, header, data=b"\0" * 64, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def record(dtype="F32", shape=(4,), span=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"a": record(span=(0, 12))}, "its shape needs 16"),
        ({"a": record(span=(56, 72))}, "ends at byte"),
        ({"a": record(), "b": record(span=(8, 24))}, "overlaps"),
        ({"a": record(shape=(-4,))}, "broken record"),
        ({"a": record(shape=(1 << 60,))}, "broken record"),
        ({"a": record(span=(0,))}, "broken record"),
        ({"a": 3}, "has no record"),
        ([], "not an object"),
        (b"{ ", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
    ],
)
def test_broken_headers(tmp_path, header, words):
    path = raw_file(tmp_path / "x.safetensors", header)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_header(path)
    assert "x.safetensors" in str(caught.value)


@pytest.mark.parametrize("length", [0, 1, 1 << 30, (1 << 64) - 1])
def test_false_header_length(tmp_path, length):
    path = raw_file(tmp_path / "x.safetensors", {"a": record()}, length=length)
    with pytest.raises(CheckpointError, match="header claims"):
        read_header(path)


def test_unknown_type(tmp_path):
    path = raw_file(tmp_path / "x.safetensors", {"a": record(dtype="F4")})
    with pytest.raises(UnsupportedError, match="'F4'"):
        read_header(path)


@given(data=st.binary(max_size=200), length=st.integers(0, 300))
def test_random_bytes_never_crash(tmp_path_factory, data, length):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(struct.pack("<Q", length) + data)
    try:
        read_header(path)
    except CheckpointError as error:
        assert "x.safetensors" in str(error)  # noqa: PT017 - either outcome is right


def test_truncated_file(tmp_path):
    save_file({"a": torch.ones(100)}, tmp_path / "model.safetensors")
    raw = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(raw[:-1])
    with pytest.raises(CheckpointError, match="ends at byte"):
        SafetensorsSource(tmp_path)


def test_file_cut_while_it_is_read(tmp_path):
    with written(tmp_path, {"a": torch.ones(100)}) as source:
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(CheckpointError, match="became shorter"):
            source.rows("a", 0, 100)


def index_file(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps(weight_map))


def test_missing_shards_are_named(tmp_path):
    index_file(tmp_path, {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    save_file({"a": torch.ones(1)}, tmp_path / "1.safetensors")
    with pytest.raises(CheckpointError, match=r"1 of 2 shards are missing: 2\.safetensors"):
        find_files(tmp_path)


@pytest.mark.parametrize("content", [{}, [], {"weight_map": [1]}, {"weight_map": {"a": 3}}])
def test_broken_index(tmp_path, content):
    index_file(tmp_path, content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        find_files(tmp_path)


def test_index_may_not_leave_its_folder(tmp_path):
    index_file(tmp_path, {"weight_map": {"a": "../x.safetensors"}})
    with pytest.raises(CheckpointError, match="outside its folder"):
        find_files(tmp_path)


def test_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="holds neither"):
        SafetensorsSource(tmp_path)


def test_a_tensor_in_two_shards(tmp_path):
    index_file(tmp_path, {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    for name in ("1", "2"):
        save_file({"a": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(CheckpointError, match="also in another shard"):
        SafetensorsSource(tmp_path)
