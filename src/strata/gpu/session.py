"""One conversation on a card: the session protocol of ``engine.session``.

A prompt is read in chunks by kernels of its own, its ends in windows; cuts at multiples of 64 give
the same bits. Launches are those of ``window`` and ``prompt``; what is committed is decided here.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from strata.gpu.buffers import input_views, make_buffers
from strata.gpu.draft import GpuDrafter
from strata.gpu.graphs import WindowRunner
from strata.gpu.memory_plan import buffer_shapes
from strata.gpu.newest_tokens import NewestTokens
from strata.gpu.prompt_layout import CUT_TOKENS, pieces_of
from strata.gpu.prompt_reader import PromptReader
from strata.gpu.sampler import GpuPicker, Sampler
from strata.gpu.state import GpuCells, SessionState
from strata.gpu.window import Window, WindowShape
from strata.session_rules import (
    Breakable,
    Snapshot,
    checked_tokens,
    have_forms,
    not_finite,
    refuse_wide_window,
    too_long,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from strata.formats.ngram_table import RowRequest
    from strata.gpu.model import GpuModel
    from strata.gpu.prompt_reader import Flight
    from strata.gpu.sampler import Choice

    Tokens = NDArray[np.int32]
    Floats = NDArray[np.float32]


class GpuSession(Breakable):
    """State and buffers of one conversation; used by one thread at a time.

    Args:
        model: weights and settings; shared.
        capacity: tokens it can hold.
        chunk: prompt rows at a time, a multiple of 64.

    Raises:
        DeviceError: the card has not got the memory.
    """

    def __init__(self, model: GpuModel, capacity: int, chunk: int) -> None:
        spec = model.spec
        self._model = model
        self._spec = spec
        self._capacity = capacity
        self._position = 0
        self._num_pending = 0  # kept rows that the recurrent memories have not taken in
        self._num_rows = 0  # of the last window
        self._window: Tokens | None = None
        self._flights: list[Flight] = []  # chunks launched and not yet committed, oldest first
        self._buffers = make_buffers(
            spec, buffer_shapes(model.layout, spec, capacity), model.device
        )
        self._state = SessionState(spec, capacity, model.kv_format, model.device)
        sampler = Sampler(self._buffers.tensors)
        self._picker = GpuPicker(sampler, self._decode, spec.vocab_size)
        draft = model.weights.draft
        self._drafter: GpuDrafter | None = None
        if draft is not None:
            self._drafter = GpuDrafter(spec, draft, self._buffers, capacity, model.kv_format)
        self.cells = GpuCells(spec, self._state, self._drafter)
        ring = None if self._drafter is None else self._drafter.ring
        window = Window(spec, model.weights, self._state, self._buffers, capacity, sampler, ring)
        self._runner = WindowRunner(window, self._buffers, spec)
        self._chunk = chunk
        self._reader = PromptReader(
            spec, model.layout, model.weights, self._state, window, self._buffers,
            capacity, chunk, model.host_rows, model.lender,
        )  # fmt: skip
        views = input_views(self._buffers.host_inputs, spec)
        self._host_position, self._host_pending = views[0].numpy(), views[1].numpy()
        self._host_rows: Floats = views[2].numpy()
        self._host_logits: Floats = self._buffers.host_logits.numpy()
        self._newest = NewestTokens(spec.ngram)

    @property
    def position(self) -> int:
        """Tokens committed so far."""
        return self._position

    @property
    def capacity(self) -> int:
        """Tokens the conversation can hold."""
        return self._capacity

    @property
    def cut_tokens(self) -> int:
        """A prompt may be cut at multiples of 64 without changing bits."""
        return CUT_TOKENS

    @property
    def drafter(self) -> GpuDrafter | None:
        """The draft layer, which follows this session; None where the model has none loaded."""
        return self._drafter

    @property
    def picker(self) -> GpuPicker:
        """Picks tokens on the card."""
        return self._picker

    @property
    def num_bytes(self) -> int:
        """Memory on the card."""
        own_bytes = self._buffers.num_bytes + self._state.num_bytes + self._reader.num_bytes
        return own_bytes + (0 if self._drafter is None else self._drafter.num_bytes)

    def prefill(
        self,
        tokens: Tokens,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Floats:
        """Logits [V] float32 of the last token read; every token read is committed.

        Args:
            tokens: [N] int32, N >= 1, position + N <= capacity.
            on_progress: called after each chunk with (tokens read, N).
            should_stop: asked between chunks; true ends the reading there. When another chunk
                follows it is asked shortly before the end of one, and before its ``on_progress``.

        Raises:
            ContextTooLong: the tokens do not fit.
            RequestError: no tokens, or an id that is not in the vocabulary.
            StrataError: the weights gave NaN or infinity.
        """
        tokens = self._checked(tokens)
        self._window = None
        self._chunk = self._reader.begin(len(tokens))
        read = 0
        try:
            for num_rows, is_window in pieces_of(self._position, len(tokens), self._chunk):
                piece, rest = tokens[read : read + num_rows], tokens[read + num_rows :]
                is_stopped = None if is_window else self._read_chunk(piece, rest, should_stop)
                if is_window:
                    self._reader.end()
                    self._run(piece, self._request_ngrams(piece), has_head=True)
                    self._commit(piece)
                read += num_rows
                if on_progress is not None:
                    on_progress(read, len(tokens))
                if is_stopped is None and len(rest) and should_stop is not None:
                    is_stopped = should_stop()
                if is_stopped:
                    break
        except BaseException:
            while self._flights:  # the card cannot be stopped: what it is at belongs to the state
                self._land()
            raise
        finally:
            self._reader.end()
        logits: Floats = self._logits(num_rows if is_window else 1)[-1]
        return logits

    def decode(self, tokens: Tokens) -> Floats:
        """Logits [rows, V] float32 of a window of 1..8 rows; nothing is committed yet.

        A second call before ``commit`` replaces the first window.

        Raises:
            ContextTooLong: the window does not fit.
            RequestError: too many rows, or an id that is not in the vocabulary.
            StrataError: the weights gave NaN or infinity.
        """
        self._decode(tokens)
        return self._logits(len(tokens))

    def commit(self, num_rows: int) -> None:
        """Accepts the first ``num_rows`` rows of the last window, 0 <= num_rows <= rows."""
        self._refuse_broken()
        window = self._window
        if window is None or not 0 <= num_rows <= len(window):
            raise ValueError(f"no window of at least {num_rows} rows is open")
        with self._changing():
            self._commit(window[:num_rows])
            self._window = None

    def snapshot(self, *, with_cells: bool = True) -> Snapshot:
        """The exact state now; later calls do not change it. No window may be open."""
        self._refuse_broken()
        if self._window is not None:
            raise ValueError("a window is open; commit it first")
        self._step_pending()
        draft = () if self._drafter is None else self._drafter.save()
        running = (*self._state.save(self._position), self._newest.ids.copy(), *draft)
        cells = self.cells.save(0, self._position) if with_cells else ()
        return Snapshot(self._position, running, cells)

    def restore(self, snapshot: Snapshot) -> None:
        """Puts that state back. The snapshot stays usable, in any session of the same model.

        Raises:
            ContextTooLong: the snapshot holds more tokens than this session can.
        """
        position, running = snapshot.position, snapshot.running
        if position > self._capacity:
            raise too_long(position, self._capacity)
        with self._changing():
            if snapshot.cells:
                self.cells.load(0, position, snapshot.cells)
            if self._drafter is not None:
                self._drafter.load(running[-2:], position)
                running = running[:-2]
            self._state.load(running[:-1], position)
            self._newest.ids = running[-1].copy()
            self._position = position
            self._num_pending = 0
            self._window = None

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot from elsewhere, its cells apart, has the sizes of this session's."""
        draft = () if self._drafter is None else self._drafter.forms(snapshot.running[-2:])
        tokens = (self._newest.ids.shape, self._newest.ids.dtype)
        forms = [*self._state.forms(snapshot.position), tokens, *draft]
        return snapshot.position <= self._capacity and have_forms(snapshot.running, forms)

    def reset(self) -> None:
        """Back to position 0."""
        with self._changing():
            self._state.reset()
            if self._drafter is not None:
                self._drafter.reset()
            self._newest.reset()
            self._position = 0
            self._num_pending = 0
            self._window = None

    def prepare(self, num_rows: int) -> None:
        """Captures the launches of a window of so many rows, so that its first use is no slower."""
        if self._position + num_rows <= self._capacity:
            self._write_header()
            with self._model.serving_experts():
                self._runner.prepare(self._shape(num_rows, has_head=True))
            self._model.check_experts()

    def relaunch(self, num_rows: int, choice: Choice | None = None) -> Callable[[], None]:
        """A function that launches a window's work and does not wait, for measuring.

        The state is of no use afterwards: ``reset`` or ``restore`` before anything else.
        """
        shape = self._shape(num_rows, has_head=True, choice=choice)
        self._write_header()
        self._model.keep_serving_experts()
        self._runner.prepare(shape)
        self._is_broken = True
        return partial(self._runner.launch, shape)

    def _read_chunk(
        self, chunk: Tokens, rest: Tokens, should_stop: Callable[[], bool] | None
    ) -> bool | None:
        """Reads and commits a chunk; the next, if there is one, is launched before it is done.

        Gives what ``should_stop`` said of the next one, None if it was not asked.
        """
        reader, is_stopped = self._reader, None
        # The next chunk begins at a multiple of the chunk, if there is one.
        following = rest[: min(self._chunk, len(rest) // CUT_TOKENS * CUT_TOKENS)]
        if not self._flights:
            self._step_pending()
            reader.gather(chunk, self._newest.rows(chunk))
            self._launch_chunk(chunk, reader.ready(), self._position)
        if len(following):
            reader.gather(following, self._newest.rows(following, after=chunk))
            reader.approach(self._flights[0])
            is_stopped = should_stop is not None and should_stop()
            if not is_stopped:
                self._launch_chunk(following, reader.ready(), self._position + len(chunk))
        self._land()
        return is_stopped

    def _launch_chunk(self, chunk: Tokens, rows: Tensor, position: int) -> None:
        earlier, self._flights, self._is_broken = self._flights, [], True  # none lands if it fails
        flight = self._reader.launch(chunk, rows, position)
        if self._drafter is not None:
            self._drafter.follow(chunk, self._reader.streams)
        self._flights = [*earlier, flight]

    def _land(self) -> None:
        """Waits for the oldest chunk that is under way, and commits it."""
        (flight, *later), self._flights = self._flights, []
        self._reader.wait(flight)
        self._refuse_bad_flags(flight.flags)
        self._advance(flight.tokens)
        self._flights = later
        self._is_broken = bool(later)

    def _step_pending(self) -> None:
        """Takes kept rows of the last window into the recurrent memories."""
        if self._num_pending:
            with self._changing():
                self._write_header()
                self._runner.step_pending()
                self._num_pending = 0

    def _decode(self, tokens: Tokens, choice: Choice | None = None) -> None:
        """Computes a window that is then open."""
        refuse_wide_window(tokens)
        tokens = self._checked(tokens)
        self._window = None
        self._run(tokens, self._request_ngrams(tokens), has_head=True, choice=choice)
        self._window = tokens

    def _run(
        self,
        tokens: Tokens,
        request: RowRequest | None,
        *,
        has_head: bool,
        choice: Choice | None = None,
    ) -> None:
        """Computes a window; afterwards no row is pending."""
        num_rows, hidden = len(tokens), self._spec.hidden_size
        rows = self._host_rows[:num_rows]
        self._model.weights.embedding.rows(tokens, rows[:, :hidden])
        if request is not None:
            request.wait(rows[:, hidden:])
        self._write_header()
        self._num_rows = num_rows
        with self._model.serving_experts(), self._changing():
            shape = self._shape(num_rows, has_head=has_head, choice=choice)
            self._runner.run(shape, self._model.work_on_experts)
            self._num_pending = 0
        self._model.check_experts()
        self._refuse_bad_flags(self._buffers.host_flags)

    def _refuse_bad_flags(self, host_flags: Tensor) -> None:
        flags = host_flags.numpy()[:, 0]
        if flags.any():
            layer = int(np.argmax(flags != 0))
            where = f"layer {layer}" if layer < self._spec.num_layers else "the output head"
            raise not_finite(f"{where} gave NaN or infinity near position {self._position}")

    def _shape(self, num_rows: int, *, has_head: bool, choice: Choice | None = None) -> WindowShape:
        # Until then every cell is taken, and there is nothing to choose.
        blocks = (self._position + num_rows) // self._spec.index_block
        has_selection = blocks > self._spec.index_budget // self._spec.index_block
        return WindowShape(num_rows, has_head, has_selection, choice)

    def _write_header(self) -> None:
        self._host_position[0] = self._position
        self._host_pending[0] = self._num_pending

    def _commit(self, tokens: Tokens) -> None:
        """The first rows of the window just computed are kept: their tokens."""
        self._model.settle_experts(self._num_rows, len(tokens))
        if self._drafter is not None:
            self._drafter.commit(tokens)
        self._advance(tokens)
        self._num_pending = len(tokens)

    def _advance(self, tokens: Tokens) -> None:
        self._position += len(tokens)
        self._newest.push(tokens)

    def _logits(self, num_rows: int) -> Floats:
        logits = self._host_logits[:num_rows].copy()
        if not np.isfinite(logits).all():
            raise not_finite(f"the output head gave NaN or infinity near position {self._position}")
        return logits

    def _request_ngrams(self, tokens: Tokens) -> RowRequest | None:
        """Starts reading the n-gram rows of ``tokens``."""
        table, rows = self._model.ngram_table, self._newest.rows(tokens)
        return None if table is None or rows is None else table.request(rows)

    def _checked(self, tokens: Tokens) -> Tokens:
        self._refuse_broken()
        return checked_tokens(tokens, self._position, self._capacity, self._spec.vocab_size)
