"""The policies by name, as they can be asked for, and the one taken when nobody asks."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.errors import SettingsError
from strata.tiers.adaptive import AdaptiveAverage, DecayedSwaps
from strata.tiers.policies import LeastFrequent, LeastRecent, LeastStale

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.tiers.policies import Policy, ScoredPolicy
    from strata.tiers.slots import Residency


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """What can be set of a policy; the rest is fixed.

    Attributes:
        max_admissions: most misses of a layer admitted by one window, for averages the mean over
            its layers; None for all.
        swap_every: windows between swaps.
        swap_most: swaps at a time.
    """

    max_admissions: int | None = None
    swap_every: int = 4
    swap_most: int = 96


def _scored(
    kind: Callable[..., ScoredPolicy], *, has_filter: bool = False
) -> Callable[[Residency, PolicyOptions], Policy]:
    def make(residency: Residency, options: PolicyOptions) -> Policy:
        return kind(residency, max_admissions=options.max_admissions, has_filter=has_filter)

    return make


def _swaps(residency: Residency, options: PolicyOptions) -> Policy:
    return DecayedSwaps(residency, every=options.swap_every, most=options.swap_most)


def _average(residency: Residency, options: PolicyOptions) -> Policy:
    return AdaptiveAverage(residency, max_admissions=options.max_admissions)


# name -> (maker, what it does in a few words)
POLICIES: dict[str, tuple[Callable[[Residency, PolicyOptions], Policy], str]] = {
    "lru": (_scored(LeastRecent), "least recently used goes"),
    "lfu": (_scored(LeastFrequent), "least often used goes"),
    "swaps": (_swaps, "decayed counts, swaps every few windows"),
    "ema": (_average, "averages of use, memory adapts, admits what is worth more"),
    "stale": (_scored(LeastStale), "unused in most passes goes, then the layer just run"),
    "lru-filter": (_scored(LeastRecent, has_filter=True), "lru, admits the more asked for only"),
}
DEFAULT_POLICY = "ema"


def make_policy(name: str, residency: Residency, options: PolicyOptions | None = None) -> Policy:
    """The policy of that name for a cache.

    Raises:
        SettingsError: there is none; the nearest name is given.
    """
    check_policy(name)
    maker, _ = POLICIES[name]
    return maker(residency, options or PolicyOptions())


def check_policy(name: str) -> None:
    """Refuses a name that is in no table.

    Raises:
        SettingsError: there is no such policy; the nearest name is given.
    """
    if name not in POLICIES:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = near[0] if near else ", ".join(POLICIES)
        raise SettingsError(f"there is no policy {name!r}.\n  Try: --policy {hint}")
