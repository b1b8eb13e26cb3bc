"""A trace against a cache that holds no bytes: hits, misses and admissions of any policy.

Owns the loop and the counts; what is printed of them is ``cli.replay``. A look-up is one distinct
expert of a window and layer. It hits when the expert has a slot as the layer begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import SettingsError
from strata.tiers.belady import Belady
from strata.tiers.policies import distinct
from strata.tiers.policy_table import make_policy
from strata.tiers.routing_trace import WindowKind
from strata.tiers.slots import EMPTY, Residency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from strata.tiers.policies import Admission, Policy
    from strata.tiers.policy_table import PolicyOptions
    from strata.tiers.routing_trace import RoutingTrace
    from strata.tiers.slots import SlotLayout

    Counts = NDArray[np.int64]

# Not in the table of policies: it needs the future.
OPTIMUM = "belady"


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What one policy did with one trace.

    Attributes:
        policy: its name.
        num_slots: of the cache, all layers together.
        lookups: [W, L] distinct experts asked for, by window and layer.
        hits: [W, L] those that had a slot.
        admissions: [W, L] experts copied into slots while the layer ran, or for it afterwards.
        decoded: [W] tokens kept of decode windows; 0 for prompts.
        is_prompt: [W].
        heat: [L, E] what the policy held of each expert at the end.
        resident: keys in slots at the end, by slot.
    """

    policy: str
    num_slots: int
    lookups: Counts
    hits: Counts
    admissions: Counts
    decoded: Counts
    is_prompt: NDArray[np.bool_]
    heat: Counts
    resident: Counts

    def part(self, first: int, end: int | None = None) -> NDArray[np.bool_]:
        """[W] the decode windows that begin at decoded token ``first`` or after, before ``end``."""
        begins = np.cumsum(self.decoded) - self.decoded
        chosen = ~self.is_prompt & (begins >= first)
        return chosen if end is None else chosen & (begins < end)

    def hit_rate(self, windows: NDArray[np.bool_]) -> float | None:
        """Hits of all look-ups in these windows [W]; None where there are none."""
        lookups = int(self.lookups[windows].sum())
        return int(self.hits[windows].sum()) / lookups if lookups else None

    def layer_hit_rates(self, windows: NDArray[np.bool_]) -> list[float | None]:
        """The same for each layer."""
        lookups, hits = self.lookups[windows].sum(axis=0), self.hits[windows].sum(axis=0)
        return [
            int(h) / int(n) if n else None
            for h, n in zip(hits.tolist(), lookups.tolist(), strict=True)
        ]


def replay(
    trace: RoutingTrace,
    layout: SlotLayout,
    policy: str,
    *,
    options: PolicyOptions | None = None,
    ranking: Iterable[int] = (),
) -> Outcome:
    """Runs a trace through a cache.

    Args:
        trace: what was asked for.
        layout: the slots.
        policy: a name of ``policy_table.POLICIES``, or ``OPTIMUM``.
        options: of the policy.
        ranking: keys the cache is filled with beforehand; none for an empty one.

    Raises:
        SettingsError: no such policy, or the trace is of another geometry than the slots.
    """
    if (trace.num_layers, trace.num_experts) != (layout.num_layers, layout.num_experts):
        raise SettingsError(
            f"the trace has {trace.num_layers} layers of {trace.num_experts} experts, the cache "
            f"{layout.num_layers} of {layout.num_experts}.\n  Try: a trace of this model."
        )
    residency = Residency(layout)
    residency.fill(ranking)
    chosen: Policy = (
        Belady(residency, trace) if policy == OPTIMUM else make_policy(policy, residency, options)
    )
    shape = (len(trace.windows), trace.num_layers)
    lookups, hits, admissions = (np.zeros(shape, np.int64) for _ in range(3))
    for number, window in enumerate(trace.windows):
        is_prompt = window.kind is WindowKind.PROMPT
        for layer in range(trace.num_layers):
            rows = window.ids[layer].astype(np.int64)
            slots = residency.slot_of[distinct(rows) + layer * trace.num_experts]
            lookups[number, layer] = len(slots)
            hits[number, layer] = np.count_nonzero(slots != EMPTY)
            admitted = chosen.ask(layer, rows, is_prompt=is_prompt)
            admissions[number, layer] = len(admitted)
            carry_out(residency, admitted)
        swapped = chosen.settle(window.num_kept if not is_prompt else 0)
        carry_out(residency, swapped)
        for admission in swapped:
            admissions[number, admission.key // trace.num_experts] += 1
    kinds = np.array([window.kind is WindowKind.PROMPT for window in trace.windows], bool)
    kept = np.array([window.num_kept for window in trace.windows], np.int64)
    return Outcome(
        policy=policy,
        num_slots=layout.num_slots,
        lookups=lookups,
        hits=hits,
        admissions=admissions,
        decoded=np.where(kinds, 0, kept),
        is_prompt=kinds,
        heat=chosen.heat(),
        resident=residency.resident_keys,
    )


def carry_out(residency: Residency, admissions: Iterable[Admission]) -> None:
    """Changes the table of residents as a policy decided."""
    for admission in admissions:
        residency.place(admission.key, admission.slot)
