"""What it costs to have less RAM: prompts from RAM that holds less, decoding from a disk.

    python benchmarks/gpu/limits_on_card.py prompts [--prompts 16384] [--rounds 3] [--vram 12288]
    python benchmarks/gpu/limits_on_card.py ram_limit [--ram 8192] [--tokens 200] [--rounds 3]

``prompts``: the same prompts with all experts in RAM, with those that are in no slot and those that
prompts borrow slots from, and with the former alone, in turns. The second should be within 3 % of
the first, the third slower. ``ram_limit``: single tokens of made-up routing, all experts in RAM and
with ``--ram`` MiB of it, in turns; the disk's own rate is measured between them, which bounds the
second. Models of all ways are loaded at once; the expert store lies in ``--store``.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import compile_ahead
import numpy as np
import torch
from compile_ahead import numbers
from model_options import add_model_options, add_threads
from synthetic_index import SyntheticIndex
from triton_cache import add_options, carried

from strata.cpu.build import open_context
from strata.cpu.expert_build import open_host
from strata.cpu.expert_host import TieredExperts
from strata.formats.synth import GEOMETRIES
from strata.gpu.expert_cache import CacheOptions
from strata.gpu.loan_plan import LoanRules
from strata.gpu.memory_plan import DRIVER_BYTES, Wishes
from strata.gpu.model import GpuModel
from strata.gpu.model_layout import model_layout
from strata.gpu.slot_plan import SlotWishes, most_lent, plan_card
from strata.settings import Settings
from strata.tiers.forced_routing import RoutingFeed
from strata.tiers.synthetic import SyntheticText, synthetic_trace
from strata.units import MiB, format_bytes, format_rate

if TYPE_CHECKING:
    from strata.tiers.hand_off import ExpertHost
    from strata.tiers.slots import SlotLayout

# A disk may take its time; as where an engine reads one.
LIMIT_SECONDS = 30.0
DISK_SECONDS = 2.0
WARM_SHARE = 0.5


@dataclass(frozen=True)
class Setting:
    """What the models of a comparison have in common."""

    index: object
    spec: object
    slots: SlotLayout
    device: torch.device
    threads: int
    store: Path
    chunk: int
    loans: LoanRules | None = None
    num_stages: int | None = None


@dataclass
class Way:
    """One model, and what was measured of it."""

    name: str
    model: GpuModel
    host: ExpertHost
    session: object
    rates: list[float]

    @property
    def tokens_per_s(self) -> float:
        return float(np.median(self.rates))

    def file_counts(self):
        """None where nothing lies on a disk."""
        return self.host.tier.counts() if isinstance(self.host, TieredExperts) else None

    def close(self) -> None:
        self.session = None
        self.model.close()


def open_way(name: str, setting: Setting, capacity: int, num_lent: int = 0, **wishes) -> Way:
    """A model whose experts lie where these settings want them."""
    index, spec = setting.index, setting.spec
    begin = time.perf_counter()
    settings = Settings(expert_store=setting.store, **wishes)
    ctx = open_context(setting.threads, None)
    host = open_host(ctx, index, spec, settings, setting.slots, None, num_lent=num_lent)
    stages = {} if setting.num_stages is None else {"num_stages": setting.num_stages}
    options = CacheOptions(
        staged_share=None, loans=setting.loans, limit_seconds=LIMIT_SECONDS, **stages
    )
    model = GpuModel(
        index, spec, setting.device, direct_io=False, chunk_tokens=setting.chunk, host=host,
        slots=setting.slots, cache_options=options,
    )  # fmt: skip
    print(f"{name}: experts take {format_bytes(host.num_bytes)} of RAM, page-locked "
          f"{format_bytes(model.experts.locked_bytes)}; loaded in "
          f"{time.perf_counter() - begin:.1f} s", flush=True)  # fmt: skip
    return Way(name, model, host, model.new_session(capacity), [])


def ways_of_prompts(setting: Setting, capacity: int, num_lent: int) -> list[Way]:
    """All in RAM; what is in no slot and what prompts borrow from; what is in no slot."""
    return [
        open_way("all in RAM", setting, capacity),
        open_way("with lend regions", setting, capacity, num_lent, resident_experts=True),
        open_way("without", setting, capacity, resident_experts=True),
    ]


def synchronize(way: Way) -> None:
    if way.model.device.type == "cuda":
        torch.cuda.synchronize()


def time_prompt(way: Way, prompt: np.ndarray) -> tuple[float, int]:
    """Tokens a second of a prompt read from the start, and experts read from a file for it."""
    before = way.file_counts()
    way.session.reset()
    synchronize(way)
    begin = time.perf_counter()
    way.session.prefill(prompt)
    synchronize(way)
    seconds = time.perf_counter() - begin
    return len(prompt) / seconds, way.file_counts().file_reads - before.file_reads if before else 0


def compare_prompts(ways: list[Way], length: int, rounds: int) -> dict[str, float]:
    """Prompts in turns; the share of the first way's rate that each reaches, by name."""
    vocab = ways[0].model.spec.vocab_size
    prompt = np.random.default_rng(5).integers(0, vocab, length).astype(np.int32)
    ratios: dict[str, list[float]] = {way.name: [] for way in ways}
    reads = dict.fromkeys(ratios, 0)
    # The first compiles and fills. It also leaves its best experts in the slots, so that the second
    # reads those whose slots they took, once.
    for way in ways:
        for _ in range(2):
            time_prompt(way, prompt)
        way.rates = []
    for _ in range(rounds):
        for way in ways:
            rate, num = time_prompt(way, prompt)
            way.rates.append(rate)
            ratios[way.name].append(rate / ways[0].rates[-1])
            reads[way.name] += num
    found = {name: float(np.median(shares)) for name, shares in ratios.items()}
    for way in ways:
        rounds_told = ", ".join(f"{share:.3f}" for share in ratios[way.name])
        print(f"prompt of {length}, {way.name}: {way.tokens_per_s:.0f} tokens/s, "
              f"{found[way.name]:.3f} of the first ({rounds_told}); {reads[way.name]} experts "
              f"from a file", flush=True)  # fmt: skip
    return found


