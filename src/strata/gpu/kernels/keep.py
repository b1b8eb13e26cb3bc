"""Experts that a window copies for itself and leaves in slots: which, where, and who was there.

``post`` stages them straight into slots that the host has named before the window; nobody is taken
out of the card's table until the layer's products of hits are done, so ``wait`` changes it, and
tells the host. The card's table is therefore true after every window, whether or not anybody wants
it; of one that breaks off in between the host takes the names back. Who is named:
``gpu.slot_keeper``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Keeping:
    """What stays of a model's windows; S staging jobs, as many slots named for each layer.

    Attributes:
        places: [L, S] int32, the place among its layer's slots of each that may be written, the
            first ones first; -1 for none, and once it was written.
        holders: [L, S] int32, the key ``layer * E + expert`` whose bytes lie there; -1 for none.
        worth: [L, E] int32, those worth most are staged.
        coming: [S] int32, the keys that are staged into the layer's named slots; -1 for none.
        blobs: [S] int64, addresses the staging jobs write.
        slot_factors: [S] int64, addresses of the factors there.
        table: [L, E] int32, all layers' ``slot_of``.
        kept: address of [L, S] int32 the host and the card can reach: the key that was written to
            each of ``places``; left as it is where none was.
    """

    places: Tensor
    holders: Tensor
    worth: Tensor
    coming: Tensor
    blobs: Tensor
    slot_factors: Tensor
    table: Tensor
    kept: int


@triton.jit
def choose_kept(
    ids, entry, is_able, most, layer, places_ptr, holders_ptr, worth_ptr, coming_ptr,
    EXPERTS: tl.constexpr, STAGES: tl.constexpr, STAGE_TILE: tl.constexpr,
):  # fmt: skip
    """The staging job of each entry's expert and the place it is staged to, or -1 and -1.

    Args:
        ids: [T] expert ids.
        entry: [T] their numbers.
        is_able: [T] int32, 1 for the first mention of an expert that can be copied.
        most: of them to be staged.
        layer: its number.
        places_ptr, holders_ptr, worth_ptr, coming_ptr: see ``Keeping``.
    """
    named = tl.arange(0, STAGE_TILE)
    is_named = named < STAGES
    place = tl.load(places_ptr + layer * STAGES + named, mask=is_named, other=-1)
    holder = tl.load(holders_ptr + layer * STAGES + named, mask=is_named, other=-1)
    # Who is asked for now is not the one to go.
    is_asked = (holder[:, None] == ids[None, :] + layer * EXPERTS) & (ids[None, :] >= 0)
    is_wanted = (tl.max(is_asked.to(tl.int32), axis=1) > 0) & (holder >= 0)
    is_usable = ((place >= 0) & (is_wanted == 0)).to(tl.int32)
    most = tl.minimum(most, tl.sum(is_usable, axis=0))
    worth = tl.load(worth_ptr + layer * EXPERTS + ids, mask=is_able != 0, other=-1)
    is_equal = (worth[None, :] == worth[:, None]) & (entry[None, :] < entry[:, None])
    is_better = ((worth[None, :] > worth[:, None]) | is_equal) & (is_able[None, :] != 0)
    rank = tl.sum(is_better.to(tl.int32), axis=1)
    stage = tl.where((is_able != 0) & (rank < most), rank, -1)
    number = tl.cumsum(is_usable, 0) - 1
    is_pair = (stage[:, None] == number[None, :]) & (is_usable[None, :] != 0)
    is_pair = is_pair & (stage[:, None] >= 0)
    to = tl.max(tl.where(is_pair, place[None, :], -1), axis=1)
    key = ids[:, None] + layer * EXPERTS
    tl.store(coming_ptr + named, tl.max(tl.where(is_pair, key, -1), axis=0), mask=is_named)
    return stage, to


@triton.jit
def enter_kept(
    layer, places_ptr, holders_ptr, coming_ptr, table_ptr, kept: tl.int64, STAGES: tl.constexpr,
    STAGE_TILE: tl.constexpr,
):  # fmt: skip
    """Staged experts are found in their slots from now on, and who was there is not."""
    named = tl.arange(0, STAGE_TILE)
    key = tl.load(coming_ptr + named, mask=named < STAGES, other=-1)
    is_here = key >= 0
    at = layer * STAGES + named
    place = tl.load(places_ptr + at, mask=is_here, other=-1)
    holder = tl.load(holders_ptr + at, mask=is_here, other=-1)
    tl.store(table_ptr + holder, named * 0 - 1, mask=is_here & (holder >= 0))
    tl.debug_barrier()
    tl.store(table_ptr + key, place, mask=is_here)
    tl.store(places_ptr + at, named * 0 - 1, mask=is_here)
    tl.store(kept.to(tl.pointer_type(tl.int32)) + at, key, mask=is_here)
