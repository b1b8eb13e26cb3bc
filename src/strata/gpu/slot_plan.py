"""A model's layout with fewer slots than experts. Numbers only: no torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strata.gpu.model_layout import ModelLayout
    from strata.tiers.slots import SlotLayout


def with_slots(layout: ModelLayout, slots: SlotLayout) -> ModelLayout:
    """The layout whose routed experts take these slots; those of a pool lie in its first layer."""
    layers = []
    is_taken = [False] * len(slots.pools)
    for layer, pool in zip(layout.layers, slots.pool_of_layer, strict=True):
        num_slots = 0 if is_taken[pool] else len(slots.pools[pool])
        is_taken[pool] = True
        layers.append(replace(layer, experts=replace(layer.experts, num_slots=num_slots)))
    return replace(layout, layers=tuple(layers))
