"""The shipped files: sizes against the files themselves, the printed command against its result,
perplexity against transformers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tests.unit.formats import checkpoints
from training.config import DEMO
from training.eval_text import PIECE_TOKENS
from training.perplexity import FORMATS, format_row
from training.quantize import (
    MAX_TOTAL_BYTES,
    STEM,
    check_sizes,
    command_line,
    demo_types,
    main,
    planned_tensors,
    size_table,
    write_demo,
)
from typer.testing import CliRunner

from strata.cli.app import app
from strata.engine.model_file import open_file
from strata.errors import StrataError
from strata.formats.convert_types import TypePlan
from strata.text.tokenizer import Tokenizer
from strata.units import MiB

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import Qwen4ExpForCausalLM

# Tokens, merges and the template of 8,192 entries, headers and alignment.
METADATA_BYTES = 320 * 1024


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Qwen4ExpForCausalLM]:
    folder = tmp_path_factory.mktemp("export")
    model = checkpoints.save_text_model(folder, vocab_size=checkpoints.VOCAB_SIZE)
    checkpoints.add_draft_layer(folder)
    checkpoints.add_tokenizer(folder)
    return folder, model


def test_the_demo_fits():
    sizes = size_table(DEMO.spec(), demo_types())
    assert sum(sizes.values()) + METADATA_BYTES < MAX_TOTAL_BYTES
    # Experts low-bit, everything else higher.
    assert "experts_gate_up Q4_K" in sizes
    assert "experts_down IQ4_NL" in sizes
    assert {name.split()[1] for name in sizes if name.startswith("dense")} == {"Q5_K", "Q6_K"}


def test_planned_sizes_are_those_of_the_files(export, tmp_path: Path):
    paths = write_demo(export[0], tmp_path / "demo")
    assert [path.name for path in paths] == [f"{STEM}-0000{i}-of-00002.gguf" for i in (1, 2)]
    with open_file(paths[0]) as model_file:
        stored = dict(model_file.index.items())
        planned = {plan.name: plan for _, plan in planned_tensors(model_file.spec, demo_types())}
        assert model_file.spec.num_draft_layers == 1
        assert set(planned) == set(stored)
        for name, plan in planned.items():
            if name != "per_layer_token_embd.weight":
                assert (plan.num_bytes, plan.format) == (
                    stored[name].num_bytes,
                    stored[name].format,
                )
        table = [name for name, entry in stored.items() if entry.path == paths[1]]
        assert table == ["per_layer_token_embd.weight"]


def test_the_printed_command_writes_the_same_files(export, tmp_path: Path):
    (tmp_path / "a").mkdir()
    words = command_line(str(export[0]), str(tmp_path / "a" / f"{STEM}.gguf"))
    assert words[0] == "strata"
    assert CliRunner().invoke(app, words[1:]).exit_code == 0
    stale = tmp_path / "b" / "old-00001-of-00003.gguf"
    stale.parent.mkdir()
    stale.write_bytes(b"old")
    assert main([str(export[0]), "--out", str(tmp_path / "b")]) == 0
    ours = sorted((tmp_path / "b").iterdir())
    theirs = sorted((tmp_path / "a").iterdir())
    assert [path.name for path in ours] == [path.name for path in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert our.read_bytes() == their.read_bytes()
    assert list(tmp_path.glob(".demo-*")) == []


@pytest.mark.parametrize(
    "sizes",
    [
        {"a": 4 * MiB},
        {"a": 16 * MiB + 1, "b": 1},
        {"a": 12 * MiB, "b": 12 * MiB, "c": 1},
    ],
)
def test_too_few_or_too_large(sizes: dict[str, int]):
    with pytest.raises(StrataError, match="cannot be shipped"):
        check_sizes(sizes)


def test_the_largest_that_may_ship():
    check_sizes({"a": 16 * MiB, "b": 8 * MiB})


def test_a_failed_conversion_leaves_the_old_files(tmp_path: Path, capsys):
    old = tmp_path / "demo" / "x.gguf"
    old.parent.mkdir()
    old.write_bytes(b"old")
    assert main([str(tmp_path / "nothing"), "--out", str(old.parent)]) == 1
    assert "CheckpointError" in capsys.readouterr().err
    assert old.read_bytes() == b"old"


def test_perplexity_is_that_of_transformers(export, tmp_path: Path):
    folder, model = export
    # Longer than a piece, so that the text is read in two.
    text = "".join(chr(97 + i * i % 23) for i in range(PIECE_TOKENS + 150)) + " the end of the text"
    row = format_row("F32", TypePlan.preset("f32"), folder, tmp_path, [text], 1200)
    ids = _ids(folder, tmp_path, text)[:1200]
    nats, num = 0.0, 0
    for start in range(0, len(ids), PIECE_TOKENS):
        piece = torch.tensor(ids[start : start + PIECE_TOKENS])
        with torch.no_grad():
            logits = model(piece[None]).logits[0, :-1].double()
        nats += float(torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum"))
        num += len(piece) - 1
    assert len(ids) > PIECE_TOKENS
    assert row.num_tokens == num
    assert row.perplexity == pytest.approx(math.exp(nats / num), rel=1e-3)
    assert not (tmp_path / "model.gguf").exists()


def test_coarser_formats_say_what_replaced_them(export, tmp_path: Path):
    row = format_row("Q2_0", FORMATS["Q2_0"], export[0], tmp_path, ["abcdefghij"], 8)
    assert any("IQ4_NL, not Q2_0" in notice for notice in row.notices)
    assert np.isfinite(row.perplexity)


def _ids(folder: Path, work: Path, text: str) -> list[int]:
    paths = write_demo(folder, work / "for-tokens")
    with open_file(paths[0]) as model_file:
        return Tokenizer.from_metadata(model_file.index.metadata).encode(text)
