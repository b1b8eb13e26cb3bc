"""Bytes by class and by token, against sums written out by hand for one geometry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.engine.accounting import WeightClass, class_of, token_bytes, totals
from strata.engine.model_file import ModelFile, open_file
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = GEOMETRIES["tiny"]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFile]:
    path = tmp_path_factory.mktemp("accounting") / "tiny.gguf"
    synthesize(path, SIZES, TypePlan.preset("f32"))
    with open_file(path) as opened:
        yield opened


def test_every_tensor_has_a_class(model_file: ModelFile):
    kinds = {name: class_of(name, model_file.spec) for name in model_file.index}
    assert WeightClass.OTHER not in kinds.values()
    assert kinds["blk.0.ffn_gate_inp.weight"] is WeightClass.ROUTER
    assert kinds["blk.3.indexer.k_proj.weight"] is WeightClass.ATTENTION
    assert kinds["output_hc_up.weight"] is WeightClass.HYPER
    assert class_of("blk.4.attn_q.weight", model_file.spec) is WeightClass.DRAFT
    assert class_of("blk.0.what.weight", model_file.spec) is WeightClass.OTHER


def test_totals_are_the_whole_file(model_file: ModelFile):
    by_class = totals(model_file.index, model_file.spec)
    whole = sum(entry.num_bytes for entry in model_file.index.values())
    assert sum(total.num_bytes for total in by_class.values()) == whole
    assert by_class[WeightClass.HEAD].num_bytes == SIZES.vocab_size * SIZES.hidden_size * 4
    assert dict(by_class[WeightClass.HEAD].formats) == {"F32": SIZES.vocab_size * SIZES.hidden_size}


@pytest.mark.parametrize("kv_format", ["f16", "f32"])
@pytest.mark.parametrize("position", [0, 9, 66, 1000])
def test_bytes_of_one_token(model_file: ModelFile, kv_format: str, position: int):
    per_token = token_bytes(
        model_file.index, model_file.spec, position=position, kv_format=kv_format
    )
    width = SIZES.hidden_size
    one_expert = 3 * width * SIZES.expert_size * 4
    weights = per_token.weights
    assert weights[WeightClass.EXPERTS] == SIZES.num_layers * SIZES.top_k * one_expert
    assert weights[WeightClass.EMBEDDING] == width * 4
    num_rows = (SIZES.ngram_size - 1) * SIZES.heads_per_ngram
    assert weights[WeightClass.NGRAM_TABLE] == num_rows * SIZES.ngram_row_size * 4
    assert weights[WeightClass.HEAD] == SIZES.vocab_size * width * 4
    # One sparse layer; at most the budget of 64 and an incomplete block of 3 are read.
    cells = min(position + 1, 67)
    value_bytes = 2 if kv_format == "f16" else 4
    kv = cells * 2 * SIZES.num_kv_heads * SIZES.head_dim * value_bytes
    assert per_token.kv == kv + (position + 1) // 4 * SIZES.index_dim * 4
    assert per_token.state == 3 * SIZES.gdn_value_heads * SIZES.gdn_head_dim**2 * 4
    assert per_token.total == sum(weights.values()) + per_token.kv + per_token.state
