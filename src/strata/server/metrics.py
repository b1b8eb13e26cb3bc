"""Prometheus' text format, version 0.0.4.

Owns the format and nothing of what is told: names and values come from ``monitor``. Written out
here since it is a page of code, and a client library would bring a registry of its own that
outlives a server and is shared by two in one process.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.server.requests_log import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = dict[str, str]


class Exposition:
    """Lines of one scrape."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._named: set[str] = set()

    def gauge(
        self, name: str, text: str, value: float | None, labels: Labels | None = None
    ) -> None:
        """A value that goes up and down. None is left out: a missing sample is not a zero."""
        self._single("gauge", name, text, value, labels)

    def counter(
        self, name: str, text: str, value: float | None, labels: Labels | None = None
    ) -> None:
        """A count since the start; ``name`` ends in ``_total``."""
        self._single("counter", name, text, value, labels)

    def gauges(self, name: str, text: str, values: Mapping[str, float | None], label: str) -> None:
        """One gauge for each value of a label."""
        for key, value in values.items():
            self.gauge(name, text, value, {label: key})

    def counters(
        self, name: str, text: str, values: Mapping[str, float | None], label: str
    ) -> None:
        """One counter for each value of a label."""
        for key, value in values.items():
            self.counter(name, text, value, {label: key})

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        """How often values were at most each bound."""
        self._head("histogram", name, text)
        count = 0
        for bound, more in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
            count += more
            self._sample(f"{name}_bucket", count, {"le": _number(bound)})
        self._sample(f"{name}_sum", histogram.total)
        self._sample(f"{name}_count", count)

    def text(self) -> str:
        """The whole scrape."""
        return "\n".join([*self._lines, ""])

    def _single(
        self, kind: str, name: str, text: str, value: float | None, labels: Labels | None
    ) -> None:
        if value is None:
            return
        self._head(kind, name, text)
        self._sample(name, value, labels)

    def _head(self, kind: str, name: str, text: str) -> None:
        if name in self._named:
            return
        self._named.add(name)
        escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
        self._lines += [f"# HELP {name} {escaped}", f"# TYPE {name} {kind}"]

    def _sample(self, name: str, value: float, labels: Labels | None = None) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in (labels or {}).items())
        self._lines.append(f"{name}{{{inside}}} {_number(value)}" if inside else _line(name, value))


def _line(name: str, value: float) -> str:
    return f"{name} {_number(value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
