"""Held-out prose read token by token: perplexity, and the experts of every token.

Owns the reading through a session of the CPU engine, in windows, because a window gives the
logits of all its rows. The documents come from ``held_out``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.cpu.session import CpuSession
from strata.engine.build import open_parts
from strata.engine.session import MAX_WINDOW_ROWS
from strata.errors import RequestError
from strata.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from strata.engine.session import Session, Tokens

# Documents, and the pieces of longer ones, are each read from an empty conversation.
PIECE_TOKENS = 1024

OnTokens = Callable[[int, int], None]  # (tokens read, tokens to read)


@dataclass(frozen=True, slots=True)
class TextReading:
    """A text as a model reads it.

    Attributes:
        num_predicted: tokens whose probability was asked: all but the first of each piece.
        nats: sum of their negative log probabilities.
        expert_ids: [L, T, K] int32 of every token read.
        num_experts: E, in each layer.
    """

    num_predicted: int
    nats: float
    expert_ids: NDArray[np.int32]
    num_experts: int

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log probability of a token."""
        return math.exp(self.nats / self.num_predicted)


def read_text(
    model: Path | None,
    documents: Iterable[str],
    max_tokens: int,
    on_tokens: OnTokens | None = None,
) -> TextReading:
    """The first ``max_tokens`` tokens of the documents through a model file (None: the demo).

    Raises:
        RequestError: there is nothing to predict in them.
    """
    parts = open_parts(Settings.from_options({"model": model, "context_len": PIECE_TOKENS}))
    try:
        pieces = cut_pieces(map(parts.text.encode, documents), max_tokens)
        if not pieces:
            raise RequestError("the held-out text is empty.\n  Try: another --text.")
        session = parts.model.new_session(PIECE_TOKENS)
        told: list[NDArray[np.int32]] = []
        if isinstance(session, CpuSession):
            session.on_routing = lambda _layer, expert_ids: told.append(expert_ids.copy())
        total = sum(map(len, pieces))
        nats, num_read = 0.0, 0
        for piece in pieces:
            session.reset()
            nats += piece_nats(session, piece)
            num_read += len(piece)
            if on_tokens is not None:
                on_tokens(num_read, total)
        spec = parts.model.spec
        expert_ids = join_layers(told, spec.num_layers)
    finally:
        parts.close()
    return TextReading(total - len(pieces), nats, expert_ids, spec.num_experts)


def cut_pieces(documents: Iterable[Sequence[int]], max_tokens: int) -> list[Tokens]:
    """Documents in pieces of 2 to ``PIECE_TOKENS`` tokens, together at most ``max_tokens``."""
    pieces: list[Tokens] = []
    room = max_tokens
    for ids in documents:
        for start in range(0, len(ids), PIECE_TOKENS):
            piece = np.array(ids[start : start + min(PIECE_TOKENS, room)], np.int32)
            if len(piece) > 1:
                pieces.append(piece)
                room -= len(piece)
        if room < 2:
            break
    return pieces


def piece_nats(session: Session, tokens: Tokens) -> float:
    """Sum of -ln p of ``tokens[1:]``, each after the ones before it; the session is at 0."""
    nats = 0.0
    for start in range(0, len(tokens), MAX_WINDOW_ROWS):
        window = tokens[start : start + MAX_WINDOW_ROWS]
        logits = session.decode(window).astype(np.float64)
        session.commit(len(window))
        following = tokens[start + 1 : start + 1 + len(window)]
        known = logits[: len(following)]
        top = known.max(axis=1)
        total = top + np.log(np.exp(known - top[:, None]).sum(axis=1))
        nats += float((total - known[np.arange(len(following)), following]).sum())
    return nats


def join_layers(told: list[NDArray[np.int32]], num_layers: int) -> NDArray[np.int32]:
    """[L, T, K] of ids that came window by window, in each of them layer by layer."""
    if not told:
        return np.zeros((num_layers, 0, 1), np.int32)
    return np.stack([np.concatenate(told[layer::num_layers]) for layer in range(num_layers)])
