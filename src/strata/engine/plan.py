"""What of a model would lie where under given caps, and how fast it would be: from its header.

Owns the question ``strata plan`` answers; nothing is loaded and no device is asked. Sizes are those
of the very plan a card's model is made by (``gpu.memory_plan``), speeds are ``tiers.forecast``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from strata.engine.accounting import WeightClass, token_bytes
from strata.gpu.memory_plan import DRIVER_BYTES, Wishes, check_plan, room_bytes
from strata.gpu.model_layout import model_layout
from strata.gpu.prompt_layout import MAX_CHUNK
from strata.gpu.slot_plan import ADMISSIONS, SlotWishes, most_lent, plan_card
from strata.tiers.forecast import Demand, Forecast, Places, demands, faster, forecast
from strata.tiers.rates import TierRates
from strata.tiers.share import Cost
from strata.tiers.synthetic import SyntheticText, synthetic_trace
from strata.units import GiB, whole_pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.formats.tensor_index import TensorEntry
    from strata.gpu.memory_plan import MemoryPlan
    from strata.model_spec import ModelSpec
    from strata.tiers.expert_profile import ExpertProfile
    from strata.tiers.routing_trace import RoutingTrace
    from strata.tiers.slots import SlotLayout

# Of the process itself: interpreter, driver, tables of the model that lie in memory anyway.
PROCESS_BYTES = 2 * GiB
COLD_TOKENS = 300
# A made-up trace: layers are alike, so few stand for all.
_TRACE_LAYERS, _TRACE_TOKENS = 6, 450
# Where nothing was measured: a launch-bound part of each layer, and the share of its memory's rate
# that a card reaches in a window (one H200, docs/performance.md).
_LAYER_S, _CARD_SHARE = 3e-5, 0.6
_ASKED_ONCE_S, _STAGED_ONCE_S = 1.5e-5, 2e-5
# Of its rate, what the processor keeps at least while a link copies from the same memory.
_LEAST_LEFT = 0.25
_WORTH_TELLING = 1.03


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to be planned for. Bytes, and bytes a second.

    Attributes:
        vram: of the card, the driver's share included.
        ram: of the machine.
        link, pool, disk, card_rate: what passes between RAM and card, what the processor's threads
            compute experts at, what is read from the disk, what the card reads of its VRAM.
        rates: as measured, which stand in for those four.
    """

    vram: int
    ram: int
    link: float = 25e9
    pool: float = 40e9
    disk: float = 3e9
    card_rate: float = 500e9
    rates: TierRates | None = None


