"""Reading a model's geometry from metadata, against the public header of the trained model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strata.errors import CheckpointError, UnsupportedError
from strata.model_spec import Gate, LayerKind, RopeScaling
from strata.spec_reader import read_spec

SIZES = (
    20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077, 20000081,
    20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
)  # fmt: skip

# As header dumps of public files show it.
PUBLIC = {
    "general.architecture": "qwen4exp",
    "general.name": "Qwen3.8 Flash Next",
    "tokenizer.ggml.tokens": ["x"] * 248_320,
    **{
        f"qwen4exp.{key}": value
        for key, value in {
            "block_count": 48,
            "context_length": 262_144,
            "embedding_length": 2560,
            "attention.head_count": 24,
            "attention.head_count_kv": 2,
            "attention.key_length": 256,
            "attention.value_length": 256,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "rope.freq_base": 1e7,
            "full_attention_interval": 4,
            "expert_count": 512,
            "expert_used_count": 10,
            "expert_feed_forward_length": 640,
            "expert_shared_feed_forward_length": 640,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 48,
            "ssm.inner_size": 6144,
            "hyper_connection.count": 4,
            "hyper_connection.low_rank": 320,
            "attention.indexer.head_count": 4,
            "attention.indexer.key_length": 128,
            "attention.indexer.top_k": 2048,
            "attention.compress_ratios": [0, 0, 0, 4] * 12,
            "embedding_length_per_layer_input": 160,
            "ple.layers": [1],
            "ple.ngram_size": 3,
            "ple.heads_per_ngram": 8,
            "ple.conv_kernel": 4,
            "ple.eos_token_id": 248_044,
            "ple.image_token_id": 248_056,
            "ple.layer_multipliers": [23703573157769, 20109073645365, 8052911324071],
            "ple.head_vocab_sizes": list(SIZES),
            "ple.head_offsets": [sum(SIZES[:head]) for head in range(16)],
        }.items()
    },
}


def changed(**changes):
    """PUBLIC with ``a__b`` keys replaced; None removes."""
    metadata = dict(PUBLIC)
    for key, value in changes.items():
        name = "qwen4exp." + key.replace("__", ".")
        metadata.pop(name, None)
        if value is not None:
            metadata[name] = value
    return metadata


def test_public_header():
    notices = []
    spec = read_spec(PUBLIC, notices=notices)
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size) == (48, 2560, 248_320)
    assert [i for i, k in enumerate(spec.layer_kinds) if k is LayerKind.QSA] == [*range(3, 48, 4)]
    assert (spec.gdn_conv_channels, spec.gdn_value_size, spec.hyper_size) == (10_240, 6144, 10_240)
    assert (spec.index_budget, spec.index_block, spec.top_k) == (2048, 4, 10)
    assert spec.gdn_gate is Gate.SIGMOID
    assert spec.rope.sections == (11, 11, 10)
    assert spec.ngram is not None
    assert spec.ngram.head_offsets[-1] == 300_001_275
    assert (spec.ngram.num_heads, spec.ngram.conv_history) == (16, 9)
    assert not spec.is_head_tied
    assert notices == []


def test_numpy_values_read_like_python_ones():
    wrapped = {
        key: value
        if isinstance(value, str) or key.endswith("tokens")
        else np.array(value)
        if isinstance(value, list)
        else np.float32(value)
        if isinstance(value, float)
        else np.uint32(value)
        for key, value in PUBLIC.items()
    }
    from_numpy = read_spec(wrapped)
    assert from_numpy.ngram == read_spec(PUBLIC).ngram
    assert from_numpy.rms_eps == np.float32(1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"full_attention_interval": None},
        {
            "full_attention_interval": None,
            "attention__recurrent_layers": [True, True, True, False] * 12,
        },
        {
            "full_attention_interval": None,
            "attention__recurrent_layers": [i for i in range(48) if i % 4 != 3],
        },
    ],
)
def test_layer_kinds_from_other_keys(changes):
    kinds = read_spec(changed(**changes)).layer_kinds
    assert kinds == read_spec(PUBLIC).layer_kinds


def test_draft_block_is_not_a_layer():
    metadata = changed(
        block_count=49,
        nextn_predict_layers=1,
        attention__compress_ratios=[0, 0, 0, 4] * 12 + [0],
    )
    spec = read_spec(metadata)
    assert (spec.num_layers, spec.num_draft_layers) == (48, 1)


def test_zero_ratios_beside_an_indexer_are_repaired():
    notices = []
    spec = read_spec(
        changed(attention__compress_ratios=[0] * 48),
        tensor_shapes={"blk.3.indexer.q_proj.weight": (512, 2560), "output.weight": (1, 1)},
        notices=notices,
    )
    assert spec.index_block == 4
    assert len(notices) == 1
    assert "compress_ratios" in notices[0]


def test_zero_ratios_without_an_indexer_are_refused():
    with pytest.raises(UnsupportedError, match="dense attention"):
        read_spec(
            changed(attention__compress_ratios=[0] * 48), tensor_shapes={"output.weight": (1, 1)}
        )


def test_tensors_decide_vocabulary_and_head():
    spec = read_spec(PUBLIC, tensor_shapes={"token_embd.weight": (300, 2560)})
    assert spec.vocab_size == 300
    assert spec.is_head_tied


def test_yarn():
    spec = read_spec(
        changed(
            rope__scaling__type="yarn",
            rope__scaling__factor=4.0,
            rope__scaling__original_context_length=65_536,
        )
    )
    assert spec.rope.scaling is RopeScaling.YARN
    assert (spec.rope.factor, spec.rope.original_context_len) == (4.0, 65_536)
    assert (spec.rope.ext_factor, spec.rope.beta_fast) == (1.0, 32.0)


def test_linear_scaling_never_extrapolates():
    spec = read_spec(changed(rope__scaling__type="linear", rope__scaling__factor=2.0))
    assert spec.rope.ext_factor == 0.0


def test_silu_gate_by_our_own_key():
    assert read_spec(changed(strata__output_gate="silu")).gdn_gate is Gate.SILU


REQUIRED = [
    key.removeprefix("qwen4exp.")
    for key in PUBLIC
    if key.startswith("qwen4exp.")
    # These have defaults, or are one of several ways to say the same.
    and not key.endswith(
        ("value_length", "sections", "interval", "ratios", "image_token_id", "ple.layers",
         "rope.dimension_count")
    )
]  # fmt: skip


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_key_is_named(key):
    metadata = {name: value for name, value in PUBLIC.items() if name != f"qwen4exp.{key}"}
    with pytest.raises(CheckpointError, match=f"qwen4exp.{key.replace('.', '[.]')}"):
        read_spec(metadata, source="model.gguf")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 1 << 40),
        ("block_count", -3),
        ("block_count", True),
        ("embedding_length", "2560"),
        ("embedding_length", 2560.5),
        ("expert_used_count", 513),
        ("attention.head_count", 25),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("attention.layer_norm_rms_epsilon", -1.0),
        ("ssm.inner_size", 6145),
        ("ssm.time_step_rank", 47),
        ("rope.dimension_count", 63),
        ("rope.dimension_count", 130),
        ("rope.dimension_sections", [11, 11]),
        ("rope.scaling.type", "longrope"),
        ("attention.compress_ratios", [4]),
        ("attention.compress_ratios", 4),
        ("attention.indexer.top_k", 2047),
        ("attention.recurrent_layers", [99]),
        ("nextn_predict_layers", 48),
        ("ple.head_offsets", [0] * 15),
        ("ple.head_vocab_sizes", [0] * 16),
        ("ple.layer_multipliers", [-1, 1, 1]),
        ("ple.layers", [48]),
        ("ple.ngram_size", 1),
        ("strata.output_gate", "relu"),
    ],
)
def test_nonsense_is_named(key, value):
    metadata = PUBLIC | {f"qwen4exp.{key}": value}
    if key == "ssm.time_step_rank":
        metadata["qwen4exp.ssm.inner_size"] = 47 * 128
    with pytest.raises(CheckpointError, match=f"qwen4exp.{key.replace('.', '[.]')}"):
        read_spec(metadata)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.integers(-5, 1 << 65), st.floats(), st.text(max_size=2)), max_size=50),
    st.lists(st.lists(st.integers(), max_size=2), max_size=3),
    arrays(np.int32, st.integers(0, 50)),
    arrays(np.float32, st.integers(0, 3)),
    arrays(np.uint64, ()),
)


@given(changes=st.dictionaries(st.sampled_from(sorted(PUBLIC)), JUNK, min_size=1, max_size=4))
def test_any_values_give_a_spec_or_an_error_of_ours(changes):
    try:
        spec = read_spec(PUBLIC | changes)
    except CheckpointError as error:
        assert any(key in str(error) for key in PUBLIC) or "architecture" in str(error)  # noqa: PT017
    else:
        assert spec.num_layers >= 1


def test_a_hash_may_not_leave_the_table():
    shapes = {"per_layer_token_embd.weight": (320_001_445, 160), "output.weight": (1, 1)}
    with pytest.raises(CheckpointError, match="320001445 rows"):
        read_spec(PUBLIC, tensor_shapes=shapes)
    shapes["per_layer_token_embd.weight"] = (320_001_446, 160)
    read_spec(PUBLIC, tensor_shapes=shapes)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (PUBLIC | {"general.architecture": "llama"}, "'llama'"),
        ({}, "''"),
        (changed(ple__layers=[1, 2]), "ple.layers"),
        (changed(expert_weights_norm=False), "expert_weights_norm"),
        (changed(expert_gating_func=2), "expert_gating_func"),
        (changed(attention__compress_ratios=[0, 0, 0, 4, 0, 0, 0, 8] * 6), "compress_ratios"),
    ],
)
def test_what_we_do_not_have_is_named(metadata, words):
    with pytest.raises(UnsupportedError, match=words):
        read_spec(metadata)
