"""The seam between the engine and a device: one model, and one conversation on it.

Owns the protocols and nothing else. ``strata.cpu`` implements them without importing this
file; ``engine.build`` joins the two; the tests implement them with a fake of a few lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from strata.engine.sampling_params import SamplingParams
    from strata.model_spec import ModelSpec
    from strata.session_rules import Arrays, Snapshot

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]
Words = NDArray[np.uint32]  # allowed tokens, lowest bit first
OnProgress = Callable[[int, int], None]  # (tokens read so far, tokens to read)
ShouldStop = Callable[[], bool]

MAX_WINDOW_ROWS = 8


class Cells(Protocol):
    """What each token leaves in a session once and for all: keys, values, pooled keys.

    A cell is never changed by tokens after it. So the cells of a conversation can be copied out in
    pieces, and pieces that lie in the session already need not be copied in again.
    """

    @property
    def page_tokens(self) -> int:
        """Pieces begin at multiples of this."""

    def save(self, start: int, stop: int, /) -> Arrays:
        """Host copies of the cells of tokens ``start`` to ``stop``, all of them committed.

        Those of the newest 8 tokens may still be without their draft cells.
        """

    def load(self, start: int, stop: int, cells: Arrays, /) -> None:
        """Puts them back. The session's position is not moved; ``restore`` does that."""

    def fit(self, start: int, stop: int, cells: Arrays, /) -> bool:
        """Whether arrays that came from elsewhere can be these cells, by sizes and types."""


class Drafter(Protocol):
    """The draft layer beside one session: guesses the tokens that follow.

    It reads along by itself: whatever its session reads, commits, restores or resets, it follows,
    and its part of the state is in the session's snapshots. Guesses never change the session.
    """

    def propose(self, token: int, num_wanted: int, /) -> tuple[list[int], list[float]]:
        """Drafts, each the likeliest after the ones before it, and the probability of each.

        Args:
            token: the token after those committed; not in the session yet.
            num_wanted: most drafts. There are fewer where the context ends, and none before the
                first token has been committed.
        """


class Picker(Protocol):
    """Picks tokens where a session's logits are, by the rules of ``engine.sampler``."""

    @property
    def vocab_size(self) -> int:
        """V; a mask has ceil(V / 32) words."""

    def begin(self, options: SamplingParams, tokens: Sequence[int], /) -> None:
        """A request begins: its options, and the tokens in the session."""

    def decode(self, window: Tokens, masks: Sequence[Words | None] | None = None, /) -> list[int]:
        """As ``Session.decode``, but gives the token picked after each row.

        The window is then open like any other. -1 stands where no token is allowed.

        Args:
            window: [rows] int32.
            masks: allowed tokens behind each row, None for any.
        """


class Session(Protocol):
    """One conversation's state on one device. Used by one thread at a time.

    A *window* is 1 to 8 rows that have been computed but not accepted.
    """

    @property
    def position(self) -> int:
        """Tokens committed so far."""

    @property
    def capacity(self) -> int:
        """Tokens the conversation can hold."""

    @property
    def cut_tokens(self) -> int:
        """Grid on which a prompt may be cut without changing bits.

        A prompt read in several calls that end at multiples of this gives the same bits as one
        call; elsewhere a cut may change the last bits (docs/numerics.md, clause C3). 1 says
        moreover that tokens accepted from windows leave the same bits as when read as prompt.
        """

    @property
    def drafter(self) -> Drafter | None:
        """The draft layer, or None where the model has none loaded."""

    @property
    def picker(self) -> Picker | None:
        """Picks tokens on the device; None where the host picks from logits."""

    def prefill(
        self,
        tokens: Tokens,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Logits:
        """Logits [V] float32 of the last token read; every token read is committed.

        Args:
            tokens: [N] int32, N >= 1, position + N <= capacity.
            on_progress: called after each chunk with (tokens read, N).
            should_stop: asked between chunks; true ends the reading there. ``position`` then
                says how many tokens were read (at least one chunk).
        """

    def decode(self, tokens: Tokens) -> Logits:
        """Logits [rows, V] float32 of a window of 1..8 rows; nothing is committed yet.

        A second call before ``commit`` replaces the first window.
        """

    def commit(self, num_rows: int) -> None:
        """Accepts the first ``num_rows`` rows of the last window, 0 <= num_rows <= rows."""

    @property
    def cells(self) -> Cells:
        """The cells of this session."""

    def snapshot(self, *, with_cells: bool = True) -> Snapshot:
        """The exact state now; later calls do not change it. No window may be open.

        Without cells it can be restored where those of its tokens are in the session.
        """

    def restore(self, snapshot: Snapshot, /) -> None:
        """Puts back a state that ``snapshot`` of a session of this model gave; it stays usable."""

    def fits(self, snapshot: Snapshot, /) -> bool:
        """Whether a snapshot without cells that came from elsewhere has this session's sizes."""

    def reset(self) -> None:
        """Back to position 0."""


class Model(Protocol):
    """Weights on a device. Sessions of it share them."""

    @property
    def spec(self) -> ModelSpec:
        """Geometry of the model."""

    @property
    def numerics(self) -> str:
        """What the bits of a session's state depend on besides the weights: device, cells."""

    def new_session(self, capacity: int) -> Session:
        """An empty conversation that can hold ``capacity`` tokens."""

    def memory_report(self) -> Mapping[str, int]:
        """Bytes held, by what holds them; ``{"dense weights": 1_000_000, ...}``."""

    def close(self) -> None:
        """Gives memory and threads back. Sessions of it must not be used afterwards."""
