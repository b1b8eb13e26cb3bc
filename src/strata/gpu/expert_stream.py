"""Experts that are in no slot, brought to a prompt before its layers come to them.

A chunk of many rows wants nearly every expert, so nobody waits for a router: the copy engine walks
through the layers' missing experts ahead of the launches, into a ring of places, while products
run. Owns the ring, the order and what waits for what. Which experts are missing stays as it is from
``begin`` to the last layer: slots change hands between windows only.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.gpu.expert_mover import MOVED_AT_ONCE
from strata.gpu.expert_slots import ExpertSlots
from strata.gpu.kernels.fetch import Jobs, repack
from strata.gpu.stream_plan import RING_PARTS, StreamShape, cut_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.host_memory import HostMemory
    from strata.gpu.layer_tier import LayerTier
    from strata.gpu.slot_table import SlotTable

# Rows for each expert from which on all of them are brought: fewer leave too many unused.
_ROWS_AN_EXPERT = 8


@dataclass(frozen=True, slots=True)
class Step:
    """Experts ``first`` and on of a layer whose products run together.

    Attributes:
        layer: whose they are.
        first: the first of them.
        count: how many.
        missing: those of them that are in no slot.
        row: of the tables on the card.
    """

    layer: int
    first: int
    count: int
    missing: list[int]
    row: int


class ExpertStream:
    """The way of experts to a prompt on one card.

    Args:
        layers: each layer's way to its experts.
        memory: the host's, as the card reaches it.
        table: of the slots.
        shape: of the ring.
        top_k: experts of a row.

    Attributes:
        is_open: whether the chunk at work has its experts brought this way.
        num_bytes: of the room that ``lay`` takes.
    """

    def __init__(
        self,
        layers: Sequence[LayerTier],
        memory: HostMemory,
        table: SlotTable,
        shape: StreamShape,
        top_k: int,
    ) -> None:
        self._layers, self._memory, self._table, self._top_k = layers, memory, table, top_k
        self._shape, self._num_places = shape, shape.num_places
        self.is_open, self.num_bytes = False, shape.num_bytes
        device = table.on_card.device
        self._has_room = False
        self._raw = torch.zeros(0)
        self._staged: list[ExpertSlots] = []
        self._stage_of = torch.full_like(table.on_card, -1)
        self._sources = self._factors = torch.zeros(0)
        self._targets: list[tuple[Tensor, Tensor]] = []
        # Who was missing, and the most experts of a step, when the steps were worked out.
        self._planned: tuple[NDArray[np.bool_], tuple[int, ...]] | None = None
        self._steps: list[list[Step]] = []
        self._queue: list[Step] = []
        self._num_sent = self._num_used = 0
        self._is_host = device.type == "cpu"
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._there = [torch.cuda.Event() for _ in range(RING_PARTS)]  # type: ignore[no-untyped-call]
            self._free = [torch.cuda.Event() for _ in range(RING_PARTS)]  # type: ignore[no-untyped-call]

    def lay(self, room: Tensor | None) -> None:
        """Where experts pass through from now on; None for nowhere, so that none are brought.

        What has been launched may use the room until it is done, and what it was before.

        Args:
            room: [num_bytes] uint8 on the card, at a multiple of 256.
        """
        self.is_open, self._has_room = False, room is not None
        if self._stream is not None:
            here = torch.cuda.current_stream()
            here.wait_stream(self._stream)
            self._stream.wait_stream(here)
        if room is None or (self._staged and room.data_ptr() == self._raw.data_ptr()):
            return
        self._raw, packed, factors = _parts(self._shape, room)
        self._staged = [
            _stages(layer, packed, factors, own, self._num_places)
            for layer, own in zip(self._layers, self._stage_of, strict=True)
        ]
        self._targets = [_targets(staged) for staged in self._staged]

    def begin(self, num_rows: int, limits: Sequence[int]) -> None:
        """A chunk is about to be launched; its first experts set out.

        Args:
            num_rows: of the chunk.
            limits: the most experts of each layer whose products run together.
        """
        num_experts = self._table.on_card.shape[1]
        is_worth_it = num_rows * self._top_k >= _ROWS_AN_EXPERT * num_experts
        self.is_open = is_worth_it and self._has_room
        if not self.is_open:
            return
        self._table.send()  # windows before may have left experts in slots
        self._plan(tuple(limits))
        # What an earlier chunk left, which broke off, is written over.
        self._queue = [step for steps in self._steps for step in steps if step.missing]
        self._num_sent = self._num_used = 0
        for _ in range(RING_PARTS):
            self._send()

    def steps(self, layer: int) -> Iterator[tuple[int, int, ExpertSlots]]:
        """Experts of a layer, some at a time: first, how many, and where those without a slot are.

        What is launched for some is launched before the next are asked for.
        """
        for step in self._steps[layer]:
            if step.missing:
                self._receive(step)
            yield step.first, step.count, self._staged[layer]

    def _plan(self, limits: tuple[int, ...]) -> None:
        """Works the steps out, where the slots are not those of the last time."""
        missing = self._table.on_host < 0
        if self._planned is not None:
            before, same_limits = self._planned
            if same_limits == limits and np.array_equal(before, missing):
                return
        self._steps, num_rows = [], 0
        for number, layer in enumerate(self._layers):
            own: list[Step] = []
            if layer.is_needed:
                for first, count in cut_steps(missing[number], limits[number], self._num_places):
                    experts = first + np.flatnonzero(missing[number, first : first + count])
                    own.append(Step(number, first, count, experts.tolist(), num_rows))
                    num_rows += 1
            self._steps.append(own)
        if num_rows:
            self._send_tables(num_rows)
        self._planned = missing, limits

    def _send_tables(self, num_rows: int) -> None:
        """Jobs of each step, and the stage of each expert."""
        width = -(-self._num_places // 2) * 2  # so that all rows are aligned alike
        jobs = np.zeros((2, num_rows, width), np.int64)
        stage_of = np.full(self._stage_of.shape, -1, np.int32)
        for step in (step for steps in self._steps for step in steps):
            num = len(step.missing)
            jobs[0, step.row, :num] = 1
            jobs[1, step.row, :num] = self._layers[step.layer].factors.data_ptr()
            jobs[1, step.row, :num] += 12 * np.array(step.missing, np.int64)
            stage_of[step.layer, step.missing] = np.arange(num)
        self._sources, self._factors = self._there_of(torch.from_numpy(jobs))
        self._stage_of.copy_(self._there_of(torch.from_numpy(stage_of)))

    def _there_of(self, table: Tensor) -> Tensor:
        if self._stream is not None:
            table = table.pin_memory()
        return table.to(self._stage_of.device, non_blocking=True)

    def _send(self) -> None:
        """The next step's experts set out, if there is one."""
        if self._num_sent == len(self._queue):
            return
        step, part = self._queue[self._num_sent], self._num_sent % RING_PARTS
        if self._stream is not None:
            self._stream.wait_event(self._free[part])
        layer = self._layers[step.layer]
        places = self._raw[part]
        far = []
        for place, expert in enumerate(step.missing):
            source = int(layer.reachable[expert])
            if source:
                self._copy(source, places[place], layer.home.blob_bytes)
            else:
                far.append((place, expert))
        for first in range(0, len(far), MOVED_AT_ONCE):
            some = far[first : first + MOVED_AT_ONCE]
            wanted = [(step.layer, expert) for _, expert in some]
            sources = self._memory.bounced(wanted, self._stream, is_passing=True)
            for (place, _), source in zip(some, sources.tolist(), strict=True):
                self._copy(source, places[place], layer.home.blob_bytes)
        if self._stream is not None:
            self._there[part].record(self._stream)
        self._num_sent += 1

    def _copy(self, source: int, place: Tensor, num_bytes: int) -> None:
        if self._stream is not None:
            self._memory.send(source, place.data_ptr(), num_bytes, self._stream.cuda_stream)
        elif self._is_host:
            ctypes.memmove(place.data_ptr(), source, num_bytes)

    def _receive(self, step: Step) -> None:
        """Repacks a step's experts once they are there; their places are the next ones' then."""
        assert step is self._queue[self._num_used]  # noqa: S101 - layers run in order
        part = self._num_used % RING_PARTS
        self._num_used += 1
        if self._stream is not None:
            torch.cuda.current_stream().wait_event(self._there[part])
        layer, (blobs, slot_factors) = self._layers[step.layer], self._targets[step.layer]
        jobs = Jobs(self._sources[step.row], self._factors[step.row], blobs, slot_factors)
        jobs = jobs.first(self._num_places)
        repack(layer.tables, layer.slots.layout, jobs, self._raw[part])
        if self._stream is not None:
            self._free[part].record()
        self._send()


def _parts(shape: StreamShape, room: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ring [parts, S, raw_bytes], packed places [S * packed_bytes], factors [S, 3]."""
    raw, packed, _ = shape.sizes
    num = shape.num_places
    ring = room[: RING_PARTS * num * shape.raw_bytes].view(RING_PARTS, num, shape.raw_bytes)
    factors = room[raw + packed : raw + packed + 12 * num].view(torch.float32).view(num, 3)
    return ring, room[raw : raw + num * shape.packed_bytes], factors


def _stages(
    layer: LayerTier, packed: Tensor, factors: Tensor, slot_of: Tensor, num_places: int
) -> ExpertSlots:
    """The places of a step as slots of a layer."""
    size = layer.slots.layout.blob_bytes
    blobs = packed[: num_places * size].view(num_places, size)
    return ExpertSlots(layer.slots.layout, blobs, factors, slot_of)


def _targets(staged: ExpertSlots) -> tuple[Tensor, Tensor]:
    """Addresses of places, and of their factors."""
    places = torch.arange(len(staged.blobs), dtype=torch.int64, device=staged.blobs.device)
    size = staged.layout.blob_bytes
    return staged.blobs.data_ptr() + places * size, staged.scales.data_ptr() + places * 12
