"""How misses are divided at the start, from a clock that is made up, and when that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu import split  # noqa: E402
from strata.gpu.split import Split  # noqa: E402
from strata.tiers.share import Cost  # noqa: E402

TOP_K, STAGES = 10, 16
ASKED, STAGED, IDLE = Cost(2e-5, 6e-5), Cost(4e-5, 9e-5), 1.5e-5


class Copying:
    """A layer whose first experts the card can read, and what stands for the card's clock."""

    def __init__(self, num_reachable: int) -> None:
        self.num_reachable, self.num_named, self.has_staging = num_reachable, 0, False

    def name_first(self, num: int) -> None:
        assert num <= self.num_reachable
        self.num_named = num

    def rehearse(self) -> None:
        pass


class Clock:
    """Of events; copies beside a processor at work take half as long again."""

    copied: ClassVar[list[float]] = []

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.num = len(self.copied)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Clock) -> float:
        return 1e3 * 1.5 * sum(self.copied[self.num : later.num])


def measured_split(monkeypatch, reachable: tuple[int, ...], num_stages: int = STAGES) -> Split:
    tiers = [Copying(num) for num in reachable]
    best = max(tiers, key=lambda tier: tier.num_reachable)
    hand_off = SimpleNamespace(
        share=torch.zeros(8 * TOP_K + 1, dtype=torch.int32),
        sources=torch.zeros(num_stages, dtype=torch.int64), layout=SimpleNamespace(top_k=TOP_K),
    )  # fmt: skip
    pinned = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *args, pin_memory=False, **kw: pinned(*args, **kw))
    Clock.copied.clear()
    graph = SimpleNamespace(replay=lambda: Clock.copied.append(STAGED.of(best.num_named)))
    monkeypatch.setattr(split, "captured", lambda launch: graph if launch() is None else None)
    monkeypatch.setattr(split, "card_seconds", lambda _run, _num: STAGED.of(best.num_named))
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    made = Split(hand_off, tiers, lambda: ASKED, is_card=True)
    made.set(None)
    return made


@pytest.mark.parametrize("reachable", [(0, 12, 5), (12, 12)])
def test_copies_are_measured_where_there_are_any(monkeypatch, reachable: tuple[int, ...]) -> None:
    made = measured_split(monkeypatch, reachable)
    assert made.staged.cost.each == pytest.approx(1.5 * STAGED.each)
    assert made.staged.cost.once == pytest.approx(STAGED.once, abs=1e-5)
    assert made.asked_cost == made.beside_cost == ASKED
    assert made.has_staging


def test_one_expert_to_copy_is_enough_to_measure(monkeypatch) -> None:
    for reachable, num_stages in (((1, 0), STAGES), ((12,), 1)):
        cost = measured_split(monkeypatch, reachable, num_stages).staged.cost
        assert cost.of(1) == pytest.approx(STAGED.of(1), abs=1e-5)


def test_nothing_is_copied_where_the_card_reaches_nothing(monkeypatch) -> None:
    made = measured_split(monkeypatch, (0, 0))
    assert not made.has_staging
    assert not made.counts.any()
    for _ in range(100):
        made.learn(*[(np.full(9, 5), np.full(9, 1.0))] * 3, np.full(9, IDLE), np.full(9, 5.0))
        made.refresh()
    assert not made.has_staging


def test_launches_of_copies_end_where_hardly_any_expert_is_missing(monkeypatch) -> None:
    made = measured_split(monkeypatch, (12,))
    assert made.has_staging
    fast, slow, none = np.full(1, 2e-5), np.full(3, 1e-3), (np.empty(0, np.int64), np.empty(0))
    made.counts = np.minimum(np.arange(8 * TOP_K + 1), STAGES)  # all are copied
    for _ in range(300):
        # Of twelve layers three miss one expert; copies have become slow.
        made.learn(
            none, (np.ones(1, np.int64), fast), (np.ones(3, np.int64), slow), np.full(9, IDLE),
            np.r_[np.ones(3), np.zeros(9)],
        )  # fmt: skip
        made.refresh()
    assert not made.has_staging
