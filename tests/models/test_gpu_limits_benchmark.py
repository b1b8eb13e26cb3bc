"""``benchmarks/gpu/limits_on_card`` at tiny shapes: what it loads, counts and divides, no times.

Runs on a card, or in Triton's interpreter where there is none.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.models.on_card import DEVICE, per_layer
from tests.models.smallest_model import EXPERTS, LAYERS, smallest_model

from strata.cpu.expert_arena import ExpertArena
from strata.formats.tensor_index import open_model
from strata.tiers.forced_routing import RoutingFeed
from strata.tiers.synthetic import SyntheticText, synthetic_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS_A_LAYER, CAPACITY, NUM_TOKENS = 2, 128, 2
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("limits_on_card")


@pytest.fixture
def setting(bench, smallest_path: Path, tmp_path: Path) -> Iterator[object]:
    with open_model(smallest_path) as index:
        yield bench.Setting(
            index, smallest_model().spec, per_layer(SLOTS_A_LAYER), DEVICE, 2, tmp_path, 64,
            num_stages=3,
        )  # fmt: skip


def test_prompts_are_read_from_three_kinds_of_ram(bench, setting, capsys) -> None:
    ways = bench.ways_of_prompts(setting, CAPACITY, LAYERS * SLOTS_A_LAYER)
    whole, regions, complement = (way.host for way in ways)
    assert isinstance(whole, ExpertArena)
    num_outside = EXPERTS - SLOTS_A_LAYER
    assert [len(kept) for kept in complement.tier.kept] == [num_outside] * LAYERS
    assert [len(kept) for kept in regions.tier.kept] == [EXPERTS] * LAYERS
    assert regions.num_bytes > complement.num_bytes
    found = bench.compare_prompts(ways, 1, 1)
    assert list(found) == [way.name for way in ways]
    assert found["all in RAM"] == 1.0
    assert all(len(way.rates) == 1 and way.tokens_per_s > 0 for way in ways)
    # Regions hold all that slots may give up, so nothing is read.
    assert regions.tier.counts().file_reads == LAYERS * EXPERTS
    told = capsys.readouterr().out.splitlines()
    assert sum("prompt of 1" in line for line in told) == len(ways)
    for way in ways:
        way.close()


def test_a_limit_is_compared_with_what_the_disk_gives(bench, setting, capsys) -> None:
    ways = [
        bench.open_way("all in RAM", setting, CAPACITY),
        bench.open_way("less", setting, CAPACITY, resident_experts=True),
    ]
    spec = setting.spec
    text = SyntheticText(spec.num_layers, spec.num_experts, spec.top_k, NUM_TOKENS)
    for way in ways:
        way.model.force_routing(RoutingFeed(synthetic_trace(text, seed=1), spec))
        way.session = way.model.new_session(CAPACITY)
    bench.DISK_SECONDS = 0.0
    found = bench.compare_limits(ways, NUM_TOKENS, 1, spec.top_k)
    assert set(found) == {"of_whole", "of_bound", "disk"}
    assert found["disk"] > 0
    # The bound is never below the speed without a disk.
    assert found["of_bound"] >= found["of_whole"] > 0
    line = capsys.readouterr().out.splitlines()[-1]
    for text in ("less", "from the file a token", "the disk alone reads", "reached"):
        assert text in line
    for way in ways:
        way.close()
