"""A trace's experts on the card, read by windows in the place of what their routers chose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from strata.gpu.weights import ModelWeights
    from strata.model_spec import ModelSpec
    from strata.tiers.forced_routing import RoutingFeed


class ForcedRouting:
    """The next rows of a feed, for every layer of windows; prompts route as they do.

    Args:
        feed: of the model's geometry.
        spec: geometry.
        device: of the weights.
    """

    def __init__(self, feed: RoutingFeed, spec: ModelSpec, device: torch.device) -> None:
        self.feed = feed
        shape = (spec.num_layers, MAX_WINDOW_ROWS, spec.top_k)
        is_card = device.type == "cuda"
        self._on_host = torch.zeros(shape, dtype=torch.int32, pin_memory=is_card)
        self._ids = torch.zeros(shape, dtype=torch.int32, device=device)

    def joined(self, weights: ModelWeights) -> ModelWeights:
        """The weights, whose layers take these experts."""
        layers = tuple(
            replace(layer, moe=replace(layer.moe, forced=self._ids[number]))
            for number, layer in enumerate(weights.layers)
        )
        return replace(weights, layers=layers)

    def send(self) -> None:
        """The rows that come now; a window is about to be launched, and none runs."""
        self._on_host.numpy()[:] = self.feed.rows(MAX_WINDOW_ROWS)
        self._ids.copy_(self._on_host, non_blocking=True)
