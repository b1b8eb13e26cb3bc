"""The draft layer beside a session: its cells follow what the session commits, and it proposes.

A cell pairs the trunk's streams at its position with the token after it (``reference.draft_layer``
says how), so the newest streams wait for their token. Streams that have it wait too, up to a
window's worth: the next proposal makes their cells together with its own. Cells of drafts lie
behind the true ones and are written over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strata import _native
from strata.cpu import layers
from strata.cpu.buffers import zeros
from strata.cpu.rope_rows import RopeSpan
from strata.cpu.scratch import Scratch
from strata.session_rules import MAX_WINDOW_ROWS, not_finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata._native import Context
    from strata.cpu.buffers import Floats
    from strata.cpu.scratch import RowViews
    from strata.cpu.weights import DraftWeights
    from strata.model_spec import ModelSpec
    from strata.session_rules import Arrays, Forms

    Tokens = NDArray[np.int32]

# Cells made at a time; their embeddings lie beside their streams, which is wide.
_CHUNK_ROWS = 64


class CpuDrafter:
    """The drafter protocol of ``engine.session``, and what the session tells it.

    Args:
        ctx: threads and instruction set.
        spec: geometry.
        weights: of the layer; shared.
        capacity: tokens the conversation can hold.
        cell_type: np.float16 or np.float32.
    """

    def __init__(
        self, ctx: Context, spec: ModelSpec, weights: DraftWeights, capacity: int, cell_type: type
    ) -> None:
        self._ctx = ctx
        self._spec = spec
        self._weights = weights
        self._capacity = capacity
        cells = (spec.num_kv_heads, capacity, spec.head_dim)
        self._k_cells: NDArray[Any] = zeros(cells, cell_type)
        self._v_cells: NDArray[Any] = zeros(cells, cell_type)
        nothing = zeros((0, 0))
        self._cells = _native.QsaCells(self._k_cells, self._v_cells, nothing, nothing)
        max_rows = max(MAX_WINDOW_ROWS, min(_CHUNK_ROWS, capacity))
        self._scratch = Scratch(spec, max_rows, 0)
        self._max_rows = max_rows
        # One row attends, to as many cells as there are; a row of weights begins on a cache line.
        self._attention = _native.QsaScratch(
            zeros((1, spec.num_heads * spec.head_dim)),
            nothing,
            nothing,
            zeros((0, 0), np.int32),
            zeros((1, spec.num_heads, -(-capacity // 16) * 16)),
        )
        self._joined = zeros((max_rows, spec.num_streams, 2 * spec.hidden_size))
        self._rope = RopeSpan(spec.rope, 1, capacity)
        self._window: Floats = self._no_streams()
        self._num_cells = 0  # made of true streams and tokens
        self._streams = self._no_streams()  # of the positions from there on
        self._tokens: list[int] = []  # after all of them but the last

    def propose(self, token: int, num_wanted: int) -> tuple[list[int], list[float]]:
        """Tokens that may follow ``token``, best guess at each step, and how likely each is.

        Args:
            token: the one after those committed; not yet in the session.
            num_wanted: most drafts; there are fewer at the end of the context.

        Raises:
            StrataError: the weights gave NaN or infinity.
        """
        ids: list[int] = []
        probs: list[float] = []
        streams, tokens = self._streams, [*self._tokens, token]
        at = self._num_cells
        while len(streams) and len(ids) < num_wanted and at + len(tokens) <= self._capacity:
            logits, out = self._step(at, streams, np.array(tokens, np.int32))
            at += len(tokens)
            if not ids:
                # All cells but the last have true tokens; of the last one the session decides.
                self._num_cells, self._streams, self._tokens = at - 1, streams[-1:], []
            best = int(np.argmax(logits))
            ids.append(best)
            probs.append(float(1 / np.exp(logits - logits[best]).sum()))
            streams, tokens = out, [best]
        return ids, probs

    def hold(self, streams: Floats) -> None:
        """A window has been computed: the trunk's streams [T, S, D], of which some will be kept."""
        self._window = streams.copy()

    def commit(self, tokens: Tokens) -> None:
        """The first rows of that window are kept; their tokens."""
        self.follow(tokens, self._window[: len(tokens)])
        self._window = self._no_streams()

    def follow(self, tokens: Tokens, streams: Floats) -> None:
        """The session has read ``tokens`` [T]; the trunk's streams after each, [T, S, D]."""
        if len(tokens) == 0:
            return
        # Before the first token there is nothing to pair it with.
        known = [*self._tokens, *tokens[0 if len(self._streams) else 1 :].tolist()]
        waiting = np.concatenate([self._streams, streams])
        num_cells = self._num_cells
        if len(known) >= MAX_WINDOW_ROWS:
            ids = np.array(known, np.int32)
            for first in range(0, len(ids), self._max_rows):
                part = slice(first, min(first + self._max_rows, len(ids)))
                with layers.damage_named(f"in the draft layer, near position {num_cells + first}"):
                    self._make_cells(num_cells + first, waiting[part], ids[part])
            num_cells, waiting, known = num_cells + len(known), waiting[-1:].copy(), []
        self._num_cells, self._streams, self._tokens = num_cells, waiting, known

    def save(self) -> Arrays:
        """Copies of the waiting streams and their tokens; cells are copied apart."""
        return self._streams.copy(), np.array(self._tokens, np.int32)

    def load(self, saved: Arrays, position: int) -> None:
        """Puts them back, behind the cells of a session at ``position``."""
        streams, tokens = saved
        self._num_cells = position - len(streams)
        self._streams, self._tokens = streams.copy(), tokens.tolist()
        self._window = self._no_streams()

    def forms(self, saved: Arrays) -> Forms:
        """Sizes and types that ``saved`` should have, by how many streams it says wait."""
        num = min(len(saved[0]) if saved and saved[0].ndim else 0, MAX_WINDOW_ROWS)
        streams = (num, self._spec.num_streams, self._spec.hidden_size)
        return [(streams, np.dtype(np.float32)), ((max(num - 1, 0),), np.dtype(np.int32))]

    def cells(self, start: int, stop: int) -> Arrays:
        """Views of the cells of some positions; the newest may not be made yet."""
        return self._k_cells[:, start:stop], self._v_cells[:, start:stop]

    def reset(self) -> None:
        """Before the first token."""
        self._num_cells, self._streams, self._tokens = 0, self._no_streams(), []
        self._window = self._no_streams()

    def _no_streams(self) -> Floats:
        return np.zeros((0, self._spec.num_streams, self._spec.hidden_size), np.float32)

    def _make_cells(
        self, at: int, streams: Floats, tokens: Tokens, num_queries: int = 0
    ) -> RowViews:
        """Cells ``at`` and after; the last ``num_queries`` rows (none or one) attend too.

        In the views returned are then, at row 0: ``residual``, ``inject`` and ``qsa_mixed`` of the
        last row.
        """
        ctx, spec, weights = self._ctx, self._spec, self._weights
        num = len(tokens)
        rows = self._scratch.rows(num)
        joined = self._joined[:num]
        # Each norm is one over the whole row: the kernel sees a single stream.
        embedded = weights.embedding.rows(tokens)
        _native.hc_norm(ctx, embedded[:, None], weights.embed_norm, spec.rms_eps, rows.x)
        wide = np.ascontiguousarray(streams).reshape(num, 1, -1)
        _native.hc_norm(ctx, wide, weights.hidden_norm, spec.rms_eps, rows.xn)
        joined[:, :, : spec.hidden_size] = rows.x[:, None]
        joined[:, :, spec.hidden_size :] = rows.xn.reshape(num, spec.num_streams, -1)
        every_stream = (num * spec.num_streams, -1)
        _native.product(
            ctx, weights.fusion, joined.reshape(every_stream), [rows.residual.reshape(every_stream)]
        )
        layers.normed(ctx, weights.hc_attn, spec, rows)
        layers.read_streams(ctx, weights.hc_attn, spec, rows)
        _native.product(ctx, weights.keys_values, rows.x, [rows.k, rows.v])
        one = self._scratch.rows(1)
        if num_queries:
            _native.product(ctx, weights.query, rows.x[-1:], [one.q_gate])
            one.residual[:], one.inject[:] = rows.residual[-1:], rows.inject[-1:]
        weights.attention.run(
            ctx, num, num_queries, at, one.q_gate, rows.k, rows.v, self._rope.rows(at, num),
            self._cells, self._attention, one.qsa_mixed,
        )  # fmt: skip
        return one

    def _step(self, at: int, streams: Floats, tokens: Tokens) -> tuple[Floats, Floats]:
        """Makes cells; logits [V] and the layer's streams [1, S, D] of the last one."""
        ctx, spec, weights = self._ctx, self._spec, self._weights
        with layers.damage_named(f"in the draft layer, near position {at}"):
            one = self._make_cells(at, streams, tokens, num_queries=1)
            _native.product(ctx, weights.out, one.qsa_mixed, [one.out])
            layers.write_streams(ctx, weights.hc_ffn, spec, one)
            layers.read_streams(ctx, weights.hc_ffn, spec, one)
            layers.moe(ctx, weights.moe, spec, one, weights.layer)
            layers.write_streams(ctx, weights.final, spec, one)
            layers.read_streams(ctx, weights.final, spec, one)
            logits = np.empty((1, spec.vocab_size), np.float32)
            _native.product(ctx, weights.head, one.x, [logits])
        if not np.isfinite(logits).all():
            raise not_finite(f"the draft layer gave NaN or infinity near position {at}")
        return logits[0], one.residual.copy()
