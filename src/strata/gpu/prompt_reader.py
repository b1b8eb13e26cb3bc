"""Reads chunks of a prompt: rows from the host, launches, logits of the last row.

Owns what of it waits for what: while the card works on a chunk, threads of the host gather the
rows of the next in the other half of page-locked memory; and before the card is done with it the
next may be launched. Where a prompt is cut, and what a failure means for the conversation, is the
session's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from strata.gpu.host_rows import abandoned, finished
from strata.gpu.kernels.qsa_append import RopeTable
from strata.gpu.prompt import Prompt
from strata.gpu.prompt_buffers import PromptBuffers
from strata.gpu.prompt_layout import CUT_TOKENS, MIN_CHUNK, chunk_rows, prompt_shapes
from strata.gpu.session_layout import input_width

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.host_rows import HostRows
    from strata.gpu.lending import Lender
    from strata.gpu.loan_plan import Loan
    from strata.gpu.model_layout import ModelLayout
    from strata.gpu.state import SessionState
    from strata.gpu.weights import ModelWeights
    from strata.gpu.window import Window
    from strata.model_spec import ModelSpec

    Tokens = NDArray[np.int32]


# The part of a chunk's layers that is still ahead of the card when the next chunk is launched: the
# host must come to the next chunk's first layers meanwhile, and nothing else.
_LAYERS_AHEAD = 1 / 8


@dataclass(frozen=True, slots=True)
class Flight:
    """A chunk that has been launched.

    Attributes:
        tokens: [N] int32.
        nearly, done: when the card is about to end it, and when it has; None without a card.
        flags: [L + 1, 4] int32 on the host, valid when it is done; the first of a row is a layer's.
    """

    tokens: Tokens
    nearly: torch.cuda.Event | None
    done: torch.cuda.Event | None
    flags: Tensor


class PromptReader:
    """A conversation's prompt chunks; two may be under way.

    Args:
        spec: geometry.
        layout: of the model.
        weights: on a device.
        state: of the conversation.
        window: whose head gives the logits.
        window_buffers: of the window: flags, rotary tables, logits.
        capacity: tokens of the conversation.
        chunk: most rows of a chunk, a multiple of 64.
        rows: of the model.
        lender: of memory for a prompt; None where the conversation has its own.

    Raises:
        DeviceError: the card has not got the memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: ModelLayout,
        weights: ModelWeights,
        state: SessionState,
        window: Window,
        window_buffers: WindowBuffers,
        capacity: int,
        chunk: int,
        rows: HostRows,
        lender: Lender | None,
    ) -> None:
        tensors = window_buffers.tensors
        rope = None
        if "rope_cos" in tensors:
            rope = RopeTable(tensors["rope_cos"], tensors["rope_sin"])
        self._rows = rows
        self._coming: tuple[Future[None], ...] = ()
        self._window = window
        self._window_buffers = window_buffers
        self._spec, self._layout, self._lender = spec, layout, lender
        self._capacity, self._most_rows = capacity, chunk
        self._loan: Loan | None = None  # that was offered, and whether it was taken
        self._is_taken = False
        self._buffers: PromptBuffers | None = None
        self._make_prompt = partial(
            Prompt, spec, layout, weights, state, flags=tensors["flags"], rope=rope
        )
        self._prompt: Prompt | None = None
        if lender is None:
            self._open(chunk)
        self._first_late_layer = int(spec.num_layers * (1 - _LAYERS_AHEAD))
        is_card, flags = window_buffers.rows.is_cuda, window_buffers.host_flags
        # Two of each: the host fills one while the card may still be fetching the other.
        num_rows = 0 if lender is not None else chunk_rows(chunk, capacity)
        self._host_rows = _host_rows(spec, num_rows, is_card=is_card)
        self._host_flags = [
            torch.zeros(flags.shape, dtype=flags.dtype, pin_memory=is_card) for _ in range(2)
        ]
        self._slot = 0
        self._num_rows = 0  # gathered and not launched

    @property
    def num_bytes(self) -> int:
        """Memory on the card, that which is borrowed apart."""
        is_own = self._buffers is not None and self._lender is None
        return self._buffers.num_bytes if self._buffers is not None and is_own else 0

    @property
    def streams(self) -> Tensor:
        """[N, S * D] float32: what the chunk launched last leaves in the streams."""
        assert self._buffers is not None  # noqa: S101 - a chunk has been launched
        return self._buffers.rows("streams")

    def begin(self, num_tokens: int) -> int:
        """A prompt of so many tokens will be read; the most rows its chunks may have.

        What has been gathered and was not launched is dropped, what was launched is waited for.
        """
        self.forget()
        self.end()
        if self._lender is None:
            return self._most_rows
        self._loan = self._lender.offer(self._capacity, num_tokens)
        if self._loan is None:
            return MIN_CHUNK
        is_one = num_tokens <= self._loan.chunk  # and is not cut, wherever it begins
        return -(-self._capacity // CUT_TOKENS) * CUT_TOKENS if is_one else self._loan.chunk

    def end(self) -> None:
        """No chunk follows for now: memory that was borrowed goes back. Waits for nothing."""
        if self._lender is None:
            return
        self._buffers = self._prompt = None
        loan, self._loan = self._loan, None
        is_taken, self._is_taken = self._is_taken, False
        if is_taken:
            self._lender.take_back()
        elif loan is not None:
            self._lender.decline()

    def forget(self) -> None:
        """Drops what has been gathered and was not launched; ends what was launched."""
        abandoned(self._coming)
        self._coming, self._num_rows = (), 0
        if self._window_buffers.rows.is_cuda:
            torch.cuda.current_stream().synchronize()  # it may still read its rows

    def gather(self, tokens: Tokens, ngram_rows: NDArray[np.int64] | None) -> None:
        """Begins to gather the rows of the chunk that is launched after the next ``ready``.

        The chunk before the last one launched must be done.

        Args:
            tokens: [N] int32.
            ngram_rows: [N, heads] rows of the n-gram table, or None without one.
        """
        if self._buffers is None:
            self._borrow()
        self._slot ^= 1
        self._num_rows = len(tokens)
        out = self._host_rows[self._slot][: len(tokens)].numpy()
        self._coming = self._rows.start(tokens, ngram_rows, out)

    def ready(self) -> Tensor:
        """The rows of the chunk that was gathered last; waits for the disk, not for the card."""
        coming, self._coming = self._coming, ()
        num_rows, self._num_rows = self._num_rows, 0
        finished(coming)
        return self._host_rows[self._slot][:num_rows]

    def launch(self, tokens: Tokens, rows: Tensor, position: int) -> Flight:
        """Everything of a chunk of these ``ready`` rows, which follow ``position`` tokens.

        Waits for nothing. When it is done its flags are valid, and row 0 of ``host_logits`` until
        a chunk launched after it is.
        """
        buffers, host_flags = self._window_buffers, self._host_flags[self._slot]
        nearly = done = None
        if buffers.rows.is_cuda:
            # Blocking: a wait this long should leave its processor to those that gather.
            nearly = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        assert self._prompt is not None  # noqa: S101 - rows have been gathered for it
        flags = buffers.tensors["flags"]
        flags.zero_()
        self._window.head(self._prompt.launch(rows, position, self._first_late_layer, nearly))
        host_flags.copy_(flags, non_blocking=True)
        buffers.host_logits[:1].copy_(buffers.tensors["logits"][:1], non_blocking=True)
        if done is not None:
            done.record()
        return Flight(tokens, nearly, done, host_flags)

    def _open(self, chunk: int) -> None:
        """Makes buffers for chunks of so many rows, in memory that is lent or taken."""
        shapes = prompt_shapes(self._spec, self._layout, self._capacity, chunk)
        arena = None
        if self._loan is not None and self._lender is not None:
            self._is_taken = True  # whatever fails from here on
            arena = self._lender.lend(shapes, self._loan)
        self._buffers = PromptBuffers(shapes, self._window_buffers.rows.device, arena)
        self._prompt = self._make_prompt(buffers=self._buffers)

    def _borrow(self) -> None:
        """Buffers for a prompt; short ones of the card's own memory where nothing can be lent."""
        chunk = MIN_CHUNK if self._loan is None else self._loan.chunk
        num_rows = chunk_rows(chunk, self._capacity)
        if len(self._host_rows[0]) < num_rows:
            is_card = self._window_buffers.rows.is_cuda
            self._host_rows = _host_rows(self._spec, num_rows, is_card=is_card)
        self._open(chunk)

    @staticmethod
    def approach(flight: Flight) -> None:
        """Waits until the card is about to end a chunk: in time to launch the next one."""
        if flight.nearly is not None:
            flight.nearly.synchronize()

    @staticmethod
    def wait(flight: Flight) -> None:
        """Waits until the card has done a chunk."""
        if flight.done is not None:
            flight.done.synchronize()


def _host_rows(spec: ModelSpec, num_rows: int, *, is_card: bool) -> tuple[Tensor, Tensor]:
    """Inputs of two chunks, [N, D + W] float32 each."""
    first, second = (
        torch.empty((num_rows, input_width(spec)), pin_memory=is_card) for _ in range(2)
    )
    return first, second
