"""Slots for fewer experts than a model has: who is in them, and how a layer comes by the others.

Owns, for one model on one card, the residents, the policy that trades them, and what is counted.
Where bytes come from and who computes what is not in a slot is the other side's,
``tiers.hand_off.ExpertHost``. One window at a time, whoever's session it is.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from strata import telemetry
from strata.errors import DeviceError
from strata.gpu.cache_options import LIMIT_SECONDS, CacheOptions
from strata.gpu.cache_parts import (
    Mailbox,
    expert_stream,
    host_memory,
    layer_tiers,
    refusals_told,
    slot_limit,
    slots_of_layers,
    whole_layers,
)
from strata.gpu.expert_faults import NO_ANSWER, no_experts
from strata.gpu.expert_mover import ExpertMover
from strata.gpu.prompt_notes import PromptNotes
from strata.gpu.slot_check import check_slots
from strata.gpu.slot_keeper import SlotKeeper
from strata.gpu.slot_plan import way_bytes
from strata.gpu.slot_table import SlotTable
from strata.gpu.slot_trades import MOVES_BESIDE, SlotTrades
from strata.gpu.slot_traffic import SlotTraffic
from strata.gpu.split import Split
from strata.gpu.window_meter import Seen, WindowMeter
from strata.tiers.counters import add_ahead
from strata.tiers.expert_profile import ExpertProfile, learned_profile
from strata.tiers.rates import TierRates
from strata.tiers.slots import Residency

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.weights import ModelWeights
    from strata.model_spec import ModelSpec
    from strata.tiers.counters import TierCounts
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.policy_table import PolicyOptions
    from strata.tiers.slots import SlotLayout

__all__ = ["LIMIT_SECONDS", "CacheOptions", "ExpertCache"]


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
        split: how misses are divided.
        limit: how many slots are open; stays as it is while ``is_lending``.

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
        device = weights.layers[0].moe.experts.slot_of.device
        is_card = device.type == "cuda"
        with refusals_told("the way of experts to their slots"):
            self._mailbox = Mailbox(spec, is_card=is_card)
            self._table = SlotTable(self.residency, device)
            self._keeper: SlotKeeper | None = None
            if options.keeps_copied:
                self._keeper = SlotKeeper(self.residency, self._table, options.num_stages)
            keeping = None if self._keeper is None else self._keeper.keeping
            self._hand_off = self._mailbox.hand_off(options, device, keeping)
            self._notes = PromptNotes(
                spec.num_layers, spec.num_experts, spec.top_k, self._table.on_card
            )
            self._memory = host_memory(host, options, device)
            own = slots_of_layers(slots, weights)
            self.layers = layer_tiers(host, own, self._memory, self._hand_off, self._table)
            mover = ExpertMover(self.layers, self._memory, device)
            stream = expert_stream(self.layers, self._memory, self._table, options, spec.top_k)
        self._trades = SlotTrades(
            self.residency, self._table, options.policy, options.policy_options
        )
        for tier in self.layers:
            tier.notes, tier.ahead, tier.table = self._notes, stream, self._table
        self._routed, self._request = self._mailbox.routed, self._mailbox.request
        homes = [home.blob_bytes for home in host.layers]
        # Where slots lend it, the room of experts on their way to prompts is theirs.
        num_streamed = options.num_streamed if options.loans is None else 0
        self._way_bytes = way_bytes(max(homes), options.num_stages, num_streamed)
        self._settled: tuple[Seen, int] | None = None
        self._traffic = SlotTraffic(self.residency, self._table, mover)
        self.split = Split(self._hand_off, self.layers, host.measured, is_card=is_card)
        self._is_whole = [False] * spec.num_layers
        host.open(self._mailbox.address, self._mailbox.layout, self._mailbox.memory)
        reachable = np.array([tier.reachable for tier in self.layers]) != 0
        self._meter = WindowMeter(
            np.array(homes), np.array(self._is_whole), self.split, reachable, host.counts()
        )
        self._wished_slots: deque[int] = deque(maxlen=1)
        self.is_lending = False
        self.limit = slot_limit(self.residency, self._table, weights)
        profile = options.profile
        self.fill(None if profile is None else profile.keys)
        self.set_share(options.staged_share)
        self._choose_victims()

    def joined(self, weights: ModelWeights) -> ModelWeights:
        """The weights with the layers' ways to experts that are in no slot, where there are any."""
        layers = []
        for layer, tier in zip(weights.layers, self.layers, strict=True):
            moe = replace(layer.moe, experts=tier.slots, tier=tier)
            layers.append(replace(layer, moe=moe))
        num_bytes = weights.num_bytes | {"experts on their way": self._way_bytes}
        return replace(weights, layers=tuple(layers), num_bytes=num_bytes)

    def fill(self, ranking: NDArray[np.int64] | None) -> None:
        """Fills free slots with the best of a ranking, then with what it does not name."""
        self.residency.fill_first(() if ranking is None else ranking.tolist())
        self._traffic.move(None)
        self._receive(is_waiting=True)
        self._table.send()
        self.verify(None if self._options.has_full_check else (0,))

    def verify(self, slots: Sequence[int] | None) -> None:
        """Compares slots, None for all, with the host's memory, byte for byte.

        Raises:
            DeviceError: a byte differs; names slot, expert and offset.
        """
        check_slots(self.residency, self.layers, self._host, slots)

    def begin(self) -> None:
        """A window is about to be launched: slots change hands now, and only now.

        Raises:
            DeviceError: the thread that answers cannot be ended.
        """
        if self._request[3]:
            # Of a window that nobody waited for any more, so nobody was told.
            self.check(is_awaited=False)
        if self._keeper is not None:
            self._keeper.learn()  # of windows that were launched to be measured
        self._meter.begins(time.perf_counter(), follows=not self._notes.has_any)
        if self._notes.has_any:
            self._learn_prompt()
        self._receive()
        if self._wished_slots:
            try:
                self.carry_out_limit()
            except DeviceError as error:
                # The window does not need it.
                telemetry.notice("slots", str(error))
        if not self._traffic.mover.is_busy:
            self._traffic.set_out(MOVES_BESIDE)
        self._table.send()
        if self._keeper is not None:
            self._keeper.name()
        self._traffic.mover.mark()
        self.split.refresh()
        self._host.begin()

    def end(self, *, is_whole: bool = True) -> None:
        """The window's launches are done, or they broke off."""
        try:
            if self._keeper is not None:
                (self._keeper.learn if is_whole else self._keeper.lose)()
        finally:
            self._host.end()

    def work(self) -> None:
        """Brings in whom slots wait for, then decides what the last window's experts mean for them.

        Best while another window runs: both take the host's time.
        """
        self._traffic.depart()
        if self._settled is None:
            return
        seen, num_kept = self._settled
        self._settled = None
        self._meter.count(seen)
        self._trades.of_window(seen.ids, num_kept, self._is_whole, seen.kept)
        self._choose_victims()

    def settle(self, num_rows: int, num_kept: int) -> None:
        """The last window had ``num_rows`` rows, of which the first ``num_kept`` were kept."""
        self.work()
        num_layers, num_ids = self._spec.num_layers, num_rows * self._spec.top_k
        ids = self._routed[:, :num_ids].astype(np.int64)
        seen = Seen(
            ids.reshape(num_layers, num_rows, -1),
            self._table.has(ids),
            self._mailbox.clock.copy(),
            self._host.counts(),
            self.split.counts,
            None if self._keeper is None else self._keeper.num_kept,
        )
        self._settled = seen, num_kept

    def check(self, *, is_awaited: bool = True) -> None:
        """Refuses the last window if the host did not answer; readies it for the next.

        Where the window is not awaited any more, only what cannot be readied is refused.

        Raises:
            DeviceError: the host gave no answer, or refused.
            CheckpointError: it could not read an expert.
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
        failure = self._host.take_failure()
        if failure is not None and fault != NO_ANSWER:
            raise failure
        raise no_experts(fault, number, self._options.limit_seconds, is_well=is_well)

    def limit_slots(self, num_slots: int) -> None:
        """So many slots from the next window on, or from ``carry_out_limit``. Any thread."""
        self._wished_slots.append(num_slots)

    def carry_out_limit(self) -> None:
        """Opens and closes slots now, if that is wished for. No window may be under way.

        Raises:
            DeviceError: the card refuses; slots are then as they were.
        """
        if not self._wished_slots or self.is_lending:
            return
        self.work()
        self._receive(is_waiting=True)
        self.limit.change(self._wished_slots.pop(), self._trades.heat.reshape(-1))
        self._look_at_layers()
        self._choose_victims()

    def lend(self, num_slots: int) -> Tensor:
        """[bytes] memory of the last slots; until ``take_back`` their experts are missing."""
        self._receive(is_waiting=True)
        lent = self.residency.layout.pools[0][-num_slots:]
        self._table.lend(lent)
        self._look_at_layers()
        self._table.send()
        return self.layers[0].slots.blobs[lent[0] : lent[-1] + 1].view(-1)

    def take_back(self) -> None:
        """What was lent is slots again, and all who are meant to be there set out."""
        try:
            if self._notes.has_any:
                self._learn_prompt()
        finally:
            self._table.take_back()
            self._meter.breaks()
        self._receive(is_waiting=True)
        self._traffic.move(None)

    @property
    def locked_bytes(self) -> int:
        """Bytes of experts in RAM that the card can read where they are."""
        return self._memory.locked_bytes

    @property
    def moved_bytes(self) -> int:
        """Bytes of experts brought into slots that stay, since the start."""
        return self._traffic.mover.num_bytes

    @property
    def staged_counts(self) -> list[int]:
        """How many of 0, 1, ... distinct misses of a layer are copied."""
        counts: list[int] = self.split.counts.tolist()
        return counts

    def change_policy(self, name: str, options: PolicyOptions | None = None) -> None:
        """Another policy from now on; it begins without knowledge, with the slots as they are.

        Raises:
            SettingsError: there is no such policy.
        """
        self.work()
        self._trades.change(name, options)

    def set_share(self, share: float | None) -> None:
        """What part of a layer's misses is copied, from 0 to 1; None for what ends together.

        Raises:
            SettingsError: not a share.
        """
        self.work()
        self.split.set(share)

    def counts(self) -> NDArray[np.int64]:
        """[L, N] what the host has done for each layer: ``tiers.hand_off.SERVED``.

        Windows that ran to be captured are among it.
        """
        return self._host.counts()

    def tier_counts(self) -> TierCounts:
        """What accepted windows and prompts asked for, since the start."""
        self.work()
        if self._notes.has_any:
            self._learn_prompt()
        return add_ahead(self._meter.counts(self._host.counts()), self._host.ahead_counts())

    def tier_rates(self) -> TierRates | None:
        """What experts cost in each place, as learned; None before anything was."""
        self.work()
        window_s, split = self._meter.free_s, self.split
        if window_s is None:
            return None
        size = int(np.mean([home.blob_bytes for home in self._host.layers]))
        rates = TierRates(
            size, split.asked_cost, split.staged_cost, split.idle.value or 0.0, window_s,
            self._traffic.mover.bytes_per_s, beside=split.beside_cost,
        )  # fmt: skip
        return rates.with_reads(self._meter.read_cost)

    def learned(self) -> ExpertProfile:
        """What is known of the experts now, for the next run."""
        prior = self._options.profile
        if prior is None:
            shape = (self._spec.num_layers, self._spec.num_experts)
            prior = ExpertProfile(*shape, 0, np.empty(0, np.int64), self._spec.name)
        return learned_profile(prior, self._trades.heat, self.residency.resident_keys)

    def close(self) -> None:
        """Ends the host's threads and lets go of its memory. Nothing works afterwards.

        Raises:
            DeviceError: one does not end.
        """
        host: ExpertHost | None = self.__dict__.pop("_host", None)
        try:
            if host is not None:
                host.close()
        finally:
            self._memory.close()

    def _choose_victims(self) -> None:
        """Who gives slots up to experts that a window copies."""
        if self._keeper is not None:
            self._keeper.choose(self._trades.heat)

    def _learn_prompt(self) -> None:
        """A prompt has been read: the best of what it asked for is left in the slots."""
        self.work()
        noted = self._notes.take()
        self._meter.add("prompt_lookups", noted.lookups)
        self._meter.add("prompt_hits", noted.hits)
        self._meter.add("prompt_copied", noted.lookups - noted.hits)
        self._trades.of_prompt(noted.ids, self._is_whole)

    def _receive(self, *, is_waiting: bool = False) -> None:
        """Enters experts that have arrived."""
        layers = self._traffic.receive(is_waiting=is_waiting)
        if not layers:
            return
        self._meter.add("moved", np.bincount(layers, minlength=self._spec.num_layers))
        if not all(self._is_whole):
            self._look_at_layers()

    def _look_at_layers(self) -> None:
        """Looks which layers have all their experts in slots, and tells them."""
        self._is_whole = whole_layers(self.residency.layout, self._table.num_held())
        for tier, is_whole in zip(self.layers, self._is_whole, strict=True):
            tier.is_needed = not is_whole
        self._meter.is_whole = np.array(self._is_whole)