def disk_rate(host: TieredExperts, at_once: int, seconds: float = DISK_SECONDS) -> float:
    """Bytes a second of whole experts read past every cache, so many at a time."""
    tier, rng = host.tier, np.random.default_rng(7)
    room = np.zeros((at_once, tier.place_bytes + 4096), np.uint8)
    places = [int(row.ctypes.data) + -int(row.ctypes.data) % 4096 for row in room]
    num_layers, num_experts = len(tier.blob_bytes), len(tier.scales[0])
    num_bytes, spent, begin = 0, 0.0, time.perf_counter()
    while not num_bytes or time.perf_counter() - begin < seconds:
        layer = int(rng.integers(num_layers))
        far = np.setdiff1d(np.arange(num_experts), tier.kept[layer])
        chosen = rng.permutation(far)[:at_once].tolist()
        if not chosen:
            break
        before, first = tier.counts().file_bytes, time.perf_counter()
        tier.read(layer, chosen, places[: len(chosen)])
        spent += time.perf_counter() - first
        num_bytes += tier.counts().file_bytes - before
    return num_bytes / max(spent, 1e-9)


def time_tokens(way: Way, num_tokens: int) -> tuple[float, float]:
    """Seconds and file bytes of a token, of the second half, from wherever the session is."""
    rng = np.random.default_rng(3)
    vocab = way.model.spec.vocab_size
    first = int(num_tokens * WARM_SHARE)
    before, begin = way.file_counts(), time.perf_counter()
    for number in range(num_tokens):
        if number == first:
            synchronize(way)
            before, begin = way.file_counts(), time.perf_counter()
        way.session.decode(rng.integers(0, vocab, 1).astype(np.int32))
        way.session.commit(1)
    synchronize(way)
    num = num_tokens - first
    seconds = (time.perf_counter() - begin) / num
    read = way.file_counts().file_bytes - before.file_bytes if before else 0
    return seconds, read / num


