"""A trace's experts in the place of the router's choice: made-up weights route evenly.

Owns which row of a trace comes next. Speed is then that of real routing; text means nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from strata.tiers.routing_trace import WindowKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.model_spec import ModelSpec
    from strata.tiers.routing_trace import RoutingTrace

    Ids = NDArray[np.int32]


class RoutingFeed:
    """Decoded rows of a trace, one after the other, from the start again when they end.

    Args:
        trace: of the model's geometry, with decoded tokens.
        spec: of the model.

    Raises:
        SettingsError: another geometry, or nothing was decoded.
    """

    def __init__(self, trace: RoutingTrace, spec: ModelSpec) -> None:
        trace.check(spec, least_decoded=1)
        kept = [
            window.ids[:, : window.num_kept]
            for window in trace.windows
            if window.kind is WindowKind.DECODE
        ]
        rows = np.concatenate(kept, axis=1)
        self._rows: Ids = np.ascontiguousarray(rows.astype(np.int32))
        self._next = 0

    def rows(self, num_rows: int) -> Ids:
        """[L, T, K] experts of the rows that come now."""
        places = (self._next + np.arange(num_rows)) % self._rows.shape[1]
        return self._rows[:, places]

    def layer_rows(self, layer: int, num_rows: int) -> Ids:
        """[T, K] the same of one layer."""
        places = (self._next + np.arange(num_rows)) % self._rows.shape[1]
        rows: Ids = self._rows[layer, places]
        return rows

    def keep(self, num_rows: int) -> None:
        """The first of them have been accepted."""
        self._next = (self._next + num_rows) % self._rows.shape[1]


class ForcibleModel(Protocol):
    """A model whose routers can be overruled."""

    def force_routing(self, feed: RoutingFeed) -> None:
        """Takes the feed's experts from now on, in sessions that are made afterwards."""
