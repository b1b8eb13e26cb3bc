"""The order of measuring on a card and its report, on a fake session and a fake card."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console
from tests.fakes import FakeSession

from strata.cli.bench_card import print_card
from strata.cli.bench_wanted import Wanted, sizes_of
from strata.engine.bench_card import WARM_UP, WINDOWS, CardPlan, WindowCost, measure_card
from strata.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

VOCAB = 50


@dataclass(frozen=True)
class FakeCost:
    name: str
    seconds: float
    num_bytes: float | None = None
    floor_s: float | None = None
    bound: str | None = None
    calls: float = 2.0


KERNELS = [
    FakeCost("_product_kernel", 60e-6, 2e8, 50e-6, "memory"),
    FakeCost("_entry_kernel", 30e-6, 1e8, 25e-6, "products"),
    FakeCost("_silu_kernel", 10e-6),
]


@dataclass
class FakeProbe:
    """Notes what it is asked, and where the session stood."""

    asked: list[tuple[object, ...]] = field(default_factory=list)

    def facts(self) -> Mapping[str, object]:
        return {"name": "card", "driver": "580.1", "torch": "2.11", "triton": "3.6"}

    def ceilings(self) -> Mapping[str, float]:
        self.asked.append(("ceilings",))
        return {"copy_bytes_per_s": 4e12, "dot_products_per_s": 6e13, "tensor_products_per_s": 9e14}

    def memory(self, capacity: int) -> Mapping[str, int]:
        self.asked.append(("memory", capacity))
        return {"planned": 1000 << 20, "peak": 1010 << 20, "taken_with_driver": 1500 << 20}

    def window_seconds(self, session: FakeSession, num_rows: int) -> float:
        self.asked.append(("seconds", num_rows, session.position))
        return 1e-4 * num_rows

    def window_kernels(self, session: FakeSession, num_rows: int) -> Sequence[FakeCost]:
        self.asked.append(("kernels", num_rows, session.position))
        return KERNELS

    def prompt_kernels(self, run: Callable[[], object], num_rows: int) -> Sequence[FakeCost]:
        run()
        self.asked.append(("prompt", num_rows))
        return KERNELS


def prompt_of(length: int) -> np.ndarray:
    return (np.arange(length) % VOCAB).astype(np.int32)


def run(plan: CardPlan) -> tuple[FakeSession, FakeProbe, object, list[tuple[int, int]]]:
    session, probe, seen = FakeSession(VOCAB, plan.capacity), FakeProbe(), []
    report = measure_card(
        session, probe, plan, prompt_of, on_progress=lambda *step: seen.append(step)
    )
    return session, probe, report, seen


def test_windows_follow_the_context_and_the_state_is_dropped_afterwards() -> None:
    plan = CardPlan(prompts=(20,), contexts=(30,), rows=(1, 3), decode_tokens=5, rounds=2)
    session, probe, report, seen = run(plan)
    # 28 windows of one row, as many of three, all kept; only then is the card asked.
    end = 30 + (WARM_UP + WINDOWS) * 4
    assert probe.asked[:4] == [
        ("seconds", 1, end), ("kernels", 1, end), ("seconds", 3, end), ("kernels", 3, end)
    ]  # fmt: skip
    assert session.decode_rows.count(3) == WARM_UP + WINDOWS
    assert session.position == 0
    # Measuring the card's rates takes memory, so the peak is read before.
    assert [item[0] for item in probe.asked[-2:]] == ["memory", "ceilings"]
    assert len(report.prompts[20]) == 2  # the first round is not counted
    assert seen[-1][0] == seen[-1][1] == len(seen)


def test_everything_fits_the_capacity_the_plan_asks_for() -> None:
    # The fake refuses to pass its capacity; the longest of either kind decides.
    for plan in (CardPlan((10,), (40,)), CardPlan((4000,), (4,)), CardPlan((1,), (1,))):
        run(plan)
    assert CardPlan((4000,), (4,), decode_tokens=7).capacity == 4008


def test_the_prompt_s_first_step_is_profiled_unless_it_is_a_window() -> None:
    # The fake reads eight tokens a step: those are decode windows, whose kernels are known.
    _, probe, report, _ = run(CardPlan(prompts=(20,), contexts=(5,), rows=(1,)))
    assert "prompt" not in [item[0] for item in probe.asked]
    assert report.prompt_kernel_tokens == 0


def test_a_longer_first_step_is_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.STEP_TOKENS", 16)
    _, probe, report, _ = run(CardPlan(prompts=(20,), contexts=(5,), rows=(1,)))
    assert ("prompt", 16) in probe.asked
    assert report.prompt_kernel_tokens == 16
    assert [kernel.name for kernel in report.prompt_kernels] == [item.name for item in KERNELS]


def test_figures_by_hand_and_as_json() -> None:
    cost = WindowCost(context=30, rows=2, wall_s=3e-4, card_s=2e-4, kernels=KERNELS)
    assert cost.host_s == pytest.approx(1e-4)
    assert cost.floor_s == pytest.approx(75e-6)
    _, _, report, _ = run(CardPlan(prompts=(9, 20), contexts=(5, 30), rows=(1, 2), rounds=1))
    data = json.loads(json.dumps(report.as_dict()))
    assert [item["tokens"] for item in data["prompts"]] == [9, 20]
    assert [(item["context"], item["rows"]) for item in data["windows"]] == [
        (5, 1), (5, 2), (30, 1), (30, 2)
    ]  # fmt: skip
    first = data["windows"][0]
    assert first["host_s"] == pytest.approx(first["wall_s"] - 1e-4)
    assert first["kernels"][1]["bound"] == "products"
    assert data["memory_bytes"]["planned"] == 1000 << 20


def test_tables_name_shares_and_floors() -> None:
    _, _, report, _ = run(CardPlan(prompts=(9,), contexts=(5,), rows=(1, 2), rounds=1))
    out = io.StringIO()
    print_card(Console(file=out, width=200, highlight=False), report)
    text = out.getvalue()
    assert "planned 1000.00 MiB, peak 1010.00 MiB (+1.0 %);" in text
    assert "copies 4000.0 GB/s, 8-bit products 60 T/s" in text
    row = next(line for line in text.splitlines() if line.startswith("_product_kernel")).split()
    assert row == ["_product_kernel", "2", "30.00", "60.0", "60.0", "%", "190.73", "MiB", "50.0",
                   "memory", "1.2x"]  # fmt: skip
    rest = next(line for line in text.splitlines() if line.startswith("_silu_kernel")).split()
    assert rest[-3:] == ["-", "-", "-"]


def test_lengths_fit_the_model_unless_they_are_asked_for() -> None:
    nothing = Wanted(None, 64, 3, None, None, None)
    assert nothing.card_plan(262_144).prompts == (512, 4096, 16384, 32768)
    assert nothing.card_plan(8192).prompts == (512, 4096)
    assert nothing.card_plan(8192).contexts == (4096,)
    assert nothing.card_plan(1000).contexts == (500,)
    assert nothing.card_plan(300).prompts == (235,)
    assert Wanted(700, 64, 3, None, None, (9,)).card_plan(300).prompts == (700,)
    assert sizes_of("--prompts", "512, 4096") == (512, 4096)
    for text in ("", "0", "1,,2", "-4", "a"):
        with pytest.raises(SettingsError, match="--prompts cannot use"):
            sizes_of("--prompts", text)