def compare_limits(ways: list[Way], num_tokens: int, rounds: int, at_once: int) -> dict[str, float]:
    """All in RAM against a limit, in turns; the disk's rate between them.

    Returns:
        share of the first way's speed; of the bound, the slower of the first way's speed and of
        what the disk reads of a token's bytes; the disk's bytes a second.
    """
    whole, limited = ways
    tokens, disk_rates, bounds = [], [], []
    for _ in range(rounds):
        for way in ways:
            way.session.reset()
        whole_s, _ = time_tokens(whole, num_tokens)
        limited_s, num_bytes = time_tokens(limited, num_tokens)
        disk_rates.append(disk_rate(limited.host, at_once))
        bound_s = max(whole_s, num_bytes / disk_rates[-1])
        tokens.append((whole_s, limited_s, num_bytes))
        bounds.append((whole_s / limited_s, bound_s / limited_s))
        print(f"{whole.name} {1 / whole_s:.1f} tokens/s; {limited.name} {1 / limited_s:.1f}, "
              f"{format_bytes(int(num_bytes))} from the file a token at "
              f"{format_rate(num_bytes / limited_s)}; the disk alone reads "
              f"{format_rate(disk_rates[-1])}, which bounds it to {1 / bound_s:.1f}: "
              f"{bounds[-1][1]:.0%} reached", flush=True)  # fmt: skip
    shares = np.median(np.array(bounds), axis=0)
    return {"of_whole": shares[0], "of_bound": shares[1], "disk": float(np.median(disk_rates))}


def setting_of(args, index, capacity: int) -> tuple[Setting, int]:
    """Slots that ``--vram`` MiB leave where prompts borrow, and how many they borrow."""
    spec = index.spec
    layout = model_layout(index, spec)
    wishes, wished = Wishes(capacity, "f16", 8192), SlotWishes(reserve_bytes=256 * MiB)
    plan, slots = plan_card(index, layout, spec, wishes, wished, args.vram * MiB - DRIVER_BYTES)
    if slots is None:
        raise SystemExit("every expert has a slot: nothing to compare. Try: a smaller --vram")
    num_lent, loans = 0, None
    if plan.wishes.has_loans:
        num_lent, loans = most_lent(layout, spec, capacity, slots, None), LoanRules()
    print(f"{plan.table()}\n{slots.num_slots} slots, of which prompts borrow {num_lent}")
    device = torch.device("cuda")
    setting = Setting(
        index, spec, slots, device, args.threads, args.store, plan.wishes.chunk, loans
    )
    return setting, num_lent


def prompts(args, index, compiling) -> None:
    setting, num_lent = setting_of(args, index, args.capacity)
    ways = ways_of_prompts(setting, args.capacity, num_lent)
    compiling.wait()
    for length in numbers(args.prompts):
        compare_prompts(ways, length, args.rounds)
    for way in ways:
        way.close()


def ram_limit(args, index, compiling) -> None:
    setting, _ = setting_of(args, index, args.capacity)
    ways = [
        open_way("all in RAM", setting, args.capacity),
        open_way(f"{args.ram} MiB", setting, args.capacity, ram_limit=args.ram),
    ]
    spec = index.spec
    text = SyntheticText(spec.num_layers, spec.num_experts, spec.top_k, args.tokens)
    for way in ways:
        way.model.force_routing(RoutingFeed(synthetic_trace(text, seed=1), spec))
        way.session = way.model.new_session(args.capacity)
    compiling.wait()
    compare_limits(ways, args.tokens, args.rounds, spec.top_k)
    for way in ways:
        way.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("prompts", "ram_limit"))
    add_model_options(parser, num_layers=48)
    add_threads(parser)
    parser.add_argument("--vram", type=int, default=12 * 1024)
    parser.add_argument("--ram", type=int, default=8 * 1024)
    parser.add_argument("--prompts", default="16384")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path)
    add_options(parser)
    args = parser.parse_args()
    lengths = args.prompts if args.what == "prompts" else ""
    args.capacity = max([args.tokens, *numbers(lengths)]) + 64
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    with carried(args), tempfile.TemporaryDirectory() as folder:
        args.store = args.store or Path(folder)
        args.store.mkdir(parents=True, exist_ok=True)
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        compiling = compile_ahead.start(
            args, rows="1", contexts=str(args.tokens), prompts=lengths, has_tiers=True
        )
        {"prompts": prompts, "ram_limit": ram_limit}[args.what](args, index, compiling)


if __name__ == "__main__":
    main()
