"""Times on the card, by its own clock: of launches as a whole, and of each kernel in them.

A kernel that is let in before the one ahead of it has ended is on the clock while it waits, so the
kernels of a window together may take longer than the window.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel, or one kind of copy, in what was run; means over its repetitions.

    Attributes:
        name: the kernel's function, as ``_product_kernel``.
        calls: launches.
        seconds: of all of them.
    """

    name: str
    calls: float
    seconds: float


def card_seconds(run: Callable[[], object], repeats: int) -> float:
    """Median time the card takes for ``run``, which only launches; the first two do not count."""
    events = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(repeats + 3)
    ]
    for event in events:
        event.record()
        run()
    torch.cuda.synchronize()
    times = [float(one.elapsed_time(next_)) for one, next_ in itertools.pairwise(events)]
    return statistics.median(times[2:]) / 1e3


def kernel_times(run: Callable[[], object], repeats: int) -> list[KernelTime]:
    """Every kernel that ``run`` makes the card work on, longest first."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    # The host's own calls are in the list too.
    on_card = (
        (event.name, event.time_range.elapsed_us())
        for event in seen.events()
        if event.device_type == torch.profiler.DeviceType.CUDA
    )
    return grouped(on_card, repeats)


def grouped(events: Iterable[tuple[str, float]], repeats: int) -> list[KernelTime]:
    """(name, microseconds) of single launches as one entry for each name, longest first."""
    calls: dict[str, int] = {}
    microseconds: dict[str, float] = {}
    for name, duration in events:
        calls[name] = calls.get(name, 0) + 1
        microseconds[name] = microseconds.get(name, 0.0) + duration
    times = [
        KernelTime(name, calls[name] / repeats, microseconds[name] / repeats / 1e6)
        for name in calls
    ]
    return sorted(times, key=lambda item: -item.seconds)
