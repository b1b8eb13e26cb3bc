"""Names and shapes, against the shape lists of public files (fastest size first there)."""

from dataclasses import dataclass, replace

import pytest

from strata.errors import CheckpointError
from strata.formats.naming import (
    Role,
    check_layout,
    expected_shape,
    parse_name,
    required_tensors,
    tensor_name,
)
from strata.formats.synth import GEOMETRIES, SynthGeometry, spec_of

FULL = spec_of(SynthGeometry(ngram_rows_per_head=20_000_000))[0]
TINY = spec_of(GEOMETRIES["tiny"])[0]

# Public dumps of the trained model, ne order.
PUBLIC_SHAPES = {
    "token_embd.weight": [2560, 248320],
    "output.weight": [2560, 248320],
    "output_hc_norm.weight": [10240],
    "output_hc_down.weight": [10240, 320],
    "output_hc_up.weight": [320, 10240],
    "blk.0.hc_attn_norm.weight": [10240],
    "blk.0.hc_ffn_down.weight": [10240, 320],
    "blk.0.hc_ffn_up.weight": [320, 10240],
    "blk.0.hc_attn_inject.weight": [10240, 4],
    "blk.0.ffn_gate_inp.weight": [2560, 512],
    "blk.0.ffn_gate_exps.weight": [2560, 640, 512],
    "blk.0.ffn_up_exps.weight": [2560, 640, 512],
    "blk.0.ffn_down_exps.weight": [640, 2560, 512],
    "blk.0.ffn_gate_inp_shexp.weight": [2560],
    "blk.0.ffn_gate_shexp.weight": [2560, 640],
    "blk.0.ffn_down_shexp.weight": [640, 2560],
    "blk.0.attn_qkv.weight": [2560, 10240],
    "blk.0.attn_gate.weight": [2560, 6144],
    "blk.0.ssm_conv1d.weight": [4, 10240],
    "blk.0.ssm_dt.bias": [48],
    "blk.0.ssm_a": [48],
    "blk.0.ssm_alpha.weight": [2560, 48],
    "blk.0.ssm_norm.weight": [128],
    "blk.0.ssm_out.weight": [6144, 2560],
    "blk.3.attn_q.weight": [2560, 12288],
    "blk.3.attn_k.weight": [2560, 512],
    "blk.3.attn_v.weight": [2560, 512],
    "blk.3.attn_output.weight": [6144, 2560],
    "blk.3.attn_q_norm.weight": [256],
    "blk.3.indexer.q_proj.weight": [2560, 512],
    "blk.3.indexer.k_proj.weight": [2560, 128],
    "blk.3.indexer.k_norm.weight": [128],
    "blk.1.ple_key.weight": [2560, 10240],
    "blk.1.ple_value.weight": [2560, 2560],
    "blk.1.ple_norm_conv.weight": [10240],
    "blk.1.ple_conv1d.weight": [4, 10240],
    "per_layer_token_embd.weight": [160, 320_001_446],
    "blk.48.nextn.enorm.weight": [2560],
    "blk.48.nextn.hnorm.weight": [10240],
    "blk.48.nextn.eh_proj.weight": [5120, 2560],
    "blk.48.nextn.hc_head_up.weight": [320, 10240],
}


@dataclass(frozen=True)
class Entry:
    shape: tuple[int, ...]


def index_of(spec):
    return {
        name: Entry(expected_shape(role, spec)) for name, role in required_tensors(spec).items()
    }


@pytest.mark.parametrize("name", PUBLIC_SHAPES)
def test_shapes_of_the_trained_model(name):
    role, layer = parse_name(name)
    assert tensor_name(role, layer) == name
    assert list(expected_shape(role, FULL))[::-1] == PUBLIC_SHAPES[name]


def test_the_trained_model_has_1224_tensors():
    # split.tensors.count of the public files.
    assert len(required_tensors(FULL)) == 1224


def test_every_role_has_one_name():
    for role in Role:
        layer = None if parse_name(role.value) else 7
        assert parse_name(tensor_name(role, layer)) == (role, layer)


@pytest.mark.parametrize("name", ["blk.x.attn_q.weight", "attn_q.weight", "blk.1.output.weight"])
def test_foreign_names(name):
    assert parse_name(name) is None


def test_a_complete_file_passes():
    assert check_layout(index_of(TINY), TINY) == ()


def test_tied_head_fused_experts_scales_and_padding():
    index = index_of(replace(TINY, is_head_tied=True))
    assert "output.weight" not in index
    del index["blk.0.ffn_gate_exps.weight"], index["blk.0.ffn_up_exps.weight"]
    index["blk.0.ffn_gate_up_exps.weight"] = Entry((8, 512, 256))
    index["blk.1.ffn_down_exps.scale"] = Entry((8,))
    rows, width = index["per_layer_token_embd.weight"].shape
    index["per_layer_token_embd.weight"] = Entry((rows + 100, width))
    assert check_layout(index, replace(TINY, is_head_tied=True)) == ()


def test_draft_block_with_and_without_options():
    spec = replace(TINY, num_draft_layers=1)
    index = index_of(spec)
    assert "blk.4.nextn.eh_proj.weight" in index
    index["blk.4.indexer.k_norm.weight"] = Entry((64,))
    index["blk.4.nextn.shared_head_head.weight"] = Entry((512, 256))
    assert check_layout(index, spec) == ()
    index["blk.4.nextn.embed_tokens.weight"] = Entry((512, 255))
    with pytest.raises(CheckpointError, match="embed_tokens"):
        check_layout(index, spec)


def test_all_missing_tensors_are_listed():
    index = index_of(TINY)
    del index["blk.0.ssm_a"], index["blk.3.attn_q.weight"]
    with pytest.raises(CheckpointError, match=r"2 of \d+ .*blk.0.ssm_a, blk.3.attn_q.weight"):
        check_layout(index, TINY, source="x.gguf")


@pytest.mark.parametrize("name", index_of(TINY))
def test_every_wrong_shape_is_named(name):
    index = index_of(TINY)
    shape = index[name].shape
    index[name] = Entry((*shape[:-1], shape[-1] + 1))
    with pytest.raises(CheckpointError) as caught:
        check_layout(index, TINY)
    assert str(caught.value).startswith(f"{name} has shape {[*shape[:-1], shape[-1] + 1]}")
    assert str(list(shape)) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("blk.0.attn_q.weight", "gated delta net"), ("blk.3.ssm_a", "sparse attention")],
)
def test_tensors_of_the_other_kind_of_layer(name, kind):
    with pytest.raises(CheckpointError, match=f"{name} does not belong there.*{kind}"):
        check_layout(index_of(TINY) | {name: Entry((4,))}, TINY)


def test_unknown_tensors_are_mentioned():
    (notice,) = check_layout(index_of(TINY) | {"blk.0.surprise.weight": Entry((4,))}, TINY)
    assert "blk.0.surprise.weight" in notice
