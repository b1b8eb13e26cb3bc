"""A layer's missing experts: asked for in the middle of a window, and waited for.

``post`` decides which entries are computed where (in a slot, by the host, in a staging slot); it
writes the host's share into the mailbox, and the staged ones' addresses for ``kernels.fetch``.
``wait`` copies the host's answer to where the other experts' outputs are. Bits do not depend on the
split (clause C1). Memory order and failures: docs/decisions/0005-hand-off.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.keep import choose_kept, enter_kept
from strata.gpu.kernels.system import answer_to, fence, nanoseconds

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.keep import Keeping
    from strata.gpu.kernels.quantize import Codes
    from strata.tiers.hand_off import MailboxLayout

IN_SLOT, ASKED, STAGED = 0, 1, 2
"""Where an entry is computed."""
_ASKED, _STAGED = tl.constexpr(ASKED), tl.constexpr(STAGED)

# Columns of an output that one program copies.
_COLUMNS = 1024


@dataclass(frozen=True, slots=True)
class HandOff:
    """What the layers of a model share; S staging slots, N rows, K experts of a row.

    Attributes:
        mailbox: address of memory the host and the card can reach.
        layout: of the mailbox.
        number: [1] int32, the last request.
        answered: [2] int32, the last request that was answered or given up, and its fault.
        fault: [1] int32; once it is set nothing is asked for any more.
        source: [N * K] int32, IN_SLOT, ASKED or STAGED for each entry of the layer that runs.
        share: [N * K + 1] int32, how many of so many distinct misses are staged.
        sources: [S] int64, addresses of the experts to be staged, 0 where there is none.
        factors: [S] int64, addresses of their factors.
        limit: nanoseconds that an answer may take.
        clock: address of [L, 3] int64 the host and the card can reach: when a layer of the last
            window had been posted, when its slots were done, when an answer it waited for was
            there. By the card's clock. 0 for nowhere.
        keeping: where windows leave what they stage; None where they leave nothing.
        aside: where ``post`` and copies are launched, beside the products of hits; None for the
            stream of the window itself.
    """

    mailbox: int
    layout: MailboxLayout
    number: Tensor
    answered: Tensor
    fault: Tensor
    source: Tensor
    share: Tensor
    sources: Tensor
    factors: Tensor
    limit: int
    clock: int = 0
    keeping: Keeping | None = None
    aside: torch.cuda.Stream | None = None


def post(
    hand_off: HandOff,
    layer: int,
    expert_ids: Tensor,
    slot_of: Tensor,
    reachable: Tensor,
    stage_of: Tensor,
    factors: Tensor,
    x: Codes,
    *,
    has_staging: bool,
    slots: ExpertSlots | None = None,
) -> None:
    """Divides a layer's entries, and asks the host for its share.

    Of distinct misses in routing order the last ones are staged; where they are kept, those worth
    most, and no more than slots were named. Bytes a row: 1.4 times D, over the link. Grid: (1).

    Args:
        hand_off: of the model; ``source`` and the staging jobs are written.
        layer: the layer's number.
        expert_ids: [N, K] int32, contiguous.
        slot_of: [E] int32, -1 where an expert is in no slot.
        reachable: [E] int64, where each expert lies in memory the card can read; 0 for nowhere.
        stage_of: [E] int32, becomes the staging slot of each expert, or -1.
        factors: [E, 3] float32 of the layer.
        x: codes of N rows.
        has_staging: whether any are staged; without, the staging jobs stay as they are.
        slots: of the layer, where ``hand_off.keeping`` keeps experts in them; ``stage_of`` then
            becomes a slot.
    """
    num_rows, top_k = expert_ids.shape
    layout = hand_off.layout
    stages = len(hand_off.sources) if has_staging else 0
    keeping = hand_off.keeping if slots is not None else None
    kept = _arguments(hand_off, keeping)
    bases = (0, 0, 0, 0) if slots is None else _bases(slots)
    _post_kernel[(1,)](
        hand_off.mailbox, hand_off.number, hand_off.fault, hand_off.source, hand_off.share,
        hand_off.sources, hand_off.factors, layer, expert_ids, slot_of, reachable, stage_of,
        factors.data_ptr(), x.codes, x.scales, hand_off.clock, *kept, *bases,
        KEEPS=keeping is not None, OFFSETS=layout.offsets[:-1],
        ROUTED=layout.max_rows * layout.top_k, ROWS=num_rows, TOP_K=top_k,
        TILE=triton.next_power_of_2(num_rows * top_k), EXPERTS=len(slot_of),
        EXPERT_TILE=triton.next_power_of_2(len(slot_of)),
        STAGES=stages, STAGE_TILE=triton.next_power_of_2(max(1, stages)),
        HIDDEN=layout.hidden_size, GROUPS=x.num_groups,
        HALF_TILE=triton.next_power_of_2(layout.hidden_size // 16), HAS_CLOCK=hand_off.clock != 0,
        num_warps=4 if num_rows == 1 else 8, **LAUNCH_AFTER,
    )  # fmt: skip


def _arguments(hand_off: HandOff, keeping: Keeping | None) -> tuple[Tensor, ...]:
    """Those of ``_stage`` that are read and written where staged experts are kept."""
    if keeping is None:
        return (hand_off.source,) * 4 + (hand_off.sources,) * 2
    return (
        keeping.places, keeping.holders, keeping.worth, keeping.coming, keeping.blobs,
        keeping.slot_factors,
    )  # fmt: skip


def _bases(slots: ExpertSlots) -> tuple[int, int, int, int]:
    """Addresses of slots and of their factors, each with its step."""
    blobs, scales = slots.blobs, slots.scales
    return (
        blobs.data_ptr(), blobs.stride(0) * blobs.element_size(),
        scales.data_ptr(), scales.stride(0) * scales.element_size(),
    )  # fmt: skip


@triton.jit
def _send_row(
    mailbox, n, codes_ptr, scales_ptr, OFFSETS: tl.constexpr, HIDDEN: tl.constexpr,
    GROUPS: tl.constexpr, HALF_TILE: tl.constexpr,
):  # fmt: skip
    """Codes of one row as the processor takes them; value 256 g + 16 h + i lies at [h, g, i]."""
    half = tl.arange(0, HALF_TILE)
    block = tl.arange(0, HALF_TILE // 2)
    value = tl.arange(0, 16)[None, :]
    is_half, is_block = half < HIDDEN // 16, block < HIDDEN // 32
    codes_out = (mailbox + OFFSETS[3] + n * HIDDEN).to(tl.pointer_type(tl.int8))
    # Said to be aligned, sixteen bytes are one write over the link and not sixteen.
    codes_out = tl.multiple_of(codes_out, 16)
    scales_out = (mailbox + OFFSETS[4] + n * (HIDDEN // 8)).to(tl.pointer_type(tl.float32))
    sums_out = (mailbox + OFFSETS[5] + n * (HIDDEN // 4)).to(tl.pointer_type(tl.int32))
    place = ((half % 16) * GROUPS + half // 16)[:, None] * 16 + value
    codes = tl.load(codes_ptr + place, mask=is_half[:, None], other=0)
    tl.store(codes_out + half[:, None] * 16 + value, codes, mask=is_half[:, None])
    tl.store(sums_out + half, tl.sum(codes.to(tl.int32), axis=1), mask=is_half)
    scales = tl.load(scales_ptr + block, mask=is_block, other=0.0)
    tl.store(scales_out + block, scales, mask=is_block)


@triton.jit
def _stage(
    ids, entry, is_miss, share_ptr, job_sources_ptr, job_factors_ptr, reachable_ptr,
    stage_of_ptr, factors, layer, places_ptr, holders_ptr, worth_ptr, coming_ptr, job_blobs_ptr,
    job_slot_factors_ptr, blobs, blob_bytes, scales, scale_bytes, KEEPS: tl.constexpr,
    EXPERTS: tl.constexpr, EXPERT_TILE: tl.constexpr, STAGES: tl.constexpr,
    STAGE_TILE: tl.constexpr,
):  # fmt: skip
    """Staging jobs of some of the distinct misses; which entries are left to ask for."""
    is_same = (ids[:, None] == ids[None, :]) & is_miss[None, :]
    is_again = tl.max((is_same & (entry[None, :] < entry[:, None])).to(tl.int32), axis=1)
    is_first = (is_miss & (is_again == 0)).to(tl.int32)
    where = tl.load(reachable_ptr + ids, mask=is_first != 0, other=0)
    can_stage = is_first * (where != 0).to(tl.int32)
    num_able = tl.sum(can_stage, axis=0)
    num_staged = tl.load(share_ptr + tl.sum(is_first, axis=0))
    num_staged = tl.minimum(tl.minimum(num_staged, STAGES), num_able)
    if KEEPS:
        stage, place = choose_kept(
            ids, entry, can_stage, num_staged, layer, places_ptr, holders_ptr, worth_ptr,
            coming_ptr, EXPERTS, STAGES, STAGE_TILE,
        )  # fmt: skip
        at = place.to(tl.int64)
        tl.store(job_blobs_ptr + stage, blobs + at * blob_bytes, mask=stage >= 0)
        tl.store(job_slot_factors_ptr + stage, scales + at * scale_bytes, mask=stage >= 0)
    else:
        # The last ones in routing order are staged, so stage 0 is the first of those.
        stage = tl.cumsum(can_stage, 0) - 1 - (num_able - num_staged)
        stage = tl.where((can_stage != 0) & (stage >= 0), stage, -1)
        place = stage
    of_entry = tl.max(tl.where(is_same, stage[None, :], -1), axis=1)

    job = tl.arange(0, STAGE_TILE)
    expert = tl.arange(0, EXPERT_TILE)
    tl.store(job_sources_ptr + job, (job * 0).to(tl.int64), mask=job < STAGES)
    tl.store(stage_of_ptr + expert, expert * 0 - 1, mask=expert < EXPERTS)
    tl.debug_barrier()
    tl.store(job_sources_ptr + stage, where, mask=stage >= 0)
    tl.store(job_factors_ptr + stage, factors + ids.to(tl.int64) * 12, mask=stage >= 0)
    tl.store(stage_of_ptr + ids, place, mask=stage >= 0)
    return is_miss & (of_entry < 0)


@triton.jit(do_not_specialize=["layer", "blobs", "blob_bytes", "scales", "scale_bytes"])
def _post_kernel(
    mailbox: tl.int64, number_ptr, fault_ptr, source_ptr, share_ptr, job_sources_ptr,
    job_factors_ptr, layer, ids_ptr, slot_of_ptr, reachable_ptr, stage_of_ptr, factors: tl.int64,
    codes_ptr, scales_ptr, clock: tl.int64, places_ptr, holders_ptr, worth_ptr, coming_ptr,
    job_blobs_ptr, job_slot_factors_ptr, blobs: tl.int64, blob_bytes: tl.int64, scales: tl.int64,
    scale_bytes: tl.int64, KEEPS: tl.constexpr, OFFSETS: tl.constexpr, ROUTED: tl.constexpr,
    ROWS: tl.constexpr, TOP_K: tl.constexpr,
    TILE: tl.constexpr, EXPERTS: tl.constexpr, EXPERT_TILE: tl.constexpr, STAGES: tl.constexpr,
    STAGE_TILE: tl.constexpr, HIDDEN: tl.constexpr, GROUPS: tl.constexpr,
    HALF_TILE: tl.constexpr, HAS_CLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    entry = tl.arange(0, TILE)
    is_entry = entry < ROWS * TOP_K
    ids = tl.load(ids_ptr + entry, mask=is_entry, other=-1)
    is_miss = is_entry & (tl.load(slot_of_ptr + ids, mask=is_entry, other=0) < 0)
    routed_ptr = (mailbox + OFFSETS[7]).to(tl.pointer_type(tl.int32))
    tl.store(routed_ptr + layer * ROUTED + entry, ids, mask=is_entry)

    is_asked = is_miss
    if STAGES > 0:
        is_asked = _stage(
            ids, entry, is_miss, share_ptr, job_sources_ptr, job_factors_ptr, reachable_ptr,
            stage_of_ptr, factors, layer, places_ptr, holders_ptr, worth_ptr, coming_ptr,
            job_blobs_ptr, job_slot_factors_ptr, blobs, blob_bytes, scales, scale_bytes, KEEPS,
            EXPERTS, EXPERT_TILE, STAGES, STAGE_TILE,
        )  # fmt: skip
    source = tl.where(is_asked, _ASKED, tl.where(is_miss, _STAGED, 0))
    tl.store(source_ptr + entry, source, mask=is_entry)

    if (tl.sum(is_asked.to(tl.int32), axis=0) > 0) & (tl.load(fault_ptr) == 0):
        asked_ptr = (mailbox + OFFSETS[2]).to(tl.pointer_type(tl.int32))
        tl.store(asked_ptr + entry, tl.where(is_asked, ids, -1), mask=is_entry)
        for n in tl.static_range(ROWS):
            _send_row(
                mailbox, n, codes_ptr + n * GROUPS * 256, scales_ptr + n * GROUPS * 8, OFFSETS,
                HIDDEN, GROUPS, HALF_TILE,
            )  # fmt: skip
        request_ptr = mailbox.to(tl.pointer_type(tl.int32))
        tl.store(request_ptr + 1, layer)
        tl.store(request_ptr + 2, ROWS)
        fence()
        number = tl.load(number_ptr) + 1
        tl.store(number_ptr, number)
        tl.store(request_ptr, number)
    if HAS_CLOCK:
        tl.store(clock.to(tl.pointer_type(tl.int64)) + layer * 3, nanoseconds())


def wait(
    hand_off: HandOff,
    outputs: Tensor,
    num_entries: int,
    bad: Tensor,
    *,
    layer: int = 0,
    has_kept: bool = False,
) -> None:
    """Copies the host's outputs of a layer to the other experts'; enters those that are kept.

    Bytes: 10 KB an entry that was asked for, over the link. Grid: (entries, D / 1024). Entries
    that were not asked for wait for nothing, but for the first program: it waits for all.

    Args:
        hand_off: of the model, after ``post``.
        outputs: [N * K, D] float32.
        num_entries: N * K of this window.
        bad: [1] int32, becomes 1 when a value was NaN or infinite.
        layer: the layer's number.
        has_kept: whether ``post`` was given slots and has staged any.
    """
    keeping, stages = hand_off.keeping if has_kept else None, len(hand_off.sources)
    kept = _arguments(hand_off, keeping)
    table = hand_off.source if keeping is None else keeping.table
    hidden = hand_off.layout.hidden_size
    _wait_kernel[(num_entries, triton.cdiv(hidden, _COLUMNS))](
        hand_off.mailbox, hand_off.number, hand_off.answered, hand_off.fault, hand_off.source,
        outputs, bad, hand_off.limit, hand_off.clock, layer, kept[0], kept[1], kept[3], table,
        0 if keeping is None else keeping.kept, KEEPS=keeping is not None, STAGES=stages,
        STAGE_TILE=triton.next_power_of_2(stages), OFFSETS=hand_off.layout.offsets[:-1],
        HIDDEN=hidden, COLUMNS=_COLUMNS, HAS_CLOCK=hand_off.clock != 0, num_warps=4, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit(do_not_specialize=["limit", "layer"])
def _wait_kernel(
    mailbox: tl.int64, number_ptr, answered_ptr, fault_ptr, source_ptr, outputs_ptr, bad_ptr,
    limit: tl.int64, clock: tl.int64, layer, places_ptr, holders_ptr, coming_ptr, table_ptr,
    kept: tl.int64, KEEPS: tl.constexpr, STAGES: tl.constexpr, STAGE_TILE: tl.constexpr,
    OFFSETS: tl.constexpr, HIDDEN: tl.constexpr, COLUMNS: tl.constexpr, HAS_CLOCK: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    entry = tl.program_id(0)
    offs = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_first = (entry == 0) & (tl.program_id(1) == 0)
    if HAS_CLOCK:
        clock_ptr = clock.to(tl.pointer_type(tl.int64)) + layer * 3
        if is_first:
            tl.store(clock_ptr + 1, nanoseconds())
    if KEEPS:  # noqa: SIM102 - the compiler's condition, the other one the card's
        if is_first:
            enter_kept(
                layer, places_ptr, holders_ptr, coming_ptr, table_ptr, kept, STAGES, STAGE_TILE
            )
    number = tl.load(number_ptr)
    is_asked = tl.load(source_ptr + entry) == _ASKED
    told_ptr = mailbox.to(tl.pointer_type(tl.int32)) + 3
    # The first program looks over the link for all: looks of many keep the answer from coming
    # through. Programs begin in their order, so nobody waits for one that has no place to run.
    if is_first & (tl.load(fault_ptr) == 0) & (tl.load(answered_ptr) != number):
        answer_ptr = (mailbox + OFFSETS[1]).to(tl.pointer_type(tl.int32))
        status = tl.max(answer_to(answer_ptr, number, nanoseconds() + limit) + offs * 0, 0)
        answered_at = nanoseconds()
        fault = tl.where(status == -1, 1, tl.where(status > 1, 2, 0))
        both = (fault.to(tl.int64) << 32) | (number.to(tl.int64) & 0xFFFFFFFF)
        tl.atomic_xchg(answered_ptr.to(tl.pointer_type(tl.int64)), both, sem="release")
        # The others wait for nothing of this.
        if HAS_CLOCK:
            tl.store(clock_ptr + 2, answered_at)
        if status == 1:
            tl.store(bad_ptr, 1)
        if fault != 0:
            tl.store(fault_ptr, fault)
            tl.store(told_ptr, fault)
    # A fault may be set meanwhile, and threads that looked for it here would go different ways. A
    # layer that did not ask because of one finds its number answered, with that fault.
    if is_asked:
        # Longer than the first one waits, so that it is the one to tell of a fault. Should it ever
        # come later than that, sums without these outputs must not pass for right.
        fault = tl.max(answer_to(answered_ptr, number, nanoseconds() + 2 * limit) + offs * 0, 0)
        tl.debug_barrier()
        if fault == -1:
            tl.store(fault_ptr, 1)
            tl.store(told_ptr, 1)
        # After the barrier plain loads see what the host wrote, and a warp's are one transaction;
        # volatile ones would be one for each value. Said to be aligned, four are read at once.
        here_ptr = tl.multiple_of((mailbox + OFFSETS[6]).to(tl.pointer_type(tl.float32)), 16)
        at = entry.to(tl.int64) * HIDDEN + offs
        values = tl.load(here_ptr + at, mask=(offs < HIDDEN) & (fault == 0), other=0.0)
        # Without an answer the sum is of no use, but it is a number.
        tl.store(outputs_ptr + at, values, mask=offs < HIDDEN)
