"""An arena whose thread cannot be ended says so, and does not wait for it for ever.

What it keeps of the threads that pack, and what it says where nobody answers.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from strata import _native
from strata.cpu import expert_serving
from strata.cpu.expert_arena import ExpertArena
from strata.cpu.expert_serving import panel_bits
from strata.errors import DeviceError


class Server:
    """One whose thread ends, or does not."""

    def __init__(self, *, is_stuck: bool) -> None:
        self.is_stuck = is_stuck
        self.num_asked = 0

    def stop(self, seconds: float) -> bool:
        assert seconds > 0
        self.num_asked += 1
        return not self.is_stuck


def opened(server: Server) -> ExpertArena:
    arena = object.__new__(ExpertArena)
    arena._server = server
    return arena


def test_a_thread_that_does_not_end_is_told_and_kept(monkeypatch) -> None:
    stuck: list[Server] = []
    monkeypatch.setattr(expert_serving, "_stuck", stuck)
    server = Server(is_stuck=True)
    arena = opened(server)
    with pytest.raises(DeviceError, match="did not end within 10 s"):
        arena.close()
    # Its destructor would wait for the thread.
    assert stuck == [server]
    arena.close()
    assert server.num_asked == 1


def test_a_thread_that_ends_is_let_go(monkeypatch) -> None:
    stuck: list[Server] = []
    monkeypatch.setattr(expert_serving, "_stuck", stuck)
    server = Server(is_stuck=False)
    opened(server).close()
    assert (server.num_asked, stuck) == (1, [])


def test_a_table_of_bits_keeps_no_threads() -> None:
    ctx = _native.Context(1, "scalar")
    before = sys.getrefcount(ctx)
    panel_bits(ctx, "Q8_0")
    assert sys.getrefcount(ctx) == before


def test_measuring_who_does_not_answer_is_an_error(monkeypatch) -> None:
    class Silent(Server):
        def __init__(self, *_: object) -> None:
            super().__init__(is_stuck=False)

        def start(self, number: int) -> None:
            assert number == 0

        def begin(self) -> None:
            pass

        def read_counts(self, out) -> None:
            out[:] = 1

    monkeypatch.setattr(expert_serving, "_native", SimpleNamespace(ExpertServer=Silent))
    monkeypatch.setattr(expert_serving, "_STOP_SECONDS", 0.01)
    arena = object.__new__(ExpertArena)
    arena._spec = SimpleNamespace(top_k=2, hidden_size=32, num_experts=4)
    arena._ctx = arena._source = None
    arena._owners = ()
    arena._layers = [None]
    with pytest.raises(DeviceError, match="gave no answer"):
        arena.measured()
