"""``strata trace`` and ``strata replay``: what they print, write and refuse."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata.tiers.expert_profile import rank_by_uses, read_profile
from strata.tiers.policy_table import POLICIES
from strata.tiers.replay import replay
from strata.tiers.routing_trace import read_trace
from strata.tiers.slots import layer_slots, shared_slots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    Strata = Callable[..., Result]

SIZES = ("--layers", 3, "--experts", 32, "--top-k", 4, "--tokens", 60)


@pytest.fixture
def trace(strata: Strata, tmp_path: Path) -> Path:
    path = tmp_path / "t.strt"
    result = strata("trace", path, *SIZES, "--prompt-tokens", 20, "--texts", 2)
    assert result.exit_code == 0, result.stderr
    assert "wrote 122 windows of 3 layers" in result.stderr
    return path


def test_figures_are_the_library_s(strata: Strata, trace: Path):
    result = strata("replay", trace, "--slots", "8,16", "--cold-tokens", 50, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["layers"], report["experts"], report["experts_per_token"]) == (3, 32, 4)
    assert (report["prompt_tokens"], report["decoded_tokens"]) == (40, 120)
    names = [(run["policy"], run["slots_per_layer"]) for run in report["runs"]]
    assert names == [(name, count) for count in (8, 16) for name in (*POLICIES, "belady")]
    for run in report["runs"]:
        layout = layer_slots(3, 32, 3 * run["slots_per_layer"])
        outcome = replay(read_trace(trace), layout, run["policy"])
        assert run["cold_hit_rate"] == outcome.hit_rate(outcome.part(0, 50))
        assert run["warm_hit_rate"] == outcome.hit_rate(outcome.part(50))
        assert run["lookups"] == 120 * 3 * 4
        assert np.mean(run["layers_cold"]) == pytest.approx(run["cold_hit_rate"])


def test_table_names_every_policy(strata: Strata, trace: Path):
    result = strata("replay", trace, "--slots", 8, "--policy", "lru", "--policy", "ema")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert "3 layers, 4 of 32 experts; 40 prompt and 120 decoded tokens" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["policy", "lru", "ema", "belady"]
    assert lines[-1].split()[5] == "0.0" or "0.0" in lines[-1]


def test_shared_slots(strata: Strata, trace: Path):
    args = ("replay", trace, "--slots", 8, "--policy", "lru", "--json", "--shared")
    run = json.loads(strata(*args).stdout)["runs"][0]
    outcome = replay(read_trace(trace), shared_slots(3, 32, 24), "lru")
    assert run["hit_rate"] == outcome.hit_rate(outcome.part(0))


@pytest.mark.parametrize(("slots", "label"), [("8,16", "slots for each layer"), ("8", "tokens")])
def test_plot_has_a_line_for_each_policy(
    strata: Strata, trace: Path, tmp_path: Path, slots: str, label: str
):
    out = tmp_path / "p.svg"
    args = ("--slots", slots, "--policy", "lru", "--policy", "lfu", "--plot", out)
    assert strata("replay", trace, *args).exit_code == 0
    root = ET.parse(out).getroot()
    texts = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"lru", "lfu", "belady"} <= set(texts)
    assert any(label in text for text in texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 3


def test_a_saved_profile_fills_the_next_cache(strata: Strata, trace: Path, tmp_path: Path):
    profile = tmp_path / "p.bin"
    assert strata("replay", trace, "--save-profile", profile).exit_code == 0
    told = read_trace(trace)
    kept = read_profile(profile, 3, 32, told.model_name)
    assert kept.keys.tolist() == rank_by_uses(told.uses()).keys.tolist()
    # What one policy ends with: its residents first.
    args = ("--slots", 8, "--policy", "lru", "--save-profile", profile)
    assert strata("replay", trace, *args).exit_code == 0
    learned = read_profile(profile, 3, 32, told.model_name)
    outcome = replay(told, layer_slots(3, 32, 24), "lru")
    assert set(learned.keys[:24].tolist()) == set(outcome.resident.tolist())
    args = ("replay", trace, "--slots", 8, "--policy", "lru", "--json")
    cold = json.loads(strata(*args).stdout)["runs"][0]
    warm = json.loads(strata(*args, "--profile", profile).stdout)["runs"][0]
    assert cold["prompt_hit_rate"] < warm["prompt_hit_rate"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--policy", "lur"), 2, "there is no policy 'lur'"),
        (("--slots", "x"), 2, "--slots cannot use 'x'"),
        (("--slots", "33"), 2, "--slots 33 is out of range"),
        (("--plot", "no/such/folder.svg"), 2, "--plot cannot write"),
        (("--save-profile", "no/such/folder"), 2, "--save-profile cannot write"),
        (("--profile", "missing"), 1, "no such file"),
    ],
)
def test_refusals(strata: Strata, trace: Path, args: tuple[str, ...], code: int, message: str):
    result = strata("replay", trace, *args)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""


def test_damaged_files_are_refused(strata: Strata, trace: Path, tmp_path: Path):
    bad = tmp_path / "bad"
    bad.write_bytes(trace.read_bytes()[:-9])
    result = strata("replay", bad)
    assert result.exit_code == 1
    assert "the routing trace cannot be used: checksum" in result.stderr
    result = strata("replay", trace, "--profile", bad)
    assert result.exit_code == 1
    assert "the expert profile cannot be used" in result.stderr
    assert strata("replay", tmp_path / "missing").exit_code == 1


def test_trace_refuses(strata: Strata, tmp_path: Path):
    result = strata("trace", tmp_path / "t", "--top-k", 600)
    assert result.exit_code == 2
    assert "cannot have top_k = 600" in result.stderr
    assert strata("trace", tmp_path / "no" / "t").exit_code == 2


def test_run_records(strata: Strata, tiny: Path, tmp_path: Path):
    out = tmp_path / "r.strt"
    args = ("run", "-m", tiny, "--raw", "-n", 9, "--ignore-eos", "--routing-trace", out, "hello")
    result = strata(*args)
    assert result.exit_code == 0, result.stderr
    assert read_trace(out).num_decoded == 8
