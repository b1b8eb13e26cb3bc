"""How many of a layer's misses are copied to the card, the rest being computed by the processor.

Both are done at the same time, so the split is good when both end together. Owns the arithmetic of
it; rates are measured elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from strata.errors import SettingsError


class Cost(NamedTuple):
    """Seconds of a way to deal with misses: once for a layer, and for each of them."""

    once: float
    each: float

    def of(self, num: int) -> float:
        """Seconds for so many."""
        return self.once + self.each * num if num else 0.0


def balanced_counts(max_misses: int, asked: Cost, staged: Cost) -> list[int]:
    """For 0 to ``max_misses`` distinct misses how many are copied, so that the layer ends first.

    Of equals the fewest, since what is not copied leaves the link to others.
    """
    return [
        min(range(misses + 1), key=lambda n: (max(asked.of(misses - n), staged.of(n)), n))
        for misses in range(max_misses + 1)
    ]


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