@dataclass(frozen=True, slots=True)
class PlanWishes:
    """How the model would be opened; as in ``Settings``."""

    capacity: int
    kv_format: str = "f16"
    num_slots: int | None = None
    is_per_layer: bool = False
    reserve_bytes: int = 0
    share: float | None = None
    policy: str = "ema"


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes of one kind in one place: "vram", "ram" or "disk"."""

    place: str
    what: str
    num_bytes: int


@dataclass(slots=True)
class PlanReport:
    """The answer.

    Attributes:
        regions: what lies where.
        places: experts of each place.
        expert_bytes: of an expert, on the average.
        rates: costs that were reckoned with.
        is_measured: whether they are a measurement's.
        cold, warm: speed of the first ``COLD_TOKENS`` tokens, and later.
        advice: what would help most, and tokens a second then (warm), best first.
        prompt_limit: prompt tokens a second that the link allows; None where nothing is copied.
        chunk: prompt tokens of a step.
    """

    regions: list[Region]
    places: Places
    expert_bytes: int
    rates: TierRates
    is_measured: bool
    cold: Forecast
    warm: Forecast
    chunk: int
    prompt_limit: float | None
    advice: list[tuple[str, float]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        whole = self.places.num_layers * self.places.num_experts
        return {
            "regions": [
                {"place": item.place, "what": item.what, "bytes": item.num_bytes}
                for item in self.regions
            ],
            "experts": {
                "all": whole,
                "vram": self.places.in_vram,
                "ram": min(self.places.in_ram, whole - self.places.in_vram),
                "disk": max(0, whole - self.places.in_vram - self.places.in_ram),
                "bytes_each": self.expert_bytes,
            },
            "rates": self.rates.as_dict(),
            "rates_measured": self.is_measured,
            "cold": self.cold.as_dict(),
            "warm": self.warm.as_dict(),
            "prompt_chunk": self.chunk,
            "prompt_tokens_per_s_at_most": self.prompt_limit,
            "advice": [{"change": what, "tokens_per_s": speed} for what, speed in self.advice],
        }


def plan_model(
    entries: Mapping[str, TensorEntry],
    spec: ModelSpec,
    machine: Machine,
    wishes: PlanWishes,
    *,
    trace: RoutingTrace | None = None,
    profile: ExpertProfile | None = None,
) -> PlanReport:
    """The plan of a file with these tensors.

    Args:
        entries: of the file's header.
        spec: geometry.
        machine: caps and rates.
        wishes: how it would be opened.
        trace: routing to foretell hits by; None for made-up routing.
        profile: the slots are filled from at first.

    Raises:
        PlanError: it does not fit; says what takes how much.
        SettingsError: the trace is of another geometry.
        UnsupportedError: a block format without kernels.
    """
    return _Planner(entries, spec, machine, wishes, trace, profile).report()


def foretell(
    places: Places,
    top_k: int,
    rates: TierRates,
    num_tokens: int,
    *,
    share: float | None,
    policy: str,
) -> Forecast:
    """What made-up routing makes of so many tokens from a cold start, with these costs."""
    layers = min(_TRACE_LAYERS, places.num_layers)
    num_tokens = min(max(2, num_tokens), _TRACE_TOKENS)
    trace = synthetic_trace(SyntheticText(layers, places.num_experts, top_k, num_tokens))
    (demand,) = demands(
        trace, replace(places, is_per_layer=True), ((0, None),), policy=policy,
        max_admissions=ADMISSIONS,
    )  # fmt: skip
    return forecast(demand, places.num_layers, rates.expert_bytes, rates, share)


class _Planner:
    """One plan; arguments are those of ``plan_model``."""

    def __init__(
        self,
        entries: Mapping[str, TensorEntry],
        spec: ModelSpec,
        machine: Machine,
        wishes: PlanWishes,
        trace: RoutingTrace | None,
        profile: ExpertProfile | None,
    ) -> None:
        self._entries, self._spec, self._machine, self._wishes = entries, spec, machine, wishes
        self._layout = model_layout(entries, spec, has_draft=False)
        self._trace, self._is_made_up = _checked_trace(trace, spec), trace is None
        self._ranking = () if profile is None or trace is None else profile.keys.tolist()
        blobs = [layer.experts.blob_bytes for layer in self._layout.layers]
        self._expert_bytes = sum(blobs) // len(blobs)
        # As the processor keeps them.
        self._home_bytes = whole_pages(self._expert_bytes)
        self._num_pairs = spec.num_layers * spec.num_experts
        self._rates = machine.rates or self._assumed_rates()
        self._known: dict[Places, Sequence[Demand]] = {}

    def report(self) -> PlanReport:
        machine = self._machine
        plan, slots = self._card_plan(machine.vram)
        places = self._places(slots, machine.ram)
        cold, warm = self._forecasts(places, self._rates, self._expert_bytes)
        report = PlanReport(
            regions=self._regions(plan, places),
            places=places,
            expert_bytes=self._expert_bytes,
            rates=self._rates,
            is_measured=machine.rates is not None,
            cold=cold,
            warm=warm,
            chunk=plan.wishes.chunk,
            prompt_limit=self._prompt_limit(places, plan.wishes, slots),
        )
        report.advice = self._advice(places, warm.tokens_per_s)
        return report

    def _card_plan(self, card_bytes: int) -> tuple[MemoryPlan, SlotLayout | None]:
        wishes = self._wishes
        wished = SlotWishes(wishes.num_slots, wishes.is_per_layer, wishes.reserve_bytes)
        size = Wishes(wishes.capacity, wishes.kv_format, MAX_CHUNK)
        room = room_bytes(card_bytes, card_bytes)
        plan, slots = plan_card(self._entries, self._layout, self._spec, size, wished, room)
        check_plan(
            plan, self._layout, self._spec, free_bytes=card_bytes, limit_bytes=card_bytes
        )  # fmt: skip
        return plan, slots

    def _places(self, slots: SlotLayout | None, memory_bytes: int) -> Places:
        """Experts of each place; those that have slots need no room in memory."""
        spec = self._spec
        if slots is None:
            return Places(spec.num_layers, spec.num_experts, self._num_pairs, 0)
        room = max(0, memory_bytes - PROCESS_BYTES) // self._home_bytes
        rest = self._num_pairs - slots.num_slots
        is_per_layer = len(slots.pools) > 1
        near = min(rest, room)
        return Places(spec.num_layers, spec.num_experts, slots.num_slots, near, is_per_layer)

    def _forecasts(
        self, places: Places, rates: TierRates, expert_bytes: int
    ) -> tuple[Forecast, Forecast]:
        parts = self._demands(places)
        cold, warm = (
            forecast(part, self._spec.num_layers, expert_bytes, rates, self._wishes.share)
            for part in parts
        )
        return cold, warm

    def _demands(self, places: Places) -> Sequence[Demand]:
        if self._is_made_up:
            # Layers are equally hard there, so to divide the slots changes nothing but the time.
            places = replace(places, is_per_layer=True)
        if places not in self._known:
            num = self._trace.num_decoded
            cut = min(COLD_TOKENS, num // 2)
            self._known[places] = demands(
                self._trace, places, ((0, cut), (cut, None)), policy=self._wishes.policy,
                max_admissions=ADMISSIONS, ranking=self._ranking,
            )  # fmt: skip
        return self._known[places]

    def _assumed_rates(self) -> TierRates:
        machine, spec = self._machine, self._spec
        read = token_bytes(
            self._entries, spec, position=self._wishes.capacity // 2,
            kv_format=self._wishes.kv_format,
        )  # fmt: skip
        size = self._expert_bytes
        hits = read.weights.get(WeightClass.EXPERTS, 0)
        card = _CARD_SHARE * machine.card_rate
        window_s = spec.num_layers * _LAYER_S + (read.total - hits) / card
        idle_s = spec.top_k * size / card
        staged = Cost(_STAGED_ONCE_S + idle_s, size / machine.link + size / card)
        asked = Cost(_ASKED_ONCE_S, size / machine.pool)
        # The processor reads as fast as memory gives; copies take of the same.
        left = max(machine.pool - machine.link, _LEAST_LEFT * machine.pool)
        beside = Cost(_ASKED_ONCE_S, size / left)
        return TierRates(
            size, asked, staged, idle_s, window_s + spec.num_layers * idle_s, machine.link,
            machine.disk, beside=beside,
        )  # fmt: skip

    def _regions(self, plan: MemoryPlan, places: Places) -> list[Region]:
        sizes = {**plan.weights, **plan.session, "driver": DRIVER_BYTES}
        regions = [Region("vram", name, size) for name, size in sizes.items() if size]
        regions.append(Region("ram", "process", PROCESS_BYTES))
        far = self._num_pairs - places.in_vram - places.in_ram
        whole = self._num_pairs * self._home_bytes
        if places.in_ram and PROCESS_BYTES + whole <= self._machine.ram:
            regions.append(Region("ram", "experts, all of them", whole))
        elif places.in_ram:
            kept = places.in_ram * self._home_bytes
            regions.append(Region("ram", "experts in no slot", kept))
        if far:
            regions.append(Region("disk", "experts in neither", far * self._home_bytes))
        for name in ("per_layer_token_embd.weight", "token_embd.weight"):
            if name in self._entries:
                what = "n-gram table" if name.startswith("per") else "embedding"
                regions.append(Region("disk", what, self._entries[name].num_bytes))
        return regions

    def _prompt_limit(self, places: Places, size: Wishes, slots: SlotLayout | None) -> float | None:
        """A chunk brings every expert that is in no slot over the link, or nearly so.

        Slots that it borrows are none meanwhile.
        """
        missing = self._num_pairs - places.in_vram
        if size.has_loans and slots is not None:
            missing += most_lent(self._layout, self._spec, size.capacity, slots, None)
        per_s = self._rates.link_bytes_per_s or self._machine.link
        num_bytes = missing * self._expert_bytes
        return min(size.chunk, size.capacity) * per_s / num_bytes if missing else None

    def _advice(self, places: Places, now: float) -> list[tuple[str, float]]:
        """Changes that gain more than a little, the best first."""
        found: list[tuple[str, float]] = []

        def add(what: str, places: Places, rates: TierRates, expert_bytes: int) -> None:
            _, warm = self._forecasts(places, rates, expert_bytes)
            if warm.tokens_per_s > _WORTH_TELLING * now:
                found.append((what, warm.tokens_per_s))

        size, rates = self._expert_bytes, self._rates
        if places.in_vram < self._num_pairs:
            more = min(self._num_pairs, places.in_vram + 4 * GiB // size)
            near = min(places.in_ram, self._num_pairs - more)
            add("4 GiB more VRAM", replace(places, in_vram=more, in_ram=near), rates, size)
            add("a processor or RAM half as fast again", places,
                faster(rates, "processor", 1.5), size)  # fmt: skip
            add("a link twice as fast", places, faster(rates, "link", 2.0), size)
            smaller = replace(places, in_vram=min(self._num_pairs, places.in_vram * 4 // 3))
            add("a file with experts a quarter smaller", smaller, rates, size * 3 // 4)
        if places.in_vram + places.in_ram < self._num_pairs:
            near = min(
                self._num_pairs - places.in_vram, places.in_ram + 8 * GiB // self._home_bytes
            )
            add("8 GiB more RAM", replace(places, in_ram=near), rates, size)
            add("a disk twice as fast", places, faster(rates, "disk", 2.0), size)
        add("a card twice as fast", places, faster(rates, "card", 2.0), size)
        return sorted(found, key=lambda item: -item[1])[:3]


def _checked_trace(trace: RoutingTrace | None, spec: ModelSpec) -> RoutingTrace:
    if trace is None:
        layers = min(_TRACE_LAYERS, spec.num_layers)
        text = SyntheticText(layers, spec.num_experts, spec.top_k, _TRACE_TOKENS)
        return synthetic_trace(text)
    trace.check(spec, least_decoded=2)
    return trace
