"""A reading a second, and the last minute of them.

Owns the thread that reads, so that a driver that hangs or fails stops nothing but the telemetry.
Knows no HTTP and no engine: what else is sampled comes from a function.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_LOGGER: Final = logging.getLogger("strata.server")

INTERVAL_S: Final = 1.0
KEPT: Final = 60

Sample = dict[str, float | None]


class Sampler:
    """Calls ``read`` again and again in a thread of its own.

    Args:
        read: figures now by name, the same names every time.
        interval_s: pause between readings.
        kept: readings that are kept.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, float | None]],
        interval_s: float = INTERVAL_S,
        kept: int = KEPT,
    ) -> None:
        self._read = read
        self._interval_s = interval_s
        self._kept = kept
        self._samples: deque[Sample] = deque(maxlen=kept)
        self._is_ending = threading.Event()
        self._has_failed = False

    def start(self) -> None:
        """Begins; the thread ends with the process if it is not ended before."""
        threading.Thread(target=self._run, name="telemetry", daemon=True).start()

    def close(self) -> None:
        """No more readings after the one under way, which is not waited for."""
        self._is_ending.set()

    def history(self) -> dict[str, list[float | None]]:
        """Columns of the readings that are kept, oldest first, filled up in front with None."""
        samples = list(self._samples)
        names = samples[-1].keys() if samples else ()
        empty: list[float | None] = [None] * (self._kept - len(samples))
        return {name: empty + [sample.get(name) for sample in samples] for name in names}

    def sample(self) -> None:
        """Takes one reading now."""
        try:
            self._samples.append(dict(self._read()))
        except Exception as error:  # noqa: BLE001 - telemetry is worth less than the server
            if not self._has_failed:
                _LOGGER.warning("telemetry cannot be read: %r", error)
            self._has_failed = True

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._is_ending.is_set():
            self.sample()
            # A reading that took long is not made up for by a burst of others.
            due_s = max(due_s + self._interval_s, time.monotonic())
            self._is_ending.wait(max(0.0, due_s - time.monotonic()))
