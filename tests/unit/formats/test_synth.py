"""Synthetic models: sizes of the decoded weights, whole files, and llama.cpp reading them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.unit.formats.checkpoints import LlamaCpp

from strata.errors import CheckpointError, SettingsError
from strata.formats.block_decode import dequantize
from strata.formats.block_formats import FORMATS
from strata.formats.convert_types import TensorClass, TypePlan
from strata.formats.naming import Role, check_layout, expected_shape, parse_name, required_tensors
from strata.formats.synth import (
    GEOMETRIES,
    MIXES,
    SynthGeometry,
    spec_of,
    synthesize,
    uniform_mix,
)
from strata.formats.synth_blocks import random_blocks
from strata.formats.synth_text import LEAST_VOCAB, byte_characters, synthetic_tokenizer
from strata.formats.tensor_index import open_model
from strata.model_spec import LayerKind
from strata.spec_reader import read_spec
from strata.text.tokenizer import Tokenizer

TINY = GEOMETRIES["tiny"]
WEIGHTS = [name for name, fmt in FORMATS.items() if fmt.is_weights and name != "F64"]
# Few tokens, so that every probable one is a byte or a word with text; none is expected.
SMALL = dataclasses.replace(TINY, vocab_size=LEAST_VOCAB, successor_margin=0.0)


@pytest.mark.parametrize("std", [0.02, 1.0])
@pytest.mark.parametrize("name", WEIGHTS)
def test_decoded_blocks_are_centred_and_scaled(name, std):
    fmt = FORMATS[name]
    rng = np.random.Generator(np.random.SFC64(7))
    num_blocks = 400_000 // fmt.block_size
    blocks = random_blocks(fmt, num_blocks, std, rng)
    assert blocks.shape == (num_blocks, fmt.block_bytes)
    assert blocks.dtype == np.uint8
    values = dequantize(fmt, blocks.ravel()).astype(np.float64) / std
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.02
    # NVFP4 has few small scales: near 0.02 the mixture of two is exact, but drawn.
    assert values.std() == pytest.approx(1.0, abs=0.02)
    assert 1.5 < np.abs(values).max() < 8


@pytest.mark.parametrize("name", WEIGHTS)
def test_blocks_do_not_repeat(name):
    fmt = FORMATS[name]
    blocks = random_blocks(fmt, 64, 1.0, np.random.Generator(np.random.SFC64(7)))
    assert len({block.tobytes() for block in blocks}) == 64


def test_q8_0_codes_are_those_of_a_quantiser():
    blocks = random_blocks(FORMATS["Q8_0"], 4096, 1.0, np.random.Generator(np.random.SFC64(7)))
    codes = blocks[:, 2:].view(np.int8)
    assert (codes.min(), codes.max()) == (-127, 127)


@pytest.mark.parametrize("mix", [*MIXES, "IQ1_M", "NVFP4", "F16"])
def test_files_are_complete(tmp_path, mix):
    types = MIXES.get(mix) or uniform_mix(mix)
    report = synthesize(tmp_path / "m.gguf", TINY, types, seed=3)
    with open_model(report.paths[0]) as index:
        notices: list[str] = []
        shapes = {name: entry.shape for name, entry in index.items()}
        spec = read_spec(index.metadata, tensor_shapes=shapes, notices=notices)
        assert spec == spec_of(TINY)[0]
        assert (check_layout(index, spec), notices) == ((), [])
        for name, entry in index.items():
            role, layer = parse_name(name)
            assert entry.format == types.format_for(role, layer, entry.shape)[0]
            values = index.array(name)
            assert np.isfinite(values).all(), name
        assert np.all(index.array("blk.0.ssm_a") < 0)
        assert index.array("blk.0.hc_attn_norm.weight").mean() == pytest.approx(1, abs=0.05)
        head = index.array("output.weight")
        assert head.std() * np.sqrt(head.shape[1]) == pytest.approx(4.0, rel=0.05)
    assert [kind is LayerKind.QSA for kind in spec.layer_kinds] == [False, False, False, True]
    assert spec.ngram.layer == 1


def test_a_draft_layer_passes_embeddings_on(tmp_path):
    geometry = dataclasses.replace(TINY, num_draft_layers=1)
    report = synthesize(tmp_path / "m.gguf", geometry, MIXES["q4_k"])
    with open_model(report.paths[0]) as index:
        spec = read_spec(index.metadata)
        assert (spec.num_layers, spec.num_draft_layers) == (4, 1)
        assert check_layout(index, spec) == ()
        of_token, of_stream = np.split(index.array("blk.4.nextn.eh_proj.weight"), 2, axis=1)
        assert np.diag(of_token).mean() == pytest.approx(1, abs=0.02)
        assert np.abs(of_token - np.diag(np.diag(of_token))).max() < 0.02
        assert 0 < of_stream.std() * np.sqrt(of_stream.shape[1]) < 0.5


def test_published_mixes_keep_their_words():
    """Down projections of 640 do not fill 256-weight blocks; single layers differ."""
    shape_in, shape_down = (64, 640, 2560), (64, 2560, 640)

    def name_of(mix, role, layer, shape):
        return MIXES[mix].format_for(role, layer, shape)[0].name

    assert name_of("q4_k", Role.EXPERTS_GATE, 0, shape_in) == "Q4_K"
    assert name_of("q4_k", Role.EXPERTS_UP, 2, shape_in) == "Q5_K"
    assert name_of("q4_k", Role.EXPERTS_DOWN, 0, shape_down) == "Q5_1"
    assert name_of("q4_k", Role.EXPERTS_DOWN, 4, shape_down) == "Q8_0"
    assert name_of("iq3_s", Role.EXPERTS_GATE, 0, shape_in) == "IQ3_S"
    assert name_of("iq3_s", Role.EXPERTS_DOWN, 0, shape_down) == "IQ4_NL"
    assert name_of("q2_0", Role.EXPERTS_DOWN, 0, shape_down) == "Q2_0"
    assert name_of("q2_0", Role.ROUTER, 0, (64, 2560)) == "BF16"
    assert name_of("q2_0", Role.HC_ATTN_INJECT, 0, (4, 10_240)) == "BF16"


def test_same_seed_same_file(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthesize(tmp_path / name, TINY, MIXES["iq3_s"], seed=seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again
    assert first != other
    assert len(first) == len(other)


def test_shards(tmp_path):
    report = synthesize(
        tmp_path / "m.gguf", TINY, MIXES["q2_0"], shard_bytes=1_000_000, has_ngram_shard=True
    )
    assert len(report.paths) > 3
    whole = synthesize(tmp_path / "one.gguf", TINY, MIXES["q2_0"])
    with open_model(report.paths[2]) as parts, open_model(whole.paths[0]) as one:
        assert set(parts) == set(one)
        assert all(np.array_equal(parts.raw(name), one.raw(name)) for name in one)
        assert parts["per_layer_token_embd.weight"].path == report.paths[-1]


def test_progress_and_interruption(tmp_path):
    seen = []
    report = synthesize(
        tmp_path / "m.gguf", TINY, MIXES["q4_k"], progress=lambda *call: seen.append(call)
    )
    assert seen[-1][0] == seen[-1][1] == report.num_bytes

    def press(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        synthesize(tmp_path / "n.gguf", TINY, MIXES["q4_k"], progress=press)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"vocab_size": 200}, SettingsError, "too small"),
        ({"top_k": 9}, CheckpointError, "expert_used_count"),
        ({"num_kv_heads": 3}, CheckpointError, "head_count"),
        ({"num_layers": 0}, CheckpointError, "num_hidden_layers"),
        ({"ngram_layer": 4}, CheckpointError, "ple.layers"),
    ],
)
def test_impossible_geometries(tmp_path, changes, error, words):
    with pytest.raises(error, match=words):
        synthesize(tmp_path / "m.gguf", dataclasses.replace(TINY, **changes), MIXES["q4_k"])
    assert list(tmp_path.iterdir()) == []


def test_variants_of_the_geometry(tmp_path):
    geometry = dataclasses.replace(TINY, ngram_layer=None, is_head_tied=True, num_layers=2)
    report = synthesize(tmp_path / "m.gguf", geometry, uniform_mix("Q8_0"))
    with open_model(report.paths[0]) as index:
        shapes = {name: entry.shape for name, entry in index.items()}
        spec = read_spec(index.metadata, tensor_shapes=shapes)
        check_layout(index, spec)
    assert spec.is_head_tied
    assert spec.ngram is None
    assert LayerKind.QSA not in spec.layer_kinds


@pytest.mark.parametrize(
    ("geometry", "mix", "least", "most"),
    # The sizes that benchmarks are told to have.
    [("bench", "q4_k", 2e9, 4e9), ("bench", "iq3_s", 2e9, 4e9), ("bench", "q2_0", 2e9, 4e9)],
)
def test_benchmark_files_have_the_stated_size(geometry, mix, least, most):
    spec = spec_of(GEOMETRIES[geometry])[0]
    total = 0
    for name, role in required_tensors(spec).items():
        shape = expected_shape(role, spec)
        layer = int(name.split(".")[1]) if name.startswith("blk.") else None
        fmt = MIXES[mix].format_for(role, layer, shape)[0]
        total += fmt.row_bytes(shape[-1]) * int(np.prod(shape[:-1], dtype=np.int64))
    assert least < total < most


def test_presets_of_trained_sizes():
    full, coder = (spec_of(GEOMETRIES[name])[0] for name in ("full", "coder"))
    assert (full.num_layers, full.num_experts, coder.num_experts) == (48, 512, 256)
    assert SynthGeometry() == dataclasses.replace(GEOMETRIES["full"], name="synthetic")


def test_tokenizer_round_trip():
    """Any text, through the engine's own tokenizer; special tokens keep their kinds."""
    tokenizer = Tokenizer.from_metadata(synthetic_tokenizer(1000))
    text = "Déjà vu: the inner thing, 東京 \x00\n\t 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(" the and")) == 2
    assert tokenizer.encode("<|im_start|>", parse_special=True) == [
        tokenizer.token_id("<|im_start|>")
    ]
    assert len(set(byte_characters())) == 256


