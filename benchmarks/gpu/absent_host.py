"""Stands in for the processor's side of missing experts where only launches are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.cpu.build import open_context
from strata.cpu.expert_serving import panel_bits
from strata.formats.block_formats import FORMATS
from strata.gpu.model_layout import model_layout
from strata.tiers.hand_off import SERVED, ExpertMemory
from strata.tiers.share import Cost

if TYPE_CHECKING:
    from strata.tiers.hand_off import MailboxLayout

PAGE = 4096


class AbsentHost:
    """``tiers.hand_off.ExpertHost`` without experts."""

    def __init__(self, index) -> None:
        spec = index.spec
        self._ctx = open_context(1, None)
        self.layers = []
        for layer in model_layout(index, spec, has_draft=False).layers:
            size, hidden = spec.expert_size, spec.hidden_size
            shapes = ((size, hidden), (size, hidden), (hidden, size))
            blob = sum(
                rows * FORMATS[name].row_bytes(inner)
                for name, (rows, inner) in zip(layer.experts.formats, shapes, strict=True)
            )
            factors = np.ones((spec.num_experts, 3), np.float32)
            self.layers.append(ExpertMemory(PAGE, -(-blob // PAGE) * PAGE, factors))

    def fill_layer(self, layer: int, tensors: object) -> None:
        """Nothing."""

    def read(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> None:
        """Nothing."""

    def take_failure(self) -> None:
        """None."""

    def permutation(self, format_name: str) -> np.ndarray:
        """As the processor packs."""
        return panel_bits(self._ctx, format_name)

    def open(self, address: int, layout: MailboxLayout, owner: object) -> None:
        """Nothing."""

    def begin(self) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""

    def restart(self, number: int) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def measured(self) -> Cost:
        """Some cost."""
        return Cost(1e-5, 1e-5)

    def counts(self) -> np.ndarray:
        """Nothing was done."""
        return np.zeros((len(self.layers), len(SERVED)), np.int64)

    def ahead_counts(self) -> np.ndarray:
        """Nothing was read ahead."""
        return np.zeros((len(self.layers), 4), np.int64)

    def stop_look_ahead(self) -> None:
        """Nothing is guessed."""

    def close(self) -> None:
        """Nothing."""
