"""What the machine tells of itself: processor, memory, drives, and the server's two processes.

Owns every call of psutil. A value that cannot be read is None and the others are still told.
"""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCK_FOLDER: Final = Path("/sys/block")
_CPU_FACTS: Final = Path("/proc/cpuinfo")
# Neither of these is a drive: their bytes are counted at the drives below them, or lie in memory.
_NO_DRIVE: Final = re.compile(r"^(loop|dm-|ram|zram|md|sr|fd|nbd)")


@dataclass(frozen=True, slots=True)
class HostReading:
    """The machine now. Shares from 0 to 1; memory in bytes; rates in bytes/s."""

    cpu_load: float | None = None
    cpu_temperature_c: float | None = None
    ram_used: int | None = None
    ram_total: int | None = None
    swap_used: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_written_bytes_per_s: float | None = None
    server_bytes: int | None = None
    engine_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What does not change while the server runs."""

    cpu_name: str | None
    cores: int | None
    threads: int | None
    ram_total: int | None
    system: str


class Host:
    """This machine. ``read`` gives rates since the reading before, so the first has none."""

    def __init__(self) -> None:
        self._drives = drives()
        self._before: tuple[float, int, int] | None = None
        # The first call only sets the mark that the next one measures from.
        _try(lambda: psutil.cpu_percent(None))

    def read(self, engine_pid: int | None = None) -> HostReading:
        """The machine, now; a millisecond or two."""
        memory = _try(psutil.virtual_memory)
        load = _try(lambda: psutil.cpu_percent(None))
        read_rate, write_rate = self._drive_rates()
        return HostReading(
            cpu_load=None if load is None else load / 100,
            cpu_temperature_c=_try(_hottest_core),
            # What programs could not have: caches the system gives up do not count as used.
            ram_used=None if memory is None else memory.total - memory.available,
            ram_total=None if memory is None else memory.total,
            swap_used=_try(lambda: psutil.swap_memory().used),
            disk_read_bytes_per_s=read_rate,
            disk_written_bytes_per_s=write_rate,
            server_bytes=_try(lambda: psutil.Process().memory_info().rss),
            engine_bytes=None
            if engine_pid is None
            else _try(lambda: psutil.Process(engine_pid).memory_info().rss),
        )

    def _drive_rates(self) -> tuple[float | None, float | None]:
        counted = _try(lambda: psutil.disk_io_counters(perdisk=True, nowrap=True)) or {}
        told = [counter for name, counter in counted.items() if name in self._drives]
        if not told:
            return None, None
        now = (
            time.monotonic(),
            sum(counter.read_bytes for counter in told),
            sum(counter.write_bytes for counter in told),
        )
        before, self._before = self._before, now
        if before is None or now[0] <= before[0]:
            return None, None
        span_s = now[0] - before[0]
        return max(0, now[1] - before[1]) / span_s, max(0, now[2] - before[2]) / span_s


def drives(folder: Path = _BLOCK_FOLDER) -> frozenset[str]:
    """Names of whole drives; a partition's bytes are its drive's already."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        # Elsewhere only drives are counted to begin with.
        names = list(_try(lambda: psutil.disk_io_counters(perdisk=True)) or ())
    return frozenset(name for name in names if not _NO_DRIVE.match(name))


def facts_of_host() -> HostFacts:
    """The machine's name, size and system."""
    return HostFacts(
        cpu_name=_try(_cpu_name) or platform.processor() or None,
        cores=_try(lambda: psutil.cpu_count(logical=False)),
        threads=os.cpu_count(),
        ram_total=_try(lambda: psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.release()}".strip(),
    )


def _cpu_name() -> str | None:
    for line in _CPU_FACTS.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return None


def _hottest_core() -> float | None:
    sensors: dict[str, list[Any]] = psutil.sensors_temperatures()
    named = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
    heats = [item.current for name in named for item in sensors.get(name, ())]
    return max(heats, default=None)


def _try(read: Callable[[], Any]) -> Any:
    """What was read, or None: systems differ in what they refuse, and how."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - telemetry is worth less than the server
        return None