def test_vocabulary_is_readable_and_padded():
    keys = synthetic_tokenizer(5000)
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(set(tokens)) == len(tokens) == len(kinds) == 5000
    assert tokens[-1] == "[PAD4999]"
    assert np.count_nonzero(kinds == 5) == 16
    assert tokens[1000].startswith("Ġ")


def test_head_leans_towards_one_successor_of_each_token(tmp_path):
    """Cosine of a token's embedding and its successor's row: the margin over root(D).

    Chance makes another row the nearest for a few tokens; without a margin, two in five are shared.
    """
    for margin in (0.0, 5.0):
        geometry = dataclasses.replace(TINY, successor_margin=margin)
        synthesize(tmp_path / f"{margin}.gguf", geometry, MIXES["iq3_s"])
        with open_model(tmp_path / f"{margin}.gguf") as index:
            rows = [index.array(name) for name in ("token_embd.weight", "output.weight")]
        embedding, head = (row / np.linalg.norm(row, axis=1, keepdims=True) for row in rows)
        cosines = embedding @ head.T
        best = cosines.argmax(axis=1)
        expected = margin / np.sqrt(TINY.hidden_size)
        if margin:
            assert len(set(best.tolist())) > 0.9 * TINY.vocab_size
            assert np.mean(cosines.max(axis=1)) == pytest.approx(expected, rel=0.1)
        others = cosines[np.arange(len(best)) != best[:, None]]
        assert others.std() == pytest.approx(1 / np.sqrt(TINY.hidden_size), rel=0.1)


