"""Finding and joining shards, in the folder layouts that download tools make."""

import gc
import shutil

import numpy as np
import pytest

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.block_formats import FORMATS
from strata.formats.gguf_writer import GgufWriter, ShardedGgufWriter, TensorPlan
from strata.formats.tensor_index import open_model

F32 = FORMATS["F32"]
PLANS = [
    TensorPlan("token_embd.weight", (5, 8), F32),
    TensorPlan("blk.0.ffn_gate_exps.weight", (3, 2, 64), FORMATS["Q8_0"]),
    TensorPlan("blk.0.rope", (4,), FORMATS["I32"]),
]
VALUES = np.arange(40, dtype=np.float32).reshape(5, 8)
BLOCKS = np.random.default_rng(1).integers(0, 60, (3, 2, 68), dtype=np.uint8)
METADATA = {"general.architecture": "qwen4exp", "x.count": 7}


def fill(writer):
    writer.write("blk.0.ffn_gate_exps.weight", BLOCKS)
    writer.write("blk.0.rope", np.arange(4, dtype=np.int32))
    writer.write("token_embd.weight", VALUES)


@pytest.fixture
def shards(tmp_path):
    """Three shards, the first with metadata only."""
    folder = tmp_path / "model"
    folder.mkdir()
    with ShardedGgufWriter(folder, "toy", METADATA, [[], PLANS[:1], PLANS[1:]]) as writer:
        fill(writer)
    return writer.paths


def check(index):
    assert list(index) == [plan.name for plan in PLANS]
    assert np.array_equal(index.array("token_embd.weight"), VALUES)
    raw = index.raw("blk.0.ffn_gate_exps.weight")
    assert raw.shape == (3, 2, 68)
    assert np.array_equal(raw, BLOCKS)
    entry = index["blk.0.ffn_gate_exps.weight"]
    assert (entry.shape, entry.format.name, entry.row_bytes) == ((3, 2, 64), "Q8_0", 68)
    with entry.path.open("rb") as stream:
        stream.seek(entry.offset)
        assert stream.read(entry.num_bytes) == BLOCKS.tobytes()
    assert index.metadata["general.architecture"] == "qwen4exp"
    assert index.metadata["x.count"] == 7


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_opens_the_whole_model(shards, given):
    with open_model(shards[given]) as index:
        check(index)
        assert index.paths == shards


def test_folder_with_one_model(shards):
    (shards[0].parent / "mmproj-toy.gguf").write_bytes(b"vision encoder")
    with open_model(str(shards[0].parent)) as index:
        check(index)


