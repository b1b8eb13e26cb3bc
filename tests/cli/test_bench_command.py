"""``strata bench``: what is refused before it measures, and what it measures with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import FakeModel, FakeText
from tests.unit.engine.test_bench_card import VOCAB, FakeProbe

from strata.cli import bench as bench_command
from strata.engine.build import text_of
from strata.engine.model_file import open_file
from strata.engine.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    from strata.settings import Settings

    Strata = Callable[..., Result]

SHORT = ("--prompt-tokens", 12, "--decode-tokens", 2, "--rounds", 1, "--threads", 1)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Prompts that were measured with."""
    seen: list[np.ndarray] = []
    measure = bench_command.measure

    def noting(session, prompt, *args, **options):
        seen.append(prompt)
        return measure(session, prompt, *args, **options)

    monkeypatch.setattr(bench_command, "measure", noting)
    return seen


def test_a_file_that_cannot_be_written_is_told_before_measuring(
    strata: Strata, tiny: Path, tmp_path: Path, measured: list[np.ndarray]
):
    for path, reason in ((tmp_path / "no" / "x.json", "No such file"), (tmp_path, "directory")):
        result = strata("bench", "-m", tiny, *SHORT, "--json", path)
        assert result.exit_code == 2
        assert "--json cannot write" in result.stderr
        assert reason in result.stderr
    assert measured == []


def test_a_refused_command_leaves_no_file(strata: Strata, tmp_path: Path):
    out, old = tmp_path / "new.json", tmp_path / "old.json"
    old.write_text("kept")
    for path in (out, old):
        assert strata("bench", "-m", tmp_path / "gone.gguf", "--json", path).exit_code != 0
    assert not out.exists()
    assert old.read_text() == "kept"


def test_the_report_says_where_it_comes_from(strata: Strata, tiny: Path, tmp_path: Path):
    out = tmp_path / "figures.json"
    assert strata("bench", "-m", tiny, *SHORT, "--json", out).exit_code == 0
    report = json.loads(out.read_text())
    assert {"machine", "date", "command", "commit", "sources"} <= set(report)


def test_drafts_are_measured_on_text(strata: Strata, tiny: Path, measured: list[np.ndarray]):
    assert strata("bench", "-m", tiny, *SHORT, "--draft", 1).exit_code == 0
    assert strata("bench", "-m", tiny, *SHORT).exit_code == 0
    with open_file(tiny) as model_file:
        text = text_of(model_file)
    answer = text.new_answer(())
    written = "".join(answer.push(token)[0] for token in measured[0].tolist()) + answer.finish()
    assert written.startswith('"""')  # the first line of a source file
    assert not np.array_equal(measured[0], measured[-1])


def test_a_given_text_is_measured_with(
    strata: Strata, tiny: Path, tmp_path: Path, measured: list[np.ndarray]
):
    file = tmp_path / "text"
    file.write_text("the same words over and over, " * 20)
    assert strata("bench", "-m", tiny, *SHORT, "--text", file).exit_code == 0
    with open_file(tiny) as model_file:
        ids = text_of(model_file).encode(file.read_text())
    assert measured[0].tolist() == ids[:12]
    result = strata("bench", "-m", tiny, "--text", tmp_path / "gone")
    assert result.exit_code == 2
    assert "cannot read" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompts", "512"), "measured on a card alone"),
        (("--contexts", "512"), "measured on a card alone"),
        (("--device", "cuda", "--contexts", "x"), "--contexts cannot use 'x'"),
        (("--device", "cuda", "--against", "llama.cpp", "--prompts", "9"), "on a card alone"),
    ],
)
def test_options_of_a_card(strata: Strata, tiny: Path, options: tuple[str, ...], message: str):
    result = strata("bench", "-m", tiny, *options)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_card_is_measured_and_reported(
    strata: Strata, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The command's own part, with a fake for the model and the card."""
    model, probe = FakeModel(VOCAB), FakeProbe()
    parts: list[Parts] = []

    def open_on_card(settings: Settings, **_options: object) -> Parts:
        text = FakeText(end_id=0)
        parts.append(Parts(model, text, VOCAB, settings.context_len or 0, model.close, "cuda"))
        return parts[0]

    monkeypatch.setattr(bench_command, "open_parts", open_on_card)
    monkeypatch.setattr(bench_command, "probe_of", lambda _model: probe)
    out = tmp_path / "figures.json"
    sizes = ("--prompts", "9,20", "--contexts", "5,30", "--decode-tokens", 2, "--rounds", 1)
    result = strata("bench", "-m", tiny, "--device", "cuda", *sizes, "--json", out)
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    assert [item["tokens"] for item in report["prompts"]] == [9, 20]
    assert [item["rows"] for item in report["windows"]] == [*range(1, 9)] * 2
    assert {"machine", "card", "date", "command", "commit"} <= set(report)
    assert report["card"]["driver"] == "580.1"
    assert "kernels of a window of 8 behind 30 tokens" in result.stdout
    # The memory plan is made for the conversation that was measured.
    assert parts[0].context_len == model.sessions[0].capacity
    assert model.is_closed
