"""Slots for fewer experts than a model has: who is in them, and how a layer comes by the others.

Owns, for one model on one card, the mailbox, the tables on the card, the residents and the policy
that trades them. Where bytes come from and who computes what is not in a slot is the other side's,
``tiers.hand_off.ExpertHost``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.errors import DeviceError
from strata.gpu.kernels.hand_off import HandOff
from strata.gpu.layer_tier import LayerTier, Staging
from strata.gpu.repack import make_repack
from strata.session_rules import MAX_WINDOW_ROWS
from strata.tiers.hand_off import FIELDS, MailboxLayout
from strata.tiers.policy_table import DEFAULT_POLICY, make_policy
from strata.tiers.replay import carry_out
from strata.tiers.slots import EMPTY, Residency

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

# A layer takes thousandths of a second even where all of it is computed by a slow processor.
LIMIT_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How experts without a slot are dealt with.

    Attributes:
        policy: a name of ``tiers.policy_table``.
        policy_options: of that policy.
        staged_share: part of a layer's distinct misses that is copied and computed on the card, the
            rest being computed by the host.
        num_stages: staging slots; most experts of a layer that are copied for a window.
        limit_seconds: how long the host may take for a layer.
        ranking: keys, the one most worth a slot first; None for no preference.
    """

    policy: str = DEFAULT_POLICY
    policy_options: PolicyOptions | None = None
    staged_share: float = 0.0
    num_stages: int = 16
    limit_seconds: float = LIMIT_SECONDS
    ranking: NDArray[np.int64] | None = None


