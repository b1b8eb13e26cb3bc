"""The plan of a file that nobody loads, against the card's own memory plan and plain sums."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.plan_entries import header_of

from strata.cli.plan import sentences, size_of
from strata.engine.plan import PROCESS_BYTES, Machine, PlanWishes, plan_model
from strata.errors import PlanError, SettingsError
from strata.formats.synth import GEOMETRIES, MIXES, uniform_mix
from strata.gpu.memory_plan import DRIVER_BYTES, Wishes, plan_memory
from strata.tiers.synthetic import SyntheticText, synthetic_trace
from strata.units import GiB, MiB


@pytest.fixture(scope="module")
def bench():
    return header_of(GEOMETRIES["bench"], uniform_mix("Q4_0"))


def plan_of(header, card: int, memory: int = 32 * GiB, **wishes):
    spec, entries = header
    return plan_model(entries, spec, Machine(card, memory), PlanWishes(2048, **wishes))


def bytes_in(report, place: str, what: str | None = None) -> int:
    return sum(
        item.num_bytes
        for item in report.regions
        if item.place == place and what in (None, item.what)
    )


def test_what_fits_lies_on_the_card(bench) -> None:
    report = plan_of(bench, 40 * GiB)
    spec, entries = bench
    plan = plan_memory(entries, spec, Wishes(2048, "f16"))
    assert bytes_in(report, "vram") == DRIVER_BYTES + sum(plan.weights.values()) + sum(
        plan.session.values()
    )
    assert report.places.in_vram == 12 * 64
    assert report.warm.hit_rate == 1.0
    assert report.prompt_limit is None
    assert "Every one of the 768 experts" in sentences(report, is_made_up=True)[0]


@pytest.mark.parametrize("card", [3 * GiB, 7 * GiB // 2])
def test_slots_take_what_is_left_and_memory_the_rest(bench, card: int) -> None:
    report = plan_of(bench, card, reserve_bytes=100 * MiB)
    slots, size = report.places.in_vram, report.expert_bytes
    assert 0 < slots < 768
    taken = bytes_in(report, "vram")
    # One more slot would not leave the reserve.
    assert taken + 100 * MiB <= card < taken + 100 * MiB + 2 * size + 640 * MiB
    assert bytes_in(report, "vram", "routed experts") >= slots * size
    assert report.places.in_ram == 768 - slots
    kept = bytes_in(report, "ram", "experts, all of them")
    assert 768 * size <= kept <= 768 * (size + 4096)
    # With less memory those that have slots are not in it.
    tight = plan_of(bench, card, PROCESS_BYTES + kept - 1, reserve_bytes=100 * MiB)
    kept = bytes_in(tight, "ram", "experts in no slot")
    assert (768 - slots) * size <= kept <= (768 - slots) * (size + 4096)
    assert tight.places == report.places
    assert 0 < report.cold.hit_rate < 1
    assert report.advice
    assert all(speed > report.warm.tokens_per_s for _, speed in report.advice)
    assert [speed for _, speed in report.advice] == sorted(
        (speed for _, speed in report.advice), reverse=True
    )


def test_what_memory_does_not_hold_is_in_the_file(bench) -> None:
    whole = plan_of(bench, 3 * GiB)
    report = plan_of(bench, 3 * GiB, PROCESS_BYTES + 256 * MiB)
    assert report.places.in_ram < whole.places.in_ram
    far = 768 - report.places.in_vram - report.places.in_ram
    assert bytes_in(report, "disk", "experts in neither") >= far * report.expert_bytes
    assert report.warm.tokens_per_s < whole.warm.tokens_per_s
    assert report.warm.file_rate > 0
    assert f"{far} are read from the disk" in sentences(report, is_made_up=True)[0]
    told = json.loads(json.dumps(report.as_dict()))
    assert told["experts"] == {
        "all": 768, "vram": report.places.in_vram, "ram": report.places.in_ram, "disk": far,
        "bytes_each": report.expert_bytes,
    }  # fmt: skip


def test_more_of_everything_is_never_slower(bench) -> None:
    spec, entries = bench

    def speed(machine: Machine) -> float:
        return plan_model(entries, spec, machine, PlanWishes(2048)).warm.tokens_per_s

    base = Machine(3 * GiB, 32 * GiB, pool=1e10)
    now = speed(base)
    assert speed(Machine(4 * GiB, 32 * GiB, pool=1e10)) >= now
    assert speed(Machine(3 * GiB, 32 * GiB, pool=4e10)) > now
    assert speed(Machine(3 * GiB, 32 * GiB, pool=1e10, link=5e10)) >= now
    assert speed(Machine(3 * GiB, 32 * GiB, pool=1e10, card_rate=2e12)) > now


def test_what_does_not_fit_at_all_is_refused(bench) -> None:
    with pytest.raises(PlanError, match="take"):
        plan_of(bench, 600 * MiB)


def test_steps_of_prompts_are_shortened_before_experts_leave_the_card(bench) -> None:
    spec, entries = bench
    whole = plan_memory(entries, spec, Wishes(16384, "f16")).total_bytes + DRIVER_BYTES
    report = plan_model(entries, spec, Machine(whole - MiB, GiB), PlanWishes(16384))
    assert report.places.in_vram == 768
    assert report.chunk < 8192
    assert bytes_in(report, "vram", "experts on their way") == 0


def test_a_trace_of_another_model_is_refused(bench) -> None:
    spec, entries = bench
    trace = synthetic_trace(SyntheticText(12, 32, 10, 4))
    with pytest.raises(SettingsError, match="12 layers with 10 of 32 experts"):
        plan_model(entries, spec, Machine(3 * GiB, GiB), PlanWishes(2048), trace=trace)


def test_layers_whose_experts_differ_in_size_divide_the_slots() -> None:
    report = plan_of(header_of(GEOMETRIES["bench"], MIXES["q4_k"]), 4 * GiB)
    assert report.places.is_per_layer
    assert report.places.in_vram % 12 == 0


def test_sizes_are_read_as_memory_is_sold() -> None:
    assert size_of("--vram", "12G") == 12 * GiB
    assert size_of("--vram", "0.5gib") == GiB // 2
    assert size_of("--ram", "800M") == 800 * MiB
    for text in ("12", "G", "-1G", "12K"):
        with pytest.raises(SettingsError, match="--ram must be a size with its unit"):
            size_of("--ram", text)


def test_a_plan_needs_no_torch() -> None:
    code = "import sys, strata.cli.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
