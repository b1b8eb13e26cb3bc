"""Belady's optimum: what a cache could have hit at best, had it known the future.

Owns the look into the future of one trace. It keeps those experts that are asked for soonest; a
miss may be passed by, since another tier can compute it. Nothing is fetched before it is asked
for, so a policy that guesses ahead could do better; those of ``tiers`` do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.tiers.policies import Admission, ScoredPolicy, distinct
from strata.tiers.routing_trace import WindowKind
from strata.tiers.slots import EMPTY

if TYPE_CHECKING:
    from strata.tiers.policies import Keys
    from strata.tiers.routing_trace import RoutingTrace
    from strata.tiers.slots import Residency

_NEVER = np.iinfo(np.int32).max


class Belady(ScoredPolicy):
    """The optimum over the decode windows of a trace, which has to be replayed from its start.

    A prompt brings whatever it asks for, hit or miss. So an expert whose next use is in a prompt
    need not be kept until then.
    """

    def __init__(self, residency: Residency, trace: RoutingTrace) -> None:
        super().__init__(residency)
        self._future = next_uses(trace)
        self._step = 0
        self._next_use = np.full(self.num_keys, _NEVER, np.int64)
        layout = residency.layout
        if len(residency.resident_keys):
            self._next_use = first_uses(trace, layout.num_layers * layout.num_experts)

    def ask(self, layer: int, rows: Keys, *, is_prompt: bool) -> list[Admission]:  # noqa: ARG002
        """Trades what is needed later, or never, for misses that are needed sooner."""
        asked = distinct(rows + layer * self.num_experts)
        self._next_use[asked] = self._future[self._step]
        self._step += 1
        misses = asked[self.residency.slot_of[asked] == EMPTY]
        return self.exchange(layer, misses[self._next_use[misses] < _NEVER])

    def settle(self, num_kept: int) -> list[Admission]:  # noqa: ARG002
        """Nothing is learned from what is known."""
        return []

    def worth(self, layer: int, keys: Keys) -> Keys:  # noqa: ARG002
        """Sooner is more."""
        return _NEVER - self._next_use[keys]


def _steps(trace: RoutingTrace) -> list[tuple[Keys, bool]]:
    """Distinct keys of each window and layer in order, and whether a prompt asks."""
    return [
        (
            distinct(window.ids[layer].astype(np.int64)) + layer * trace.num_experts,
            window.kind is WindowKind.PROMPT,
        )
        for window in trace.windows
        for layer in range(trace.num_layers)
    ]


def next_uses(trace: RoutingTrace) -> list[Keys]:
    """For each window and layer, the step at which each of its distinct experts is asked for next.

    Never, where the next to ask is a prompt.
    """
    coming = np.full(trace.num_layers * trace.num_experts, _NEVER, np.int64)
    steps = _steps(trace)
    found: list[Keys] = []
    for number in range(len(steps) - 1, -1, -1):
        keys, is_prompt = steps[number]
        found.append(coming[keys])
        coming[keys] = _NEVER if is_prompt else number
    return found[::-1]


def first_uses(trace: RoutingTrace, num_keys: int) -> Keys:
    """[L * E] the step at which each key is first asked for, under the same rule."""
    coming = np.full(num_keys, _NEVER, np.int64)
    steps = _steps(trace)
    for number in range(len(steps) - 1, -1, -1):
        keys, is_prompt = steps[number]
        coming[keys] = _NEVER if is_prompt else number
    return coming
