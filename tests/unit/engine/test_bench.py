"""Measuring and comparing, on a fake session and by arithmetic worked by hand."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.fakes import FakeSession

from strata.engine.bench import (
    Measurement,
    Medians,
    busy_share,
    measure,
    peak_memory_bytes,
    random_prompt,
)
from strata.engine.bench_worker import STRATA, Worker
from strata.engine.build import machine_bandwidth, num_threads
from strata.engine.comparison import Comparison
from strata.errors import DeviceError
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def round_of(prompt_s: float, decode_s: float) -> Measurement:
    return Measurement(
        prompt_tokens=100, prompt_s=prompt_s, decode_tokens=10, decode_s=decode_s, ttft_s=prompt_s
    )


def test_a_round_reads_the_prompt_and_decodes_greedily():
    session = FakeSession(50, 100)
    prompt = random_prompt(50, 20, 1)
    seen: list[tuple[int, int]] = []
    measure(session, prompt, 6, on_progress=lambda done, total: seen.append((done, total)))
    result = measure(session, prompt, 6)  # a second round starts from nothing
    assert session.history[:20] == prompt.tolist()
    assert len(session.history) == 26
    first = int(np.argmax(FakeSession(50, 100).prefill(prompt)))
    assert session.history[20] == first
    assert (result.prompt_tokens, result.decode_tokens) == (20, 6)
    assert result.ttft_s >= result.prompt_s
    assert seen[-1] == (26, 26)


def test_prompt_depends_on_the_seed_alone():
    assert np.array_equal(random_prompt(50, 20, 1), random_prompt(50, 20, 1))
    assert not np.array_equal(random_prompt(50, 20, 1), random_prompt(50, 20, 2))
    assert random_prompt(7, 1000, 3).max() == 6


def test_medians_and_ratios_by_hand():
    ours = [round_of(1.0, 1.0), round_of(2.0, 2.0), round_of(4.0, 0.5)]
    theirs = [round_of(2.0, 2.0), round_of(2.0, 1.0), round_of(2.0, 1.0)]
    assert Medians.of(ours) == Medians(50.0, 10.0, 2.0)
    comparison = Comparison(ours, theirs, 0, 0, "", has_flash_attention=False, kl=None)
    assert comparison.prompt_ratios == [2.0, 1.0, 0.5]
    assert comparison.decode_ratios == [2.0, 0.5, 2.0]


def test_busy_share_from_two_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 1 1\n")

    def later(_seconds: float) -> None:
        # 30 user, 10 system, 50 idle, 10 waiting for a disk.
        stat.write_text("cpu  130 0 60 850 60 0 0 0 0 0\ncpu0 1 1 1\n")

    monkeypatch.setattr("time.sleep", later)
    assert busy_share(0.5, stat) == pytest.approx(0.4)
    assert busy_share(0.5, tmp_path / "missing") is None


def test_a_process_that_cannot_load_its_model_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(DeviceError, match=r"gone\.gguf"):
        Worker(STRATA, settings={"model": str(tmp_path / "gone.gguf")})
    assert [process.returncode for process in started] == [0]


def test_machine_figures_are_of_this_world():
    assert 1 <= num_threads(Settings()) <= 4096
    assert num_threads(Settings(threads=3)) == 3
    assert 1e8 < machine_bandwidth(1) < 1e13
    assert 1 << 20 < peak_memory_bytes() < 1 << 45
