"""Reads one chunk of a prompt: rows from the host, launches, logits of the last row.

Owns what of it waits for what: while the card works on a chunk, the host decodes the embedding and
n-gram rows of the next into the other half of page-locked memory. Where a prompt is cut, and what a
failure means for the conversation, is the session's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from strata.gpu.kernels.qsa_append import RopeTable
from strata.gpu.prompt import Prompt
from strata.gpu.prompt_buffers import PromptBuffers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from strata.formats.ngram_table import RowRequest
    from strata.gpu.buffers import WindowBuffers
    from strata.gpu.model_layout import ModelLayout
    from strata.gpu.prompt_layout import PromptShapes
    from strata.gpu.state import SessionState
    from strata.gpu.weights import ModelWeights
    from strata.gpu.window import Window
    from strata.model_spec import ModelSpec

    Tokens = NDArray[np.int32]


class PromptReader:
    """A conversation's prompt chunks.

    Args:
        spec: geometry.
        layout: of the model.
        weights: on a device.
        state: of the conversation.
        window: whose head gives the logits.
        window_buffers: of the window: flags, rotary tables, logits.
        shapes: of ``prompt_layout.prompt_shapes``.

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
    ) -> None:
        tensors = window_buffers.tensors
        rope = None
        if "rope_cos" in tensors:
            rope = RopeTable(tensors["rope_cos"], tensors["rope_sin"])
        self._hidden_size = spec.hidden_size
        self._embedding = weights.embedding
        self._window = window
        self._window_buffers = window_buffers
        self._buffers = PromptBuffers(shapes, window_buffers.rows.device)
        self._prompt = Prompt(spec, layout, weights, state, self._buffers, tensors["flags"], rope)
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

    def forget(self) -> None:
        """Drops what has been gathered and was not launched."""
        self._num_rows = 0

    def gather(self, tokens: Tokens, request: RowRequest | None) -> None:
        """Rows of the chunk that is launched next; waits for the disk, not for the card.

        Raises:
            CheckpointError: a row of the n-gram table could not be read.
        """
        self._slot ^= 1
        rows = self._buffers.host_rows[self._slot][: len(tokens)].numpy()
        rows[:, : self._hidden_size] = self._embedding.rows(tokens)
        if request is not None:
            rows[:, self._hidden_size :] = request.wait().reshape(len(tokens), -1)
        self._num_rows = len(tokens)

    def launch(self, position: int) -> None:
        """Everything of the chunk gathered last, which follows ``position`` tokens; no waiting.

        ``host_flags`` and row 0 of ``host_logits`` are valid after ``wait``.
        """
        buffers = self._window_buffers
        buffers.tensors["flags"].zero_()
        rows = self._buffers.host_rows[self._slot][: self._num_rows]
        self._num_rows = 0
        self._window.head(self._prompt.launch(rows, position))
        buffers.host_flags.copy_(buffers.tensors["flags"], non_blocking=True)
        buffers.host_logits[:1].copy_(buffers.tensors["logits"][:1], non_blocking=True)

    def wait(self) -> None:
        """Until the launches are done."""
        if self._window_buffers.rows.is_cuda:
            torch.cuda.current_stream().synchronize()
