"""What a conversation leaves behind in each layer, and how a window of it is kept or forgotten.

Every state has the same life: rows of a window are computed from it without changing it,
``commit(k)`` keeps the first k of them, ``save`` and ``load`` copy it exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strata import _native
from strata.cpu.buffers import zeros
from strata.session_rules import MAX_WINDOW_ROWS, have_forms, page_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from strata._native import Context, GdnLayer
    from strata.cpu.buffers import Floats
    from strata.cpu.draft import CpuDrafter
    from strata.model_spec import ModelSpec, NgramSpec
    from strata.session_rules import Arrays, Forms

# Room for this many full windows before the history is moved back to the front of its buffer.
_HISTORY_WINDOWS = 3


class RowHistory:
    """The newest rows that a causal convolution looks back on, before the rows of a window.

    Rows lie in one buffer, oldest first, so that a window is computed straight behind its history.
    """

    def __init__(self, num_rows: int, width: int) -> None:
        self._num_rows = num_rows
        self._buffer = zeros((num_rows + _HISTORY_WINDOWS * MAX_WINDOW_ROWS, width))
        self._start = 0

    def window(self, rows: int) -> Floats:
        """History and room for ``rows`` new rows behind it: [num_rows + rows, width]."""
        end = self._start + self._num_rows + rows
        if end > len(self._buffer):
            self.replace(self.newest())
            end = self._num_rows + rows
        return self._buffer[self._start : end]

    def commit(self, rows: int) -> None:
        """The first ``rows`` rows of the last window become history."""
        self._start += rows

    def newest(self) -> Floats:
        """The history, [num_rows, width]; a view."""
        return self._buffer[self._start : self._start + self._num_rows]

    def replace(self, history: Floats) -> None:
        """Sets the history, [num_rows, width]; it may be a view of the old one."""
        self._buffer[: self._num_rows] = history.copy()
        self._start = 0


class ComputedRows:
    """What the delta rule needs of some rows, and of nothing else: enough to step them again."""

    def __init__(self, rows: int, spec: ModelSpec) -> None:
        keys = (rows, spec.gdn_key_heads * spec.gdn_key_dim)
        heads = (rows, spec.gdn_value_heads)
        self.native = _native.GdnRows(
            zeros(keys), zeros(keys), zeros((rows, spec.gdn_value_size)), zeros(heads), zeros(heads)
        )


class GdnState:
    """One gated delta net layer.

    A window leaves ``memory`` as it is. Its committed rows wait in ``pending``; the next call steps
    them into the memory when it reads it anyway, by the very operations that computed the window.
    """

    def __init__(self, spec: ModelSpec, layer: GdnLayer) -> None:
        self._layer = layer
        self.conv = RowHistory(spec.gdn_conv_kernel - 1, spec.gdn_conv_channels)
        self.memory = zeros((layer.state_size,))
        self.computed = ComputedRows(MAX_WINDOW_ROWS, spec)
        self.pending = ComputedRows(MAX_WINDOW_ROWS, spec)
        self.num_pending = 0

    def commit(self, rows: int) -> None:
        """Keeps the first ``rows`` rows of the last window."""
        self.conv.commit(rows)
        self.computed, self.pending = self.pending, self.computed
        self.num_pending = rows

    def save(self, ctx: Context) -> Arrays:
        """Copies of convolution history and memory."""
        if self.num_pending:
            nothing = np.zeros((0, 1), np.float32)
            self._layer.run(
                ctx, 0, self.conv.newest(), nothing, nothing, nothing, self.computed.native,
                self.pending.native, self.num_pending, self.memory, is_window=True, out=nothing,
            )  # fmt: skip
            self.num_pending = 0
        return self.conv.newest().copy(), self.memory.copy()

    def load(self, saved: Arrays) -> None:
        """Puts a saved state back."""
        conv, memory = saved
        self.conv.replace(conv)
        self.memory[:] = memory
        self.num_pending = 0

    def forms(self) -> Forms:
        """Sizes and types of what ``save`` gives."""
        return [(part.shape, part.dtype) for part in (self.conv.newest(), self.memory)]

    def reset(self) -> None:
        """Before the first token."""
        self.conv.replace(np.zeros_like(self.conv.newest()))
        self.memory[:] = 0
        self.num_pending = 0


class QsaState:
    """One sparse attention layer: cells, raw index keys of the newest cells, pooled keys.

    Cells of a window lie behind the committed ones and are written over if the window is not kept;
    so does a block that it completed.
    """

    def __init__(self, spec: ModelSpec, capacity: int, chunk: int, cell_type: type) -> None:
        cells = (spec.num_kv_heads, capacity, spec.head_dim)
        self.k_cells: NDArray[Any] = zeros(cells, cell_type)
        self.v_cells: NDArray[Any] = zeros(cells, cell_type)
        self._block = spec.index_block
        # A ring: a chunk's own cells and the incomplete block before it.
        self.raw_keys = zeros((max(chunk, MAX_WINDOW_ROWS) + spec.index_block, spec.index_dim))
        num_groups = -(-(capacity // spec.index_block + 1) // _native.INDEX_GROUP)
        self.pooled = zeros((num_groups, spec.index_dim, _native.INDEX_GROUP))
        # The kernels take half floats as their bits: numpy hands float16 over in either form.
        self.native = _native.QsaCells(self.k_cells, self.v_cells, self.raw_keys, self.pooled)

    def save(self, position: int) -> Arrays:
        """A copy of the raw keys of the incomplete block; cells are copied apart."""
        return (self.raw_keys[self._tail(position)].copy(),)

    def load(self, saved: Arrays, position: int) -> None:
        """Puts raw keys back."""
        (raw_keys,) = saved
        self.raw_keys[self._tail(position)] = raw_keys

    def forms(self, position: int) -> Forms:
        """Sizes and types of what ``save`` gives."""
        return [((position % self._block, self.raw_keys.shape[1]), self.raw_keys.dtype)]

    def cells(self, start: int, stop: int) -> Arrays:
        """Views of what the tokens from ``start`` to ``stop`` left: keys, values, pooled keys."""
        per_group = self._block * _native.INDEX_GROUP
        groups = slice(start // per_group, -(-(stop // self._block) // _native.INDEX_GROUP))
        return self.k_cells[:, start:stop], self.v_cells[:, start:stop], self.pooled[groups]

    def _tail(self, position: int) -> NDArray[np.int64]:
        """Places of the raw keys of the incomplete block."""
        return np.arange(position - position % self._block, position) % len(self.raw_keys)


class PleState:
    """The n-gram memory: newest inputs of its convolution, newest token ids."""

    def __init__(self, spec: ModelSpec, ngram: NgramSpec) -> None:
        self.conv = RowHistory(ngram.conv_history, spec.hyper_size)
        self._eos_id = ngram.eos_id
        self.tokens = np.full(ngram.ngram_size - 1, ngram.eos_id, np.int64)

    def remember(self, tokens: NDArray[np.int32]) -> None:
        """``tokens`` have been committed."""
        self.tokens = np.concatenate([self.tokens, tokens])[len(tokens) :]

    def save(self) -> Arrays:
        """Copies of convolution history and token ids."""
        return self.conv.newest().copy(), self.tokens.copy()

    def load(self, saved: Arrays) -> None:
        """Puts a saved state back."""
        conv, tokens = saved
        self.conv.replace(conv)
        self.tokens = tokens.copy()

    def forms(self) -> Forms:
        """Sizes and types of what ``save`` gives."""
        return [(part.shape, part.dtype) for part in (self.conv.newest(), self.tokens)]

    def reset(self) -> None:
        """Before the first token."""
        self.conv.replace(np.zeros_like(self.conv.newest()))
        self.tokens = np.full_like(self.tokens, self._eos_id)


class CpuCells:
    """What each token leaves once and for all, of all layers: copied out and in by token.

    Args:
        spec: geometry.
        states: of the layers.
        drafter: whose cells are kept with them, if there is one.
    """

    def __init__(
        self,
        spec: ModelSpec,
        states: Sequence[GdnState | QsaState],
        drafter: CpuDrafter | None,
    ) -> None:
        self._states = [state for state in states if isinstance(state, QsaState)]
        self._drafter = drafter
        self.page_tokens = page_tokens(spec.index_block * _native.INDEX_GROUP)

    def save(self, start: int, stop: int) -> Arrays:
        """Copies of what the tokens from ``start``, a multiple of a page, to ``stop`` left."""
        return tuple(part.copy() for part in self._views(start, stop))

    def load(self, start: int, stop: int, cells: Arrays) -> None:
        """Puts them back."""
        for part, values in zip(self._views(start, stop), cells, strict=True):
            part[:] = values

    def touch(self, num_bytes: int) -> None:
        """Has the system give the memory of the first cells now, so many bytes at most.

        It gives pages one by one as they are first written, and takes longer for one than copying
        it does. Only for a session without cells.
        """
        size = self.page_tokens
        most = num_bytes // max(1, sum(part.nbytes for part in self._views(0, size)))
        for part in self._views(0, most * size):
            part[:] = 0

    def fit(self, start: int, stop: int, cells: Arrays) -> bool:
        """Whether these can be cells of those tokens, by their sizes and types."""
        forms: Forms = [(part.shape, part.dtype) for part in self._views(start, stop)]
        return have_forms(cells, forms)

    def _views(self, start: int, stop: int) -> list[NDArray[Any]]:
        views = [part for state in self._states for part in state.cells(start, stop)]
        return views if self._drafter is None else [*views, *self._drafter.cells(start, stop)]
