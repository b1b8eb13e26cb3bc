"""Experts in several places as the engine sees them: counts of a request, limits, profiles kept.

The experts are a stand-in; what a card does is tested where cards are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import FakeModel, FakeText

from strata import telemetry
from strata.engine.engine import Engine
from strata.engine.parts import Parts
from strata.engine.sampler import SamplingParams
from strata.engine.tiers import ProfileKeeper
from strata.errors import CheckpointError, DeviceError, PlanError, RequestError, SettingsError
from strata.formats.synth import GEOMETRIES, spec_of
from strata.settings import Settings
from strata.tiers.counters import TierTally
from strata.tiers.expert_profile import ExpertProfile, read_profile, write_profile
from strata.tiers.kept_profile import profile_path, starting_profile
from strata.units import MiB

if TYPE_CHECKING:
    from pathlib import Path

LAYERS, EXPERTS = 2, 4


class FakeTiers:
    """Counts one window whenever it is asked, and remembers limits."""

    def __init__(self) -> None:
        self.tally = TierTally(np.array([10, 10]))
        self.limits: list[int | None] = []
        self.carried_out: list[int | None] = []
        self.refuses = False

    def tier_counts(self):
        self.tally.add_window(np.array([4, 4]), np.array([3, 2]), np.array([0, 1]))
        return self.tally.counts()

    def tier_rates(self) -> None:
        return None

    def learned(self) -> ExpertProfile:
        return ExpertProfile(LAYERS, EXPERTS, 3, np.array([5, 1, 2]), "model")

    def limit_bytes(self, num_bytes: int | None) -> None:
        if num_bytes is not None and num_bytes < 100 * MiB:
            raise PlanError("what is not slots takes more.")
        self.limits.append(num_bytes)

    def carry_out_limit(self) -> None:
        if self.refuses:
            raise DeviceError("the card refused memory for slots.")
        self.carried_out += self.limits
        self.limits.clear()


def engine_of(tiers: FakeTiers | None, after_request=None) -> Engine:
    model = FakeModel(97)
    parts = Parts(
        model=model, text=FakeText(0), vocab_size=97, context_len=200, close=model.close,
        tiers=tiers, after_request=after_request,
    )  # fmt: skip
    return Engine(parts, Settings())


def test_a_request_tells_what_it_asked_of_the_experts() -> None:
    with engine_of(FakeTiers()) as engine:
        done = engine.generate_text("abc", SamplingParams(max_tokens=3))
    # Counted at its beginning and at its end: one window of the stand-in lies between.
    assert done.timings.experts is not None
    assert done.timings.experts.windows == 1
    assert done.timings.experts.hit_rate == 5 / 8
    with engine_of(None) as engine:
        assert engine.generate_text("abc").timings.experts is None
        assert engine.tier_rates() is None


def test_a_limit_is_carried_out_at_once_where_nobody_asks_for_anything() -> None:
    tiers = FakeTiers()
    with engine_of(tiers) as engine:
        assert engine.set_vram_limit(4096)
        assert tiers.carried_out == [4096 * MiB]
        assert engine.set_vram_limit(None)
        assert tiers.carried_out[-1] is None


def test_a_limit_set_while_an_answer_is_made_waits_for_its_next_window() -> None:
    tiers = FakeTiers()
    with engine_of(tiers) as engine:
        generation = engine.generate("abc", SamplingParams(max_tokens=4))
        next(generation)
        assert not engine.set_vram_limit(4096)
        assert tiers.limits == [4096 * MiB]
        assert tiers.carried_out == []
        rest = list(generation)
        assert rest[-1].finish_reason is not None
        assert engine.set_vram_limit(2048)
        assert tiers.carried_out == [4096 * MiB, 2048 * MiB]


def test_what_cannot_be_given_back_is_refused_and_the_engine_goes_on() -> None:
    with engine_of(None) as engine, pytest.raises(RequestError, match="no experts that could"):
        engine.set_vram_limit(1024)
    tiers = FakeTiers()
    with engine_of(tiers) as engine:
        with pytest.raises(PlanError):
            engine.set_vram_limit(10)
        tiers.refuses = True
        with pytest.raises(DeviceError):
            engine.set_vram_limit(1024)
        # The right to the conversation was given back.
        tiers.refuses = False
        assert engine.generate_text("abc", SamplingParams(max_tokens=2)).token_ids


def test_a_profile_is_written_at_the_end_and_once_in_a_while(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "kept.strp"
    keeper = ProfileKeeper(FakeTiers(), path)
    keeper.after_request()
    assert not path.exists()
    monkeypatch.setattr("strata.engine.tiers.SAVE_EVERY_S", 0.0)
    with engine_of(FakeTiers(), keeper.after_request) as engine:
        engine.generate_text("abc", SamplingParams(max_tokens=2))
    assert read_profile(path, LAYERS, EXPERTS, "model").keys.tolist() == [5, 1, 2]
    path.unlink()
    keeper.save()
    assert path.exists()


def test_a_profile_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    told: list[str] = []
    stop = telemetry.listen(lambda event: told.append(event.message))
    try:
        ProfileKeeper(FakeTiers(), tmp_path / "gone" / "kept.strp").save()
    finally:
        stop()
    assert len(told) == 1
    assert "what was learned of the experts is lost" in told[0]


def test_the_profile_to_begin_with(tmp_path: Path) -> None:
    spec, _ = spec_of(GEOMETRIES["tiny"])
    shape = (spec.num_layers, spec.num_experts)
    assert profile_path(Settings(), spec) is None
    assert starting_profile(Settings(), spec) is None
    named = Settings(expert_profile=tmp_path / "own.strp")
    assert profile_path(named, spec) == tmp_path / "own.strp"
    assert starting_profile(named, spec) is None
    assert not (tmp_path / "own.strp").exists()  # it was only tried
    # A folder has one for each model.
    kept = Settings(profile_dir=tmp_path / "profiles")
    path = profile_path(kept, spec)
    assert path is not None
    assert path.parent == tmp_path / "profiles"
    assert starting_profile(kept, spec) is None
    write_profile(path, ExpertProfile(*shape, 0, np.array([3, 1]), spec.name))
    found = starting_profile(kept, spec)
    assert found is not None
    assert found.keys.tolist() == [3, 1]
    # The one that is named goes first; one of another model is refused.
    write_profile(tmp_path / "own.strp", ExpertProfile(*shape, 0, np.array([2]), "other"))
    with pytest.raises(CheckpointError, match="learned on 'other'"):
        starting_profile(Settings(expert_profile=tmp_path / "own.strp"), spec)
    with pytest.raises(SettingsError, match="--expert-profile cannot write"):
        starting_profile(Settings(expert_profile=tmp_path / "no" / "own.strp"), spec)
