"""Experts in several places, as the engine sees them: counts, rates, what was learned, a limit.

Owns the protocol, and the profile that a run leaves for the next. Where experts lie and who moves
them is ``strata.gpu``; without it there is nothing here to ask.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from strata import telemetry
from strata.tiers.expert_profile import write_profile

if TYPE_CHECKING:
    from pathlib import Path

    from strata.tiers.counters import TierCounts
    from strata.tiers.expert_profile import ExpertProfile
    from strata.tiers.forecast import Places
    from strata.tiers.rates import TierRates

# A server that is killed loses what was learned since.
SAVE_EVERY_S = 600.0


class ExpertTiers(Protocol):
    """The experts of a loaded model. Used by the thread whose request it is."""

    def tier_counts(self) -> TierCounts:
        """What was asked for since the start."""

    def tier_rates(self) -> TierRates | None:
        """What experts cost in each place, as learned; None before anything was."""

    def places(self) -> Places:
        """How many experts have room in each place now."""

    def learned(self) -> ExpertProfile:
        """What is known of the experts now, for the next run."""

    def limit_bytes(self, num_bytes: int | None, /) -> None:
        """Most memory of the card from now on; None for what was planned at the start. Any thread.

        Slots are closed or opened before the next window, or by ``carry_out_limit``.

        Raises:
            PlanError: it is less than what is not slots takes.
        """

    def carry_out_limit(self) -> None:
        """Does it now. No window may be under way.

        Raises:
            DeviceError: the card refuses; slots are then as they were.
        """


class ProfileKeeper:
    """Writes what is learned of the experts to a file, from time to time and at the end.

    Args:
        tiers: learns.
        path: of the profile; replaced whole or not at all.
    """

    def __init__(self, tiers: ExpertTiers, path: Path) -> None:
        self._tiers, self._path = tiers, path
        self._saved_s = time.monotonic()
        self._num_windows = 0

    def after_request(self) -> None:
        """Saves if it was long ago."""
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Saves, if a window was run since. A file that cannot be written is told of, no more."""
        self._saved_s = time.monotonic()
        num_windows = self._tiers.tier_counts().windows
        if num_windows == self._num_windows:
            return
        self._num_windows = num_windows
        try:
            write_profile(self._path, self._tiers.learned())
        except OSError as error:
            telemetry.notice(
                "expert-profile",
                f"what was learned of the experts is lost: {self._path}: {error.strerror}.",
            )
