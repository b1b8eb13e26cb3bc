"""Slots for fewer experts than a model has: who is in them, and how a layer comes by the others.

Owns, for one model on one card, the mailbox, the tables on the card, the residents and the policy
that trades them. Where bytes come from and who computes what is not in a slot is the other side's,
``tiers.hand_off.ExpertHost``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.errors import DeviceError
from strata.gpu.expert_mover import MOVED_AT_ONCE, ExpertMover, Move
from strata.gpu.host_memory import HostMemory
from strata.gpu.kernels.hand_off import HandOff
from strata.gpu.layer_tier import LayerTier, Staging
from strata.gpu.profile import card_seconds
from strata.gpu.repack import make_repack
from strata.gpu.slot_check import check_slots
from strata.gpu.slot_plan import way_bytes
from strata.gpu.slot_table import SlotTable
from strata.session_rules import MAX_WINDOW_ROWS
from strata.tiers.hand_off import FIELDS, MailboxLayout
from strata.tiers.policy_table import DEFAULT_POLICY, check_policy, make_policy
from strata.tiers.replay import carry_out
from strata.tiers.share import Cost, balanced_counts, fixed_counts
from strata.tiers.slots import Residency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.weights import ModelWeights
    from strata.model_spec import ModelSpec
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.policies import Policy
    from strata.tiers.policy_table import PolicyOptions
    from strata.tiers.slots import SlotLayout

# Products of staged experts are three more launches.
_STAGED_LAUNCHES = 9e-6
# A layer takes thousandths of a second even where all of it is computed by a slow processor.
LIMIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How experts without a slot are dealt with.

    Attributes:
        policy: a name of ``tiers.policy_table``.
        policy_options: of that policy.
        staged_share: part of a layer's distinct misses that is copied and computed on the card, the
            rest being computed by the host; None for what ends both at the same time.
        num_stages: staging slots; most experts of a layer that are copied for a window.
        limit_seconds: how long the host may take for a layer.
        lock_bytes: most memory of the host that is page-locked; None for all of it.
        ranking: keys, the one most worth a slot first; None for no preference.
        has_full_check: compare every slot with the host's memory at the start, not only the first.

    Raises:
        SettingsError: there is no such policy, or it is not a share.
    """

    policy: str = DEFAULT_POLICY
    policy_options: PolicyOptions | None = None
    staged_share: float | None = 0.0
    num_stages: int = 16
    limit_seconds: float = LIMIT_SECONDS
    lock_bytes: int | None = None
    ranking: NDArray[np.int64] | None = None
    has_full_check: bool = False

    def __post_init__(self) -> None:
        # Before any expert is packed.
        check_policy(self.policy)
        if self.staged_share is not None:
            fixed_counts(0, self.staged_share)


