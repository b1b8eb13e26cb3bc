"""What prompts ask of the experts, kept on the card until a window begins: rows and counts.

Owns the buffers and the few launches that fill them; nothing here waits while a prompt is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# Rows at a prompt's end that a policy learns from. More of them foresee what follows no better
# (docs/expert-cache.md, "After a prompt").
NOTED_ROWS = 64


class Noted(NamedTuple):
    """Of all chunks since the last time: the last rows' ids [L, R, K]; [L] distinct experts of each
    chunk, added up, and those of them that were in slots."""

    ids: NDArray[np.int64]
    lookups: NDArray[np.int64]
    hits: NDArray[np.int64]


class PromptNotes:
    """Notes of one model.

    Args:
        num_layers: L.
        num_experts: E.
        top_k: K.
        slot_of: [L, E] int32, the card's table of slots.
    """

    def __init__(self, num_layers: int, num_experts: int, top_k: int, slot_of: Tensor) -> None:
        device = slot_of.device
        self._slot_of = slot_of
        self._ids = torch.zeros((num_layers, NOTED_ROWS, top_k), dtype=torch.int32, device=device)
        self._counts = torch.zeros((num_layers, num_experts), dtype=torch.int32, device=device)
        self._sums = torch.zeros((2, num_layers), dtype=torch.int64, device=device)
        self._num_rows = 0  # noted of the chunk at work, and before it
        self._first = 0

    def add(self, layer: int, ids: Tensor, counts: Tensor) -> None:
        """A layer of a chunk: ids [T, K] int32, and rows that want each expert [E] int32.

        Every layer of a chunk, in order.
        """
        rows = ids[-NOTED_ROWS:]
        if layer == 0:
            self._first = self._num_rows % NOTED_ROWS
            self._num_rows += len(rows)
        room = min(len(rows), NOTED_ROWS - self._first)
        own = self._ids[layer]
        own[self._first : self._first + room].copy_(rows[:room])
        if room < len(rows):
            own[: len(rows) - room].copy_(rows[room:])
        self._counts[layer].copy_(counts)
        if layer == len(self._ids) - 1:
            is_wanted = self._counts > 0
            self._sums[0] += is_wanted.sum(dim=1)
            self._sums[1] += (is_wanted & (self._slot_of >= 0)).sum(dim=1)

    @property
    def has_any(self) -> bool:
        """Whether a chunk has been noted."""
        return self._num_rows > 0

    def take(self) -> Noted:
        """All notes, which are then forgotten; waits for the card."""
        num_rows, self._num_rows = self._num_rows, 0
        ids = self._ids.cpu().numpy().astype(np.int64)
        if num_rows > NOTED_ROWS:
            ids = np.roll(ids, -(num_rows % NOTED_ROWS), axis=1)
        lookups, hits = self._sums.cpu().numpy().copy()
        self._sums.zero_()
        return Noted(ids[:, :num_rows], lookups, hits)
