"""Which experts a prompt's step copies: those in no slot that some row of the chunk wants.

Owns that choice alone; the copies are ``kernels.fetch``, the places ``gpu.layer_tier``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.hand_off import HandOff


def plan_stream(
    hand_off: HandOff,
    first: int,
    count: int,
    counts: Tensor,
    slot_of: Tensor,
    reachable: Tensor,
    stage_of: Tensor,
    factors: Tensor,
) -> None:
    """Staging jobs for the experts of a prompt: those in no slot that some row wants.

    Args:
        hand_off: of the model; its staging jobs are written.
        first: expert of staging slot 0.
        count: experts, at most S.
        counts: [E] int32, rows that want each.
        slot_of: [E] int32, -1 where an expert is in no slot.
        reachable: [E] int64, addresses the card can read.
        stage_of: [E] int32, becomes the staging slot of each expert, or -1.
        factors: [E, 3] float32 of the layer.
    """
    _stream_kernel[(1,)](
        hand_off.sources, hand_off.factors, first, count, counts, slot_of, reachable, stage_of,
        factors.data_ptr(), EXPERTS=len(slot_of),
        TILE=triton.next_power_of_2(len(slot_of) + len(hand_off.sources)),
        STAGES=len(hand_off.sources), num_warps=4, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first", "count"])
def _stream_kernel(
    sources_ptr, factors_ptr, first, count, counts_ptr, slot_of_ptr, reachable_ptr, stage_of_ptr,
    factors: tl.int64, EXPERTS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    expert = tl.arange(0, TILE)
    is_expert = expert < EXPERTS
    stage = expert - first
    # Stages behind the last expert have no job: an earlier step's would be done once more.
    is_here = (stage >= 0) & (stage < STAGES)
    is_wanted = is_expert & is_here & (stage < count)
    is_wanted = is_wanted & (tl.load(counts_ptr + expert, is_expert, 0) > 0)
    is_wanted = is_wanted & (tl.load(slot_of_ptr + expert, is_expert, 0) < 0)
    address = tl.load(reachable_ptr + expert, mask=is_wanted, other=0)
    tl.store(sources_ptr + stage, address, mask=is_here)
    tl.store(factors_ptr + stage, factors + expert.to(tl.int64) * 12, mask=is_here)
    tl.store(stage_of_ptr + expert, tl.where(is_wanted, stage, -1), mask=is_expert)