class ExpertCache:
    """The slots of a model, and the way to what is in none.

    Args:
        spec: geometry.
        host: whose memory has been filled; opened here.
        slots: of all layers.
        weights: whose routed experts have room for these slots; filled here.
        options: see there.

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
        self._spec = spec
        self._host = host
        self._options = options
        self._is_whole: list[bool] = []
        self.residency = Residency(slots)
        self._policy: Policy = make_policy(options.policy, self.residency, options.policy_options)
        pools = [slots.pools[pool] for pool in slots.pool_of_layer]
        self._first_slots = np.array([pool[0] if len(pool) else 0 for pool in pools], np.int64)
        self._device = weights.layers[0].moe.experts.slot_of.device
        layout = MailboxLayout(spec.num_layers, MAX_WINDOW_ROWS, spec.top_k, spec.hidden_size)
        is_card = self._device.type == "cuda"
        self._mailbox = torch.zeros(layout.num_bytes, dtype=torch.uint8, pin_memory=is_card)
        self._routed = self._view(layout, "routed", np.int32).reshape(spec.num_layers, -1)
        self._hand_off = self._make_hand_off(layout)
        self.layers = self._make_layers(_slots_of_layers(slots, weights))
        self._sent_slots = self.residency.slot_of.copy()
        host.open(self._mailbox.data_ptr(), layout)
        self._set_share(options.staged_share)
        self.fill(options.ranking)

    def joined(self, weights: ModelWeights) -> ModelWeights:
        """The weights with the layers' ways to experts that are in no slot, where there are any."""
        layout = self.residency.layout
        sharing = Counter(layout.pool_of_layer)
        layers = []
        for layer, tier, pool in zip(
            weights.layers, self.layers, layout.pool_of_layer, strict=True
        ):
            is_whole = len(layout.pools[pool]) >= sharing[pool] * self._spec.num_experts
            self._is_whole.append(is_whole)
            moe = replace(layer.moe, experts=tier.slots, tier=None if is_whole else tier)
            layers.append(replace(layer, moe=moe))
        return replace(weights, layers=tuple(layers))

    def fill(self, ranking: NDArray[np.int64] | None) -> None:
        """Fills free slots with the best of a ranking, then with what it does not name."""
        num_layers, num_experts = self._spec.num_layers, self._spec.num_experts
        before = self.residency.key_in.copy()
        if ranking is not None:
            self.residency.fill(ranking.tolist())
        rest = np.arange(num_layers * num_experts).reshape(num_layers, num_experts).T.reshape(-1)
        self.residency.fill(rest.tolist())
        placed = np.flatnonzero(self.residency.key_in != before).tolist()
        self._copy([(int(self.residency.key_in[slot]), slot) for slot in placed])

    def begin(self) -> None:
        """A window is about to be launched."""
        self._host.begin()

    def end(self) -> None:
        """The window's launches are done."""
        self._host.end()

    def check(self) -> None:
        """Refuses the last window if the host did not answer; readies it for the next.

        Raises:
            DeviceError: the host gave no answer, or refused.
        """
        fault = int(self._hand_off.fault.item())
        if not fault:
            return
        number = int(self._hand_off.number.item())
        is_well = self._host.restart(number)
        if is_well:
            self._hand_off.fault.zero_()
        limit = self._options.limit_seconds
        what = f"gave no answer within {limit:g} s" if fault == 1 else "refused"
        todo = "ask again" if is_well else "start again"
        raise DeviceError(
            f"the processor was asked for experts that are in no slot of the card, and {what} "
            f"(request {number}).\n  Try: {todo}; if it comes back, fewer --threads."
        )

    def settle(self, num_rows: int, num_kept: int) -> None:
        """The last window had ``num_rows`` rows, of which the first ``num_kept`` were kept."""
        top_k = self._spec.top_k
        for layer, is_whole in enumerate(self._is_whole):
            if is_whole:
                continue
            rows = self._routed[layer, : num_rows * top_k].reshape(num_rows, top_k)
            carry_out(
                self.residency, self._policy.ask(layer, rows.astype(np.int64), is_prompt=False)
            )
        carry_out(self.residency, self._policy.settle(num_kept))
        self._copy_admitted()

    def counts(self) -> NDArray[np.int64]:
        """[L, 5] what the host has done for each layer: ``tiers.hand_off.SERVED``."""
        return self._host.counts()

    def close(self) -> None:
        """Ends the host's threads."""
        self._host.close()

    def _copy_admitted(self) -> None:
        """Brings the card up to the table of residents."""
        changed = self.residency.slot_of != self._sent_slots
        if changed.any():
            keys = np.flatnonzero(changed & (self.residency.slot_of != EMPTY)).tolist()
            self._copy([(key, int(self.residency.slot_of[key])) for key in keys])

    def _copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copies experts to where the table of residents has them, then writes the card's table."""
        by_layer: dict[int, list[tuple[int, int]]] = {}
        for key, slot in pairs:
            layer, expert = divmod(key, self._spec.num_experts)
            by_layer.setdefault(layer, []).append((expert, slot - int(self._first_slots[layer])))
        step = self._options.num_stages
        for layer, places in by_layer.items():
            memory = self._host.layers[layer]
            for first in range(0, len(places), step):
                some = np.array(places[first : first + step], np.int64)
                numbers, into = some.astype(np.int32).T.copy()
                addresses = memory.address + some[:, 0] * memory.blob_bytes
                self.layers[layer].admit(
                    self._sent(addresses), self._sent(numbers), self._sent(into)
                )
        self._write_tables()

    def _write_tables(self) -> None:
        """The card's tables of the layers whose residents have changed."""
        shape = (self._spec.num_layers, self._spec.num_experts)
        now, before = self.residency.slot_of.reshape(shape), self._sent_slots.reshape(shape)
        for layer in np.flatnonzero((now != before).any(axis=1)).tolist():
            places = now[layer]
            local = np.where(places == EMPTY, -1, places - self._first_slots[layer])
            self.layers[layer].slots.slot_of.copy_(torch.from_numpy(local.astype(np.int32)))
        self._sent_slots = self.residency.slot_of.copy()

    def _set_share(self, share: float) -> None:
        """Of m distinct misses the last round(share * 256) / 256 of them are staged."""
        part = round(share * 256) / 256
        counts = np.floor(np.arange(len(self._hand_off.share)) * part + 0.5).astype(np.int32)
        self._hand_off.share.copy_(torch.from_numpy(counts))
        for tier in self.layers:
            tier.has_staging = part > 0

    def _sent(self, values: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _view(self, layout: MailboxLayout, field: str, dtype: type) -> NDArray[np.int32]:
        number = FIELDS.index(field)
        first, size = layout.offsets[number], layout.sizes[number]
        view: NDArray[np.int32] = self._mailbox[first : first + size].numpy().view(dtype)
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
            addresses=zeros(stages, torch.int64),
            experts=zeros(stages),
            places=torch.arange(stages, dtype=torch.int32, device=self._device),
            limit=int(self._options.limit_seconds * 1e9),
        )

    def _make_layers(self, slots: Sequence[ExpertSlots]) -> list[LayerTier]:
        host, device, num = self._host, self._device, self._options.num_stages
        raw_bytes = max(memory.blob_bytes for memory in host.layers)
        packed_bytes = max(one.layout.blob_bytes for one in slots)
        staging = Staging(
            torch.empty((num, raw_bytes), dtype=torch.uint8, device=device),
            torch.empty((num, packed_bytes), dtype=torch.uint8, device=device),
            torch.empty((num, 3), device=device),
        )
        names = {name for one in slots for name in one.layout.formats}
        tables = {name: make_repack(name, host.permutation(name), device) for name in names}
        layers = []
        for number, (one, memory) in enumerate(zip(slots, host.layers, strict=True)):
            one.slot_of.fill_(-1)
            places = memory.address + np.arange(self._spec.num_experts) * memory.blob_bytes
            gate, up, down = (tables[name] for name in one.layout.formats)
            scales = torch.from_numpy(memory.scales.copy()).to(device)
            layers.append(
                LayerTier(
                    number,
                    one,
                    staging,
                    (gate, up, down),
                    self._sent(places),
                    scales,
                    self._hand_off,
                    memory.blob_bytes,
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
