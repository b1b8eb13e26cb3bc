"""What sessions of every device have in common: what they refuse before they compute anything, how
large a window is, what a saved state is, and when a state is of no use."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.errors import ContextTooLong, RequestError, StrataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Tokens = NDArray[np.int32]
    Arrays = tuple[NDArray[Any], ...]
    # Sizes and type of each of some arrays.
    Forms = list[tuple[tuple[int, ...], np.dtype[Any]]]

MAX_WINDOW_ROWS = 8
# Tokens a conversation can hold where nothing else is wished, if the model can: enough for a long
# talk; the state of a larger one is asked for, not taken.
DEFAULT_CONTEXT_LEN = 8192
# Cells are copied in pages of at least this many tokens, so that a long conversation is some
# hundreds of copies and a short one is not much more than its own bytes.
_LEAST_PAGE_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A conversation's exact state in host memory, or all of it but the cells.

    Attributes:
        position: tokens committed.
        running: what every token changes: recurrent memories, histories of convolutions, keys of
            the incomplete index block, streams that wait for a draft.
        cells: what each token leaves once and for all; empty where it was left out.
    """

    position: int
    running: Arrays
    cells: Arrays = ()

    @property
    def num_bytes(self) -> int:
        """Host memory it holds."""
        return num_bytes((*self.running, *self.cells))


def num_bytes(arrays: Iterable[NDArray[Any]]) -> int:
    """Bytes of some arrays."""
    return sum(item.nbytes for item in arrays)


def page_tokens(group_tokens: int) -> int:
    """Tokens of a page of cells, where ``group_tokens`` of them share a group of pooled keys."""
    return -(-_LEAST_PAGE_TOKENS // group_tokens) * group_tokens


def have_forms(arrays: Arrays, forms: Forms) -> bool:
    """Whether arrays that came from elsewhere have the sizes and types a state needs."""
    return [(item.shape, item.dtype) for item in arrays] == forms


def checked_tokens(tokens: Tokens, position: int, capacity: int, vocab_size: int) -> Tokens:
    """``tokens`` as int32 [N], N >= 1, all of them in the vocabulary and within the context.

    Raises:
        ContextTooLong: they do not fit behind ``position``.
        RequestError: none at all, or an id that is not in the vocabulary.
    """
    tokens = np.ascontiguousarray(tokens, np.int32)
    if tokens.ndim != 1 or len(tokens) == 0:
        raise RequestError("there are no tokens to read.\n  Try: a prompt that is not empty.")
    if position + len(tokens) > capacity:
        raise too_long(position + len(tokens), capacity)
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
        raise RequestError(
            f"token ids must be 0 to {vocab_size - 1}, found "
            f"{int(tokens.min())} to {int(tokens.max())}.\n"
            "  Try: the tokenizer of this model."
        )
    return tokens


def refuse_wide_window(tokens: Tokens) -> None:
    """A window has at most ``MAX_WINDOW_ROWS`` rows.

    Raises:
        RequestError: it has more.
    """
    if len(tokens) > MAX_WINDOW_ROWS:
        raise RequestError(
            f"a window has 1 to {MAX_WINDOW_ROWS} rows, not {len(tokens)}.\n"
            "  Try: fewer drafted tokens."
        )


def too_long(num_tokens: int, capacity: int) -> ContextTooLong:
    """The error of a conversation that would pass its capacity."""
    return ContextTooLong(
        f"{num_tokens} tokens do not fit a context of {capacity}.\n"
        f"  Try: --context {num_tokens}, or a shorter prompt."
    )


def not_finite(what: str) -> StrataError:
    """The error of weights that give no usable number."""
    return StrataError(
        f"{what}.\n  Try: check the model file, or download it again; a weight in it is damaged."
    )


class Breakable:
    """A session, whose state belongs to no position while a step changes one part after the other.

    One that is broken off there leaves it broken, until a reset or a restore has come to its end.
    """

    _is_broken = False

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._is_broken = True
        yield
        self._is_broken = False

    def _refuse_broken(self) -> None:
        if self._is_broken:
            raise StrataError(
                "this conversation's state is incomplete: a step of it was broken off.\n"
                "  Try: reset it, or restore a checkpoint."
            )
