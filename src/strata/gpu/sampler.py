"""The last launches of a window: which token follows each row, by ``engine.sampler``'s rules.

Options, seed, history and mask are device memory, so one graph of each kind serves every request.
Log-probabilities are not made here; who wants them asks for logits.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from strata.gpu.kernels.argmax import argmax
from strata.gpu.kernels.sampling import SamplingOptions, SamplingScratch, note_tokens, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Tokens = NDArray[np.int32]
    Words = NDArray[np.uint32]


class Choice(Enum):
    """How a window's tokens are picked."""

    LIKELIEST = "the largest logit"
    DRAWN = "penalties, candidates, draw"
    MASKED = "the same among allowed tokens"


class Options(Protocol):
    """What ``engine.sampling_params`` says of a request, as far as picking goes."""

    @property
    def temperature(self) -> float:
        """Divides the logits before the draw."""

    @property
    def top_p(self) -> float:
        """Keeps the fewest candidates that reach this sum."""

    @property
    def min_p(self) -> float:
        """Keeps candidates this likely, compared with the best."""

    @property
    def repeat_penalty(self) -> float:
        """Divides or multiplies logits of recent tokens."""

    @property
    def frequency_penalty(self) -> float:
        """Taken off once per occurrence."""

    @property
    def presence_penalty(self) -> float:
        """Taken off once."""

    @property
    def penalty_last_n(self) -> int:
        """How many tokens are recent."""

    @property
    def seed(self) -> int | None:
        """Fixes every draw."""

    @property
    def is_greedy(self) -> bool:
        """The likeliest token is picked."""

    @property
    def num_candidates(self) -> int:
        """Most tokens of a draw."""

    @property
    def has_penalties(self) -> bool:
        """Recent tokens change logits."""


class Sampler:
    """Device memory of the picks, its host sides, and the launches between them.

    Args:
        tensors: by the names of ``sampler_layout.sampler_shapes``.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        device_options = tensors["pick_options"]
        is_card = device_options.is_cuda

        def pinned(name: str) -> Tensor:
            like = tensors[name]
            return torch.zeros(like.shape, dtype=like.dtype, pin_memory=is_card)

        self._host_options, self._host_mask = pinned("pick_options"), pinned("pick_mask")
        self._host_ids = pinned("picked_ids")
        reals, integers, self._window = _option_views(device_options)
        self._options = SamplingOptions(
            reals, integers, tensors["pick_tokens"], tensors["pick_mask"]
        )
        self._scratch = SamplingScratch(
            tensors["pick_maxima"], tensors["pick_ints"], tensors["pick_reals"]
        )

    def launch(self, choice: Choice, logits: Tensor, position: Tensor, bad: Tensor) -> None:
        """From the options to the ids, host to host.

        Args:
            choice: by which rule.
            logits: [N, V] float32; those of penalised tokens are changed.
            position: [1] int64, position of row 0.
            bad: [1] int32, becomes 1 when a logit is NaN or plus infinity.
        """
        num_rows, tensors = len(logits), self._tensors
        ids = tensors["picked_ids"][:num_rows]
        if choice is Choice.LIKELIEST:
            argmax(
                logits, tensors["argmax_best"], tensors["argmax_sums"], ids,
                tensors["picked_probs"][:num_rows], bad,
            )  # fmt: skip
        else:
            tensors["pick_options"].copy_(self._host_options, non_blocking=True)
            if choice is Choice.MASKED:
                mask = self._host_mask[:num_rows]
                tensors["pick_mask"][:num_rows].copy_(mask, non_blocking=True)
            note_tokens(self._window[:num_rows], position, self._options.tokens)
            sample(logits, self._options, position, self._scratch, ids, bad)
        self._host_ids[:num_rows].copy_(ids, non_blocking=True)

    def begin(self, options: Options, tokens: Sequence[int]) -> None:
        """What the windows that follow are picked by.

        Args:
            options: of the request; a draw needs its seed.
            tokens: those in the session; penalties look at them.
        """
        reals, integers, _ = (view.numpy() for view in _option_views(self._host_options))
        # Greedy is a draw from one candidate.
        temperature = 1.0 if options.is_greedy else options.temperature
        reals[:] = [
            temperature, options.top_p, options.min_p, options.repeat_penalty,
            options.frequency_penalty, options.presence_penalty,
        ]  # fmt: skip
        seed = np.array(options.seed or 0, np.uint64).view(np.int64)
        num_penalised = options.penalty_last_n if options.has_penalties else 0
        integers[:3] = [1 if options.is_greedy else options.num_candidates, num_penalised, seed]
        if num_penalised:
            history = torch.from_numpy(np.asarray(tokens, np.int32))
            self._tensors["pick_tokens"][: len(tokens)].copy_(history)

    def stage(self, window: Tokens, masks: Sequence[Words | None] | None) -> None:
        """The rows' tokens, and which may follow each; None for any."""
        _, integers, ids = (view.numpy() for view in _option_views(self._host_options))
        ids[: len(window)] = window
        integers[3] = masks is not None
        if masks is not None:
            rows = self._host_mask.numpy().view(np.uint32)
            for row, words in enumerate(masks):
                rows[row] = 0xFFFFFFFF if words is None else words

    def picked(self, num_rows: int) -> list[int]:
        """Ids of the window that has been run; -1 where no token is allowed."""
        ids: list[int] = self._host_ids[:num_rows].tolist()
        return ids


class GpuPicker:
    """The picker protocol of ``engine.session``.

    Args:
        sampler: of the session.
        run: runs a window whose tokens have been staged, and leaves it open.
        vocab_size: V.
    """

    def __init__(
        self, sampler: Sampler, run: Callable[[Tokens, Choice], None], vocab_size: int
    ) -> None:
        self._sampler = sampler
        self._run = run
        self.vocab_size = vocab_size
        self._is_plain = False

    def begin(self, options: Options, tokens: Sequence[int]) -> None:
        """Options of a request, and the tokens in the session."""
        self._is_plain = options.is_greedy and not options.has_penalties
        self._sampler.begin(options, tokens)

    def decode(self, window: Tokens, masks: Sequence[Words | None] | None = None) -> list[int]:
        """The token picked after each row of a window of 1..8 rows; nothing is committed yet.

        Args:
            window: [rows] int32.
            masks: for each row ceil(V / 32) words of allowed tokens, lowest bit first, or None.

        Raises:
            ContextTooLong, RequestError, StrataError: as ``decode`` of the session.
        """
        choice = Choice.MASKED if masks is not None else Choice.DRAWN
        if masks is None and self._is_plain:
            choice = Choice.LIKELIEST
        else:
            self._sampler.stage(window, masks)
        self._run(window, choice)
        return self._sampler.picked(len(window))


def _option_views(options: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reals, integers and the window's ids in the bytes of the options."""
    return (
        options[:48].view(torch.float64),
        options[64:96].view(torch.int64),
        options[128:].view(torch.int32),
    )
