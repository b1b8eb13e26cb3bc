"""``strata bench`` with a trace in the place of routers, and files of rates it cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata.cli.app import app
from strata.tiers.routing_trace import write_trace
from strata.tiers.synthetic import SyntheticText, synthetic_trace

ROUTING = Path(__file__).resolve().parents[2] / "benchmarks" / "routing"
SHORT = ("--prompt-tokens", "8", "--decode-tokens", "3", "--rounds", "1", "--threads", "1")


def bench(*arguments: str):
    return CliRunner().invoke(app, ["bench", *SHORT, *arguments])


def test_windows_take_their_experts_from_a_trace() -> None:
    found = bench("--routing", str(ROUTING / "stories.strt"))
    assert found.exit_code == 0, found.output
    assert "decode, 3 tokens" in found.output


def test_a_trace_of_another_geometry_is_refused(tmp_path: Path) -> None:
    write_trace(tmp_path / "other.strt", synthetic_trace(SyntheticText(2, 8, 2, 4)))
    found = bench("--routing", str(tmp_path / "other.strt"))
    assert found.exit_code != 0
    assert "the trace has 2 layers with 2 of 8 experts" in found.output


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--rates", "rates.json"), "--rates measures experts in several places"),
        (("--rates", "no/such/folder/rates.json"), "--rates cannot write"),
        (("--routing", "x.strt", "--against", "llama.cpp"), "are for one engine"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, monkeypatch, arguments: tuple[str, ...], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = bench(*arguments)
    assert found.exit_code != 0
    assert what in found.output
    assert not (tmp_path / "rates.json").exists()
