"""One conversation on the CPU: the session protocol of ``engine.session``.

Prompt rows and window rows go through the same kernels, whose bits do not depend on the number of
rows; so a prompt may be cut anywhere, and equals the same tokens decoded one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strata import _native
from strata.cpu import layers
from strata.cpu.draft import CpuDrafter
from strata.cpu.rope_rows import RopeSpan
from strata.cpu.scratch import Scratch
from strata.cpu.state import CpuCells, GdnState, PleState, QsaState
from strata.cpu.weights import GdnWeights, QsaWeights
from strata.reference.ngram_memory import ngram_rows
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

    from strata._native import RopeRows
    from strata.cpu.buffers import Floats, Ints
    from strata.cpu.model import CpuModel
    from strata.cpu.scratch import RowViews
    from strata.cpu.weights import LayerWeights, PleWeights
    from strata.formats.ngram_table import RowRequest
    from strata.session_rules import Forms

    Tokens = NDArray[np.int32]

# Of cells that nothing has used yet; most conversations use them, and the first would wait.
_TOUCHED_BYTES = 8 << 20


class CpuSession(Breakable):
    """State and buffers of one conversation; used by one thread at a time.

    Args:
        model: weights and settings; shared.
        capacity: tokens it can hold.
    """

    def __init__(self, model: CpuModel, capacity: int) -> None:
        spec = model.spec
        self._model = model
        self._spec = spec
        self._ctx = model.ctx
        self._capacity = capacity
        self._position = 0
        self._window: Tokens | None = None
        # For statistics: called with (layer, expert ids [T, K]) after each layer of experts. The
        # ids are valid until it returns.
        self.on_routing: Callable[[int, Ints], None] | None = None
        chunk = min(model.chunk_tokens, capacity)
        cell_type = np.float16 if model.kv_format == "f16" else np.float32
        self._states: tuple[GdnState | QsaState, ...] = tuple(
            GdnState(spec, layer.mixer.layer)
            if isinstance(layer.mixer, GdnWeights)
            else QsaState(spec, capacity, chunk, cell_type)
            for layer in model.weights.layers
        )
        self._ple = None if spec.ngram is None else PleState(spec, spec.ngram)
        self._scratch = Scratch(spec, chunk, capacity)
        self._rope = RopeSpan(spec.rope, spec.index_block, capacity)
        draft = model.weights.draft
        self._drafter = (
            None if draft is None else CpuDrafter(self._ctx, spec, draft, capacity, cell_type)
        )
        self.cells = CpuCells(spec, self._states, self._drafter)
        self.cells.touch(_TOUCHED_BYTES)

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
        """1: a prompt may be cut anywhere without changing bits."""
        return 1

    @property
    def drafter(self) -> CpuDrafter | None:
        """The draft layer, which follows this session; None where the model has none loaded."""
        return self._drafter

    @property
    def picker(self) -> None:
        """None: logits are in the host's memory anyway."""
        return None

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
            should_stop: asked between chunks; true ends the reading there.

        Raises:
            ContextTooLong: the tokens do not fit.
            RequestError: no tokens, or an id that is not in the vocabulary.
            StrataError: the weights gave NaN or infinity.
        """
        tokens = self._checked(tokens)
        self._window = None
        chunks = self._chunks(tokens)
        coming = self._request_ngrams(chunks[0])
        read = 0
        try:
            for chunk, following in zip(chunks, [*chunks[1:], None], strict=True):
                request, coming = coming, None
                if following is not None:
                    coming = self._request_ngrams(following, after=chunk)
                rows = self._read_chunk(chunk, request)
                read += len(chunk)
                if on_progress is not None:
                    on_progress(read, len(tokens))
                if following is not None and should_stop is not None and should_stop():
                    break
        finally:
            if coming is not None:
                coming.abandon()
        logits: Floats = self._logits(rows, rows.num_rows - 1)[0]
        return logits

    def decode(self, tokens: Tokens) -> Floats:
        """Logits [rows, V] float32 of a window of 1..8 rows; nothing is committed yet.

        A second call before ``commit`` replaces the first window.

        Raises:
            ContextTooLong: the window does not fit.
            RequestError: an id that is not in the vocabulary.
            StrataError: the weights gave NaN or infinity.
        """
        refuse_wide_window(tokens)
        tokens = self._checked(tokens)
        self._window = None
        try:
            rows = self._timed_window(tokens)
        except KeyboardInterrupt:
            # It may lie between a kernel's work on the state and the note that it is done.
            self._is_broken = True
            raise
        self._window = tokens
        if self._drafter is not None:
            self._drafter.hold(rows.residual)
        return self._logits(rows, 0)

    def commit(self, num_rows: int) -> None:
        """Accepts the first ``num_rows`` rows of the last window, 0 <= num_rows <= rows."""
        self._refuse_broken()
        window = self._window
        if window is None or not 0 <= num_rows <= len(window):
            raise ValueError(f"no window of at least {num_rows} rows is open")
        with self._changing():
            for state in self._states:
                if isinstance(state, GdnState):
                    state.commit(num_rows)
            if self._ple is not None:
                self._ple.conv.commit(num_rows)
                self._ple.remember(window[:num_rows])
            if self._drafter is not None:
                self._drafter.commit(window[:num_rows])
            self._position += num_rows
            self._window = None
        if self._model.routing is not None:
            self._model.routing.keep(num_rows)

    def snapshot(self, *, with_cells: bool = True) -> Snapshot:
        """The exact state now; later calls do not change it."""
        self._refuse_broken()
        if self._window is not None:
            raise ValueError("a window is open; commit it first")
        running: list[NDArray[Any]] = []
        with self._changing():
            for state in self._states:
                if isinstance(state, GdnState):
                    running += state.save(self._ctx)
                else:
                    running += state.save(self._position)
        running += () if self._ple is None else self._ple.save()
        running += () if self._drafter is None else self._drafter.save()
        cells = self.cells.save(0, self._position) if with_cells else ()
        return Snapshot(self._position, tuple(running), cells)

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
            for state in self._states:
                if isinstance(state, GdnState):
                    state.load(running[:2])
                    running = running[2:]
                else:
                    state.load(running[:1], position)
                    running = running[1:]
            if self._ple is not None:
                self._ple.load(running[:2])
            if self._drafter is not None:
                self._drafter.load(running[-2:], position)
            self._position = position
            self._window = None

    def fits(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot from elsewhere, its cells apart, has the sizes of this session's."""
        forms: Forms = []
        for state in self._states:
            forms += (
                state.forms() if isinstance(state, GdnState) else state.forms(snapshot.position)
            )
        forms += [] if self._ple is None else self._ple.forms()
        forms += [] if self._drafter is None else self._drafter.forms(snapshot.running[-2:])
        return snapshot.position <= self._capacity and have_forms(snapshot.running, forms)

    def reset(self) -> None:
        """Back to position 0."""
        with self._changing():
            for state in self._states:
                if isinstance(state, GdnState):
                    state.reset()
            if self._ple is not None:
                self._ple.reset()
            if self._drafter is not None:
                self._drafter.reset()
            self._position = 0
            self._window = None

    def _timed_window(self, tokens: Tokens) -> RowViews:
        """A window; where experts are read from a disk, what it took is told."""
        times = self._model.window_times
        if times is not None:
            times.begins()
        rows = self._forward(tokens, self._request_ngrams(tokens), is_window=True)
        if times is not None:
            times.ends(len(tokens))
        return rows

    def _forward(self, tokens: Tokens, request: RowRequest | None, *, is_window: bool) -> RowViews:
        """Every layer over the rows of ``tokens``; the streams are in the returned views."""
        rows = self._scratch.rows(len(tokens))
        rope = self._rope.rows(self._position, len(tokens))
        rows.residual[:] = self._model.weights.embedding.rows(tokens)[:, None]
        for layer, state in zip(self._model.weights.layers, self._states, strict=True):
            with layers.damage_named(
                f"in layer {layer.index}, at position {self._position} or after"
            ):
                if layer.ple is not None:
                    self._add_memory(layer.ple, request, rows, is_window=is_window)
                self._layer(layer, state, rows, rope, is_window=is_window)
        return rows

    def _add_memory(
        self, weights: PleWeights, request: RowRequest | None, rows: RowViews, *, is_window: bool
    ) -> None:
        assert request is not None  # noqa: S101 - the model has a table
        assert self._ple is not None  # noqa: S101
        embedding = request.wait().reshape(rows.num_rows, -1)
        layers.ple(
            self._ctx, weights, self._ple, self._scratch, rows, embedding, self._spec,
            is_window=is_window,
        )  # fmt: skip

    def _layer(
        self,
        layer: LayerWeights,
        state: GdnState | QsaState,
        rows: RowViews,
        rope: RopeRows,
        *,
        is_window: bool,
    ) -> None:
        ctx, spec = self._ctx, self._spec
        # Elsewhere the write before this layer has left the norm.
        if layer.ple is not None or layer.index == 0:
            layers.normed(ctx, layer.hc_attn, spec, rows)
        layers.read_streams(ctx, layer.hc_attn, spec, rows)
        self._mix(layer, state, rows, rope, is_window=is_window)
        layers.write_streams(ctx, layer.hc_ffn, spec, rows)
        layers.read_streams(ctx, layer.hc_ffn, spec, rows)
        feed = self._model.routing
        forced = None if feed is None else feed.layer_rows(layer.index, rows.num_rows)
        layers.moe(ctx, layer.moe, spec, rows, layer.index, forced)
        if self.on_routing is not None:
            self.on_routing(layer.index, rows.expert_ids)
        layers.write_streams(ctx, self._model.reads_after[layer.index], spec, rows)

    def _read_chunk(self, chunk: Tokens, request: RowRequest | None) -> RowViews:
        """Reads and commits one chunk of a prompt."""
        with self._changing():
            rows = self._forward(chunk, request, is_window=False)
            if self._ple is not None:
                self._ple.remember(chunk)
            if self._drafter is not None:
                self._drafter.follow(chunk, rows.residual)
            self._position += len(chunk)
        return rows

    def _mix(
        self,
        layer: LayerWeights,
        state: GdnState | QsaState,
        rows: RowViews,
        rope: RopeRows,
        *,
        is_window: bool,
    ) -> None:
        if isinstance(state, GdnState):
            assert isinstance(layer.mixer, GdnWeights)  # noqa: S101 - built from the same list
            layers.gdn(self._ctx, layer.mixer, state, self._scratch, rows, is_window=is_window)
        else:
            assert isinstance(layer.mixer, QsaWeights)  # noqa: S101
            layers.qsa(self._ctx, layer.mixer, state, self._scratch, rows, rope, self._position)

    def _logits(self, rows: RowViews, first: int) -> Floats:
        """Logits of the rows from ``first`` on, a new array; ``rows.xn`` is the head's norm."""
        weights, ctx = self._model.weights, self._ctx
        num_rows = rows.num_rows - first
        wanted = self._scratch.rows(num_rows)
        if first:
            wanted.xn[:] = rows.xn[first:]
        logits = np.empty((num_rows, self._spec.vocab_size), np.float32)
        with layers.damage_named(f"in the output head, near position {self._position}"):
            layers.read_streams(ctx, weights.final, self._spec, wanted)
            _native.product(ctx, weights.head, wanted.x, [logits])
        if not np.isfinite(logits).all():
            row = int(np.argmin(np.isfinite(logits).all(axis=1)))
            at = self._position + row
            raise not_finite(f"the output head gave NaN or infinity near position {at}")
        return logits

    def _chunks(self, tokens: Tokens) -> list[Tokens]:
        """A prompt in steps; cuts lie at multiples of the model's chunk in the conversation."""
        chunk = self._model.chunk_tokens
        return np.split(tokens, range(chunk - self._position % chunk, len(tokens), chunk))

    def _request_ngrams(self, tokens: Tokens, after: Tokens | None = None) -> RowRequest | None:
        """Starts reading the n-gram rows of ``tokens``, which follow ``after``."""
        if self._ple is None or self._spec.ngram is None or self._model.ngram_table is None:
            return None
        history = self._ple.tokens
        if after is not None:
            history = np.concatenate([history, after])[len(after) :]
        rows = ngram_rows(self._spec.ngram, tokens.astype(np.int64), history)
        return self._model.ngram_table.request(rows)

    def _checked(self, tokens: Tokens) -> Tokens:
        self._refuse_broken()
        return checked_tokens(tokens, self._position, self._capacity, self._spec.vocab_size)
