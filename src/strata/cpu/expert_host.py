"""Experts for a card where not all of them are in memory: kept ones, a cache, files for the rest.

Joins the thread that answers (``expert_serving``) with where experts lie (``expert_tier``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cpu.expert_serving import ExpertServing
from strata.cpu.expert_tier import not_read
from strata.tiers.hand_off import ExpertMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from strata._native import Context
    from strata.cpu.expert_layers import LayerShape
    from strata.cpu.expert_tier import ExpertTier
    from strata.errors import StrataError
    from strata.formats.model_tensors import ModelTensors
    from strata.model_spec import ModelSpec
    from strata.tiers.share import Cost


class TieredExperts(ExpertServing):
    """The experts of all layers; ``tiers.hand_off.ExpertHost``.

    What a card asks for and is on the disk is read at once for the whole layer, while the experts
    that are in memory are computed.

    Args:
        ctx: threads that compute; used by nobody else while a mailbox is open.
        spec: geometry of the model.
        shapes: of its layers.
        tier: has their bytes; closed with this.
    """

    def __init__(
        self, ctx: Context, spec: ModelSpec, shapes: Sequence[LayerShape], tier: ExpertTier
    ) -> None:
        layers = [shape.native for shape in shapes]
        super().__init__(ctx, spec, layers, (tier,), tier.source)
        self.tier = tier
        places = zip(tier.kept_addresses, shapes, tier.scales, tier.kept, strict=True)
        self._places = tuple(
            ExpertMemory(address, shape.blob_bytes, scales, kept)
            for address, shape, scales, kept in places
        )

    @property
    def num_bytes(self) -> int:
        """Memory of the experts."""
        return self.tier.num_bytes

    @property
    def layers(self) -> Sequence[ExpertMemory]:
        """The memory of each layer's experts that stay there."""
        return self._places

    def fill_layer(self, layer: int, tensors: ModelTensors) -> None:
        """Brings a layer's factors and kept experts into memory."""
        self.tier.fill_layer(layer, tensors)

    def read(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> None:
        """Copies experts' blobs to these addresses, from memory or a file.

        Where they pass by, what comes from a file may stay in the cache.

        Raises:
            CheckpointError: the file cannot be read.
        """
        self.tier.read(layer, experts, places, is_passing=is_passing)

    def take_failure(self) -> StrataError | None:
        """Why an expert could not be read, told once."""
        failure = self.tier.take_failure()
        return not_read(failure) if failure else None

    def stop_look_ahead(self) -> None:
        """Reads nothing ahead any more."""
        self.tier.stop_look_ahead()

    def ahead_counts(self) -> NDArray[np.int64]:
        """[L, 4] reads that nobody had asked for."""
        return self.tier.ahead_counts_by_layer()

    def measured(self) -> Cost:
        """What it costs to compute experts that are in memory, measured now."""
        self.tier.stop_look_ahead()
        try:
            return super().measured()
        finally:
            self.tier.resume_look_ahead()

    def close(self) -> None:
        """Ends the threads and closes the files.

        Raises:
            DeviceError: a thread does not end; its files stay open.
        """
        super().close()
        self.tier.close()

    def _measured_experts(self) -> tuple[int, Sequence[int]]:
        """A layer with many experts in memory, and those; without any, what the cache has room for.

        A disk's time is not the processor's: what is measured is found in memory, but for the first
        request of each.
        """
        most = max(range(len(self._places)), key=lambda layer: self._places[layer].num_held)
        held = self.tier.kept[most].tolist()
        if held:
            return most, held
        return 0, range(min(self._spec.num_experts, self.tier.num_places))
