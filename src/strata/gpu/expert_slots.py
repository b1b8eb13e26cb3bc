"""Blobs of routed experts in the slots of one card, and the table that says which is where.

Owns the layout of a blob and its filling; who is in which slot is decided elsewhere. The kernels of
``kernels.experts`` read the table on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strata.errors import UnsupportedError
from strata.gpu.packing import PANEL_ROWS, pack, panel_bytes

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class BlobLayout:
    """Gate panels, up panels, down panels: the sizes of one expert of a layer.

    Attributes:
        formats: quantised block formats of gate, up and down.
        hidden_size: D.
        expert_size: F, a multiple of 32.
    """

    formats: tuple[str, str, str]
    hidden_size: int
    expert_size: int

    def __post_init__(self) -> None:
        if self.expert_size % 32 or self.hidden_size % 32:
            raise UnsupportedError(
                f"experts of {self.hidden_size} x {self.expert_size} weights cannot be packed: "
                "both sizes must be multiples of 32.\n  Try: --device cpu."
            )

    def shape_of(self, role: int) -> tuple[int, int]:
        """(rows, inner) of a role's matrix."""
        sizes = (self.expert_size, self.hidden_size)
        return sizes[::-1] if role == 2 else sizes

    def offset_of(self, role: int) -> int:
        """Byte of a blob at which a role begins."""
        return sum(self._bytes_of(before) for before in range(role))

    @property
    def blob_bytes(self) -> int:
        """Bytes of a slot, rounded up to an alignment of 256."""
        return -(-self.offset_of(3) // _ALIGNMENT) * _ALIGNMENT

    def _bytes_of(self, role: int) -> int:
        rows, inner = self.shape_of(role)
        return -(-rows // PANEL_ROWS) * panel_bytes(self.formats[role], inner)


@dataclass(frozen=True, slots=True)
class ExpertSlots:
    """C slots for the experts of one layer.

    Attributes:
        layout: of every blob.
        blobs: [C, blob_bytes] uint8.
        scales: [C, 3] float32, a factor on the products of each role (one but for NVFP4).
        slot_of: [E] int32, the slot of each expert, -1 when it is in none.
    """

    layout: BlobLayout
    blobs: Tensor
    scales: Tensor
    slot_of: Tensor

    def fill(
        self, slot: int, raw: tuple[Tensor, Tensor, Tensor], scales: tuple[float, float, float]
    ) -> None:
        """Packs an expert's stored rows (gate, up, down; uint8 on the card) into a slot.

        The table is left alone: write it when nothing in flight reads the slot.
        """
        for role, rows in enumerate(raw):
            num_rows, inner = self.layout.shape_of(role)
            first = self.layout.offset_of(role)
            size = panel_bytes(self.layout.formats[role], inner)
            num_panels = -(-num_rows // PANEL_ROWS)
            room = self.blobs[slot, first : first + num_panels * size].view(num_panels, size)
            pack(self.layout.formats[role], rows, inner, out=room)
        self.scales[slot] = torch.tensor(scales, dtype=torch.float32)


def empty_slots(
    layout: BlobLayout, num_slots: int, num_experts: int, device: torch.device | str
) -> ExpertSlots:
    """Slots without experts."""
    return ExpertSlots(
        layout=layout,
        blobs=torch.empty((num_slots, layout.blob_bytes), dtype=torch.uint8, device=device),
        scales=torch.ones((num_slots, 3), dtype=torch.float32, device=device),
        slot_of=torch.full((num_experts,), -1, dtype=torch.int32, device=device),
    )
