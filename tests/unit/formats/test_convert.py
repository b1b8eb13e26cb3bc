"""The converter, against transformers' own weights renamed by ``tests.models.hf_names`` (written
apart from it), and against llama.cpp reading what it writes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.arrays import converted
from tests.models.hf_names import rename
from tests.models.tiny_models import TINY, gguf_weights, random_changes, spec_of
from tests.unit.formats.checkpoints import (
    VOCAB_SIZE,
    LlamaCpp,
    add_draft_layer,
    add_tokenizer,
    copied,
    edit_config,
    save_text_model,
    save_vision_model,
)

from strata.errors import CheckpointError, SettingsError, UnsupportedError
from strata.formats import convert_output
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_metadata import metadata_from_config, ngram_hash_from_seed
from strata.formats.convert_types import PRESETS, TensorClass, TypePlan, class_of
from strata.formats.naming import Role, check_layout, parse_name
from strata.formats.quantize import QUANTIZABLE, quantize
from strata.formats.tensor_index import open_model
from strata.spec_reader import read_spec

F32 = ConvertOptions(TypePlan.preset("f32"), name="tiny")
GEOMETRIES = dict(TINY.items()) | {
    f"random-{seed}": random_changes(seed) for seed in range(100, 104)
}


def read(path):
    """Spec, notices and tensors of a written file; its layout is checked."""
    with open_model(path) as index:
        notices = []
        shapes = {name: entry.shape for name, entry in index.items()}
        spec = read_spec(index.metadata, tensor_shapes=shapes, notices=notices)
        assert check_layout(index, spec) == ()
        return spec, notices, {name: index.array(name).copy() for name in index}


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    save_text_model(folder, vocab_size=VOCAB_SIZE)
    add_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def vision_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vision")
    save_vision_model(folder)
    return folder


@pytest.mark.parametrize("name", GEOMETRIES)
def test_weights_and_geometry_of_any_model(tmp_path, name):
    model = save_text_model(tmp_path, **GEOMETRIES[name])
    convert(tmp_path, tmp_path / "out.gguf", F32)
    spec, notices, found = read(tmp_path / "out.gguf")
    assert notices == []
    expected = gguf_weights(model)
    assert found.keys() == expected.keys()
    for tensor, values in expected.items():
        # -exp and + 1 are float32 in both; exp of another library may differ in the last bit.
        np.testing.assert_allclose(found[tensor], values, rtol=2e-7, atol=0, err_msg=tensor)
    wanted = spec_of(model.config)
    rounded = dataclasses.replace(wanted, rms_eps=float(np.float32(wanted.rms_eps)))
    assert spec == rounded


def test_checkpoint_with_vision_tower_and_many_shards(vision_folder, tmp_path):
    report = convert(vision_folder, tmp_path / "out.gguf", F32)
    assert len(list(vision_folder.glob("*.safetensors"))) > 3
    assert any("vision tower" in notice for notice in report.notices)
    assert any("tokenizer.json" in notice for notice in report.notices)
    spec, _, found = read(tmp_path / "out.gguf")
    state: dict[str, np.ndarray] = {}
    for path in vision_folder.glob("*.safetensors"):
        state |= load_file(path)
    config = json.loads((vision_folder / "config.json").read_text())
    # The window of the n-gram hash is cut at the first of the two end tokens.
    assert spec.ngram.eos_id == 7
    assert spec.ngram.image_id == config["image_token_id"]
    in_memory = converted(state, config)
    assert found.keys() == in_memory.keys()
    for tensor, values in in_memory.items():
        np.testing.assert_array_equal(found[tensor], values)


def test_fused_experts_equal_single_ones(text_folder):
    """The state dictionary fuses what save_pretrained writes one by one."""
    config = json.loads((text_folder / "config.json").read_text())
    single = load_file(text_folder / "model.safetensors")
    fused = {name: array for name, array in single.items() if ".experts." not in name}
    for layer in range(4):
        stem = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([single[f"{stem}{e}.{part}_proj.weight"] for e in range(8)])
            for part in ("gate", "up", "down")
        )
        fused |= {
            f"{stem}gate_up_proj": np.concatenate([gate, up], axis=1),
            f"{stem}down_proj": down,
        }
    expected = converted(single, config)
    for name, values in converted(fused, config).items():
        np.testing.assert_array_equal(values, expected.pop(name))
    assert not expected


def test_constants_of_the_trained_hash():
    """Multipliers and sizes that public files of the trained model hold."""
    found = ngram_hash_from_seed(
        seed=1234, vocab_size=248_320, ngram_size=3, num_heads=16, least_size=20_000_000
    )
    assert found.multipliers == (23703573157769, 20109073645365, 8052911324071)
    assert found.sizes[:3] == (20000003, 20000023, 20000033)
    assert found.sizes[-1] == 20000171
    assert found.offsets[-1] == 300_001_275


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_decodes_to_its_own_quantiser(tmp_path, preset):
    """Written in chunks, the bytes are those of encoding each tensor in one piece."""
    model = save_text_model(
        tmp_path, hidden_size=256, moe_intermediate_size=256, hc_lowrank=32, num_experts=3
    )
    plan = TypePlan.preset(preset)
    convert(tmp_path, tmp_path / "out.gguf", ConvertOptions(plan))
    expected = rename(
        {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()},
        model.config,
    )
    with open_model(tmp_path / "out.gguf") as index:
        for name, entry in index.items():
            role, layer = parse_name(name)
            assert entry.format == plan.format_for(role, layer, entry.shape)[0]
            encoded = quantize(entry.format, expected[name].astype(np.float32))
            if role is not Role.GDN_A:
                np.testing.assert_array_equal(
                    index.raw(name).ravel(), encoded.ravel(), err_msg=name
                )
        experts = index["blk.0.ffn_gate_exps.weight"].format.name
    assert experts.lower() == preset


def test_what_is_never_quantised():
    plan = TypePlan.preset("q2_0", dict.fromkeys(TensorClass, "Q2_0"))
    for role in Role:
        layer = None if parse_name(role.value) else 0
        name = role.value
        fmt, _ = plan.format_for(role, layer, (64,) if "norm" in name else (64, 64))
        if "norm" in name or "conv1d" in name or role in (Role.GDN_A, Role.GDN_DT):
            assert class_of(role) is None
            assert fmt.name == "F32"
        elif "inject" in name:
            assert fmt.name == "Q8_0"
        else:
            assert fmt.name == "Q2_0"


@pytest.mark.parametrize(
    ("wanted", "width", "used"),
    [
        ("Q4_K", 512, "Q4_K"),
        ("Q4_K", 640, "Q5_0"),
        ("Q4_K", 24, "F16"),
        ("Q6_K", 320, "Q8_0"),
        ("Q2_0", 160, "IQ4_NL"),
        ("Q2_0", 640, "Q2_0"),
        ("MXFP4", 8, "F16"),
        ("BF16", 7, "BF16"),
    ],
)
def test_rows_that_do_not_fill_blocks(wanted, width, used):
    plan = TypePlan.preset("q8_0", {TensorClass.DENSE: wanted})
    fmt, replaced = plan.format_for(Role.ATTN_Q, 3, (10, width))
    assert fmt.name == used
    assert replaced == (None if wanted == used else wanted)


def test_replaced_formats_are_mentioned(text_folder, tmp_path):
    report = convert(text_folder, tmp_path / "o.gguf", ConvertOptions(TypePlan.preset("q4_k")))
    assert any(
        "ffn_gate_exps.weight is stored as Q5_0, not Q4_K, in 4 tensors" in notice
        for notice in report.notices
    )


def test_overrides_by_class_and_by_name(text_folder, tmp_path):
    plan = TypePlan.preset(
        "q8_0", {TensorClass.EXPERTS_DOWN: "iq4_nl"}, by_name=(("blk.2.ffn_*_exps.weight", "f16"),)
    )
    convert(text_folder, tmp_path / "o.gguf", ConvertOptions(plan))
    with open_model(tmp_path / "o.gguf") as index:
        assert index["blk.0.ffn_down_exps.weight"].format.name == "IQ4_NL"
        assert index["blk.0.ffn_up_exps.weight"].format.name == "Q8_0"
        assert index["blk.2.ffn_down_exps.weight"].format.name == "F16"


@pytest.mark.parametrize("call", [lambda: TypePlan.preset("q9"), lambda: TypePlan.preset(
    "q8_0", {TensorClass.DENSE: "Q9"})])  # fmt: skip
def test_unknown_types(call):
    with pytest.raises(SettingsError, match=r"(?i)q9"):
        call()


def test_formats_we_only_read(text_folder, tmp_path):
    unwritten = next(f.name for f in FORMATS.values() if f.is_weights and f.name not in QUANTIZABLE)
    plan = TypePlan.preset("q8_0", by_name=(("output_hc_norm.weight", unwritten),))
    convert(text_folder, tmp_path / "fine.gguf", ConvertOptions(plan))
    plan = dataclasses.replace(plan, by_class=dict.fromkeys(TensorClass, unwritten), by_name=())
    model_width = FORMATS[unwritten].block_size
    save_text_model(tmp_path / "wide", hidden_size=model_width)
    with pytest.raises(SettingsError, match=f"cannot be written as {unwritten}"):
        convert(tmp_path / "wide", tmp_path / "out.gguf", ConvertOptions(plan))


def test_tokenizer_keys(text_folder, tmp_path):
    convert(text_folder, tmp_path / "out.gguf", F32)
    with open_model(tmp_path / "out.gguf") as index:
        keys = index.metadata
    tokens = keys["tokenizer.ggml.tokens"]
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) == ("gpt2", "qwen35")
    assert len(tokens) == VOCAB_SIZE
    by_name = dict(zip(tokens, keys["tokenizer.ggml.token_type"], strict=True))
    assert by_name["<|im_start|>"] == 3
    assert by_name["<think>"] == 4
    assert by_name["Ġthe"] == 1
    assert by_name[f"[PAD{VOCAB_SIZE - 1}]"] == 5
    assert tokens[keys["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
    assert tokens[keys["tokenizer.ggml.padding_token_id"]] == "<|endoftext|>"
    assert "<|im_start|>" in keys["tokenizer.chat_template"]
    assert keys["tokenizer.ggml.merges"][1] == "h e"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not a JSON object"),
        ('{"model": {"type": "Unigram"}}', "not a byte-level BPE"),
        ('{"model": {"vocab": {"a": 300}}}', "id 300; the model has 300"),
        ('{"model": {"vocab": {"a": "b"}}}', "has the id 'b'"),
        ('{"model": {"vocab": {"a": 1}, "merges": ["a b c"]}}', "is not a pair"),
    ],
)
def test_broken_tokenizer(text_folder, tmp_path, content, words):
    folder = copied(text_folder, tmp_path / "in")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=words):
        convert(folder, tmp_path / "out.gguf", F32)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_draft_layer(text_folder, tmp_path):
    folder = copied(text_folder, tmp_path / "in")
    draft = add_draft_layer(folder)
    convert(folder, tmp_path / "with.gguf", F32)
    spec, _, found = read(tmp_path / "with.gguf")
    assert (spec.num_layers, spec.num_draft_layers) == (4, 1)
    halves = [draft["mtp.fc_embedding.weight"], draft["mtp.fc_hidden.weight"]]
    np.testing.assert_array_equal(found["blk.4.nextn.eh_proj.weight"], np.hstack(halves))
    plus_one = {
        "nextn.enorm": "pre_fc_norm_embedding",
        "nextn.hnorm": "pre_fc_norm_hidden",
        "nextn.hc_head_norm": "hyper_connection_mixer.hc_norm",
        "attn_q_norm": "layers.0.self_attn.q_norm",
    }
    for name, source in plus_one.items():
        np.testing.assert_array_equal(
            found[f"blk.4.{name}.weight"], draft[f"mtp.{source}.weight"] + 1
        )
    np.testing.assert_array_equal(
        found["blk.4.ffn_up_exps.weight"][5], draft["mtp.layers.0.mlp.experts.5.up_proj.weight"]
    )
    without = dataclasses.replace(F32, has_draft=False)
    report = convert(folder, tmp_path / "without.gguf", without)
    assert any("are not used: mtp." in notice for notice in report.notices)
    assert read(tmp_path / "without.gguf")[0].num_draft_layers == 0
    # llama.cpp knows no draft layer of this model, but must not stumble over one.
    with_draft, trunk = (
        LlamaCpp(tmp_path / name).logprobs([1, 2, 3, 4], VOCAB_SIZE)
        for name in ("with.gguf", "without.gguf")
    )
    np.testing.assert_array_equal(with_draft, trunk)


def test_incomplete_draft_layer(text_folder, tmp_path):
    folder = copied(text_folder, tmp_path / "in")
    add_draft_layer(folder)
    state = load_file(folder / "model.safetensors")
    del state["mtp.fc_hidden.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks 1 tensors: mtp\.fc_hidden\.weight"):
        convert(folder, tmp_path / "out.gguf", F32)


def test_shards_and_the_table_alone(text_folder, tmp_path):
    convert(text_folder, tmp_path / "one.gguf", F32)
    options = dataclasses.replace(F32, shard_bytes=200_000, has_ngram_shard=True)
    report = convert(text_folder, tmp_path / "many.gguf", options)
    count = len(report.paths)
    assert count > 3
    assert report.paths[0].name == f"many-00001-of-{count:05d}.gguf"
    whole, parts = read(tmp_path / "one.gguf"), read(report.paths[1])
    assert whole[0] == parts[0]
    assert all(np.array_equal(parts[2][name], array) for name, array in whole[2].items())
    with open_model(report.paths[0]) as index:
        in_last = [name for name, entry in index.items() if entry.path == report.paths[-1]]
    assert in_last == ["per_layer_token_embd.weight"]


def test_progress_reaches_the_total(text_folder, tmp_path):
    seen = []
    report = convert(text_folder, tmp_path / "o.gguf", F32, lambda *call: seen.append(call))
    done = [call[0] for call in seen]
    assert done == sorted(done)
    assert {call[1] for call in seen} == {report.num_bytes}
    assert done[-1] == report.num_bytes
    assert len({call[2] for call in seen}) == report.num_tensors


@pytest.mark.parametrize("kind", ["text", "vision"])
def test_llama_cpp_agrees_with_transformers(tmp_path, kind):
    """Below the indexer's budget, where llama.cpp selects as the model does."""
    if kind == "text":
        model = save_text_model(tmp_path, vocab_size=VOCAB_SIZE, output_gate_type="sigmoid")
    else:
        model = save_vision_model(tmp_path)
    add_tokenizer(tmp_path)
    convert(tmp_path, tmp_path / "out.gguf", F32)
    rival = LlamaCpp(tmp_path / "out.gguf")
    rng = np.random.default_rng(0)
    for length in (1, 2, 7, 16):
        ids = rng.integers(10, VOCAB_SIZE, length)
        ids[length // 2] = 7
        with torch.no_grad():
            logits = model(torch.from_numpy(ids)[None]).logits[0, -1].double()
        expected = torch.log_softmax(logits, -1).numpy()
        found = rival.logprobs(ids.tolist(), VOCAB_SIZE)
        assert expected.std() > 0.5
        # Measured: 2.1e-4, the float32 of two programs.
        np.testing.assert_allclose(found, expected, atol=4e-4)


@pytest.mark.parametrize("preset", ["q8_0", "q4_k", "q2_0", "mxfp4"])
def test_llama_cpp_reads_quantised_files(tmp_path, preset):
    save_text_model(
        tmp_path, vocab_size=VOCAB_SIZE, hidden_size=256, moe_intermediate_size=256, num_experts=3
    )
    add_tokenizer(tmp_path)
    convert(tmp_path, tmp_path / "o.gguf", ConvertOptions(TypePlan.preset(preset)))
    assert LlamaCpp(tmp_path / "o.gguf").count_tokens("and the", 4) == 4


def test_fp8_checkpoint(text_folder, tmp_path):
    """Every matrix FP8 with block scales, as the official FP8 checkpoint is laid out."""
    folder = copied(text_folder, tmp_path / "in")
    state = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    stored, decoded = {}, {}
    for name, array in state.items():
        if array.ndim != 2 or array.dtype != np.float32 or not name.endswith("proj.weight"):
            stored[name], decoded[name] = torch.from_numpy(array), array
            continue
        blocks = [-(-size // 32) for size in array.shape]
        scales = torch.linspace(0.5, 2.0, blocks[0] * blocks[1]).reshape(blocks)
        stored[name] = torch.from_numpy(array).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
        spread = np.kron(scales.numpy(), np.ones((32, 32), np.float32))
        spread = spread[: array.shape[0], : array.shape[1]]
        decoded[name] = stored[name].float().numpy() * spread
    from safetensors.torch import save_file as save_torch

    save_torch(stored, folder / "model.safetensors")
    edit_config(folder, quantization_config={"weight_block_size": [32, 32]})
    report = convert(folder, tmp_path / "out.gguf", F32)
    assert not any("not used" in notice for notice in report.notices)
    _, _, found = read(tmp_path / "out.gguf")
    for name, values in converted(decoded, config).items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


# VmHWM, because ru_maxrss is carried over from the process that forks.
PEAK = """
import sys
from pathlib import Path
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TypePlan
folder = Path(sys.argv[1])
convert(folder, folder / "out.gguf", ConvertOptions(TypePlan.preset("q8_0")))
status = Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""


def test_peak_memory(tmp_path):
    """A table of 400 MiB (zeros, so that the file is a hole) passes through in chunks."""
    save_text_model(tmp_path)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    table = [name for name in state if "ngram_embedding.shard" in name]
    width = state[table[0]].shape[1]
    rows = 400 * 2**20 // (4 * width)
    for name in table:
        del state[name]
    save_file(state, path)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    end = len(raw) - 8 - size
    header[table[0].split("shard")[0] + "weight"] = {
        "dtype": "F32", "shape": [rows, width], "data_offsets": [end, end + 4 * rows * width],
    }  # fmt: skip
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text + raw[8 + size :])
        stream.truncate(8 + len(text) + end + 4 * rows * width)
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with open_model(tmp_path / "out.gguf") as index:
        assert index["per_layer_token_embd.weight"].shape == (rows, width)
    # Far below the limit of 2 GiB plus the largest tensor: below the tensor itself.
    assert int(done.stdout) < 400 * 2**20


def files_of(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


DISK = """
import resource, sys
from pathlib import Path
from strata.errors import CheckpointError
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TypePlan
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    convert(Path(sys.argv[1]), Path(sys.argv[2]), ConvertOptions(TypePlan.preset("f32")))
except CheckpointError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1000, 300_000])
def test_a_full_disk_leaves_nothing(text_folder, tmp_path, limit):
    """A limit on file size makes the system refuse writes as a full disk does."""
    command = [sys.executable, "-c", DISK, str(text_folder), str(tmp_path / "out.gguf"), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the disk is full" in done.stdout
    assert files_of(tmp_path) == []


def test_space_is_asked_first(text_folder, tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr(convert_output.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(CheckpointError, match="1000 B is free"):
        convert(text_folder, tmp_path / "out.gguf", F32)
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("shard_bytes", [None, 100_000])
def test_ctrl_c_leaves_nothing(text_folder, tmp_path, shard_bytes):
    def press(done, total, _name):
        if done > total // 2:
            raise KeyboardInterrupt

    options = dataclasses.replace(F32, shard_bytes=shard_bytes)
    with pytest.raises(KeyboardInterrupt):
        convert(text_folder, tmp_path / "out.gguf", options, press)
    assert files_of(tmp_path) == []


def test_missing_folder_for_the_output(text_folder, tmp_path):
    with pytest.raises(CheckpointError, match="its folder does not exist"):
        convert(text_folder, tmp_path / "none" / "out.gguf", F32)


def test_missing_shard(vision_folder, tmp_path):
    folder = copied(vision_folder, tmp_path / "in")
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(CheckpointError, match=f"shards are missing: {lost.name}"):
        convert(folder, tmp_path / "out.gguf", F32)


def test_nan_weights(text_folder, tmp_path):
    folder = copied(text_folder, tmp_path / "in")
    state = load_file(folder / "model.safetensors")
    state["model.layers.2.mlp.experts.3.up_proj.weight"][1, 2] = np.nan
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"blk\.2\.ffn_up_exps\.weight would hold NaN"):
        convert(folder, tmp_path / "out.gguf", F32)
    assert files_of(tmp_path) == files_of(folder)


def test_weights_a_format_cannot_hold(text_folder, tmp_path):
    folder = copied(text_folder, tmp_path / "in")
    state = load_file(folder / "model.safetensors")
    state["model.embed_tokens.weight"][1, 2] = 1e30
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"token_embd\.weight: cannot quantise to Q8_0"):
        convert(folder, tmp_path / "out.gguf", ConvertOptions(TypePlan.preset("q8_0")))


def test_missing_tensors_are_all_named(text_folder, tmp_path):
    folder = copied(text_folder, tmp_path / "in")
    state = load_file(folder / "model.safetensors")
    del state["model.layers.0.linear_attn.A_log"], state["lm_head.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"2 tensors: lm_head\.weight, layers\.0.*A_log"):
        convert(folder, tmp_path / "out.gguf", F32)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"hidden_size": 65}, CheckpointError, r"has shape \[300, 64\].*\[300, 65\]"),
        ({"hidden_size": None}, CheckpointError, "hidden_size is missing"),
        ({"hidden_size": "64"}, CheckpointError, "hidden_size is '64'"),
        ({"num_experts": 9}, CheckpointError, r"mlp\.gate\.weight has shape \[8, 64\]"),
        ({"num_experts": 0}, CheckpointError, "num_experts is 0"),
        ({"layer_types": ["linear_attention"]}, CheckpointError, "layer_types"),
        ({"layer_types": ["mamba"] * 4}, CheckpointError, "layer_types"),
        ({"rope_parameters": {"rope_type": "llama3"}}, UnsupportedError, "'llama3'"),
        ({"rope_parameters": [1]}, CheckpointError, "rope_parameters"),
        ({"attention_bias": True}, UnsupportedError, "attention_bias"),
        ({"norm_topk_prob": False}, UnsupportedError, "norm_topk_prob"),
        ({"indexer_kv_heads": 2}, UnsupportedError, "indexer_kv_heads"),
        ({"output_gate_type": "relu"}, UnsupportedError, "output_gate_type"),
        ({"ple_layer_ids": [1, 2]}, UnsupportedError, "2 layers"),
        ({"ple_layer_ids": "x"}, CheckpointError, "ple_layer_ids"),
        ({"ple_embed_dim": 65}, CheckpointError, "ple_embed_dim"),
        ({"eos_token_id": None}, CheckpointError, "eos_token_id"),
        ({"model_type": "llama"}, UnsupportedError, "'llama'"),
    ],
)
def test_configuration_faults_are_named(text_folder, tmp_path, fields, error, words):
    folder = copied(text_folder, tmp_path / "in")
    edit_config(folder, **fields)
    with pytest.raises(error, match=words):
        convert(folder, tmp_path / "out.gguf", F32)
    assert files_of(tmp_path) == files_of(folder)


