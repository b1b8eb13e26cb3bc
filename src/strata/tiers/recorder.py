"""Collects what a session tells of its routing into the windows of a trace.

Owns the joining of layers to windows; which session tells it is ``engine.recording``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from strata import telemetry
from strata.tiers.routing_trace import MAX_BYTES, RoutingTrace, RoutingWindow, WindowKind

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RoutingRecorder:
    """Windows of one model, in the order they ran. One thread at a time.

    Args:
        num_layers: L; a window is whole when each has told.
        num_experts: E.
        top_k: K.
        model_name: for the head of the trace.
    """

    def __init__(self, num_layers: int, num_experts: int, top_k: int, model_name: str = "") -> None:
        self._num_layers = num_layers
        self._num_experts = num_experts
        self._top_k = top_k
        self._model_name = model_name
        self._windows: list[RoutingWindow] = []
        self._layers: list[NDArray[np.uint16]] = []
        self._kind = WindowKind.PROMPT
        self._position = 0
        self._num_bytes = 0
        self._is_full = False

    def begin(self, kind: WindowKind, position: int) -> None:
        """The layers that tell from now on are of rows after ``position`` tokens.

        Layers of a window that did not come to its end are forgotten.
        """
        self._kind, self._position = kind, position
        self._layers.clear()

    def add(self, layer: int, expert_ids: NDArray[np.integer[Any]]) -> None:
        """One layer's ids [T, K]; copied. A prompt's chunks follow each other by themselves."""
        if layer != len(self._layers):
            raise ValueError(f"layer {layer} told, expected {len(self._layers)}")
        self._layers.append(expert_ids.astype(np.uint16))
        if len(self._layers) < self._num_layers:
            return
        num_rows = len(expert_ids)
        num_kept = num_rows if self._kind is WindowKind.PROMPT else 0
        ids = np.stack(self._layers)
        self._layers.clear()
        self._num_bytes += ids.nbytes
        self._is_full = self._is_full or self._num_bytes > MAX_BYTES
        if self._is_full:
            telemetry.notice("routing-trace", "the routing trace is full; it ends here.")
            return
        self._windows.append(RoutingWindow(self._kind, self._position, num_kept, ids))
        if self._kind is WindowKind.PROMPT:
            self._position += num_rows

    def keep(self, num_rows: int) -> None:
        """The first rows of the last decode window were accepted."""
        if self._is_full:
            return
        last = self._windows[-1]
        self._windows[-1] = RoutingWindow(last.kind, last.position, num_rows, last.ids)

    def trace(self) -> RoutingTrace:
        """What has been told so far."""
        return RoutingTrace(
            self._model_name,
            self._num_layers,
            self._num_experts,
            self._top_k,
            tuple(self._windows),
        )
