"""A model on a card as ``engine.bench_card`` measures it: times of windows and kernels, memory.

Owns how a floor becomes seconds. What the floors are is ``kernel_work``; nothing here prints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch

from strata.gpu.card_facts import Rates, card_facts, measure_rates
from strata.gpu.kernel_work import Work, prompt_work, window_work
from strata.gpu.profile import KernelTime, card_seconds, kernel_times
from strata.gpu.sampler import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from strata.gpu.model import GpuModel
    from strata.gpu.session import GpuSession

_REPEATS = 20
_PROFILED = 3


@dataclass(frozen=True, slots=True)
class KernelCost:
    """A kernel's part of what was run.

    Attributes:
        name: of its function.
        calls: launches.
        seconds: of all of them.
        num_bytes: the least it must move; None where only activations pass.
        floor_s: the least time for that, or for its products if that is more.
        bound: "memory" or "products": which of the two the floor is.
    """

    name: str
    calls: float
    seconds: float
    num_bytes: float | None = None
    floor_s: float | None = None
    bound: str | None = None


class CardProbe:
    """Measures one loaded model; the card must have nothing else to do.

    Args:
        model: on a card.
    """

    def __init__(self, model: GpuModel) -> None:
        self._model = model
        self._rates: Rates | None = None
        self._peak_bytes = 0  # before the rates were measured

    @property
    def rates(self) -> Rates:
        """The card's ceilings, measured at first use. That takes memory, which is not counted."""
        if self._rates is None:
            device = self._model.device
            self._peak_bytes = torch.cuda.max_memory_allocated(device)
            self._rates = measure_rates(device)
            torch.cuda.reset_peak_memory_stats(device)
        return self._rates

    def ceilings(self) -> Mapping[str, float]:
        """The rates by name."""
        return asdict(self.rates)

    def facts(self) -> Mapping[str, object]:
        """What the card is."""
        return card_facts(self._model.device)

    def memory(self, capacity: int) -> dict[str, int]:
        """Bytes: planned for one conversation, most held so far, taken from the card in all."""
        free, total = torch.cuda.mem_get_info(self._model.device)
        return {
            "planned": self._model.plan(capacity).total_bytes,
            "peak": max(self._peak_bytes, torch.cuda.max_memory_allocated(self._model.device)),
            "taken_with_driver": total - free,
        }

    def window_seconds(self, session: GpuSession, num_rows: int) -> float:
        """What the card works for one greedy window; the session must be reset afterwards.

        Raises:
            DeviceError: experts did not come, so the windows were not whole.
        """
        with self._model.serving_experts():
            seconds = card_seconds(session.relaunch(num_rows, Choice.LIKELIEST), _REPEATS)
        self._model.check_experts()
        return seconds

    def window_kernels(self, session: GpuSession, num_rows: int) -> list[KernelCost]:
        """Its kernels, longest first; the session must be reset afterwards.

        Raises:
            DeviceError: experts did not come, so the windows were not whole.
        """
        position = session.position
        work = window_work(
            self._model.layout,
            self._model.spec,
            num_rows=num_rows,
            position=position,
            kv_format=self._model.kv_format,
        )
        with self._model.serving_experts():
            times = kernel_times(session.relaunch(num_rows, Choice.LIKELIEST), _PROFILED)
        self._model.check_experts()
        return [cost_of(time, work.get(time.name), self.rates) for time in times]

    def prompt_kernels(self, run: Callable[[], object], num_rows: int) -> list[KernelCost]:
        """Kernels of ``run``, which reads one chunk of a prompt; longest first."""
        work = prompt_work(self._model.layout, self._model.spec, num_rows)
        rates = self.rates
        by_tensor_cores = replace(rates, dot_products_per_s=rates.tensor_products_per_s)
        return [
            cost_of(time, work.get(time.name), by_tensor_cores) for time in kernel_times(run, 1)
        ]


def cost_of(time: KernelTime, work: Work | None, rates: Rates) -> KernelCost:
    """A kernel's time beside its floor."""
    if work is None:
        return KernelCost(time.name, time.calls, time.seconds)
    memory_s = work.num_bytes / rates.copy_bytes_per_s
    products_s = work.num_products / rates.dot_products_per_s
    bound = "memory" if memory_s >= products_s else "products"
    floor_s = max(memory_s, products_s)
    return KernelCost(time.name, time.calls, time.seconds, work.num_bytes, floor_s, bound)
