"""Page-locked memory is let go of, whatever becomes of its owner; the driver is a stand-in."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
from strata.gpu import host_memory  # noqa: E402
from strata.gpu.host_memory import HostMemory  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

BLOBS = [(0x10000, 3, 4096), (0x90000, 2, 4096)]


class Owner:
    """Of the memory: notes when it is freed."""

    def __init__(self, events: list[str]) -> None:
        weakref.finalize(self, events.append, "freed")


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def make(monkeypatch, events: list[str]) -> Callable[[], HostMemory]:
    class Driver:
        def cuMemHostRegister_v2(self, address, size, _flags) -> int:
            events.append(f"lock {address.value:#x} {size.value}")
            return 0

        def cuMemHostUnregister(self, address) -> int:
            events.append(f"let go {address.value:#x}")
            return 0

    def zeros(shape, dtype, pin_memory):
        assert pin_memory
        return torch.zeros(shape, dtype=dtype)

    cuda = SimpleNamespace(synchronize=lambda: events.append("wait"))
    monkeypatch.setattr(host_memory, "_driver", Driver)
    monkeypatch.setattr(
        host_memory, "torch", SimpleNamespace(zeros=zeros, uint8=torch.uint8, cuda=cuda)
    )
    card = SimpleNamespace(type="cuda")
    return lambda: HostMemory(BLOBS, card, None, (1, 4096), Owner(events), print)


LOCKED = ["lock 0x10000 12288", "lock 0x90000 8192"]
LET_GO = ["wait", "let go 0x10000", "let go 0x90000", "freed"]


def test_close_waits_for_the_card_and_lets_go_once(make, events: list[str]) -> None:
    memory = make()
    memory.close()
    memory.close()
    assert events == LOCKED + LET_GO


def test_what_was_never_closed_lets_go_with_its_owner(make, events: list[str]) -> None:
    def fail() -> None:
        memory = make()
        raise ValueError(memory.locked_bytes)

    with pytest.raises(ValueError, match=str(5 * 4096)):
        fail()
    gc.collect()
    assert events == LOCKED + LET_GO


class Event:
    """What of a stream had been launched, by the stand-in's account."""

    def __init__(self, events: list[str]) -> None:
        self._events = events
        self._what = ""

    def record(self, stream: str) -> None:
        self._what = f"what {stream} had by {len(self._events)}"

    def synchronize(self) -> None:
        self._events.append(f"await {self._what}")


def test_a_buffer_is_filled_once_the_card_has_read_it(monkeypatch, events: list[str]) -> None:
    # Copies of expert n are noted as "fill n"; the card's reads of it as "read n".
    def fill(_layer: int, experts: list[int], _places: list[int], *, is_passing: bool) -> None:
        assert not is_passing
        events.append(f"fill {experts[0]}")

    cuda = SimpleNamespace(
        synchronize=lambda: events.append("await all"), Event=lambda: Event(events)
    )
    fake = SimpleNamespace(
        zeros=lambda shape, dtype, pin_memory: torch.zeros(shape, dtype=dtype),
        uint8=torch.uint8, cuda=cuda,
    )  # fmt: skip
    monkeypatch.setattr(host_memory, "torch", fake)
    monkeypatch.setattr(host_memory, "_driver", object)
    memory = HostMemory([], SimpleNamespace(type="cuda"), None, (1, 4096), None, fill)
    places = []
    for number, stream in enumerate(["a", "a", "b", None, "a", "a"]):
        places += memory.bounced([(0, number)], stream).tolist()
        events.append(f"read {number}")
    assert len(set(places)) == 2
    assert places[::2] == places[:1] * 3
    assert events == [
        "await all", "fill 0", "read 0",
        "fill 1", "read 1",  # beside the card's read of 0
        "await what a had by 3", "fill 2", "read 2",
        "await what a had by 5", "fill 3", "read 3",
        "await all", "fill 4", "read 4",  # nobody knows who reads 3
        "fill 5", "read 5",
    ]  # fmt: skip
