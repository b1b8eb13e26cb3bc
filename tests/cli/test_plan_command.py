"""``strata plan`` on the demo: reads the header, prints sentences or JSON, refuses bad sizes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from strata.cli.app import app
from strata.engine.default_model import default_model
from strata.tiers.rates import TierRates, write_rates
from strata.tiers.share import Cost

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_plan_says_what_the_disk_allows(demo: str, tmp_path: Path) -> None:
    limits = ("--vram", "790M", "--ram", "2055M", "--disk", "0.001")
    found = run(demo, *limits)
    assert "from the disk; at" in found.output
    told = json.loads(run(demo, *limits, "--json").output)["warm"]
    bound = 1e6 / told["file_bytes"]
    assert told["disk_allows_tokens_per_s"] == pytest.approx(bound)
    assert f"allows at most {bound:.0f} tokens/s" in found.output
    assert told["tokens_per_s"] < bound
    assert told["binding"] == "disk"
    rates = tmp_path / "rates.json"
    cost = Cost(0.0, 1e-9)
    write_rates(rates, TierRates(1000, cost, cost, 0.0, 1e-3, is_divided=False))
    refused = run(demo, "--rates", str(rates))
    assert refused.exit_code != 0
    assert "those of a processor alone" in refused.output.replace("\n", " ")


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
