"""How ``float_product`` shares a matrix out: rows of a program and of a thread.

What was chosen was timed by ``benchmarks/gpu/small_kernels_on_card.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton

from strata.gpu.kernels.arith import INTERPRETED
from strata.reference.expert_numerics import SEGMENT_COLUMNS

MOST_INPUTS = 10
"""Loads of sixteen bytes of activations in flight, over all rows: as many as of weights."""

# Calls of an interpreted program cost the same whatever its width.
_INTERPRETED_ROWS = 256
# Programs for all of a card, and threads of one. Every program reads all of the activations, so
# with several rows of these it takes twice the rows of the matrix, two in a thread.
_ENOUGH_PROGRAMS, _MOST_THREADS = 128, 256


@dataclass(frozen=True, slots=True)
class FloatTiling:
    """How ``float_product`` shares a matrix out; bits do not depend on it.

    Attributes:
        rows: of the matrix, for one program.
        share: of those, for one thread: what it loads of x serves them all. ``rows`` is a power of
            two times this.
        most_inputs: loads of sixteen bytes of x in flight.
    """

    rows: int
    share: int = 1
    most_inputs: int = MOST_INPUTS


def tiling_of(num_rows: int, inner: int, num_inputs: int) -> FloatTiling:
    """Which one ``float_product`` takes."""
    if INTERPRETED:
        return FloatTiling(min(_INTERPRETED_ROWS, triton.next_power_of_2(num_rows)))
    segments = triton.next_power_of_2(triton.cdiv(inner, SEGMENT_COLUMNS))
    factor = 1 if num_inputs == 1 else 2
    # Of 320 and of 257 rows, the ones that decoding has, four a program were best (H200).
    rows = max(4, 8 // segments)
    while (
        8 * rows * segments <= _MOST_THREADS * factor
        and triton.cdiv(num_rows, 2 * rows) * factor >= _ENOUGH_PROGRAMS
    ):
        rows *= 2
    return FloatTiling(rows, share=min(rows, factor))
