"""A disk that fails under experts' files."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from strata.cpu.expert_tier import ExpertTier


@contextmanager
def failing_reads(tier: ExpertTier) -> Iterator[None]:
    """Every read of experts gives EIO in here; what had been read before is forgotten."""
    saved = [(number, os.dup(number)) for number in tier._descriptors]
    bad = os.open("/proc/self/mem", os.O_RDONLY)  # nothing is mapped at address 0 and on
    for number, _ in saved:
        os.dup2(bad, number)
    os.close(bad)
    tier.source.drop_cached()
    try:
        yield
    finally:
        for number, good in saved:
            os.dup2(good, number)
            os.close(good)
