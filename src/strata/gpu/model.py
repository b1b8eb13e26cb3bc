"""A model on a card: packed weights, and the sessions that share them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from strata.errors import PlanError, RequestError, StrataError
from strata.formats.naming import Role, tensor_name
from strata.formats.ngram_table import NgramTable
from strata.gpu.cache_options import CacheOptions
from strata.gpu.expert_cache import ExpertCache
from strata.gpu.forced_routing import ForcedRouting
from strata.gpu.host_rows import HostRows
from strata.gpu.lending import Lender
from strata.gpu.memory_plan import (
    DRIVER_BYTES,
    MemoryPlan,
    Wishes,
    check_plan,
    room_bytes,
    session_bytes,
    with_fitting_chunk,
)
from strata.gpu.model_layout import model_layout
from strata.gpu.prompt_layout import MAX_CHUNK
from strata.gpu.session import GpuSession
from strata.gpu.slot_plan import with_slots
from strata.gpu.weights import load_weights
from strata.tiers.forecast import Places
from strata.units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec
    from strata.tiers.counters import TierCounts
    from strata.tiers.expert_profile import ExpertProfile
    from strata.tiers.forced_routing import RoutingFeed
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.rates import TierRates
    from strata.tiers.slots import SlotLayout


class GpuModel:
    """The model protocol of ``engine.session``.

    Args:
        index: an open model whose layout has been checked; may be closed afterwards.
        spec: its geometry.
        device: where; a processor's device runs the kernels in Triton's interpreter, for tests.
        kv_format: "f16" or "int8".
        chunk_tokens: most prompt tokens read in one step, a multiple of 64; a session takes fewer
            where the card has not got the memory.
        has_draft: load the draft layer too; the file must have one.
        direct_io: read n-gram rows past the page cache; None: see ``NgramTable``.
        limit_bytes: most memory taken on the card, or None.
        host: holds the routed experts; None puts them all on the card.
        slots: of the experts on the card, with a ``host``.
        cache_options: likewise.
        on_progress: called with (bytes read, bytes to read).

    Raises:
        CheckpointError: a tensor cannot be used; names it.
        DeviceError: the card has not got the memory.
    """

    def __init__(
        self,
        index: TensorIndex,
        spec: ModelSpec,
        device: torch.device,
        *,
        kv_format: str = "f16",
        chunk_tokens: int = MAX_CHUNK,
        has_draft: bool = False,
        direct_io: bool | None = None,
        limit_bytes: int | None = None,
        host: ExpertHost | None = None,
        slots: SlotLayout | None = None,
        cache_options: CacheOptions | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.device = device
        self.kv_format = kv_format
        self.layout = model_layout(index, spec, has_draft=has_draft)
        if slots is not None:
            self.layout = with_slots(self.layout, slots)
        self._spec = spec
        self._limit_bytes = limit_bytes
        self._chunk = chunk_tokens
        self.weights = load_weights(index, spec, self.layout, device, on_progress, host)
        self._serving, self._told = threading.Lock(), threading.local()
        self._session_bytes = 0  # of the largest conversation so far
        self._forced: ForcedRouting | None = None
        self._host = host
        self.experts: ExpertCache | None = None
        self.lender: Lender | None = None
        if host is not None and slots is not None:
            self.experts = ExpertCache(
                spec, host, slots, self.weights, cache_options or CacheOptions()
            )
            self.weights = self.experts.joined(self.weights)
            if cache_options is not None and cache_options.loans is not None:
                self.lender = Lender(self.experts, spec, self.layout, cache_options.loans)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what re-laying the weights took
        self.ngram_table: NgramTable | None = None
        entry = None
        if spec.ngram is not None:
            entry = index[tensor_name(Role.NGRAM_TABLE)]
            self.ngram_table = NgramTable(entry, is_direct=direct_io)
        self.host_rows = HostRows(self.weights.embedding, entry)

    @property
    def spec(self) -> ModelSpec:
        """Geometry of the model."""
        return self._spec

    @property
    def numerics(self) -> str:
        """What the bits of a session's state depend on besides the weights."""
        draft = "" if self.weights.draft is None else ", drafts"
        card = "interpreter"
        if self.device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(self.device)
            card = f"cuda {major}.{minor}"
        return f"{card}, {self.kv_format} cells{draft}"

    def new_session(self, capacity: int) -> GpuSession:
        """An empty conversation that can hold ``capacity`` tokens.

        Raises:
            PlanError: the card has no room for it beside the weights.
        """
        plan = self.plan(capacity)
        if self.device.type == "cuda":
            limit = self._limit_bytes
            check_plan(
                plan, self.layout, self._spec, free_bytes=self._free_bytes(), limit_bytes=limit
            )
        self._session_bytes = max(self._session_bytes, sum(plan.session.values()))
        return GpuSession(self, capacity, plan.wishes.chunk)

    def plan(self, capacity: int) -> MemoryPlan:
        """What the model and one conversation of ``capacity`` tokens take.

        Raises:
            PlanError: such a conversation is not possible.
        """
        wishes = Wishes(capacity, self.kv_format, self._chunk, has_loans=self.lender is not None)
        session = session_bytes(self.layout, self._spec, wishes)
        plan = MemoryPlan(self.weights.num_bytes, session, wishes)
        if self.device.type != "cuda":
            return plan
        room = room_bytes(self._free_bytes(), self._limit_bytes)
        return with_fitting_chunk(plan, self.layout, self._spec, room)

    def _free_bytes(self) -> int:
        """What the card has left now, the weights counted as if they were not there yet."""
        free, _ = torch.cuda.mem_get_info(self.device)
        closed = 0 if self.experts is None else self.experts.limit.closed_bytes
        return free + sum(self.weights.num_bytes.values()) - closed

    def force_routing(self, feed: RoutingFeed) -> None:
        """Windows of sessions made from now on take the feed's experts; for measuring."""
        self._forced = ForcedRouting(feed, self._spec, self.device)
        if self._host is not None:
            self._host.stop_look_ahead()
        self.weights = self._forced.joined(self.weights)

    @contextmanager
    def serving_experts(self) -> Iterator[None]:
        """Around a window's launches: the host answers for experts that are in no slot."""
        if self._forced is not None:
            self._forced.send()
        if self.experts is None:
            yield
            return
        if not self._serving.acquire(blocking=False):
            raise RequestError(
                "another conversation of this model runs a window in another thread.\n"
                "  Try: one after the other, or a model for each."
            )
        try:
            self.experts.begin()
            is_whole = False
            try:
                yield
                is_whole = True
            finally:
                self.experts.end(is_whole=is_whole)
            # Now, as another thread's window may begin before this one's is asked for.
            try:
                self.experts.check()
            except StrataError as error:
                self._told.error = error
        finally:
            self._serving.release()

    def keep_serving_experts(self) -> None:
        """The same from now until a window has been run; for measuring."""
        if self.experts is not None:
            self.experts.begin()

    def check_experts(self) -> None:
        """Refuses a window whose experts did not all come.

        Raises:
            DeviceError: the host gave no answer, or refused.
        """
        error, self._told.error = getattr(self._told, "error", None), None
        if error is not None:
            raise error

    def work_on_experts(self) -> None:
        """What there is to decide about slots, best while the card is at a window."""
        if self.experts is not None:
            self.experts.work()

    def settle_experts(self, num_rows: int, num_kept: int) -> None:
        """Of the last window's rows the first ``num_kept`` were kept: slots may change hands."""
        if self._forced is not None:
            self._forced.feed.keep(num_kept)
        if self.experts is not None:
            self.experts.settle(num_rows, num_kept)

    def tier_counts(self) -> TierCounts:
        """What was asked of the experts since the start; there must be an expert cache."""
        return self._cache().tier_counts()

    def tier_rates(self) -> TierRates | None:
        """What experts cost in each place, as learned; None before anything was."""
        return self._cache().tier_rates()

    def places(self) -> Places:
        """How many experts have room in each place now."""
        cache, spec = self._cache(), self._spec
        num_open, pools = cache.limit.num_open, cache.residency.layout.pools
        held = sum(tier.home.num_held for tier in cache.layers)
        near = min(held, spec.num_layers * spec.num_experts - num_open)
        return Places(spec.num_layers, spec.num_experts, num_open, near, len(pools) > 1)

    def learned(self) -> ExpertProfile:
        """What is known of the experts now, for the next run."""
        return self._cache().learned()

    def limit_bytes(self, num_bytes: int | None) -> None:
        """Most memory of the card from now on; None for what was planned at the start. Any thread.

        Slots are closed or opened before the next window, or by ``carry_out_limit``.

        Raises:
            PlanError: it is less than what is not slots takes.
        """
        cache, sizes = self._cache(), self.weights.num_bytes
        num_slots, blobs = cache.limit.num_slots, cache.limit.num_bytes
        if num_bytes is not None:
            others = sum(sizes.values()) - blobs + self._session_bytes + DRIVER_BYTES
            if num_bytes < others:
                raise PlanError(
                    f"what is not slots for experts takes {format_bytes(others)} on the card, more "
                    f"than {format_bytes(num_bytes)}.\n  Try: {-(-others // MiB)} MiB or more."
                )
            num_slots = num_slots * (num_bytes - others) // max(1, blobs)
        cache.limit_slots(num_slots)

    def carry_out_limit(self) -> None:
        """Does it now. No window may be under way.

        Raises:
            DeviceError: the card refuses; slots are then as they were.
        """
        self._cache().carry_out_limit()

    def memory_report(self) -> Mapping[str, int]:
        """Bytes of packed weights, by what they serve. Sessions come on top."""
        return dict(self.weights.num_bytes)

    def _cache(self) -> ExpertCache:
        assert self.experts is not None  # noqa: S101 - asked of models with an expert cache
        return self.experts

    def close(self) -> None:
        """Ends the reading threads; weights go with the last reference to them.

        Raises:
            DeviceError: a thread that computes experts does not end.
        """
        try:
            if self.experts is not None:
                self.experts.close()
        finally:
            self.host_rows.close()
            if self.ngram_table is not None:
                self.ngram_table.close()
