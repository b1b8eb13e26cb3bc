"""Experts from the host's memory into slots: a copy, and a repacking on the card.

The copy reads memory of the host as it lies there; the second launch puts bits where the products
want them, along the tables of ``gpu.repack``. Which expert goes where lies in device memory, so
both can be part of a graph. Owns no decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.arith import INTERPRETED

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_slots import BlobLayout
    from strata.gpu.repack import Repack

# Bytes of the host's memory that a program copies.
_COPY_BYTES = 1 << 14
_INTERPRETED_COPY_BYTES = 1 << 18
# Of a repacking program: threads, groups of each, terms whose loads are in flight together.
THREADS, UNITS, UNROLL = tl.constexpr(128), tl.constexpr(4), tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class Jobs:
    """J experts to bring; all tensors are int64 [J] of addresses.

    Attributes:
        sources: of blobs in memory of the host, multiples of 64; 0 where there is no job.
        factors: of three float32 on the card, which go with the expert.
        blobs: of slots.
        slot_factors: of the slots' three float32.
    """

    sources: Tensor
    factors: Tensor
    blobs: Tensor
    slot_factors: Tensor

    def first(self, num: int) -> Jobs:
        """The first ``num`` jobs; views."""
        return Jobs(
            self.sources[:num], self.factors[:num], self.blobs[:num], self.slot_factors[:num]
        )


def copy_from_host(jobs: Jobs, raw: Tensor, num_bytes: int) -> None:
    """Copies experts from the host's memory.

    Bytes: of all of them, over the link. Grid: (J, num_bytes / 16 KB).

    Args:
        jobs: whose sources are read.
        raw: [J or more, blob bytes] uint8; place j is written where there is a job.
        num_bytes: of an expert, a multiple of 8.
    """
    piece = _INTERPRETED_COPY_BYTES if INTERPRETED else _COPY_BYTES
    _copy_kernel[(len(jobs.sources), triton.cdiv(num_bytes, piece))](
        jobs.sources, raw, raw.stride(0), num_bytes, WORDS=piece // 8, num_warps=4, **arith.LAUNCH
    )


@triton.jit(do_not_specialize=["raw_stride", "num_bytes"])
def _copy_kernel(sources_ptr, raw_ptr, raw_stride, num_bytes, WORDS: tl.constexpr):
    job = tl.program_id(0).to(tl.int64)
    source = tl.load(sources_ptr + job)
    if source != 0:
        offs = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
        is_there = offs * 8 < num_bytes
        words = tl.load(source.to(tl.pointer_type(tl.int64)) + offs, mask=is_there)
        target = (raw_ptr + job * raw_stride).to(tl.pointer_type(tl.int64))
        tl.store(target + offs, words, mask=is_there)


def repack(
    tables: tuple[Repack, Repack, Repack], layout: BlobLayout, jobs: Jobs, raw: Tensor
) -> None:
    """Puts copied experts into slots, as ``packing.pack`` would have packed them.

    A launch for gate and up, or one each where their formats differ, and one for down. Grid: (J,
    blocks of each plane, matrices); a program does one plane of some groups of sixteen rows.

    Args:
        tables: of gate, up and down.
        layout: of the slots.
        jobs: those of ``copy_from_host``.
        raw: likewise.
    """
    is_alike = tables[0].format_name == tables[1].format_name
    host_first = 0
    for role, num in ((0, 2), (2, 1)) if is_alike else ((0, 1), (1, 1), (2, 1)):
        table, (rows, inner) = tables[role], layout.shape_of(role)
        begins = table.begins(rows, inner, UNITS.value, THREADS.value)
        host_bytes = table.host_bytes(rows, inner)
        _repack_kernel[(len(jobs.sources), begins[-1], num)](
            jobs.sources, jobs.factors, jobs.blobs, jobs.slot_factors,
            raw.view(-1)[host_first:], raw.stride(0), host_bytes, layout.offset_of(role),
            layout.offset_of(role + 1) - layout.offset_of(role), role, table.terms, table.masks,
            table.flips, **table.shape(rows, inner), BEGINS=begins, num_warps=4, **arith.LAUNCH,
        )  # fmt: skip
        host_first += num * host_bytes


@triton.jit
def _bits(
    raw, unit, term, mask, GROUPS: tl.constexpr, GROUP_BYTES: tl.constexpr,
    HOST_BYTES: tl.constexpr,
):  # fmt: skip
    """The bits that one term takes from a group: a source word, rotated to the left."""
    source = term & 0xFFFF
    turn = (term >> 16) & 31
    at = raw + (unit // GROUPS * HOST_BYTES + unit % GROUPS * GROUP_BYTES) // 4 + source
    if HOST_BYTES % GROUP_BYTES == 0:
        value = tl.load(at)
    else:
        value = tl.load(at, mask=source * 4 < HOST_BYTES - unit % GROUPS * GROUP_BYTES, other=0)
    value = value.to(tl.uint32, bitcast=True)
    value = (value << turn) | (value >> ((32 - turn) & 31))
    return value.to(tl.int32, bitcast=True) & mask


@triton.jit
def _repack_plane(
    raw, blob_ptr, block, terms_ptr, masks_ptr, flips_ptr, WORDS: tl.constexpr,
    TERMS: tl.constexpr, WORD_BYTES: tl.constexpr, OFFSET: tl.constexpr, STEP: tl.constexpr,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, GROUP_BYTES: tl.constexpr, HOST_BYTES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, PANELS: tl.constexpr,
):  # fmt: skip
    """One plane of some groups: a thread has one word of each of four groups."""
    WIDTH: tl.constexpr = triton.next_power_of_2(WORDS)
    ACROSS: tl.constexpr = 1 if WIDTH >= THREADS else THREADS // WIDTH
    place = tl.arange(0, WIDTH * ACROSS)
    word = place % WIDTH
    is_word = word < WORDS
    # What is past the end does the last group once more.
    last = PANELS * GROUPS - 1
    first_unit = (block * ACROSS + place // WIDTH) * UNITS
    u0, u1 = tl.minimum(first_unit, last), tl.minimum(first_unit + 1, last)
    u2, u3 = tl.minimum(first_unit + 2, last), tl.minimum(first_unit + 3, last)
    a = tl.load(flips_ptr + word, mask=is_word, other=0)
    b, c, d = a, a, a
    # Of several terms the loads are in flight together.
    for t in tl.range(0, TERMS, loop_unroll_factor=UNROLL):
        term = tl.load(terms_ptr + t * WORDS + word, mask=is_word, other=0)
        mask = tl.load(masks_ptr + t * WORDS + word, mask=is_word, other=0)
        a ^= _bits(raw, u0, term, mask, GROUPS, GROUP_BYTES, HOST_BYTES)
        b ^= _bits(raw, u1, term, mask, GROUPS, GROUP_BYTES, HOST_BYTES)
        c ^= _bits(raw, u2, term, mask, GROUPS, GROUP_BYTES, HOST_BYTES)
        d ^= _bits(raw, u3, term, mask, GROUPS, GROUP_BYTES, HOST_BYTES)
    units, totals = (u0, u1, u2, u3), (a, b, c, d)
    # Words go by panel, then as they lie in a panel's group.
    half = word // (WORDS // 2)
    in_group = word % (WORDS // 2) * WORD_BYTES
    for u in tl.static_range(UNITS):
        unit = units[u]
        at = unit % GROUPS * STEP + in_group
        is_stored = is_word & (at < SIZE)
        out = blob_ptr + OFFSET + (unit // GROUPS * 2 + half) * PANEL_BYTES + at
        if WORD_BYTES == 4:
            tl.store(out.to(tl.pointer_type(tl.int32)), totals[u], mask=is_stored)
        else:
            tl.store(out.to(tl.pointer_type(tl.int16)), totals[u].to(tl.int16), mask=is_stored)


# Were tables known to be aligned, their words would be loaded by fours, and have to change threads.
@triton.jit(
    do_not_specialize=["raw_stride", "host_bytes", "offset", "role_bytes", "first_role"],
    do_not_specialize_on_alignment=["terms_ptr", "masks_ptr", "flips_ptr"],
)
def _repack_kernel(
    sources_ptr, factors_ptr, blobs_ptr, slot_factors_ptr, raw_ptr, raw_stride, host_bytes, offset,
    role_bytes, first_role, terms_ptr, masks_ptr, flips_ptr, PLANES: tl.constexpr,
    PLACES: tl.constexpr, NUM_PLANES: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_BYTES: tl.constexpr, HOST_BYTES: tl.constexpr, PANEL_BYTES: tl.constexpr,
    PANELS: tl.constexpr, BEGINS: tl.constexpr,
):  # fmt: skip
    job = tl.program_id(0).to(tl.int64)
    task = tl.program_id(1)
    matrix = tl.program_id(2)
    if tl.load(sources_ptr + job) != 0:
        raw = (raw_ptr + job * raw_stride + matrix * host_bytes).to(tl.pointer_type(tl.int32))
        first = offset + matrix * role_bytes
        blob_ptr = (tl.load(blobs_ptr + job) + first).to(tl.pointer_type(tl.uint8))
        for p in tl.static_range(NUM_PLANES):
            if (task >= BEGINS[p]) & (task < BEGINS[p + 1]):
                _repack_plane(
                    raw, blob_ptr, task - BEGINS[p],
                    terms_ptr + PLANES[p][0], masks_ptr + PLANES[p][0], flips_ptr + PLANES[p][1],
                    PLANES[p][2], PLANES[p][3], PLANES[p][4], PLACES[p][0], PLACES[p][1],
                    PLACES[p][2], GROUPS, GROUP_BYTES, HOST_BYTES, PANEL_BYTES, PANELS,
                )  # fmt: skip
        if task == 0:
            role = first_role + matrix
            here = tl.load(factors_ptr + job).to(tl.pointer_type(tl.float32))
            there = tl.load(slot_factors_ptr + job).to(tl.pointer_type(tl.float32))
            tl.store(there + role, tl.load(here + role))
