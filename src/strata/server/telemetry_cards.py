"""What graphics cards tell of themselves: load, memory, temperature, power, link.

Owns every call of NVML. Works without a card, a driver or the package ``nvidia-ml-py``: then there
are no cards. A value that cannot be read is None and the others are still told.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_KIB: Final = 1024
_MILLI: Final = 1e-3


@dataclass(frozen=True, slots=True)
class CardReading:
    """One card now. Shares from 0 to 1; memory in bytes; power in watts; rates in bytes/s."""

    index: int
    name: str | None = None
    load: float | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    received_bytes_per_s: float | None = None
    sent_bytes_per_s: float | None = None
    link_generation: int | None = None
    link_width: int | None = None


@dataclass(frozen=True, slots=True)
class CardsReading:
    """All cards as one: sums of memory, power and rates, mean load, hottest temperature.

    A sum leaves out what one card does not tell only where no card tells it; a part of a sum would
    pass for the whole.
    """

    count: int
    name: str | None
    load: float | None
    mem_used: int | None
    mem_total: int | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    received_bytes_per_s: float | None
    sent_bytes_per_s: float | None


def as_one(cards: Sequence[CardReading]) -> CardsReading:
    """The cards of a machine together; all None without a card."""
    loads = _told(card.load for card in cards)
    heats = _told(card.temperature_c for card in cards)
    names = [card.name for card in cards if card.name is not None]

    def total(values: Iterable[float | None]) -> float | None:
        told = list(values)
        return None if not told or None in told else sum(_told(told))

    def total_bytes(values: Iterable[int | None]) -> int | None:
        summed = total(values)
        return None if summed is None else int(summed)

    return CardsReading(
        count=len(cards),
        name=" + ".join(names) or None,
        load=sum(loads) / len(loads) if loads else None,
        mem_used=total_bytes(card.mem_used for card in cards),
        mem_total=total_bytes(card.mem_total for card in cards),
        temperature_c=max(heats, default=None),
        power_w=total(card.power_w for card in cards),
        power_limit_w=total(card.power_limit_w for card in cards),
        received_bytes_per_s=total(card.received_bytes_per_s for card in cards),
        sent_bytes_per_s=total(card.sent_bytes_per_s for card in cards),
    )


class Cards:
    """The cards of this machine.

    Args:
        nvml: the module ``pynvml``; tests give one of their own. None: there are no cards.
    """

    def __init__(self, nvml: Any = None) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        count = self._try(lambda: self._start(nvml))
        for index in range(count or 0):
            # A card that has fallen off the bus keeps its number and tells nothing.
            self._handles.append(self._try(partial(nvml.nvmlDeviceGetHandleByIndex, index)))

    @classmethod
    def of_machine(cls) -> Cards:
        """Those NVML knows; none where it is not installed."""
        try:
            import pynvml
        except ImportError:
            return cls(None)
        return cls(pynvml)

    def read(self) -> list[CardReading]:
        """Every card, now. Takes some 40 ms a card, in which the link's traffic is measured."""
        return [self._read_card(index, handle) for index, handle in enumerate(self._handles)]

    def close(self) -> None:
        """Gives NVML back."""
        if self._handles:
            self._handles = []
            self._try(lambda: self._nvml.nvmlShutdown())

    @staticmethod
    def _start(nvml: Any) -> int:
        if nvml is None:
            return 0
        nvml.nvmlInit()
        return int(nvml.nvmlDeviceGetCount())

    def _read_card(self, index: int, handle: Any) -> CardReading:
        if handle is None:
            return CardReading(index)
        nvml, read = self._nvml, self._try
        memory = read(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        name = read(lambda: nvml.nvmlDeviceGetName(handle))

        def rate(counter: str) -> float | None:
            told = read(
                lambda: nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, counter)),
            )
            return None if told is None else float(told) * _KIB

        def watts(call: Callable[[Any], int]) -> float | None:
            told = read(lambda: call(handle))
            return None if told is None else told * _MILLI

        load = read(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return CardReading(
            index=index,
            name=name.decode(errors="replace") if isinstance(name, bytes) else name,
            load=None if load is None else load / 100,
            mem_used=None if memory is None else int(memory.used),
            mem_total=None if memory is None else int(memory.total),
            temperature_c=read(
                lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            ),
            power_w=watts(lambda it: nvml.nvmlDeviceGetPowerUsage(it)),
            power_limit_w=watts(lambda it: nvml.nvmlDeviceGetEnforcedPowerLimit(it)),
            received_bytes_per_s=rate("NVML_PCIE_UTIL_RX_BYTES"),
            sent_bytes_per_s=rate("NVML_PCIE_UTIL_TX_BYTES"),
            link_generation=read(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            link_width=read(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        )

    @staticmethod
    def _try(read: Callable[[], Any]) -> Any:
        """What was read, or None: drivers differ in what they refuse, and how."""
        try:
            return read()
        except Exception:  # noqa: BLE001 - telemetry is worth less than the server
            return None


def _told(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
