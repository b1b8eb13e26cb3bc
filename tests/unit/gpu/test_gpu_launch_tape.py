"""Launches kept and done again: same results from other values, steps anew, no others noted."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.kernels.conv_prompt import keep_newest  # noqa: E402
from strata.gpu.launch_tape import LaunchTape, can_record  # noqa: E402

RING = 4


def newest(rows, position: int):
    ring = torch.full((RING, rows.shape[1]), torch.nan, device=rows.device)
    keep_newest(rows, ring, position, RING)
    return ring


def test_what_was_launched_is_done_again_in_its_order(device: str) -> None:
    assert can_record()
    rows = torch.randn(6, 40, device=device)
    first, second, third = (torch.full((RING, 40), torch.nan, device=device) for _ in range(3))
    tape, seen = LaunchTape[int](), []

    def step(position: int) -> None:
        seen.append(position)
        keep_newest(first, second, position, RING)

    with tape.recording():
        keep_newest(rows, first, 0, RING)
        tape.step(step, 1)
        keep_newest(second, third, 2, RING)
    for place in (1, 3):
        if place == 3:
            rows.copy_(torch.randn(6, 40))
            for ring in (first, second, third):
                ring.fill_(torch.nan)
            tape.play(3)
        expected = newest(newest(newest(rows, 0), place), 2)
        assert torch.equal(third, expected)
        assert torch.isfinite(third).all()
    assert seen == [1, 3]


def test_only_the_recording_thread_and_time_are_noted(device: str) -> None:
    rows, tape = torch.randn(RING, 8, device=device), LaunchTape[int]()
    ring = torch.zeros(RING, 8, device=device)
    other = threading.Thread(target=newest, args=(rows, 0))
    with tape.recording():
        other.start()
        other.join()
    keep_newest(rows, ring, 0, RING)
    ring.zero_()
    tape.play(0)
    assert not ring.any()


def test_a_failure_while_recording_leaves_launches_as_they_were(device: str) -> None:
    rows, tape = torch.randn(RING, 8, device=device), LaunchTape[int]()
    with pytest.raises(ZeroDivisionError), tape.recording():
        raise ZeroDivisionError
    assert torch.equal(newest(rows, 0), rows)
    tape.play(0)
