"""Reads chunks of a prompt: rows from the host, launches, logits of the last row.

Owns what of it waits for what: while the card works on a chunk, threads of the host gather the
rows of the next in the other half of page-locked memory; and before the card is done with it the
next may be launched. Where a prompt is cut, and what a failure means for the conversation, is the
session's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strata.gpu.host_rows import abandoned, finished
from strata.gpu.kernels.qsa_append import RopeTable
from strata.gpu.prompt import Prompt
from strata.gpu.prompt_buffers import PromptBuffers

if TYPE_CHECKING:
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.host_rows import HostRows
    from strata.gpu.model_layout import ModelLayout
    from strata.gpu.prompt_layout import PromptShapes
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
        shapes: of ``prompt_layout.prompt_shapes``.
        rows: of the model.

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
        shapes: PromptShapes,
        rows: HostRows,
    ) -> None:
        tensors = window_buffers.tensors
        rope = None
        if "rope_cos" in tensors:
            rope = RopeTable(tensors["rope_cos"], tensors["rope_sin"])
        self._rows = rows
        self._coming: tuple[Future[None], ...] = ()
        self._window = window
        self._window_buffers = window_buffers
        self._buffers = PromptBuffers(shapes, window_buffers.rows.device)
        self._prompt = Prompt(spec, layout, weights, state, self._buffers, tensors["flags"], rope)
        self._first_late_layer = int(spec.num_layers * (1 - _LAYERS_AHEAD))
        flags = window_buffers.host_flags
        self._host_flags = [
            torch.zeros(flags.shape, dtype=flags.dtype, pin_memory=window_buffers.rows.is_cuda)
            for _ in self._buffers.host_rows
        ]
        self._slot = 0
        self._num_rows = 0  # gathered and not launched

    @property
    def num_bytes(self) -> int:
        """Memory on the card."""
        return self._buffers.num_bytes

    @property
    def has_rows(self) -> bool:
        """Whether a chunk has been gathered that was not launched."""
        return self._num_rows > 0

    @property
    def streams(self) -> Tensor:
        """[N, S * D] float32: what the chunk launched last leaves in the streams."""
        return self._buffers.rows("streams")

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
        self._slot ^= 1
        self._num_rows = len(tokens)
        out = self._buffers.host_rows[self._slot][: len(tokens)].numpy()
        self._coming = self._rows.start(tokens, ngram_rows, out)

    def ready(self) -> Tensor:
        """The rows of the chunk that was gathered last; waits for the disk, not for the card."""
        coming, self._coming = self._coming, ()
        num_rows, self._num_rows = self._num_rows, 0
        finished(coming)
        return self._buffers.host_rows[self._slot][:num_rows]

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
        flags = buffers.tensors["flags"]
        flags.zero_()
        self._window.head(self._prompt.launch(rows, position, self._first_late_layer, nearly))
        host_flags.copy_(flags, non_blocking=True)
        buffers.host_logits[:1].copy_(buffers.tensors["logits"][:1], non_blocking=True)
        if done is not None:
            done.record()
        return Flight(tokens, nearly, done, host_flags)

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