@pytest.mark.parametrize("content", [None, "[]", "{", "\xff"])
def test_broken_config_json(text_folder, tmp_path, content):
    folder = copied(text_folder, tmp_path / "in")
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        convert(folder, tmp_path / "out.gguf", F32)


def test_official_words_for_layers():
    """The official configuration says full_attention where the indexer is meant."""
    config = {
        **json.loads(_official_config()),
        "layer_types": ["linear_attention", "linear_attention", "linear_attention",
                        "full_attention"] * 12,
    }  # fmt: skip
    metadata = metadata_from_config({"model_type": "qwen4_exp", "text_config": config})
    assert metadata["qwen4exp.attention.compress_ratios"].tolist() == [0, 0, 0, 4] * 12
    assert metadata["qwen4exp.full_attention_interval"] == 4
    assert metadata["qwen4exp.embedding_length_per_layer_input"] == 160


def _official_config():
    return json.dumps(
        {
            "model_type": "qwen4_exp_text", "vocab_size": 248320, "hidden_size": 2560,
            "num_hidden_layers": 48, "num_attention_heads": 24, "num_key_value_heads": 2,
            "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_experts": 512,
            "num_experts_per_tok": 10, "moe_intermediate_size": 640,
            "shared_expert_intermediate_size": 640, "ple_layer_ids": [2], "eos_token_id": 248044,
            "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128,
            "indexer_budget": 2048, "indexer_compress_ratio": 4,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25},
        }
    )  # fmt: skip


def test_decoded_weights_stay_close(text_folder, tmp_path):
    """End to end: what a Q8_0 file decodes to is the checkpoint's weight within half a step."""
    convert(text_folder, tmp_path / "q.gguf", ConvertOptions(TypePlan.preset("q8_0")))
    exact = converted(
        load_file(text_folder / "model.safetensors"),
        json.loads((text_folder / "config.json").read_text()),
    )
    with open_model(tmp_path / "q.gguf") as index:
        entry = index["blk.3.attn_q.weight"]
        assert entry.format.name == "Q8_0"
        found = dequantize(entry.format, index.raw(entry.name)).reshape(-1, 32)
    wanted = exact["blk.3.attn_q.weight"].reshape(-1, 32)
    step = np.abs(wanted).max(axis=1, keepdims=True) / 127
    # Half a step, and the rounding of the step to half precision over 127 steps.
    assert np.all(np.abs(found - wanted) <= step * (0.5 + 127 * 2**-11))
