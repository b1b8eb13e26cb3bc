"""How a prompt's missing experts are cut into steps, and the room they need. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.units import whole_pages

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUM_STREAMED = 32
"""Experts without a slot whose products run together."""

RING_PARTS = 3
"""Steps whose bytes may be on the card and not yet repacked."""

# Steps begin at multiples of this where they are longer: kernels read tables from there on.
_ALIGNED_EXPERTS = 4


@dataclass(frozen=True, slots=True)
class StreamShape:
    """Room for experts on their way to a prompt.

    Attributes:
        num_places: experts of a step that are in no slot.
        raw_bytes: of an expert as the host has it.
        packed_bytes: of the same as products want it.
    """

    num_places: int
    raw_bytes: int
    packed_bytes: int

    @property
    def num_bytes(self) -> int:
        """Of all of it, whole pages."""
        return sum(self.sizes)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Of the ring, of a step's places and of their factors; whole pages each."""
        num = self.num_places
        sizes = (RING_PARTS * num * self.raw_bytes, num * self.packed_bytes, 12 * num)
        raw, packed, factors = map(whole_pages, sizes)
        return raw, packed, factors


def cut_steps(missing: NDArray[np.bool_], limit: int, num_places: int) -> list[tuple[int, int]]:
    """(first, count) of each step of a layer: every expert once, in order.

    Args:
        missing: [E] whether an expert is in no slot.
        limit: the most experts of a step.
        num_places: the most of them that may be missing.
    """
    before = np.concatenate([[0], np.cumsum(missing)])
    steps, first, num = [], 0, len(missing)
    while first < num:
        # The last place at which no more are missing than there are places.
        end = int(np.searchsorted(before, before[first] + num_places, side="right")) - 1
        end = min(end, first + limit, num)
        aligned = end // _ALIGNED_EXPERTS * _ALIGNED_EXPERTS
        if end < num and aligned > first:
            end = aligned
        steps.append((first, end - first))
        first = end
    return steps


def even_steps(num: int, most: int) -> list[tuple[int, int]]:
    """(first, count) of each step, as many as ``most`` but for the last."""
    return [(first, min(most, num - first)) for first in range(0, num, most)]