def test_snapshot_of_links_to_hashed_names(shards, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "38bb39e"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for i, path in enumerate(shards):
        path.rename(blobs / f"{i}ab")
        (snapshot / path.name).symlink_to(f"../../blobs/{i}ab")
    with open_model(snapshot / shards[1].name) as index:
        check(index)
        assert index.paths[2].parent == snapshot


def test_link_to_one_shard_finds_the_others_beside_its_target(shards, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    same, other = elsewhere / shards[2].name, elsewhere / "latest.gguf"
    same.symlink_to(shards[2])
    other.symlink_to(shards[1])
    for link in (same, other):
        with open_model(link) as index:
            check(index)


def test_shards_partly_beside_the_link_and_partly_beside_its_target(shards, tmp_path):
    # Shard 3, the n-gram table, is often shared between models by a link.
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / shards[0].name).symlink_to(shards[0])
    shutil.move(shards[1], mine)
    with open_model(mine / shards[0].name) as index:
        check(index)
        assert [path.parent for path in index.paths] == [mine, mine, shards[2].parent]


def test_single_file_under_any_name(tmp_path):
    for name in ("one.gguf", "one-00001-of-00001.gguf", "no suffix"):
        with GgufWriter(tmp_path / name, METADATA, PLANS) as writer:
            fill(writer)
        with open_model(tmp_path / name) as index:
            check(index)


def test_missing_shards_are_all_named(shards):
    shards[0].unlink()
    shards[2].unlink()
    with pytest.raises(
        CheckpointError,
        match=r"2 of 3 .* missing: toy-00001-of-00003.gguf, toy-00003-of-00003.gguf",
    ):
        open_model(shards[1])


def test_name_that_claims_very_many_shards_stays_short(shards):
    path = shards[0].rename(shards[0].with_name("toy-00001-of-20000.gguf"))
    with pytest.raises(CheckpointError, match="19999 of 20000 shards") as caught:
        open_model(path)
    assert len(str(caught.value)) < 1000


def test_renamed_shard_is_named(shards):
    plain = shards[1].rename(shards[1].with_name("plain.gguf"))
    with pytest.raises(
        CheckpointError, match=r"plain.gguf is not named as a shard, but .* shard 2 of 3"
    ):
        open_model(plain)


def test_swapped_and_duplicate_shards_are_named(shards):
    shutil.copy(shards[1], shards[2])
    with pytest.raises(
        CheckpointError, match=r"toy-00003-of-00003.gguf is found as shard 3 .* shard 2 of 3"
    ):
        open_model(shards[0])


def test_shard_of_another_set_is_named(shards, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with ShardedGgufWriter(other, "toy", METADATA, [[], PLANS]) as writer:
        fill(writer)
    shutil.copy(other / "toy-00002-of-00002.gguf", shards[1])
    with pytest.raises(CheckpointError, match=r"found as shard 2 of 3, .* shard 2 of 2"):
        open_model(shards[0])


def keyed(number, count, total):
    return {
        "split.no": np.uint16(number),
        "split.count": np.uint16(count),
        "split.tensors.count": np.int32(total),
    }


def test_tensor_in_two_shards_is_refused(tmp_path):
    for number in (0, 1):
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        with GgufWriter(path, keyed(number, 2, 2), PLANS[:1]) as writer:
            writer.write("token_embd.weight", VALUES)
    with pytest.raises(CheckpointError, match=r"token_embd.weight is in two shards") as caught:
        open_model(tmp_path)
    assert "m-00001-of-00002.gguf" in str(caught.value)
    assert "m-00002-of-00002.gguf" in str(caught.value)


def test_wrong_tensor_total_is_refused(tmp_path):
    path = tmp_path / "m-00001-of-00001.gguf"
    with GgufWriter(path, keyed(0, 1, 5), PLANS[:1]) as writer:
        writer.write("token_embd.weight", VALUES)
    with pytest.raises(CheckpointError, match=r"hold 1 tensors; split.tensors.count says 5"):
        open_model(path)


def test_split_keys_of_another_type(tmp_path):
    path = tmp_path / "m.gguf"
    with GgufWriter(path, {"split.count": "two"}, PLANS[:1]) as writer:
        writer.write("token_embd.weight", VALUES)
    with pytest.raises(CheckpointError, match=r"split.count are not integers"):
        open_model(path)


def test_folder_that_is_not_one_model(shards, tmp_path):
    with pytest.raises(CheckpointError, match=r"no .gguf file in folder"):
        open_model(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError, match="strata convert"):
        open_model(tmp_path)
    (shards[0].parent / "another.gguf").touch()
    with pytest.raises(CheckpointError, match=r"holds 2 models.*\n.*another.gguf, toy \(3 shards"):
        open_model(shards[0].parent)


def test_absent_path_and_broken_link(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no file .*absent.gguf"):
        open_model(tmp_path / "absent.gguf")
    link = tmp_path / "link-00001-of-00002.gguf"
    link.symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="there is no file"):
        open_model(link)


def test_unknown_tensor_gives_the_nearest_name(shards):
    with open_model(shards[0]) as index:
        assert "token_embed.weight" not in index
        assert index.get("token_embed.weight") is None
        with pytest.raises(CheckpointError, match=r"nearest name is token_embd.weight"):
            index.array("token_embed.weight")


def test_integers_are_not_weights(shards):
    with open_model(shards[0]) as index:
        assert index.raw("blk.0.rope").view(np.int32).tolist() == [0, 1, 2, 3]
        with pytest.raises(UnsupportedError, match="I32 cannot be read as weights"):
            index.array("blk.0.rope")


def test_views_outlive_the_index_and_cannot_be_written(shards):
    with open_model(shards[0]) as index:
        raw = index.raw("token_embd.weight")
    with pytest.raises(CheckpointError, match="the model file is closed"):
        index.raw("token_embd.weight")
    del index
    gc.collect()
    assert np.array_equal(raw.view(np.float32), VALUES)
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 0
