"""The check at start-up that slots hold the experts they are said to hold.

Both sides are taken back to rows as the file stores them, so neither the copy nor the repacking is
believed. Owns the way back from the host's panels; the comparison is ``tiers.verify_slots``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.formats.block_formats import FORMATS
from strata.gpu.packing import PackedMatrix, panel_bytes, unpack
from strata.gpu.packing_fields import GROUP
from strata.gpu.repack import HOST_ROWS
from strata.tiers.verify_slots import verify_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.expert_slots import BlobLayout
    from strata.gpu.layer_tier import LayerTier
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import Residency

    Bytes = NDArray[np.uint8]
    Ints = NDArray[np.int64]


def check_slots(
    residency: Residency,
    layers: Sequence[LayerTier],
    host: ExpertHost,
    slots: Sequence[int] | None,
) -> None:
    """Compares slots with the host's memory, byte for byte; factors come behind the rows.

    Args:
        residency: who is meant to be where.
        layers: whose slots they are.
        host: has every expert's bytes.
        slots: which; None for all.

    Raises:
        DeviceError: a byte differs; names slot, expert and offset in the stored rows.
    """
    num_experts = residency.layout.num_experts

    def read_slot(slot: int) -> Bytes:
        layer = int(residency.key_in[slot]) // num_experts
        own = layers[layer].slots
        place = slot - residency.layout.first_slot(layer)
        factors = own.scales[place].cpu().numpy().view(np.uint8)
        return np.concatenate([rows_in_slot(own.layout, own.blobs[place]), factors])

    def read_expert(layer: int, expert: int) -> Bytes:
        home = layers[layer].home
        blob = np.zeros(home.blob_bytes, np.uint8)
        host.read(layer, [expert], [blob.ctypes.data])
        rows = rows_on_host(layers[layer].slots.layout, blob, host.permutation)
        return np.concatenate([rows, home.scales[expert].view(np.uint8)])

    every = range(residency.layout.num_slots) if slots is None else slots
    verify_slots(residency, read_slot, read_expert, every)


def rows_in_slot(layout: BlobLayout, blob: Tensor) -> Bytes:
    """Stored rows of gate, up and down, one after the other, of a slot's bytes."""
    found = []
    for role, name in enumerate(layout.formats):
        rows, inner = layout.shape_of(role)
        panels = blob[layout.offset_of(role) : layout.offset_of(role + 1)]
        matrix = PackedMatrix(name, rows, inner, panels.view(-1, panel_bytes(name, inner)))
        found.append(unpack(matrix).cpu().numpy().reshape(-1))
    return np.concatenate(found)


def rows_on_host(layout: BlobLayout, blob: Bytes, permutation_of: Callable[[str], Ints]) -> Bytes:
    """The same of an expert's bytes in the host's memory.

    Args:
        layout: of the expert.
        blob: its bytes.
        permutation_of: ``ExpertHost.permutation``.
    """
    found, first = [], 0
    for role, name in enumerate(layout.formats):
        rows, inner = layout.shape_of(role)
        size = rows * FORMATS[name].row_bytes(inner)
        found.append(_stored(blob[first : first + size], name, rows, inner, permutation_of(name)))
        first += size
    return np.concatenate(found)


def _stored(panels: Bytes, name: str, rows: int, inner: int, permutation: Ints) -> Bytes:
    """[rows * row_bytes] stored rows of one matrix."""
    row_bytes, group_bytes = FORMATS[name].row_bytes(inner), FORMATS[name].row_bytes(GROUP)
    bits = np.unpackbits(panels.reshape(rows // HOST_ROWS, -1), axis=1, bitorder="little")
    out = np.zeros((rows // HOST_ROWS, HOST_ROWS, row_bytes * 8), np.uint8)
    step = HOST_ROWS * group_bytes * 8
    for group in range(-(-inner // GROUP)):
        piece = bits[:, group * step : (group + 1) * step]
        place = permutation[: piece.shape[1]]
        row, bit = np.divmod(place >> 1, group_bytes * 8)
        out[:, row, group * group_bytes * 8 + bit] = piece ^ (place & 1).astype(np.uint8)
    return np.packbits(out.reshape(-1), bitorder="little")
