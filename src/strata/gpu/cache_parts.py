"""What an expert cache is made of on the card: mailbox, tables, staging, ways of the layers.

Owns the allocating, and that a card that refuses is told of as ``DeviceError``.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from strata.errors import DeviceError
from strata.gpu.expert_mover import MOVED_AT_ONCE
from strata.gpu.expert_stream import ExpertStream
from strata.gpu.host_memory import HostMemory
from strata.gpu.kernels.hand_off import HandOff
from strata.gpu.layer_tier import LayerTier, Staging
from strata.gpu.repack import make_repack
from strata.gpu.slot_limit import PoolRoom, SlotLimit
from strata.gpu.stream_plan import StreamShape
from strata.session_rules import MAX_WINDOW_ROWS
from strata.tiers.hand_off import FIELDS, MailboxLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.cache_options import CacheOptions
    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.kernels.keep import Keeping
    from strata.gpu.slot_table import SlotTable
    from strata.gpu.weights import ModelWeights
    from strata.model_spec import ModelSpec
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import Residency, SlotLayout


@contextmanager
def refusals_told(what: str) -> Iterator[None]:
    """Makes a card's refusal of memory the error that a user can act on.

    Raises:
        DeviceError: the card has not got the memory for ``what``.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceError(
            f"the card refused memory for {what}.\n"
            "  Try: a smaller --vram-limit or --expert-cache, or close what else uses the card."
        ) from error


class Mailbox:
    """Memory that card and host both reach: the hand-off's parts, and the card's clock.

    Attributes:
        layout: of the hand-off.
        memory: [bytes] uint8, page-locked on a card.
        routed: [L, N * K] int32, what each layer of the last window asked for.
        request: [4] int32: number, layer, rows, fault.
        clock: [L, 3] int64; see ``kernels.hand_off.HandOff``.
    """

    def __init__(self, spec: ModelSpec, *, is_card: bool) -> None:
        rows = MAX_WINDOW_ROWS
        self.layout = MailboxLayout(spec.num_layers, rows, spec.top_k, spec.hidden_size)
        size = self.layout.num_bytes
        self.memory = torch.zeros(size, dtype=torch.uint8, pin_memory=is_card)
        self._clock = torch.zeros((spec.num_layers, 3), dtype=torch.int64, pin_memory=is_card)
        self.clock: NDArray[np.int64] = self._clock.numpy()
        self.routed = self._view("routed").reshape(spec.num_layers, -1)
        self.request = self._view("request")

    @property
    def address(self) -> int:
        """Of the hand-off."""
        return self.memory.data_ptr()

    def hand_off(
        self, options: CacheOptions, device: torch.device, keeping: Keeping | None
    ) -> HandOff:
        """What the layers share on the card."""

        def zeros(num: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(num, dtype=dtype, device=device)

        entries, stages = self.layout.max_rows * self.layout.top_k, options.num_stages
        aside = None
        if device.type == "cuda":
            aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return HandOff(
            mailbox=self.address,
            layout=self.layout,
            number=zeros(1),
            answered=zeros(2),
            fault=zeros(1),
            source=zeros(entries),
            share=zeros(entries + 1),
            sources=zeros(stages, torch.int64),
            factors=zeros(stages, torch.int64),
            limit=int(options.limit_seconds * 1e9),
            clock=self._clock.data_ptr(),
            keeping=keeping,
            aside=aside,
        )

    def _view(self, field: str) -> NDArray[np.int32]:
        number = FIELDS.index(field)
        first, size = self.layout.offsets[number], self.layout.sizes[number]
        view: NDArray[np.int32] = self.memory[first : first + size].numpy().view("int32")
        return view


def host_memory(host: ExpertHost, options: CacheOptions, device: torch.device) -> HostMemory:
    """The host's experts as the card reaches them."""
    blobs = [(home.address, home.num_held, home.blob_bytes) for home in host.layers]
    widest = max(home.blob_bytes for home in host.layers)
    bounce_shape = (max(options.num_stages, MOVED_AT_ONCE), widest)
    return HostMemory(blobs, device, options.lock_bytes, bounce_shape, host, host.read)


def layer_tiers(
    host: ExpertHost,
    slots: Sequence[ExpertSlots],
    memory: HostMemory,
    hand_off: HandOff,
    table: SlotTable,
) -> list[LayerTier]:
    """Each layer's way to its experts; staging slots are shared."""
    device, num = hand_off.number.device, len(hand_off.sources)
    raw_bytes = max(home.blob_bytes for home in host.layers)
    packed_bytes = max(one.layout.blob_bytes for one in slots)
    staging = Staging(
        torch.zeros((num, raw_bytes), dtype=torch.uint8, device=device),
        torch.zeros((num, packed_bytes), dtype=torch.uint8, device=device),
        torch.ones((num, 3), device=device),
    )
    names = {name for one in slots for name in one.layout.formats}
    tables = {name: make_repack(name, host.permutation(name), device) for name in names}
    layers = []
    for number, (one, home) in enumerate(zip(slots, host.layers, strict=True)):
        gate, up, down = (tables[name] for name in one.layout.formats)
        own = replace(one, slot_of=table.on_card[number])
        layers.append(LayerTier(number, own, staging, (gate, up, down), home, memory, hand_off))
    return layers


def expert_stream(
    layers: Sequence[LayerTier],
    memory: HostMemory,
    table: SlotTable,
    options: CacheOptions,
    top_k: int,
) -> ExpertStream:
    """The way of experts to prompts; has no room yet where slots lend it."""
    raw = max(layer.home.blob_bytes for layer in layers)
    packed = max(layer.slots.layout.blob_bytes for layer in layers)
    shape = StreamShape(options.num_streamed, raw, packed)
    stream = ExpertStream(layers, memory, table, shape, top_k)
    if options.loans is None:
        room = torch.zeros(shape.num_bytes, dtype=torch.uint8, device=table.on_card.device)
        stream.lay(room)
    return stream


def slot_limit(residency: Residency, table: SlotTable, weights: ModelWeights) -> SlotLimit:
    """How many of the weights' slots are open."""
    rooms: dict[int, PoolRoom] = {}
    for layer, pool in zip(weights.layers, residency.layout.pool_of_layer, strict=True):
        blobs = layer.moe.experts.blobs
        rooms.setdefault(pool, PoolRoom(blobs.data_ptr(), blobs.shape[1]))
    ordered = [rooms[pool] for pool in range(len(residency.layout.pools))]

    def settle() -> None:
        if table.on_card.is_cuda:
            torch.cuda.synchronize()

    return SlotLimit(residency, table, weights.slots, ordered, settle)


def slots_of_layers(slots: SlotLayout, weights: ModelWeights) -> list[ExpertSlots]:
    """The slots of each layer; layers of a pool have the same ones."""
    first_of: dict[int, ExpertSlots] = {}
    found = []
    for layer, pool in zip(weights.layers, slots.pool_of_layer, strict=True):
        own = layer.moe.experts
        first = first_of.setdefault(pool, own)
        found.append(replace(own, blobs=first.blobs, scales=first.scales))
    return found


def whole_layers(layout: SlotLayout, num_held: Sequence[int]) -> list[bool]:
    """Whether all experts of a layer lie in slots, to stay there; ``num_held``: how many do."""
    sharing = Counter(layout.pool_of_layer)
    return [
        len(layout.pools[pool]) >= sharing[pool] * layout.num_experts and num == layout.num_experts
        for pool, num in zip(layout.pool_of_layer, num_held, strict=True)
    ]
