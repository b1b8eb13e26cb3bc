"""Fewer slots and more again: who stays, what is given back, and what a refusal leaves.

Memory is a stand-in that keeps books; that bits stay the same is tested with models.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata import telemetry  # noqa: E402
from strata.errors import DeviceError  # noqa: E402
from strata.gpu import slot_memory  # noqa: E402
from strata.gpu.slot_limit import PoolRoom, SlotLimit  # noqa: E402
from strata.gpu.slot_memory import SlotMemory  # noqa: E402
from strata.gpu.slot_table import SlotTable  # noqa: E402
from strata.tiers.slots import EMPTY, Residency, layer_slots, shared_slots  # noqa: E402

LAYERS, EXPERTS, SIZE = 2, 5, 100


class Books:
    """Bytes that are there, one flag each; refuses as told."""

    def __init__(self, num_bytes: int) -> None:
        self.has = np.ones(num_bytes, bool)
        self.refuses_from: int | None = None
        self.events: list[str] = []

    def release(self, address: int, num_bytes: int) -> int:
        self.events.append("release")
        assert self.has[address : address + num_bytes].all()
        self.has[address : address + num_bytes] = False
        return num_bytes

    def restore(self, address: int, num_bytes: int) -> None:
        self.events.append("restore")
        if self.refuses_from is not None and address + num_bytes > self.refuses_from:
            raise DeviceError("the card refused memory for slots.")
        self.has[address : address + num_bytes] = True


class Made:
    def __init__(self, *, is_shared: bool) -> None:
        num = 8
        layout = (shared_slots if is_shared else layer_slots)(LAYERS, EXPERTS, num)
        self.residency = Residency(layout)
        self.table = SlotTable(self.residency, torch.device("cpu"))
        self.residency.fill(np.arange(LAYERS * EXPERTS).reshape(LAYERS, -1).T.reshape(-1).tolist())
        self.arrive()
        self.books = Books(num * SIZE)
        rooms = [PoolRoom(int(pool[0]) * SIZE, SIZE) for pool in layout.pools]
        self.limit = SlotLimit(
            self.residency, self.table, self.books, rooms,
            lambda: self.books.events.append("settled"),
        )  # fmt: skip

    def arrive(self) -> None:
        """Whoever is on the way is there."""
        slots = self.table.wanting()
        self.table.enter(slots.tolist(), self.residency.key_in[slots].tolist())
        self.table.send()

    def check(self) -> None:
        """Nobody is found where no memory is."""
        layout = self.residency.layout
        for layer in range(LAYERS):
            for expert, place in enumerate(self.table.on_card[layer].tolist()):
                if place >= 0:
                    slot = layout.first_slot(layer) + place
                    assert self.books.has[slot * SIZE : (slot + 1) * SIZE].all()
                    assert self.table._held[slot] == layer * EXPERTS + expert


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_best_stay_and_memory_is_given_back(*, is_shared: bool) -> None:
    made = Made(is_shared=is_shared)
    heat = np.arange(LAYERS * EXPERTS)[::-1].copy()
    heat[[7, 3]] = 100, 99
    resident = set(made.residency.resident_keys.tolist())
    made.limit.change(4, heat)
    assert made.limit.num_open == 4
    assert made.limit.closed_bytes == 4 * SIZE
    assert made.books.has.sum() == 4 * SIZE
    # The table is sent, and what runs is waited for, before memory goes.
    assert made.books.events[0] == "settled"
    made.check()
    kept = set(made.residency.resident_keys.tolist())
    assert len(kept) == 4
    if is_shared:
        best = sorted(resident, key=lambda key: (-heat[key], key))[:4]
        assert kept == set(best)
    else:
        for layer in range(LAYERS):
            own = [key for key in resident if key // EXPERTS == layer]
            best = sorted(own, key=lambda key: (-heat[key], key))[:2]
            assert {key for key in kept if key // EXPERTS == layer} == set(best)
    made.arrive()
    made.check()
    made.limit.change(8, heat)
    assert made.books.has.all()
    made.check()
    # What opened is to be filled with the best of the others.
    assert (made.residency.key_in != EMPTY).all()
    made.arrive()
    made.check()
    assert made.table.num_held() == [4, 4] if not is_shared else sum(made.table.num_held()) == 8


@pytest.mark.parametrize("refuses_from", [500, 799])
@pytest.mark.parametrize("is_shared", [False, True])
def test_a_refusal_leaves_everything_as_it_was(refuses_from: int, *, is_shared: bool) -> None:
    made = Made(is_shared=is_shared)
    heat = np.arange(LAYERS * EXPERTS)
    made.limit.change(4, heat)
    made.arrive()
    has, keys = made.books.has.copy(), made.residency.key_in.copy()
    table = made.table.on_card.clone()
    made.books.refuses_from = refuses_from
    with pytest.raises(DeviceError, match="refused memory for slots"):
        made.limit.change(8, heat)
    assert np.array_equal(made.books.has, has)
    assert np.array_equal(made.residency.key_in, keys)
    assert made.limit.num_open == 4
    made.table.send()
    assert torch.equal(made.table.on_card, table)
    made.books.refuses_from = None
    made.limit.change(8, heat)
    made.check()


class CountedSegments:
    """Ten segments of ten bytes; a few of them may be refused."""

    address, size, count = 1000, 10, 10

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.refused: set[int] = set()

    def take(self, number: int) -> bool:
        if number in self.refused:
            raise DeviceError("no.")
        is_new = number not in self.there
        self.there.add(number)
        return is_new

    def release(self, number: int) -> None:
        self.there.discard(number)

    def tensor(self, num_bytes: int) -> torch.Tensor:
        return torch.ones(num_bytes, dtype=torch.uint8)

    def close(self) -> None:
        self.there.clear()


def test_only_whole_segments_are_given_back_and_all_or_none_taken() -> None:
    segments = CountedSegments()
    memory = SlotMemory(95, torch.device("cpu"), "slots", segments)
    assert segments.there == set(range(10))
    assert memory.num_bytes == 95
    assert memory.release(1025, 40) == 30  # bytes 25 to 65: segments 3, 4, 5
    assert segments.there == {0, 1, 2, 6, 7, 8, 9}
    segments.refused = {5}
    with pytest.raises(DeviceError):
        memory.restore(1025, 40)
    assert segments.there == {0, 1, 2, 6, 7, 8, 9}
    segments.refused = set()
    memory.restore(1025, 40)
    assert segments.there == set(range(10))


def test_a_card_without_room_is_told_and_nothing_is_kept() -> None:
    segments = CountedSegments()
    segments.refused = {7}
    with pytest.raises(DeviceError, match="the card refused 95 B for slots"):
        SlotMemory(95, torch.device("cpu"), "slots", segments)
    assert segments.there == set()


def test_without_segments_memory_stays() -> None:
    memory = SlotMemory(64, torch.device("cpu"), "slots", None)
    assert memory.release(memory._memory.data_ptr(), 64) == 0
    memory.restore(memory._memory.data_ptr(), 64)


@pytest.mark.parametrize("error", [OSError("no driver"), DeviceError("no."), RuntimeError("bad")])
def test_a_driver_without_these_calls_has_ordinary_memory(monkeypatch, error: Exception) -> None:
    told: list[str] = []
    stop = telemetry.listen(lambda event: told.append(event.message))

    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(slot_memory, "Segments", refused)
    assert slot_memory._tried(100, torch.device("cuda")) is None
    stop()
    assert told == [f"slots keep their memory once they have it: {error}"]
    memory = slot_memory.slot_memory(100, torch.device("cpu"), "slots")
    assert memory.num_bytes == 100
