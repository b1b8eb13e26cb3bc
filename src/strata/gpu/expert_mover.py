"""Brings experts into slots that stay, beside the windows that run.

Owns the stream, the buffers and the order: a slot is entered in a table only when its expert is
there. Who is to come and who has gone is decided by ``expert_cache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from strata.gpu.kernels.fetch import Jobs, copy_from_host, repack
from strata.tiers.rates import Average

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from strata.gpu.host_memory import HostMemory
    from strata.gpu.layer_tier import LayerTier

# Experts whose bytes are on the card and not yet repacked.
MOVED_AT_ONCE = 16


class Move(NamedTuple):
    """An expert on its way: into ``place`` of its layer's slots, which is slot ``slot`` of all."""

    layer: int
    expert: int
    place: int
    slot: int


class ExpertMover:
    """Moves of one card.

    Args:
        layers: whose slots are filled.
        memory: what of the host's memory the card can read.
        device: of the card.
    """

    def __init__(
        self, layers: Sequence[LayerTier], memory: HostMemory, device: torch.device
    ) -> None:
        self._layers, self._memory, self._device = layers, memory, device
        size = max(layer.home.blob_bytes for layer in layers)
        self._raw = torch.zeros((MOVED_AT_ONCE, size), dtype=torch.uint8, device=device)
        self._is_card = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_card else None  # type: ignore[no-untyped-call]
        self._moves: list[Move] = []
        self._marks = _marks() if self._is_card else None
        self._begun = torch.cuda.Event() if self._is_card else None  # type: ignore[no-untyped-call]
        self._rate = Average()
        self.num_bytes = 0

    @property
    def bytes_per_s(self) -> float | None:
        """Of late, copies and re-laying together; None before the first."""
        return self._rate.value

    @property
    def is_busy(self) -> bool:
        """Whether moves are on their way that ``landed`` has not told of."""
        return bool(self._moves)

    def mark(self) -> None:
        """What has been launched so far is done before moves that start later write anything."""
        if self._begun is not None:
            self._begun.record()

    def start(self, moves: Sequence[Move]) -> None:
        """Begins to move; nothing launched after ``mark`` reads these slots, none is on its way.

        Whatever is raised here, none of these moves will be told of by ``landed``. Slots of theirs
        may be written all the same, before those of the next moves.
        """
        if self._stream is None:
            self._move_all(moves, 0)
        else:
            if self._begun is not None:
                self._stream.wait_event(self._begun)
            with torch.cuda.stream(self._stream):
                if self._marks is not None:
                    self._marks[0].record()
                self._move_all(moves, self._stream.cuda_stream)
                if self._marks is not None:
                    self._marks[1].record()
        self.num_bytes += self._bytes_of(moves)
        self._moves = list(moves)

    def landed(self, *, is_waiting: bool = False) -> list[Move]:
        """The moves that were begun, once all of them are done; before that none."""
        if self._stream is not None and self._moves:
            if is_waiting:
                self._stream.synchronize()
            elif not self._stream.query():
                return []
        moves, self._moves = self._moves, []
        if self._marks is not None and moves:
            begun, ended = self._marks
            seconds = begun.elapsed_time(ended) / 1e3
            self._rate.add(np.array([self._bytes_of(moves) / max(1e-6, seconds)]))
        return moves

    def _bytes_of(self, moves: Sequence[Move]) -> int:
        return sum(self._layers[move.layer].home.blob_bytes for move in moves)

    def _move_all(self, moves: Sequence[Move], stream: int) -> None:
        groups: dict[tuple[object, ...], list[Move]] = {}
        for move in moves:
            layer = self._layers[move.layer]
            groups.setdefault((layer.slots.layout, layer.home.blob_bytes), []).append(move)
        for group in groups.values():
            for first in range(0, len(group), MOVED_AT_ONCE):
                self._move_some(group[first : first + MOVED_AT_ONCE], stream)

    def _move_some(self, moves: Sequence[Move], stream: int) -> None:
        """Up to as many as there are places, all of one layout."""
        layers = [self._layers[move.layer] for move in moves]
        size, layout = layers[0].home.blob_bytes, layers[0].slots.layout
        sources = np.array(
            [layer.reachable[move.expert] for layer, move in zip(layers, moves, strict=True)]
        )
        far = np.flatnonzero(sources == 0)
        if len(far):
            wanted = [(moves[i].layer, moves[i].expert) for i in far.tolist()]
            sources[far] = self._memory.bounced(wanted, self._stream)
        jobs = self._jobs(moves, sources)
        if self._is_card:
            for number, source in enumerate(sources.tolist()):
                self._memory.send(source, self._raw[number].data_ptr(), size, stream)
        else:
            copy_from_host(jobs, self._raw, size)
        repack(layers[0].tables, layout, jobs, self._raw)

    def _jobs(self, moves: Sequence[Move], sources: NDArray[np.int64]) -> Jobs:
        places = np.array([move.place for move in moves])
        experts = np.array([move.expert for move in moves])
        # Asked for anew each time: a layer's slots may have been given back and taken again.
        by_layer = {move.layer: _bases(self._layers[move.layer]) for move in moves}
        bases = np.array([by_layer[move.layer] for move in moves]).T
        factors, blobs, blob_bytes, scales, scale_bytes = bases
        targets = blobs + blob_bytes * places, scales + scale_bytes * places
        table = torch.from_numpy(np.stack((sources, factors + 12 * experts, *targets)))
        if self._is_card:
            table = table.pin_memory().to(self._device, non_blocking=True)
        return Jobs(*table)


def _marks() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    return begun, ended


def _bases(layer: LayerTier) -> tuple[int, int, int, int, int]:
    """Addresses of a layer's factors, blobs and their factors, the latter two with their steps."""
    blobs, scales = layer.slots.blobs, layer.slots.scales
    return (
        layer.factors.data_ptr(),
        blobs.data_ptr(), blobs.stride(0) * blobs.element_size(),
        scales.data_ptr(), scales.stride(0) * scales.element_size(),
    )  # fmt: skip
