"""The shipped model: its files, and its answers on a part of the evaluation.

Answers are greedy and the engine's bits are the same everywhere, so a case that is right here is
right on every machine. The whole evaluation, with the real thresholds, is ``training.evaluate``.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from training.eval_answers import Tally, run_task
from training.eval_checks import CHECKS, JSON_TASKS, RECALL_TASKS, TOOL_TASKS
from training.eval_drafts import DraftTotals
from training.eval_long import LENGTHS, code_word_cells
from training.evaluate import ask_sanity, chosen_tasks
from training.quantize import DEMO_FOLDER, check_sizes, demo_types, planned_tensors

import strata
from strata import Engine
from strata.engine.model_file import open_file
from strata.formats.naming import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARDS = sorted(DEMO_FOLDER.glob("*.gguf"))
NUM_CASES = 40
MOST_WRONG = 2
TASKS = ("add_two_digits", *RECALL_TASKS, *JSON_TASKS, *TOOL_TASKS)

pytestmark = pytest.mark.skipif(not SHARDS, reason="the demo is not in src/strata/demo yet")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.open(draft_tokens=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def tallies(engine: Engine) -> dict[str, Tally]:
    return {task.name: run_task(engine, task, NUM_CASES) for task in chosen_tasks(TASKS)}


def test_files_are_within_the_limits():
    check_sizes({path.name: path.stat().st_size for path in SHARDS})


def test_formats_are_mixed_as_planned():
    with open_file(SHARDS[0]) as model_file:
        assert list(model_file.index.paths) == SHARDS
        stored = dict(model_file.index.items())
        planned = planned_tensors(model_file.spec, demo_types())
        assert {plan.name: plan.format for _, plan in planned} == {
            name: entry.format for name, entry in stored.items()
        }
        last = {name for name, entry in stored.items() if entry.path == SHARDS[-1]}
        assert last == {Role.NGRAM_TABLE.value}
        assert model_file.spec.num_draft_layers == 1
        assert model_file.spec.index_budget <= 512
        assert model_file.spec.num_experts >= 32
        assert model_file.spec.context_len >= 8192


def test_twelve_times_twelve(engine: Engine):
    assert ask_sanity(engine)["is_right"]


@pytest.mark.parametrize("name", TASKS)
def test_answers(tallies: dict[str, Tally], name: str):
    tally = tallies[name]
    assert tally.num_cases == NUM_CASES
    assert tally.num_cases - tally.num_right <= MOST_WRONG, tally.wrong
    if name in JSON_TASKS:
        assert tally.num_json == NUM_CASES, tally.wrong


def test_drafts_are_kept(tallies: dict[str, Tally]):
    totals = DraftTotals()
    for tally in tallies.values():
        totals.add(tally.drafts.proposed, tally.drafts.accepted)
    drafts = {"drafts": totals.as_dict()}
    for check in CHECKS:
        if "draft" in check.name:
            share = check.measure(drafts)
            assert share is not None
            assert share >= check.threshold


@pytest.mark.slow
def test_code_words_in_long_texts(engine: Engine):
    cells, tally = code_word_cells(engine, 1)
    assert {cell.num_tokens for cell in cells} == set(LENGTHS)
    assert tally.num_cases - tally.num_right <= MOST_WRONG, tally.wrong


def test_the_first_command_answers_in_five_seconds():
    """Of processor time: what the clock says depends on whatever else the machine does."""
    environment = {**os.environ, "PYTHONPATH": str(Path(strata.__file__).parents[1])}  # noqa: TID251
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "strata.cli", "run", "What is 12*12?"],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "144" in done.stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5.0


def test_bench_counts_the_model_s_memory_alone(tmp_path: Path):
    """The probe of the machine's bandwidth takes 512 MiB; the model must not be charged for it."""
    report = tmp_path / "report.json"
    environment = {**os.environ, "PYTHONPATH": str(Path(strata.__file__).parents[1])}  # noqa: TID251
    subprocess.run(
        [sys.executable, "-m", "strata.cli", "bench", "--rounds", "1", "--prompt-tokens", "16",
         "--decode-tokens", "8", "--json", str(report)],
        capture_output=True, env=environment, timeout=120, check=True,
    )  # fmt: skip
    assert json.loads(report.read_text())["peak_bytes"] < 256 << 20


def test_closed_streams_are_no_fault():
    environment = {**os.environ, "PYTHONPATH": str(Path(strata.__file__).parents[1])}  # noqa: TID251
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec '{sys.executable}' -m strata.cli run Hello <&- >&-"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
