"""The draft layer beside a session on the card: follows what is committed, and proposes.

A cell pairs the trunk's streams at its position with the token after it, so streams wait in a ring
by position until their tokens are known; every window leaves its own there. The next proposal makes
their cells together with its own. Cells of drafts lie behind the true ones and are written over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.gpu.arena import Arena
from strata.gpu.draft_launches import DraftLaunches, input_views
from strata.gpu.draft_layout import MAX_DRAFTS, draft_shapes
from strata.gpu.graphs import captured
from strata.gpu.shapes import total_bytes
from strata.session_rules import MAX_WINDOW_ROWS, not_finite

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.weights import DraftWeights
    from strata.model_spec import ModelSpec
    from strata.session_rules import Arrays, Forms

    Tokens = NDArray[np.int32]

# Inputs that may be on their way to the card at a time: those of two chunks of a prompt and more,
# for the host must not wait for the card between chunks.
_NUM_SLOTS = 4096


class GpuDrafter:
    """The drafter protocol of ``engine.session``, and what the session tells it.

    Args:
        spec: geometry.
        weights: of the layer.
        buffers: of the session's windows.
        capacity: tokens of the conversation.
        kv_format: "f16" or "int8".

    Raises:
        DeviceError: the card has not got the memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DraftWeights,
        buffers: WindowBuffers,
        capacity: int,
        kv_format: str,
    ) -> None:
        device = buffers.rows.device
        shapes = draft_shapes(spec, capacity, kv_format)
        arena = Arena(total_bytes(shapes.values()), device, "the draft layer's cells")
        self.num_bytes = arena.num_bytes
        self._capacity = capacity
        self._tensors = arena.take_all(shapes)
        self._launches = DraftLaunches(spec, weights, buffers, self._tensors, capacity)
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._is_card = device.type == "cuda"
        inputs, drafts = self._tensors["inputs"], self._tensors["drafts"]
        self._slots = torch.zeros((_NUM_SLOTS, len(inputs)), dtype=inputs.dtype,
                                  pin_memory=self._is_card)  # fmt: skip
        self._slot = 0
        self._host_drafts = torch.zeros(drafts.shape, dtype=drafts.dtype, pin_memory=self._is_card)
        self._num_cells = 0  # made of true streams and tokens
        self._num_waiting = 0  # streams of the positions from there on, in the ring
        self._tokens: list[int] = []  # after all of them but the last
        self._proposed: int | None = None  # the token that the last one's cell was made with

    @property
    def ring(self) -> Tensor:
        """[R, S * D] float32: where a window leaves its streams, by position modulo R."""
        return self._tensors["ring"]

    def propose(self, token: int, num_wanted: int) -> tuple[list[int], list[float]]:
        """Tokens that may follow ``token``, best guess at each step, and how likely each is.

        Args:
            token: the one after those committed; not yet in the session.
            num_wanted: most drafts; there are fewer at the end of the context.

        Raises:
            StrataError: the weights gave NaN or infinity.
        """
        end = self._num_cells + self._num_waiting
        num = min(num_wanted, MAX_DRAFTS, self._capacity - end + 1)
        if self._num_waiting == 0 or num <= 0:
            return [], []
        self._launch([*self._tokens, token], num)
        self._host_drafts.copy_(self._tensors["drafts"], non_blocking=True)
        self._wait()
        drafts = self._host_drafts.numpy()[:num]
        if drafts[:, 2].any():
            raise not_finite(f"the draft layer gave NaN or infinity near position {end - 1}")
        # All cells but the last have true tokens; of the last one the session decides.
        self._num_cells, self._num_waiting, self._tokens = end - 1, 1, []
        self._proposed = token
        ids: list[int] = drafts[:, 0].tolist()
        probs: list[float] = np.ascontiguousarray(drafts[:, 1]).view(np.float32).tolist()
        return ids, probs

    def commit(self, tokens: Tokens) -> None:
        """The first rows of the window just run are kept: their tokens [T], T <= 8."""
        if len(tokens) == 0:
            return
        known: list[int] = tokens.tolist()
        if self._num_waiting == 0:
            known = known[1:]  # before the first token there is nothing to pair it with
        elif self._num_waiting == 1 and known[0] == self._proposed:
            # The proposal was right so far: the cell it made of this token is true.
            self._num_cells, self._num_waiting, known = self._num_cells + 1, 0, known[1:]
        self._proposed = None
        self._tokens += known
        self._num_waiting += len(tokens)
        if self._num_waiting > MAX_WINDOW_ROWS:
            self._make_cells()

    def follow(self, tokens: Tokens, streams: Tensor) -> None:
        """A prompt's rows have been read: their tokens [T], the trunk's streams after each.

        Args:
            tokens: [T] int32.
            streams: [T, S, D] or [T, S * D] float32; not needed after the call's launches.
        """
        ring = self.ring
        for first in range(0, len(tokens), MAX_WINDOW_ROWS):
            rows = streams[first : first + MAX_WINDOW_ROWS].reshape(-1, ring.shape[1])
            at = (self._num_cells + self._num_waiting) % len(ring)
            before_end = min(len(rows), len(ring) - at)
            ring[at : at + before_end].copy_(rows[:before_end])
            ring[: len(rows) - before_end].copy_(rows[before_end:])
            self.commit(tokens[first : first + MAX_WINDOW_ROWS])

    def save(self) -> Arrays:
        """Host copies of the waiting streams and their tokens; cells are copied apart."""
        streams = self.ring[self._waiting_rows()].cpu().numpy()
        return streams, np.array(self._tokens, np.int32)

    def load(self, saved: Arrays, position: int) -> None:
        """Puts them back, behind the cells of a session at ``position``."""
        streams, tokens = saved
        self._num_cells, self._num_waiting = position - len(streams), len(streams)
        self._tokens, self._proposed = tokens.tolist(), None
        self.ring[self._waiting_rows()] = torch.from_numpy(streams).to(self.ring.device)

    def forms(self, saved: Arrays) -> Forms:
        """Sizes and types that ``saved`` should have, by how many streams it says wait."""
        num = min(len(saved[0]) if saved and saved[0].ndim else 0, MAX_WINDOW_ROWS)
        streams = ((num, self.ring.shape[1]), np.dtype(np.float32))
        return [streams, ((max(num - 1, 0),), np.dtype(np.int32))]

    def cells(self, start: int, stop: int) -> list[Tensor]:
        """Views of the cells of some positions; the newest may not be made yet."""
        names = ("keys", "values", "key_scales", "value_scales")
        return [self._tensors[name][:, start:stop] for name in names if name in self._tensors]

    def reset(self) -> None:
        """Before the first token."""
        self._num_cells, self._num_waiting, self._tokens = 0, 0, []
        self._proposed = None

    def _waiting_rows(self) -> Tensor:
        """Places of the waiting streams in the ring."""
        end = self._num_cells + self._num_waiting
        places = torch.arange(self._num_cells, end, device=self.ring.device)
        return places % len(self.ring)

    def _make_cells(self) -> None:
        """Cells of all waiting streams whose tokens are known."""
        while self._tokens:
            some = self._tokens[:MAX_WINDOW_ROWS]
            self._launch(some, 0)
            self._tokens = self._tokens[len(some) :]
            self._num_cells += len(some)
            self._num_waiting -= len(some)

    def _launch(self, tokens: list[int], num_drafts: int) -> None:
        """Cells of as many waiting streams, and drafts after them; does not wait."""
        slot = self._slot
        self._slot = (slot + 1) % _NUM_SLOTS
        if self._slot == 0:
            self._wait()  # the first of them may still be on its way
        places, ids = (view.numpy() for view in input_views(self._slots[slot]))
        num_rows = len(tokens)
        places[0, 0] = self._num_cells
        places[1:, 0] = self._num_cells + num_rows - 1 + np.arange(MAX_DRAFTS)
        ids[:num_rows] = tokens
        self._tensors["inputs"].copy_(self._slots[slot], non_blocking=True)
        if not self._is_card:
            self._launches.launch(num_rows, num_drafts)
            return
        key = (num_rows, num_drafts)
        if key not in self._graphs:
            self._graphs[key] = captured(lambda: self._launches.launch(*key))
        self._graphs[key].replay()

    def _wait(self) -> None:
        if self._is_card:
            torch.cuda.current_stream().synchronize()
