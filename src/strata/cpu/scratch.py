"""Buffers of one forward, allocated once and shared by all layers of a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu.buffers import zeros
from strata.cpu.state import ComputedRows
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from strata.cpu.buffers import Floats, Ints
    from strata.model_spec import ModelSpec

# As many rows as a short question has.
_TOUCHED_ROWS = 32


@dataclass(frozen=True, slots=True)
class RowViews:
    """The buffers' first T rows.

    Attributes:
        residual: [T, S, D] streams.
        xn: [T, S * D] their norm.
        low, inject, gate: [T, r], [T, S], [T, S * D] of a hyper-connection.
        x: [T, D] what a block reads; out: [T, D] what it gives.
        mixed: [T, width] of a token mixer, before its out-projection.
    """

    num_rows: int
    residual: Floats
    xn: Floats
    low: Floats
    inject: Floats
    gate: Floats
    x: Floats
    out: Floats
    gdn_z: Floats
    gdn_alpha: Floats
    gdn_beta: Floats
    gdn_mixed: Floats
    q_gate: Floats
    k: Floats
    v: Floats
    index_q: Floats
    index_k: Floats
    qsa_mixed: Floats
    router_logits: Floats
    shared_logits: Floats
    shared_weight: Floats
    expert_ids: Ints
    topk_weights: Floats
    ple_key: Floats
    ple_value: Floats
    ple_gated: Floats


class Scratch:
    """Buffers for up to ``chunk`` rows (at least a window)."""

    def __init__(self, spec: ModelSpec, chunk: int, capacity: int) -> None:
        self._spec = spec
        self._max_rows = max(chunk, MAX_WINDOW_ROWS)
        self._buffers = {name: zeros((self._max_rows, n)) for name, n in _widths(spec).items()}
        # Memory comes from the system page by page when first written, and the first prompt waits.
        for buffer in self._buffers.values():
            buffer[:_TOUCHED_ROWS] = 0
        self._expert_ids = zeros((self._max_rows, spec.top_k), np.int32)
        self._views: dict[int, RowViews] = {}
        # A chunk of prompt rows keeps its convolution inputs here, behind their history.
        self.gdn_conv = zeros((spec.gdn_conv_kernel - 1 + self._max_rows, spec.gdn_conv_channels))
        self.gdn_rows = ComputedRows(self._max_rows, spec)
        history = 0 if spec.ngram is None else spec.ngram.conv_history
        self.ple_conv = zeros((history + self._max_rows, spec.hyper_size))
        self.qsa = _qsa_scratch(spec, self._max_rows, capacity)

    def rows(self, num_rows: int) -> RowViews:
        """Views of the first ``num_rows`` rows of every buffer."""
        views = self._views.get(num_rows)
        if views is None:
            views = self._make_views(num_rows)
            # Prompts end in chunks of any length; only windows come again and again.
            if num_rows <= MAX_WINDOW_ROWS:
                self._views[num_rows] = views
        return views

    def _make_views(self, num_rows: int) -> RowViews:
        spec = self._spec
        parts = {name: buffer[:num_rows] for name, buffer in self._buffers.items()}
        residual = parts.pop("residual").reshape(num_rows, spec.num_streams, spec.hidden_size)
        return RowViews(
            num_rows,
            residual=residual,
            shared_weight=parts["shared_logits"].reshape(-1),
            expert_ids=self._expert_ids[:num_rows],
            **parts,
        )


def _widths(spec: ModelSpec) -> dict[str, int]:
    """Values in one row of each buffer."""
    hyper, hidden = spec.hyper_size, spec.hidden_size
    heads, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    has_ple = spec.ngram is not None
    return {
        "residual": hyper,
        "xn": hyper,
        "low": spec.hc_rank,
        "inject": spec.num_streams,
        "gate": hyper,
        "x": hidden,
        "out": hidden,
        "gdn_z": spec.gdn_value_size,
        "gdn_alpha": spec.gdn_value_heads,
        "gdn_beta": spec.gdn_value_heads,
        "gdn_mixed": spec.gdn_value_size,
        "q_gate": 2 * heads,
        "k": kv,
        "v": kv,
        "index_q": spec.index_heads * spec.index_dim,
        "index_k": spec.index_dim,
        "qsa_mixed": heads,
        "router_logits": spec.num_experts,
        "shared_logits": 1,
        "topk_weights": spec.top_k,
        "ple_key": hyper if has_ple else 0,
        "ple_value": hidden if has_ple else 0,
        "ple_gated": hyper if has_ple else 0,
    }


def _qsa_scratch(spec: ModelSpec, max_rows: int, capacity: int) -> _native.QsaScratch:
    """Queries of all rows; scores, choices and weights of one group of rows."""
    group = min(max_rows, _native.ROW_GROUP)
    budget_blocks = spec.index_budget // spec.index_block
    num_groups = -(-(capacity // spec.index_block + 1) // _native.INDEX_GROUP)
    most_cells = (budget_blocks + 1) * spec.index_block
    return _native.QsaScratch(
        zeros((max_rows, spec.num_heads * spec.head_dim)),
        zeros((max_rows, spec.index_heads * spec.index_dim)),
        zeros((group, num_groups * _native.INDEX_GROUP)),
        zeros((group, budget_blocks), np.int32),
        # A row of weights begins on a cache line.
        zeros((group, spec.num_heads, -(-most_cells // 16) * 16)),
    )