class ExpertCache:
    """The slots of a model, and the way to what is in none.

    Args:
        spec: geometry.
        host: whose memory has been filled; opened here.
        slots: of all layers.
        weights: whose routed experts have room for these slots; filled here.
        options: see there.

    Attributes:
        residency: who is in which slot, or on the way there.
        layers: each layer's way to its experts.
        staged_counts: how many of 0, 1, ... distinct misses of a layer are copied.

    Raises:
        DeviceError: the card has not got the memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        host: ExpertHost,
        slots: SlotLayout,
        weights: ModelWeights,
        options: CacheOptions,
    ) -> None:
        self._spec, self._host, self._options = spec, host, options
        self.residency = Residency(slots)
        self._policy: Policy = make_policy(options.policy, self.residency, options.policy_options)
        self._device = weights.layers[0].moe.experts.slot_of.device
        self._is_card = self._device.type == "cuda"
        layout = MailboxLayout(spec.num_layers, MAX_WINDOW_ROWS, spec.top_k, spec.hidden_size)
        self._mailbox = self._pinned(layout.num_bytes, torch.uint8)
        self._routed = self._view(layout, "routed").reshape(spec.num_layers, -1)
        self._request = self._view(layout, "request")
        self._hand_off = self._make_hand_off(layout)
        self._table = SlotTable(self.residency, self._device)
        self.layers = self._make_layers(_slots_of_layers(slots, weights))
        self._is_whole = self._whole_layers()
        self._mover = ExpertMover(self.layers, self._memory, self._device)
        homes = [home.blob_bytes for home in host.layers]
        self._way_bytes = way_bytes(max(homes), options.num_stages)
        self._settled: tuple[NDArray[np.int64], int] | None = None
        host.open(self._mailbox.data_ptr(), layout, self._mailbox)
        self.fill(options.ranking)
        self.set_share(options.staged_share)

    def joined(self, weights: ModelWeights) -> ModelWeights:
        """The weights with the layers' ways to experts that are in no slot, where there are any."""
        layers = []
        for layer, tier, is_whole in zip(weights.layers, self.layers, self._is_whole, strict=True):
            moe = replace(layer.moe, experts=tier.slots, tier=None if is_whole else tier)
            layers.append(replace(layer, moe=moe))
        num_bytes = weights.num_bytes | {"experts on their way": self._way_bytes}
        return replace(weights, layers=tuple(layers), num_bytes=num_bytes)

    def fill(self, ranking: NDArray[np.int64] | None) -> None:
        """Fills free slots with the best of a ranking, then with what it does not name."""
        num_layers, num_experts = self._spec.num_layers, self._spec.num_experts
        if ranking is not None:
            self.residency.fill(ranking.tolist())
        rest = np.arange(num_layers * num_experts).reshape(num_layers, num_experts).T.reshape(-1)
        self.residency.fill(rest.tolist())
        self._move()
        self._receive(is_waiting=True)
        self._table.send()
        self.verify(None if self._options.has_full_check else (0,))

    def verify(self, slots: Sequence[int] | None) -> None:
        """Compares slots, None for all, with the host's memory, byte for byte.

        Raises:
            DeviceError: a byte differs; names slot, expert and offset.
        """
        check_slots(self.residency, self.layers, self._host.permutation, slots)

    def begin(self) -> None:
        """A window is about to be launched: slots change hands now, and only now.

        Raises:
            DeviceError: the thread that answers cannot be ended.
        """
        if self._request[3]:
            # Of a window that nobody waited for any more, so nobody was told.
            self.check(is_awaited=False)
        self._receive()
        if not self._mover.is_busy:
            self._move()
        self._table.send()
        self._host.begin()

    def end(self) -> None:
        """The window's launches are done."""
        self._host.end()

    def work(self) -> None:
        """Decides what the last window's experts mean for the slots; best while another runs."""
        if self._settled is None:
            return
        ids, num_kept = self._settled
        self._settled = None
        # While experts are on their way the policy only learns.
        is_open = not self._mover.is_busy and not len(self._table.wanting())
        for layer, is_whole in enumerate(self._is_whole):
            if not is_whole:
                asked = self._policy.ask(layer, ids[layer], is_prompt=False)
                carry_out(self.residency, asked if is_open else ())
        settled = self._policy.settle(num_kept)
        carry_out(self.residency, settled if is_open else ())

    def settle(self, num_rows: int, num_kept: int) -> None:
        """The last window had ``num_rows`` rows, of which the first ``num_kept`` were kept."""
        self.work()
        shape = (self._spec.num_layers, num_rows, self._spec.top_k)
        ids = self._routed[:, : num_rows * self._spec.top_k].reshape(shape).astype(np.int64)
        self._settled = ids, num_kept

    def check(self, *, is_awaited: bool = True) -> None:
        """Refuses the last window if the host did not answer; readies it for the next.

        Where the window is not awaited any more, only what cannot be readied is refused.

        Raises:
            DeviceError: the host gave no answer, or refused.
        """
        number, _, _, fault = self._request.tolist()
        if not fault:
            return
        is_well = self._host.restart(number)
        if is_well:
            self._hand_off.fault.zero_()
            self._request[3] = 0
            if not is_awaited:
                return
        limit = self._options.limit_seconds
        is_late = fault == 1
        what = f"gave no answer within {limit:g} s" if is_late else "refused"
        todo = "ask again" if is_well else "start again"
        more = "fewer --threads" if is_late else "--device cpu"
        raise DeviceError(
            f"the processor was asked for experts that are in no slot of the card, and {what} "
            f"(request {number}).\n  Try: {todo}; if it comes back, {more}."
        )

    @property
    def locked_bytes(self) -> int:
        """Bytes of experts in RAM that the card can read where they are."""
        return self._memory.locked_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes of experts brought into slots that stay, since the start."""
        return self._mover.num_bytes

    def change_policy(self, name: str, options: PolicyOptions | None = None) -> None:
        """Another policy from now on; it begins without knowledge, with the slots as they are.

        Raises:
            SettingsError: there is no such policy.
        """
        self.work()
        self._policy = make_policy(name, self.residency, options)

    def set_share(self, share: float | None) -> None:
        """What part of a layer's misses is copied, from 0 to 1; None for what ends together.

        Graphs that were made before keep their launches: with 0 nothing of theirs is copied.

        Raises:
            SettingsError: not a share.
        """
        most = len(self._hand_off.share) - 1
        self._copy_cost = self._measured_copy() if share is None and self._is_card else None
        if share is not None:
            counts = fixed_counts(most, share)
        elif self._copy_cost is not None:
            counts = balanced_counts(most, self._host.measured(), self._copy_cost)
        else:
            counts = [0] * (most + 1)
        self.staged_counts = counts
        self._hand_off.share.copy_(torch.tensor(counts, dtype=torch.int32))
        has_staging = any(counts[: self._spec.top_k + 1])
        for tier in self.layers:
            tier.has_staging = has_staging

    def _measured_copy(self) -> Cost:
        """What it costs a layer to copy experts for itself."""
        few, many = 1, min(8, self._options.num_stages)
        seconds = {num: card_seconds(partial(self.layers[0].rehearse, num), 8)
                   for num in (few, many)}  # fmt: skip
        each = max(1e-7, (seconds[many] - seconds[few]) / max(1, many - few))
        return Cost(max(0.0, seconds[few] - each) + _STAGED_LAUNCHES, each)

    def counts(self) -> NDArray[np.int64]:
        """[L, 5] what the host has done for each layer: ``tiers.hand_off.SERVED``."""
        return self._host.counts()

    def close(self) -> None:
        """Ends the host's threads.

        Raises:
            DeviceError: one does not end.
        """
        try:
            self._host.close()
        finally:
            self._memory.close()

    def _move(self) -> None:
        """Sets out with whoever is not yet in the slot meant for him."""
        slots = self._table.wanting()
        if not len(slots):
            return
        # Those who give up their slots are out of the table before anyone writes there. Whatever
        # breaks off from here on leaves slots that hold nobody, and is begun again.
        self._table.give_up(slots)
        self._table.send()
        self._mover.start([self._move_of(slot) for slot in slots.tolist()])

    def _move_of(self, slot: int) -> Move:
        """The way of the expert that a slot is meant to hold."""
        layer, expert = divmod(int(self.residency.key_in[slot]), self._spec.num_experts)
        place = slot - self.residency.layout.first_slot(layer)
        return Move(layer, expert, place, slot)

    def _receive(self, *, is_waiting: bool = False) -> None:
        """Enters experts that have arrived."""
        landed = self._mover.landed(is_waiting=is_waiting)
        keys = [move.layer * self._spec.num_experts + move.expert for move in landed]
        if landed:
            self._table.enter([move.slot for move in landed], keys)

    def _whole_layers(self) -> list[bool]:
        """Whether all experts of a layer have slots, now and always."""
        layout = self.residency.layout
        sharing = Counter(layout.pool_of_layer)
        return [
            len(layout.pools[pool]) >= sharing[pool] * self._spec.num_experts
            for pool in layout.pool_of_layer
        ]

    def _pinned(self, shape: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, pin_memory=self._is_card)

    def _view(self, layout: MailboxLayout, field: str) -> NDArray[np.int32]:
        number = FIELDS.index(field)
        first, size = layout.offsets[number], layout.sizes[number]
        view: NDArray[np.int32] = self._mailbox[first : first + size].numpy().view(np.int32)
        return view

    def _make_hand_off(self, layout: MailboxLayout) -> HandOff:
        def zeros(num: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(num, dtype=dtype, device=self._device)

        entries, stages = layout.max_rows * layout.top_k, self._options.num_stages
        return HandOff(
            mailbox=self._mailbox.data_ptr(),
            layout=layout,
            number=zeros(1),
            fault=zeros(1),
            source=zeros(entries),
            share=zeros(entries + 1),
            sources=zeros(stages, torch.int64),
            factors=zeros(stages, torch.int64),
            limit=int(self._options.limit_seconds * 1e9),
        )

    def _make_layers(self, slots: Sequence[ExpertSlots]) -> list[LayerTier]:
        host, device, num = self._host, self._device, self._options.num_stages
        raw_bytes = max(memory.blob_bytes for memory in host.layers)
        blobs = [(home.address, len(home.scales), home.blob_bytes) for home in host.layers]
        bounce_shape = (max(num, MOVED_AT_ONCE), raw_bytes)
        self._memory = HostMemory(blobs, device, self._options.lock_bytes, bounce_shape, host)
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
            own = replace(one, slot_of=self._table.on_card[number])
            layers.append(
                LayerTier(
                    number, own, staging, (gate, up, down), home, self._memory, self._hand_off
                )
            )
        return layers


def _slots_of_layers(slots: SlotLayout, weights: ModelWeights) -> list[ExpertSlots]:
    """The slots of each layer; layers of a pool have the same ones."""
    first_of: dict[int, ExpertSlots] = {}
    found = []
    for layer, pool in zip(weights.layers, slots.pool_of_layer, strict=True):
        own = layer.moe.experts
        first = first_of.setdefault(pool, own)
        found.append(replace(own, blobs=first.blobs, scales=first.scales))
    return found
