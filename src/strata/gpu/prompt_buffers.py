"""Buffers of a prompt chunk on a card, as the launches take them; allocated once.

Owns the memory and its division; shapes are those of ``prompt_layout``. Views of a chunk's rows and
of expanded matrices are made once and kept, since making them costs the host as much as a launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from strata.gpu.arena import Arena
from strata.gpu.kernels.conv_prompt import MixedRows
from strata.gpu.kernels.delta_scan import ScanScratch
from strata.gpu.kernels.expand import expanded_in
from strata.gpu.kernels.expert_sort import ExpertPlan
from strata.gpu.kernels.index_prompt import IndexScratch
from strata.gpu.kernels.prompt_codes import PromptCodes
from strata.gpu.prompt_layout import TILE_TOKENS, expanded_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.expand import Expanded
    from strata.gpu.prompt_layout import PromptShapes

_CODE_FIELDS = ("codes", "scales", "scaled_sums", "scaled_half_sums")
# Buffers that have no rows of the chunk in their first dimension.
_WHOLE = ("weights", "scores", "candidates", "lower", "inverse", "within", "rates", "order",
          "counts", "offsets", "tiles", "histogram", "outputs", "gated", "inputs", "plain", "sums",
          "last")  # fmt: skip
_IN_PLANES = (torch.float16, torch.bfloat16)  # [2 or 3, N, ...]: parts of numbers


class PromptBuffers:
    """Device memory of a chunk.

    Args:
        shapes: of ``prompt_layout.prompt_shapes``.
        device: where.
        arena: memory for them; None to take it.

    Raises:
        DeviceError: the card has not got the memory.
    """

    def __init__(
        self, shapes: PromptShapes, device: torch.device, arena: Arena | None = None
    ) -> None:
        if arena is None:
            arena = Arena(shapes.num_bytes, device, "the buffers of a prompt")
        self.num_bytes = arena.num_bytes
        self._kept = arena.take_all(shapes.kept)
        self._phases = arena.overlay(shapes.phases)
        self._expanded: dict[tuple[object, ...], Expanded] = {}
        self._views: dict[tuple[str, str], Tensor] = {}
        self._codes: dict[tuple[str, str], PromptCodes] = {}
        self._num_rows = 0
        self.max_rows = len(self._kept["rows"])
        torch.arange(self.max_rows, out=self._kept["counted"])

    def begin(self, num_rows: int, position: int) -> None:
        """The views from now on are those of a chunk of so many rows."""
        if num_rows != self._num_rows:
            self._num_rows = num_rows
            self._views.clear()
            self._codes.clear()
        counted, positions = self.rows("counted"), self.rows("positions")
        torch.add(counted, position, out=positions)

    def rows(self, name: str, phase: str = "") -> Tensor:
        """A buffer's rows of this chunk; ``phase`` is empty for those that are kept."""
        key = (phase, name)
        if key not in self._views:
            tensor = (self._phases[phase] if phase else self._kept)[name]
            if name not in _WHOLE:
                is_in_planes = tensor.dtype in _IN_PLANES
                tensor = tensor[:, : self._num_rows] if is_in_planes else tensor[: self._num_rows]
            self._views[key] = tensor
        return self._views[key]

    def codes(self, name: str, phase: str = "") -> PromptCodes:
        """Codes of this chunk's rows."""
        key = (phase, name)
        if key not in self._codes:
            self._codes[key] = self.all_codes(name, phase).rows(self._num_rows)
        return self._codes[key]

    def all_codes(self, name: str, phase: str = "") -> PromptCodes:
        """Codes of as many rows as there is room for."""
        tensors = self._phases[phase] if phase else self._kept
        return PromptCodes(*(tensors[f"{name}.{field}"] for field in _CODE_FIELDS))

    def expanded(
        self, phase: str, format_name: str, num: int, num_rows: int, inner: int, first: int = 0
    ) -> Expanded:
        """Room for expanded matrices in the phase's weights, from byte ``first`` on."""
        key = (phase, format_name, num, num_rows, inner, first)
        if key not in self._expanded:
            size = expanded_bytes(format_name, num, num_rows, inner)
            room = self._phases[phase]["weights"][first : first + size]
            self._expanded[key] = expanded_in(room, format_name, num, num_rows, inner)
        return self._expanded[key]

    def mixed_rows(self, phase: str) -> MixedRows:
        """What the convolution leaves of this chunk's rows."""
        return MixedRows(*(self.rows(name, phase) for name in ("queries", "keys", "values")))

    def scan_scratch(self, phase: str) -> ScanScratch:
        """Scratch of the delta net."""
        names = ("lower", "inverse", "within", "rates")
        return ScanScratch(*(self.rows(name, phase) for name in names))

    def index_scratch(self, phase: str) -> IndexScratch:
        """Scratch of the indexer."""
        return IndexScratch(self.rows("scores", phase), self.rows("candidates", phase))

    def expert_plan(self, phase: str) -> ExpertPlan:
        """Room for the pairs of row and expert, sorted."""
        names = ("order", "counts", "offsets", "tiles", "histogram")
        order, counts, offsets, tiles, histogram = (self.rows(name, phase) for name in names)
        return ExpertPlan(order, counts, offsets, tiles, histogram, TILE_TOKENS)
