"""One layer's way to the experts that are in no slot: launches of a window and of a prompt.

Owns which launches there are; the kernels are ``kernels.hand_off`` and ``kernels.fetch``. Who is in
a slot is decided by ``expert_cache``.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.gpu.expert_slots import ExpertSlots
from strata.gpu.kernels import experts
from strata.gpu.kernels.fetch import Jobs, copy_from_host, repack
from strata.gpu.kernels.hand_off import post, wait
from strata.gpu.kernels.stream_jobs import plan_stream
from strata.gpu.stream_plan import even_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.expert_stream import ExpertStream
    from strata.gpu.host_memory import HostMemory
    from strata.gpu.kernels.experts import ExpertRows
    from strata.gpu.kernels.hand_off import HandOff
    from strata.gpu.kernels.quantize import Codes
    from strata.gpu.prompt_notes import PromptNotes
    from strata.gpu.repack import Repack
    from strata.gpu.slot_table import SlotTable
    from strata.tiers.hand_off import ExpertMemory


@dataclass(frozen=True, slots=True)
class Staging:
    """S places a layer's experts pass through: as the host has them, and as products want them.

    Attributes:
        raw: [S, bytes] uint8.
        packed: [S, bytes] uint8.
        factors: [S, 3] float32.
    """

    raw: Tensor
    packed: Tensor
    factors: Tensor


class LayerTier:
    """One layer's way to its experts.

    Args:
        number: of the layer.
        slots: those that stay.
        staging: shared by all layers.
        tables: repacking of gate, up and down.
        home: the experts in the host's memory.
        memory: what of it the card can read.
        hand_off: shared by all layers.

    Attributes:
        slots: those that stay.
        staged: those a window or a prompt brings for itself.
        home: the experts in the host's memory.
        reachable: [E], their addresses; 0 for those the card cannot read.
        factors: [E, 3] float32 on the card.
        has_staging: whether windows copy some of their misses.
        keeps: whether what they copy stays, which ``hand_off.keeping`` must be there for.
        is_needed: whether an expert may be in no slot.
        notes: where prompts leave what they asked for, or None.
        ahead: brings experts to long chunks of prompts, or None.
        table: who is in which slot, or None where nobody follows it.
    """

    def __init__(
        self,
        number: int,
        slots: ExpertSlots,
        staging: Staging,
        tables: tuple[Repack, Repack, Repack],
        home: ExpertMemory,
        memory: HostMemory,
        hand_off: HandOff,
    ) -> None:
        self.slots, self.tables, self.home = slots, tables, home
        self.has_staging = False
        self.is_needed = True
        self.notes: PromptNotes | None = None
        self.ahead: ExpertStream | None = None
        self.table: SlotTable | None = None
        device = slots.slot_of.device
        self._number, self._hand_off = number, hand_off
        self._memory, self._raw = memory, staging.raw
        self.reachable = _reachable(memory, home)
        self._reachable = torch.from_numpy(self.reachable).to(device)
        self.factors = torch.from_numpy(home.scales.copy()).to(device)
        size, num = slots.layout.blob_bytes, len(staging.packed)
        blobs = staging.packed.view(-1)[: num * size].view(num, size)
        stage_of = torch.full_like(slots.slot_of, -1)
        self.staged = ExpertSlots(slots.layout, blobs, staging.factors, stage_of)
        places = torch.arange(num, dtype=torch.int64, device=device)
        self._jobs = Jobs(
            hand_off.sources, hand_off.factors, blobs.data_ptr() + places * size,
            staging.factors.data_ptr() + places * 12,
        )  # fmt: skip
        # Where jobs go to slots that stay, products read them there.
        self._in_slots, self._slot_jobs = self.staged, self._jobs
        self.keeps = hand_off.keeping is not None
        if hand_off.keeping is not None:
            kept = hand_off.keeping
            self._in_slots = ExpertSlots(slots.layout, slots.blobs, slots.scales, stage_of)
            self._slot_jobs = Jobs(
                hand_off.sources, hand_off.factors, kept.blobs, kept.slot_factors
            )
        self._everywhere = torch.zeros_like(slots.slot_of)

    @property
    def num_stages(self) -> int:
        """Staging slots."""
        return len(self.staged.blobs)

    @property
    def everywhere(self) -> Tensor:
        """[E] int32 without -1: a table for a prompt, which brings every expert to the card."""
        return self._everywhere

    @contextmanager
    def beside(self, ids: Tensor, codes: Codes) -> Iterator[None]:
        """Around the launches of a window's hits: the other entries set out beside them.

        Divides the entries, asks the host for its share and copies the rest. That writes nothing
        hits touch, and reads nothing they write; on a card it is a branch of the window's graph.
        Whatever is raised, the branch has joined afterwards, as a capture must not end without it.
        """
        aside = self._hand_off.aside
        if aside is None:
            self._set_out(ids, codes)
            yield
            return
        stream = torch.cuda.current_stream()
        aside.wait_stream(stream)
        try:
            with torch.cuda.stream(aside):
                self._set_out(ids, codes)
            yield
        finally:
            stream.wait_stream(aside)

    def _set_out(self, ids: Tensor, codes: Codes) -> None:
        post(
            self._hand_off, self._number, ids, self.slots.slot_of, self._reachable,
            self.staged.slot_of, self.factors, codes, has_staging=self.has_staging,
            slots=self.slots if self.keeps else None,
        )  # fmt: skip
        if self.has_staging:
            self._fetch(self._slot_jobs if self.keeps else self._jobs)

    def finish(self, ids: Tensor, codes: Codes, rows: ExpertRows, bad: Tensor) -> None:
        """Outputs of the entries that are in no slot, after ``beside``."""
        staged = self._in_slots if self.keeps else self.staged
        if self.has_staging:
            experts.gate_up(staged, codes, ids, rows)
            experts.gate(staged, ids, rows, bad)
            experts.down(staged, ids, rows)
        has_kept = self.has_staging and self.keeps
        wait(self._hand_off, rows.y, ids.numel(), bad, layer=self._number, has_kept=has_kept)

    def note(self, ids: Tensor, counts: Tensor) -> None:
        """A prompt's chunk wants ids [T, K] of this layer, so many rows each expert [E]."""
        if self.notes is not None:
            self.notes.add(self._number, ids, counts)

    def brought(self, most: int, counts: Tensor) -> Iterator[tuple[int, int, ExpertSlots]]:
        """``brought`` of a layer with experts in no slot."""
        if self.ahead is not None and self.ahead.is_open:
            yield from self.ahead.steps(self._number)
            return
        for first, count in even_steps(len(counts), min(most, self.num_stages)):
            yield first, count, self.stream(first, count, counts)

    def stream(self, first: int, count: int, counts: Tensor) -> ExpertSlots:
        """Brings experts ``first`` and on to staging slots, those in no slot that rows want.

        Args:
            first: an expert.
            count: at most ``num_stages``.
            counts: [E] int32, rows that want each expert.
        """
        plan_stream(
            self._hand_off, first, count, counts, self.slots.slot_of,
            self._with_bounced(first, count), self.staged.slot_of, self.factors,
        )  # fmt: skip
        self._fetch(self._jobs)
        return self.staged

    @property
    def num_reachable(self) -> int:
        """Experts that the card can read where they are."""
        return int(np.count_nonzero(self.reachable))

    def name_first(self, num: int) -> None:
        """Has ``rehearse`` copy the first experts that can be: so many, at most ``num_stages``."""
        sources = torch.zeros(self.num_stages, dtype=torch.int64)
        addresses = torch.from_numpy(self.reachable[self.reachable != 0][:num])
        sources[: len(addresses)] = addresses
        self._hand_off.sources.copy_(sources)
        self._hand_off.factors.fill_(self.factors.data_ptr())

    def rehearse(self) -> None:
        """Copies what was named to staging slots as a window would, to see what it takes."""
        self._fetch(self._jobs)

    def _fetch(self, jobs: Jobs) -> None:
        copy_from_host(jobs, self._raw, self.home.blob_bytes)
        repack(self.tables, self.slots.layout, jobs, self._raw)

    def _with_bounced(self, first: int, count: int) -> Tensor:
        """[E] addresses the card can read, of these experts all of them."""
        is_far = self.reachable[first : first + count] == 0
        if self.table is not None:
            # No prompt reads those again that are in slots; the card's table is then the host's.
            self.table.send()
            is_far &= self.table.on_host[self._number, first : first + count] < 0
        far = first + np.flatnonzero(is_far)
        if not len(far):
            return self._reachable
        stream = torch.cuda.current_stream() if self._reachable.is_cuda else None
        wanted = [(self._number, expert) for expert in far.tolist()]
        places = self._memory.bounced(wanted, stream, is_passing=True)
        table = self._reachable.clone()
        table[torch.from_numpy(far).to(table.device)] = torch.from_numpy(places).to(table.device)
        return table


def brought(
    tier: LayerTier | None, num: int, most: int, counts: Tensor
) -> Iterator[tuple[int, int, ExpertSlots | None]]:
    """A layer's experts for a prompt, some at a time: first, how many, those without a slot.

    What is launched for some is launched before the next are asked for.

    Args:
        tier: None where all are in slots.
        num: experts of the layer.
        most: at a time.
        counts: [E] int32, rows that want each.
    """
    if tier is not None:
        yield from tier.brought(most, counts)
        return
    for first, count in even_steps(num, most):
        yield first, count, None


def _reachable(memory: HostMemory, home: ExpertMemory) -> NDArray[np.int64]:
    """[E] addresses of a layer's experts that the card can read; 0 for the others."""
    places = memory.reachable(home.address, home.num_held, home.blob_bytes)
    if home.held is None:
        return places
    found = np.zeros(len(home.scales), np.int64)
    found[home.held] = places
    return found
