"""Costs learned from windows whose clocks and counts are made up from known costs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.split import Split  # noqa: E402
from strata.gpu.window_meter import Seen, WindowMeter  # noqa: E402
from strata.tiers.hand_off import SERVED  # noqa: E402
from strata.tiers.rates import CostMeter  # noqa: E402
from strata.tiers.share import Cost, balanced  # noqa: E402

LAYERS, EXPERTS, TOP_K, SIZE, STAGES = 12, 64, 10, 1000, 16
ASKED, STAGED, IDLE, TRIP = Cost(2e-5, 6e-5), Cost(4e-5, 9e-5), 1.5e-5, 5e-6
DISK = 2e8


class World:
    """Layers whose misses take what ``ASKED`` and ``STAGED`` say.

    Args:
        share: of the misses that is copied.
        seed: of the routing.
        beside: times as long as the processor takes for an expert while others are copied.
    """

    def __init__(self, share: float | None, seed: int = 0, beside: float = 1.0) -> None:
        self.beside = beside
        self.rng = np.random.default_rng(seed)
        hand_off = SimpleNamespace(
            share=torch.zeros(8 * TOP_K + 1, dtype=torch.int32),
            sources=torch.zeros(STAGES, dtype=torch.int64),
            layout=SimpleNamespace(top_k=TOP_K),
        )
        self.tiers = [SimpleNamespace(has_staging=False) for _ in range(LAYERS)]
        self.split = Split(hand_off, self.tiers, lambda: Cost(1e-5, 3e-5), is_card=False)
        self.split.set(share)
        if share is None:
            # As with a card, whose copies were measured at the start.
            self.split._is_balanced = True
        self.served = np.zeros((LAYERS, len(SERVED)), np.int64)
        self.meter = WindowMeter(
            np.full(LAYERS, SIZE), np.zeros(LAYERS, bool), self.split,
            np.ones((LAYERS, EXPERTS), bool), self.served.copy(),
        )  # fmt: skip
        self.now_s = 0.0

    def window(
        self, *, runs: int = 1, reads: int = 0, busy_s: float = 4e-3, slots_s: float = IDLE,
        held_up_s: float = 0.0,
    ) -> None:  # fmt: skip
        """One of one row.

        Args:
            runs: times it was served.
            reads: of a file, each layer.
            busy_s: without layers.
            slots_s: what hits take.
            held_up_s: how much longer one answer in twelve takes, which the host does not see.
        """
        ids = np.stack([self.rng.permutation(EXPERTS)[:TOP_K] for _ in range(LAYERS)])
        is_hit = self.rng.random((LAYERS, TOP_K)) < 0.5
        misses = TOP_K - is_hit.sum(axis=1)
        copied = self.split.counts[misses]
        computed = misses - copied
        read_s = np.where(computed > 0, reads * SIZE / DISK, 0.0)
        each = np.where(copied > 0, self.beside, 1.0) * ASKED.each
        host_s = np.where(computed > 0, ASKED.once + each * computed + read_s, 0.0)
        card_s = np.where(copied > 0, STAGED.once + STAGED.each * copied, slots_s)
        posted = np.arange(LAYERS) * 10_000_000
        begun = posted + (1e9 * card_s).astype(np.int64)
        late_s = held_up_s * (np.arange(LAYERS) == self.rng.integers(LAYERS))
        answered = posted + (1e9 * (host_s + TRIP + late_s)).astype(np.int64)
        rows = {
            "requests": (computed > 0) * runs, "experts": computed * runs,
            "nanoseconds": (1e9 * host_s * runs).astype(np.int64),
            "from_file": np.where(computed > 0, reads, 0),
            "file_bytes": np.where(computed > 0, reads * SIZE, 0),
        }  # fmt: skip
        for name, values in rows.items():
            self.served[:, SERVED.index(name)] += values
        # The card asks as late as its slots are done, and waits for an answer that comes later.
        answered = np.maximum(answered, begun)
        seen = Seen(
            ids[:, None], is_hit, np.stack([posted, begun, answered], axis=1),
            self.served.copy(), self.split.counts,
        )  # fmt: skip
        late = np.where(misses > 0, np.maximum(0.0, (answered - posted) / 1e9 - IDLE), 0.0)
        self.meter.begins(self.now_s, follows=True)
        self.now_s += busy_s + float(late.sum())
        self.meter.begins(self.now_s, follows=True)
        self.meter.count(seen)
        self.split.refresh()


def test_costs_of_both_sides_are_found() -> None:
    world = World(0.4)
    for _ in range(200):
        world.window()
    asked, staged = world.split.asked.cost, world.split.staged.cost
    assert asked.of(4) == pytest.approx(ASKED.of(4) + TRIP, rel=0.02)
    assert asked.each == pytest.approx(ASKED.each, rel=0.05)
    assert staged.of(3) == pytest.approx(STAGED.of(3), rel=0.02)
    assert world.split.idle.value == pytest.approx(IDLE, rel=0.02)
    # What a window takes without what it waited for.
    assert world.meter.free_s == pytest.approx(4e-3, rel=0.03)


def test_windows_that_were_served_twice_say_nothing_of_cost() -> None:
    world = World(0.0)
    for _ in range(20):
        world.window(runs=2)
    assert world.split.asked.weight == 0
    world.window()
    assert world.split.asked.weight > 0
    counts = world.meter.counts(world.served)
    assert counts.windows == 21
    assert counts.total("lookups") == 21 * LAYERS * TOP_K


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_reads_of_a_file_are_told_from_computing(share: float) -> None:
    # Where some are copied the processor is slower, which is not the disk's doing.
    world = World(share, beside=3.0)
    world.split.asked.add(np.full(50, 5), np.full(50, ASKED.of(5) + TRIP))  # of before
    assert world.meter.read_cost is None
    for number in range(120):
        world.window(reads=(3, 0, 1)[number % 3])
    each = world.split.beside.cost.each / 3.0 if share else world.split.asked.cost.each
    assert each == pytest.approx(ASKED.each, rel=0.05)
    for num in (1, 3):
        wanted = pytest.approx(num * SIZE / DISK, rel=0.1, abs=5e-6 if share else 0.0)
        assert world.meter.read_cost.of(num) == wanted
    counts = world.meter.counts(world.served)
    assert counts.total("file_bytes") == SIZE * counts.total("from_file") > 0


def test_the_division_follows_what_things_cost() -> None:
    world = World(None)
    world.split._take(balanced(8 * TOP_K, Cost(1e-5, 3e-5), Cost(1e-5, 3e-5))[0])
    before = world.split.counts[:11].tolist()
    for _ in range(400):
        world.window()
    asked = Cost(ASKED.once + TRIP, ASKED.each)
    expected = balanced(10, asked, STAGED, idle=IDLE, max_staged=STAGES)[0].tolist()
    found = world.split.counts[:11].tolist()
    assert found != before
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 1
    assert all(tier.has_staging for tier in world.tiers)


def test_answers_that_are_held_up_do_not_make_the_processor_slow() -> None:
    world, held_up_s = World(0.0), 4e-4
    for _ in range(300):
        # Slots take longer than nearly every answer: of the layers that wait most were held up.
        world.window(slots_s=4.5e-4, held_up_s=held_up_s)
    expected = ASKED.of(5) + TRIP + held_up_s / LAYERS
    assert world.split.asked.cost.of(5) == pytest.approx(expected, rel=0.05)


def test_copies_stop_where_they_slow_the_processor_as_much_as_they_help() -> None:
    world = World(None, beside=3.0)
    world.split._take(balanced(8 * TOP_K, Cost(1e-5, 3e-5), Cost(1e-5, 3e-5))[0])
    assert world.split.has_staging
    world.split.asked.add(np.full(50, 5), np.full(50, ASKED.of(5) + TRIP))  # before they began
    for _ in range(400):
        world.window()
    assert not world.split.has_staging
    assert world.split.beside.cost.each > 2 * world.split.asked.cost.each
    for _ in range(200):
        world.window()
    assert not world.split.has_staging  # what they did is remembered


def test_a_measurement_that_was_disturbed_is_found_out() -> None:
    world = World(None)
    # The processor was busy with something else as it was measured alone, so some of a layer's
    # misses would always be copied, and what it takes alone would never be seen.
    split = world.split
    split._is_measured = True
    split.asked, split.beside = CostMeter(Cost(2e-3, 1e-7)), CostMeter(Cost(4e-5, 7e-5))
    split._take(split._balanced()[0])
    for _ in range(400):
        world.window()
    assert split.asked.weight > 0
    assert split.asked_cost.of(1) == pytest.approx(ASKED.of(1) + TRIP, rel=0.1)


def test_a_processor_that_becomes_slow_where_nothing_is_copied_has_copies_begin() -> None:
    one = World(None).split
    link = Cost(4e-5, 4e-4)  # so slow that nothing is copied

    def learn(processor: Cost, *, is_beside: bool = False) -> None:
        nums = np.tile(np.arange(1, 10), 5)
        seen, none = (nums, processor.once + processor.each * nums), (nums[:0], np.empty(0))
        copies = (np.ones(5, np.int64), np.full(5, link.of(1)))
        one.learn(
            none if is_beside else seen, seen if is_beside else none,
            copies if is_beside else none, np.full(5, IDLE), np.full(45, 5.0),
        )  # fmt: skip
        one.refresh()

    for _ in range(200):
        learn(Cost(2e-5, 7e-5), is_beside=True)
    for _ in range(200):
        learn(ASKED)
    assert not one.has_staging
    # Another program takes its cores. What it took beside copies was seen before that.
    slow = Cost(ASKED.once, 8 * ASKED.each)
    for _ in range(200):
        learn(slow)
        if one.has_staging:
            break
        assert one.asked_cost.of(5) == one.asked.cost.of(5)
    assert one.has_staging


def test_a_side_that_is_of_no_use_is_left_out_of_the_launches() -> None:
    world = World(None)
    world.split._take(balanced(8 * TOP_K, Cost(1e-5, 3e-5), Cost(1e-5, 3e-5))[0])
    versions = {id(world.split.counts)}
    for _ in range(100):
        world.window()
        versions.add(id(world.split.counts))
    # Seldom: windows would be captured anew each time.
    assert len(versions) <= 5
