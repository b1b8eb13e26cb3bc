"""Experts of a model that the processor runs from memory and files, as the engine counts them.

Owns the translation of ``expert_tier`` counts to ``tiers.counters``; there is no card here, so
nothing is in slots, and there is no ranking to learn and nothing to limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.cpu.expert_tier import FOUND
from strata.errors import RequestError
from strata.tiers.counters import TierTally, add_ahead
from strata.tiers.expert_profile import ExpertProfile
from strata.tiers.forecast import Places

if TYPE_CHECKING:
    from strata.cpu.expert_tier import ExpertTier
    from strata.cpu.window_times import WindowTimes
    from strata.model_spec import ModelSpec
    from strata.tiers.counters import TierCounts
    from strata.tiers.rates import TierRates


class ExpertPlaces:
    """``engine.tiers.ExpertTiers`` without a card.

    Args:
        tier: has the experts.
        spec: geometry of the model.
        expert_bytes: [L] of an expert of each layer.
        times: of its windows.
    """

    def __init__(
        self, tier: ExpertTier, spec: ModelSpec, expert_bytes: list[int], times: WindowTimes
    ) -> None:
        self._tier, self._spec, self._times = tier, spec, times
        self._expert_bytes = np.array(expert_bytes, np.int64)

    def tier_counts(self) -> TierCounts:
        """What was asked for since the start."""
        found = dict(zip(FOUND, self._tier.counts_by_layer().T, strict=True))
        asked = found["kept"] + found["cached"] + found["read"] - found["scanned"]
        tally = TierTally(self._expert_bytes)
        tally.add("lookups", asked)
        tally.add("computed", asked)
        tally.add("from_file", found["read"] - found["scan_read"])
        tally.add("file_bytes", found["bytes"])
        tally.add("wait_ns", found["wait_ns"])
        tally.add("prompt_lookups", found["scanned"])
        counts = add_ahead(tally.counts(), self._tier.ahead_counts_by_layer())
        return type(counts)(int(found["windows"].max()), counts.table, counts.expert_bytes)

    def tier_rates(self) -> TierRates | None:
        """What windows take, and reads cost them; None before there was one."""
        return self._times.rates()

    def places(self) -> Places:
        """How many experts have room in each place."""
        kept = sum(map(len, self._tier.kept))
        memory = kept + self._tier.num_places
        spec = self._spec
        return Places(spec.num_layers, spec.num_experts, 0, memory, is_cold=True)

    def learned(self) -> ExpertProfile:
        """Nothing."""
        shape = (self._spec.num_layers, self._spec.num_experts)
        return ExpertProfile(*shape, 0, np.empty(0, np.int64), self._spec.name)

    def limit_bytes(self, num_bytes: int | None, /) -> None:  # noqa: ARG002
        """Refuses.

        Raises:
            RequestError: there is no card.
        """
        raise RequestError(
            "this model has no experts that could leave the card: the processor runs it.\n"
            "  Try: open it with --device cuda and --expert-cache."
        )

    def carry_out_limit(self) -> None:
        """Nothing is ever wished for."""
