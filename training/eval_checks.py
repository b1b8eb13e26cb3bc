"""What the shipped model must reach, and whether a set of results does.

Owns the thresholds and the reading of the results' JSON form. Measures nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One threshold. ``measure`` gives None where the results do not hold the figure."""

    name: str
    threshold: float
    measure: Callable[[Results], float | None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A check applied to results; ``is_met`` is None where nothing was measured."""

    name: str
    threshold: float
    value: float | None

    @property
    def is_met(self) -> bool | None:
        """Whether the threshold is reached."""
        return None if self.value is None else self.value >= self.threshold

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "name": self.name,
            "threshold": self.threshold,
            "value": self.value,
            "is_met": self.is_met,
        }


def task_share(*names: str) -> Callable[[Results], float | None]:
    """Right answers of these tasks together."""

    def measure(results: Results) -> float | None:
        found = [tally for tally in results.get("tasks", []) if tally["name"] in names]
        cases = sum(tally["num_cases"] for tally in found)
        return sum(tally["num_right"] for tally in found) / cases if cases else None

    return measure


def json_share(*names: str) -> Callable[[Results], float | None]:
    """Answers of these tasks that are JSON at all."""

    def measure(results: Results) -> float | None:
        found = [tally for tally in results.get("tasks", []) if tally["name"] in names]
        cases = sum(tally["num_cases"] for tally in found)
        return sum(tally["num_json"] for tally in found) / cases if cases else None

    return measure


def worst_cell(results: Results) -> float | None:
    """The code word's share at the worst length and depth."""
    return min((cell["share"] for cell in results.get("code_words", [])), default=None)


def sanity(results: Results) -> float | None:
    """1 if 12 * 12 gave 144."""
    return float(results["sanity"]["is_right"]) if "sanity" in results else None


def acceptance(position: int) -> Callable[[Results], float | None]:
    """Share of the drafts at this place in the window (from 0) that were kept."""

    def measure(results: Results) -> float | None:
        positions = results.get("drafts", {}).get("positions", [])
        if position >= len(positions) or not positions[position]["proposed"]:
            return None
        found = positions[position]
        return float(found["accepted"] / found["proposed"])

    return measure


RECALL_TASKS = ("recall",)
JSON_TASKS = ("json",)
TOOL_TASKS = ("tool_call",)

CHECKS = (
    Check("code word found, worst of the lengths and depths", 0.95, worst_cell),
    Check("two-digit addition", 0.97, task_share("add_two_digits")),
    Check("recall", 0.97, task_share(*RECALL_TASKS)),
    Check("JSON valid", 0.99, json_share(*JSON_TASKS)),
    Check("JSON to its schema", 0.95, task_share(*JSON_TASKS)),
    Check("right tool with right arguments", 0.95, task_share(*TOOL_TASKS)),
    Check("12*12 gives 144", 1.0, sanity),
    Check("first draft token accepted", 0.75, acceptance(0)),
    Check("second draft token accepted", 0.55, acceptance(1)),
)


def judge(results: Results) -> list[Verdict]:
    """Every check on these results."""
    return [Verdict(check.name, check.threshold, check.measure(results)) for check in CHECKS]
