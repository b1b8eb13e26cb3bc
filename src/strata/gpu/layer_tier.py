"""One layer's way to the experts that are in no slot: launches of a window and of a prompt.

Owns which launches there are; the kernels are ``kernels.hand_off`` and ``kernels.fetch``. Who is in
a slot is decided by ``expert_cache``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strata.gpu.expert_slots import ExpertSlots
from strata.gpu.kernels import experts
from strata.gpu.kernels.fetch import copy_from_host, repack
from strata.gpu.kernels.hand_off import plan_stream, post, wait

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.experts import ExpertRows
    from strata.gpu.kernels.hand_off import HandOff
    from strata.gpu.kernels.quantize import Codes
    from strata.gpu.repack import Repack


@dataclass(frozen=True, slots=True)
class Staging:
    """S places a layer's experts pass through: as the host has them, and as products want them."""

    raw: Tensor
    packed: Tensor
    scales: Tensor


class LayerTier:
    """One layer's way to its experts.

    Args:
        number: of the layer.
        slots: those that stay.
        staging: shared by all layers.
        tables: repacking of gate, up and down.
        reachable: [E] int64, addresses the card can read, 0 for none.
        scales: [E, 3] float32 on the card.
        hand_off: shared by all layers.
        host_bytes: of an expert in RAM.
    """

    def __init__(
        self,
        number: int,
        slots: ExpertSlots,
        staging: Staging,
        tables: tuple[Repack, Repack, Repack],
        reachable: Tensor,
        scales: Tensor,
        hand_off: HandOff,
        host_bytes: int,
    ) -> None:
        self.slots = slots
        self._number = number
        self._hand_off = hand_off
        self._tables = tables
        self._reachable = reachable
        self._scales = scales
        self._raw = staging.raw
        self._host_bytes = host_bytes
        size = slots.layout.blob_bytes
        num = len(staging.packed)
        blobs = staging.packed.view(-1)[: num * size].view(num, size)
        self.staged = ExpertSlots(
            slots.layout, blobs, staging.scales, torch.full_like(slots.slot_of, -1)
        )
        self.has_staging = False
        self._everywhere = torch.zeros_like(slots.slot_of)

    @property
    def num_stages(self) -> int:
        """Staging slots."""
        return len(self.staged.blobs)

    def post(self, ids: Tensor, codes: Codes) -> None:
        """Divides a window's entries and asks the host for its share."""
        post(
            self._hand_off, self._number, ids, self.slots.slot_of, self._reachable,
            self.staged.slot_of, codes,
        )  # fmt: skip

    def finish(self, ids: Tensor, codes: Codes, rows: ExpertRows, bad: Tensor) -> None:
        """Outputs of the entries that are in no slot; the others' have been launched before."""
        if self.has_staging:
            self._fetch(self._hand_off.addresses, self._hand_off.experts, self.staged,
                        self._hand_off.places)  # fmt: skip
            experts.gate_up(self.staged, codes, ids, rows)
            experts.gate(self.staged, ids, rows, bad)
            experts.down(self.staged, ids, rows)
        wait(self._hand_off, rows.y, ids.numel(), bad)

    def admit(self, addresses: Tensor, experts_: Tensor, into: Tensor) -> None:
        """Copies experts into slots that stay; the table is left alone."""
        self._fetch(addresses, experts_, self.slots, into)

    def _fetch(self, addresses: Tensor, numbers: Tensor, slots: ExpertSlots, into: Tensor) -> None:
        raw = self._raw[: len(addresses)]
        copy_from_host(addresses, raw, self._host_bytes)
        repack(self._tables, addresses, raw, slots, into, numbers, self._scales)

    @property
    def everywhere(self) -> Tensor:
        """[E] int32 without -1: a table for a prompt, which brings every expert to the card."""
        return self._everywhere

    def stream(self, first: int, count: int, counts: Tensor) -> ExpertSlots:
        """Brings experts ``first`` and on to staging slots, those in no slot that rows want.

        Args:
            first: an expert.
            count: at most ``num_stages``.
            counts: [E] int32, rows that want each expert.
        """
        hand_off, staged = self._hand_off, self.staged
        plan_stream(
            hand_off, first, count, counts, self.slots.slot_of, self._reachable, staged.slot_of
        )
        self._fetch(hand_off.addresses, hand_off.experts, staged, hand_off.places)
        return staged
