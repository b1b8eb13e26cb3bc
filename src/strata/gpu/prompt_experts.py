"""The experts of a prompt chunk: their weights taken apart, some at a time, and multiplied.

Owns which weights lie where in the scratch that the steps of a layer share. ``prompt`` says when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.gpu.kernels.expand import expand_slots
from strata.gpu.kernels.expert_prompt import gate_up
from strata.gpu.kernels.expert_sort import sort_by_expert
from strata.gpu.kernels.grouped_product import grouped_product, prompt_product
from strata.gpu.layer_tier import brought
from strata.gpu.prompt_layout import expanded_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.expand import Expanded
    from strata.gpu.kernels.prompt_codes import PromptCodes
    from strata.gpu.prompt_buffers import PromptBuffers
    from strata.gpu.weights import MoeWeights

# The phase of ``prompt_layout.PromptShapes.phases``.
_MOE = "moe"


class PromptExperts:
    """Routed and shared experts over a chunk's buffers."""

    def __init__(self, buffers: PromptBuffers) -> None:
        self._buffers = buffers

    def routed(
        self, weights: MoeWeights, codes: PromptCodes, ids: Tensor, step: int, bad: Tensor
    ) -> Tensor:
        """Output of every pair of row and expert; some experts' weights are expanded at a time."""
        slots, tier = weights.experts, weights.way
        buffers, plan = self._buffers, self._buffers.expert_plan(_MOE)
        outputs, hidden = buffers.rows("outputs", _MOE), buffers.all_codes("hidden", _MOE)
        num_pairs, num = ids.numel(), len(slots.slot_of)
        sort_by_expert(ids, plan, slots.slot_of if tier is None else tier.everywhere)
        if weights.tier is not None:
            weights.tier.note(ids, plan.counts)
        for first, count, staged in brought(tier, num, step, plan.counts):
            gate, up = self._gate_up_of(slots, count, first, plan.counts, staged)
            gate_up(
                codes, gate, up, hidden, bad, plan=plan, num_pairs=num_pairs, top_k=ids.shape[1],
                first_expert=first,
            )  # fmt: skip
            down = self._role_of(slots, 2, count, first, 0, plan.counts, staged)
            grouped_product(
                hidden, down, plan, num_pairs, outputs, read_top_k=0, scatter=True,
                first_expert=first,
            )  # fmt: skip
        return outputs

    def shared(self, slots: ExpertSlots, codes: PromptCodes, out: Tensor, bad: Tensor) -> None:
        """``out`` of the shared expert, which every row takes."""
        gate, up = self._gate_up_of(slots, 1, 0)
        hidden = self._buffers.codes("shared_hidden", _MOE)
        gate_up(codes, gate, up, hidden, bad)
        prompt_product(hidden, self._role_of(slots, 2, 1, 0, 0), out)

    def _gate_up_of(
        self,
        slots: ExpertSlots,
        num: int,
        first: int,
        counts: Tensor | None = None,
        staged: ExpertSlots | None = None,
    ) -> tuple[Expanded, Expanded]:
        """Expanded gate and up, one behind the other."""
        layout = slots.layout
        size = expanded_bytes(layout.formats[0], num, *layout.shape_of(0))
        gate = self._role_of(slots, 0, num, first, 0, counts, staged)
        return gate, self._role_of(slots, 1, num, first, size, counts, staged)

    def _role_of(
        self,
        slots: ExpertSlots,
        role: int,
        num: int,
        first: int,
        at: int,
        counts: Tensor | None = None,
        staged: ExpertSlots | None = None,
    ) -> Expanded:
        """One matrix of ``num`` experts from ``first`` on, from byte ``at`` of the weights.

        Experts without ``counts`` are left out, for no row wants them; ``staged`` has those that
        are in no slot.
        """
        layout = slots.layout
        room = self._buffers.expanded(_MOE, layout.formats[role], num, *layout.shape_of(role), at)
        expand_slots(slots, role, room, first, counts)
        if staged is not None:
            expand_slots(staged, role, room, first, counts)
        return room
