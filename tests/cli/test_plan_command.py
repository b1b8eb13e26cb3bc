"""``strata plan`` on the demo: reads the header, prints sentences or JSON, refuses bad sizes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from strata.cli.app import app
from strata.engine.default_model import default_model


@pytest.fixture(scope="module")
def demo() -> str:
    return str(default_model())


def run(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments])


def test_a_plan_is_said_in_sentences(demo: str) -> None:
    found = run(demo, "--vram", "790M", "--ram", "4G")
    assert found.exit_code == 0, found.output
    for text in ("routed experts", "experts, all of them", "have slots in VRAM",
                 "Decoding: about", "What holds a token up most is", "Reckoned with"):  # fmt: skip
        assert text in found.output, text


def test_a_plan_is_json(demo: str) -> None:
    told = json.loads(run(demo, "--vram", "790M", "--ram", "4G", "--json").output)
    assert told["experts"]["vram"] + told["experts"]["ram"] == told["experts"]["all"] == 256
    assert told["warm"]["tokens_per_s"] > 0
    assert told["warm"]["binding"] in told["warm"]["limits_s"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--vram", "12"), "size with its unit, not '12'"),
        (("--ram", "much"), "size with its unit, not 'much'"),
        (("--kv", "f32"), "not 'f32'"),
        (("--expert-policy", "lrv"), "there is no policy 'lrv'"),
        (("--vram", "100M"), "take"),
        (("--rates", "pyproject.toml"), "the file of rates cannot be used"),
        (("--profile", "pyproject.toml"), "--profile says nothing of made-up routing"),
    ],
)
def test_what_makes_no_sense_is_refused(demo: str, arguments: tuple[str, ...], what: str) -> None:
    found = run(demo, *arguments)
    assert found.exit_code != 0
    assert what in found.output
