"""How many of a layer's misses are copied to the card, the rest being computed by the processor.

Both are done at the same time, so the split is good when both end together. Owns the arithmetic of
it; rates are measured elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from strata.errors import SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray


NUM_STAGES = 16
"""Staging slots: most experts of a layer that are copied for a window."""


class Cost(NamedTuple):
    """Seconds of a way to deal with misses: once for a layer, and for each of them."""

    once: float
    each: float

    def of(self, num: int) -> float:
        """Seconds for so many."""
        return self.once + self.each * num if num else 0.0


def processor_seconds(
    left: NDArray[np.int64], copied: NDArray[np.int64], asked: Cost, beside: Cost | None
) -> NDArray[np.float64]:
    """What the processor takes for layers: 0 where nothing is left to it.

    Args:
        left: misses that it computes; any shape.
        copied: misses that the card copies meanwhile; a shape that goes with it.
        asked: of the processor by itself.
        beside: of the processor while the card copies; None for the same.
    """
    busy = asked if beside is None else beside
    seconds = np.where(copied > 0, busy.once + busy.each * left, asked.once + asked.each * left)
    return np.where(left > 0, seconds, 0.0)


def balanced(
    max_misses: int,
    asked: Cost,
    staged: Cost,
    *,
    beside: Cost | None = None,
    idle: float = 0.0,
    max_staged: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For 0 to ``max_misses`` distinct misses how many are copied, so that the layer ends first.

    Of equals the fewest, since what is not copied leaves the link to others.

    Args:
        max_misses: most there can be.
        asked: of the processor.
        staged: of the card, what it does for a layer anyway included.
        beside: of the processor while the card copies, which takes of the same memory; None for the
            same as ``asked``.
        idle: seconds the card takes for a layer of which it copies nothing.
        max_staged: most that can be copied; None for all.

    Returns:
        the counts, and the seconds until each layer so divided has ended.
    """
    misses = np.arange(max_misses + 1)[:, None]
    copied = np.arange(max_misses + 1)[None, :]
    left = np.maximum(misses - copied, 0)
    by_host = processor_seconds(left, copied, asked, beside)
    by_card = np.where(copied > 0, staged.once + staged.each * copied, idle)
    ends = np.maximum(by_host, by_card)
    limit = max_misses if max_staged is None else max_staged
    ends = np.where((copied <= misses) & (copied <= limit), ends, np.inf)
    counts = np.argmin(ends, axis=1)  # of equals the first
    return counts, ends[misses[:, 0], counts]


def fixed_counts(max_misses: int, share: float) -> list[int]:
    """The same for a share that was asked for, in 256ths; halves are copied.

    Raises:
        SettingsError: the share is not between 0 and 1.
    """
    if not 0 <= share <= 1:
        raise SettingsError(
            f"the share of copied experts must lie between 0 and 1, not {share}.\n"
            "  Try: --pcie-frac 0.5"
        )
    part = round(share * 256) / 256
    counts: list[int] = np.floor(np.arange(max_misses + 1) * part + 0.5).astype(int).tolist()
    return counts