def test_branch_gain_scales_the_ends_of_blocks_alone(tmp_path):
    names = {"blk.0.ssm_out.weight", "blk.1.ple_value.weight", "blk.3.attn_output.weight"}
    names |= {
        f"blk.{layer}.ffn_down_{kind}.weight" for layer in range(4) for kind in ("exps", "shexp")
    }
    names |= {f"blk.{layer}.ssm_out.weight" for layer in range(3)}
    for gain in (0.1, 0.4):
        geometry = dataclasses.replace(TINY, branch_gain=gain)
        synthesize(tmp_path / f"{gain}.gguf", geometry, uniform_mix("F32"))
    with open_model(tmp_path / "0.1.gguf") as low, open_model(tmp_path / "0.4.gguf") as high:
        for name in low:
            ratio = high.array(name).std() / low.array(name).std()
            assert ratio == pytest.approx(4.0 if name in names else 1.0), name


@pytest.mark.parametrize("mix", [*MIXES, "preset:q8_0", *WEIGHTS])
def test_llama_cpp_runs_it(tmp_path, mix):
    """Every format: llama.cpp loads the file, and its logits are finite and spread."""
    if mix.startswith("preset:"):
        types = TypePlan.preset(mix.removeprefix("preset:"))
    else:
        types = MIXES.get(mix) or uniform_mix(mix)
    synthesize(tmp_path / "m.gguf", SMALL, types)
    rival = LlamaCpp(tmp_path / "m.gguf")
    logprobs = rival.logprobs([65, 66, 257, 70, 71], SMALL.vocab_size)
    assert np.isfinite(logprobs).all()
    assert 1.5 < logprobs.std() < 6
    probs = np.exp(logprobs)
    assert probs.sum() == pytest.approx(1, abs=1e-3)
    assert probs.max() < 0.99


def test_states_stay_bounded_over_many_tokens(tmp_path):
    """After 500 tokens the next token is still undecided to the same degree."""
    synthesize(tmp_path / "m.gguf", SMALL, MIXES["iq3_s"])
    rival = LlamaCpp(tmp_path / "m.gguf")
    ids = np.random.default_rng(0).integers(0, 256, 500).tolist()
    spreads = [rival.logprobs(ids[:length], SMALL.vocab_size).std() for length in (10, 100, 500)]
    assert max(spreads) < 2 * min(spreads)
    assert rival.count_tokens("and then", 100) == 100


def test_uniform_mix_covers_all_classes():
    assert set(uniform_mix("q4_0").by_class) == set(TensorClass)
    with pytest.raises(SettingsError, match="Q9"):
        uniform_mix("Q9")
