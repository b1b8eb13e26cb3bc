"""Drafts proposed and kept over many answers, by place in the window; places begin at 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class DraftTotals:
    """Sums over answers."""

    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, proposed: Sequence[int], accepted: Sequence[int]) -> None:
        """Adds the counts of one answer, or of many."""
        for totals, counts in ((self.proposed, proposed), (self.accepted, accepted)):
            totals += [0] * (len(counts) - len(totals))
            for place, count in enumerate(counts):
                totals[place] += count

    def as_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        pairs = zip(self.proposed, self.accepted, strict=True)
        return {"positions": [{"proposed": p, "accepted": a} for p, a in pairs]}
