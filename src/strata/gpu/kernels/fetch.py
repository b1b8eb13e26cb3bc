"""Experts from the host's memory into slots: a copy, and a repacking on the card.

The copy reads memory of the host as it lies there; the second launch puts bits where the products
want them, along the tables of ``gpu.repack``. Which expert goes to which slot lies in device
memory, so both can be part of a graph. Owns no decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels import arith
from strata.gpu.kernels.arith import INTERPRETED

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.repack import Repack

# Bytes of the host's memory that a program copies; groups that one repacks.
_COPY_BYTES = 1 << 14
_INTERPRETED_COPY_BYTES = 1 << 18
_UNITS = 4
_INTERPRETED_UNITS = 64


def copy_from_host(addresses: Tensor, raw: Tensor, num_bytes: int) -> None:
    """Copies experts from the host's memory.

    Bytes: of all of them, over the link. Grid: (J, num_bytes / 16 KB).

    Args:
        addresses: [J] int64, where each begins, a multiple of 64; 0 for none.
        raw: [J, blob bytes] uint8, written where there is one.
        num_bytes: of an expert, a multiple of 8.
    """
    piece = _INTERPRETED_COPY_BYTES if INTERPRETED else _COPY_BYTES
    _copy_kernel[(len(addresses), triton.cdiv(num_bytes, piece))](
        addresses, raw, raw.stride(0), num_bytes, WORDS=piece // 8, num_warps=4, **arith.LAUNCH
    )


@triton.jit(do_not_specialize=["raw_stride", "num_bytes"])
def _copy_kernel(addresses_ptr, raw_ptr, raw_stride, num_bytes, WORDS: tl.constexpr):
    job = tl.program_id(0).to(tl.int64)
    address = tl.load(addresses_ptr + job)
    if address != 0:
        offs = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
        is_there = offs * 8 < num_bytes
        source = address.to(tl.pointer_type(tl.int64))
        words = tl.load(source + offs, mask=is_there)
        target = (raw_ptr + job * raw_stride).to(tl.pointer_type(tl.int64))
        tl.store(target + offs, words, mask=is_there)


def repack(
    tables: tuple[Repack, Repack, Repack],
    addresses: Tensor,
    raw: Tensor,
    slots: ExpertSlots,
    into: Tensor,
    experts: Tensor,
    scales: Tensor,
) -> None:
    """Puts copied experts into slots, as ``packing.pack`` would have packed them.

    Grid: (J, groups of sixteen rows / 4, 3).

    Args:
        tables: of gate, up and down.
        addresses: [J] int64; jobs with 0 are left out.
        raw: [J, blob bytes] uint8 of ``copy_from_host``.
        slots: written to; their table is left alone.
        into: [J] int32 slots.
        experts: [J] int32, the expert of each job.
        scales: [E, 3] float32 of the layer, on the device.
    """
    layout = slots.layout
    units = _INTERPRETED_UNITS if INTERPRETED else _UNITS
    host_first = 0
    for role, table in enumerate(tables):
        rows, inner = layout.shape_of(role)
        shape = table.shape(rows, inner)
        num_units = table.num_units(rows, inner)
        _repack_kernel[(len(addresses), triton.cdiv(num_units, units))](
            addresses, raw.view(-1)[host_first:], raw.stride(0),
            slots.blobs.view(-1)[layout.offset_of(role) :], layout.blob_bytes, into, experts,
            scales, slots.scales, role, table.terms, table.masks, table.flips, **shape, UNITS=units,
            num_warps=4, **arith.LAUNCH,
        )  # fmt: skip
        host_first += table.host_bytes(rows, inner)


@triton.jit(do_not_specialize=["raw_stride", "blob_bytes", "role"])
def _repack_kernel(
    addresses_ptr, raw_ptr, raw_stride, blobs_ptr, blob_bytes, into_ptr, experts_ptr, scales_ptr,
    slot_scales_ptr, role, terms_ptr, masks_ptr, flips_ptr, PLANES: tl.constexpr,
    PLACES: tl.constexpr, NUM_PLANES: tl.constexpr, GROUPS: tl.constexpr,
    GROUP_BYTES: tl.constexpr, HOST_BYTES: tl.constexpr, PANEL_BYTES: tl.constexpr,
    PANELS: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    job = tl.program_id(0).to(tl.int64)
    if tl.load(addresses_ptr + job) != 0:
        slot = tl.load(into_ptr + job).to(tl.int64)
        raw = (raw_ptr + job * raw_stride).to(tl.pointer_type(tl.int32))
        blob_ptr = blobs_ptr + slot * blob_bytes
        unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)[:, None]
        panel, group = unit // GROUPS, unit % GROUPS
        left = HOST_BYTES - group * GROUP_BYTES
        first = (panel * HOST_BYTES + group * GROUP_BYTES) // 4
        for p in tl.static_range(NUM_PLANES):
            WORDS: tl.constexpr = PLANES[p][2]
            word = tl.arange(0, triton.next_power_of_2(WORDS))[None, :]
            is_word = (word < WORDS) & (unit < PANELS * GROUPS)
            total = tl.load(flips_ptr + PLANES[p][1] + word, mask=word < WORDS, other=0)
            total = total + tl.zeros_like(unit)
            for t in tl.static_range(PLANES[p][3]):
                at = PLANES[p][0] + t * WORDS + word
                term = tl.load(terms_ptr + at, mask=word < WORDS, other=0)
                mask = tl.load(masks_ptr + at, mask=word < WORDS, other=0)
                source = term & 0xFFFF
                turn = (term >> 16) & 31
                is_here = is_word & (mask != 0) & (source * 4 < left)
                value = tl.load(raw + first + source, mask=is_here, other=0).to(
                    tl.uint32, bitcast=True
                )
                value = (value << turn) | (value >> ((32 - turn) & 31))
                total = total ^ (value.to(tl.int32, bitcast=True) & mask)
            # Words go by panel, then as they lie in a panel's group.
            half: tl.constexpr = WORDS // 2
            BYTES: tl.constexpr = PLANES[p][4]
            place = group * PLACES[p][1] + word % half * BYTES
            is_stored = is_word & (place < PLACES[p][2])
            place = place + PLACES[p][0] + (panel * 2 + word // half) * PANEL_BYTES
            if BYTES == 4:
                out = (blob_ptr + place).to(tl.pointer_type(tl.int32))
                tl.store(out, total, mask=is_stored)
            else:
                out = (blob_ptr + place).to(tl.pointer_type(tl.int16))
                tl.store(out, total.to(tl.int16), mask=is_stored)
        if (tl.program_id(1) == 0) & (role >= 0):
            expert = tl.load(experts_ptr + job)
            factor = tl.load(scales_ptr + expert * 3 + role)
            tl.store(slot_scales_ptr + slot * 3 + role, factor)
