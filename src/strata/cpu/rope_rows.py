"""Rotary tables of the positions at hand; longer ones would not stay in the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.reference.rope import rope_tables

if TYPE_CHECKING:
    from strata._native import RopeRows
    from strata.model_spec import RopeSpec

# Rows made at a time.
_NUM_ROWS = 1024


class RopeSpan:
    """A span of the tables, made anew when a position outside it is asked for.

    Args:
        rope: pairs, base and scaling.
        block: a call's first position may need any row of its block of this many positions.
        capacity: positions in all.
    """

    def __init__(self, rope: RopeSpec, block: int, capacity: int) -> None:
        self._rope = rope
        self._block = block
        self._span = range(0, min(_NUM_ROWS, capacity))
        self._rows = self._make()

    def rows(self, position: int, num_rows: int) -> RopeRows:
        """Tables that hold ``position`` and the rows after it, and the block it lies in."""
        start = position // self._block * self._block
        end = position + num_rows
        if start < self._span.start or end > self._span.stop:
            self._span = range(start, max(end, start + _NUM_ROWS))
            self._rows = self._make()
        return self._rows

    def _make(self) -> RopeRows:
        cos, sin = rope_tables(self._rope, np.array(self._span), np.float32)
        return _native.RopeRows(cos, sin, self._span.start)
