"""Captures that garbage of other conversations must not break."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.graphs import captured, uncollected  # noqa: E402


class Cycle:
    """Garbage that only a collection frees."""

    num_freed = 0

    def __init__(self, graph=None) -> None:
        self.graph, self.itself = graph, self

    def __del__(self) -> None:
        Cycle.num_freed += 1


def make_garbage(graph=None) -> None:
    """More than a collection waits for, and something in it that wants to be freed."""
    Cycle(graph)
    kept = [[number] for number in range(100_000)]
    del kept


def test_nothing_is_collected_meanwhile_and_everything_afterwards() -> None:
    gc.collect()
    before = Cycle.num_freed
    with uncollected():
        make_garbage()
        assert Cycle.num_freed == before
    assert gc.isenabled()
    make_garbage()
    assert Cycle.num_freed > before
    gc.collect()


def test_who_collects_by_hand_is_left_to_it() -> None:
    gc.disable()
    try:
        with pytest.raises(KeyError), uncollected():
            raise KeyError
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_a_graph_of_a_conversation_that_is_over_is_freed_after_a_capture() -> None:
    x = torch.zeros(8, device="cuda")
    make_garbage(captured(lambda: x.add_(1)))

    def launch() -> None:
        make_garbage(captured_before.pop() if captured_before else None)
        x.add_(1)

    captured_before = [captured(lambda: x.add_(1)) for _ in range(4)]
    graph = captured(launch)
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 8
