"""An arena whose thread cannot be ended says so, and does not wait for it for ever."""

from __future__ import annotations

import pytest

from strata.cpu import expert_arena
from strata.cpu.expert_arena import ExpertArena
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
    monkeypatch.setattr(expert_arena, "_stuck", stuck)
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
    monkeypatch.setattr(expert_arena, "_stuck", stuck)
    server = Server(is_stuck=False)
    opened(server).close()
    assert (server.num_asked, stuck) == (1, [])
