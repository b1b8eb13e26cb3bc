"""Experts in three places on a card: the same bits, the time of a hand-off, tokens a second.

    python benchmarks/gpu/tiers_on_card.py hand_off [--threads 16]
    python benchmarks/gpu/tiers_on_card.py equal [--geometry coder] [--mix iq3_s] [--layers 4]
    python benchmarks/gpu/tiers_on_card.py speed [--layers 48] [--vram 12288] [--shares 0,0.3]
        [--policies ema,lru] [--tokens 300] [--prompts 2048] [--with-resident] [--profile]
        [--keep-copied]
    python benchmarks/gpu/tiers_on_card.py prompts [--prompts 16384] [--chunks 2048,4096,8192]
        [--lend] [--in-turn] [--profile]

``hand_off``: one graph of 48 layers that ask for one tiny expert each. ``equal``: a model of few
layers whose experts are all on the card against the same with a quarter of the slots, windows of
1, 4 and 8 rows and a prompt. ``speed``: made-up routing of the real kind is put in the place of the
router's choice, for a model without training routes evenly; slots are what ``--vram`` MiB leave.
``prompts``: tokens a second of prompts, by chunk; in memory lent by slots, or of their own beside
as many slots as chunks of 2048 rows leave; ``--in-turn``: also with experts copied when due.
``--keep-copied``: every share twice, without and with experts that stay where a window copied them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import compile_ahead
import numpy as np
import torch
from compile_ahead import numbers
from hand_off_times import hand_off
from model_options import add_model_options, add_threads
from synthetic_index import SyntheticIndex
from triton_cache import add_options, carried

from strata.cpu.build import open_context
from strata.cpu.expert_arena import ExpertArena
from strata.engine.sampler import SamplingParams
from strata.formats.synth import GEOMETRIES
from strata.gpu.expert_cache import CacheOptions
from strata.gpu.loan_plan import LoanRules
from strata.gpu.memory_plan import DRIVER_BYTES, Wishes, plan_memory
from strata.gpu.model import GpuModel
from strata.gpu.model_layout import model_layout
from strata.gpu.profile import kernel_times
from strata.gpu.slot_plan import SlotWishes, plan_card
from strata.gpu.stream_plan import NUM_STREAMED
from strata.tiers.forced_routing import RoutingFeed
from strata.tiers.hand_off import SERVED
from strata.tiers.policy_table import PolicyOptions
from strata.tiers.slots import layer_slots, shared_slots
from strata.tiers.synthetic import SyntheticText, synthetic_trace
from strata.units import MiB

if TYPE_CHECKING:
    from strata.tiers.routing_trace import RoutingTrace

DEVICE = torch.device("cuda")


def same_bits(a, b) -> bool:
    return np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


def tiered(index, slots_a_layer: int, args, *, num_slots=0, **options) -> GpuModel:
    """A model with so many slots for each layer, or ``num_slots`` that all layers share."""
    spec = index.spec
    begin = time.perf_counter()
    arena = ExpertArena(open_context(args.threads, None), index, spec)
    slots = layer_slots(spec.num_layers, spec.num_experts, spec.num_layers * slots_a_layer)
    if num_slots:
        slots = shared_slots(spec.num_layers, spec.num_experts, num_slots)
    model = GpuModel(
        index, spec, DEVICE, direct_io=False, chunk_tokens=args.chunk, host=arena, slots=slots,
        cache_options=CacheOptions(**options),
    )  # fmt: skip
    print(f"loaded in {time.perf_counter() - begin:.1f} s: {slots.num_slots} slots, experts "
          f"{arena.num_bytes / 1e9:.2f} GB, page-locked {model.experts.locked_bytes / 1e9:.2f} GB",
          flush=True)  # fmt: skip
    return model


def equal(args) -> None:
    """Bits of windows and of a prompt against all experts on the card."""
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    rng = np.random.default_rng(2)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        compiling = compile_ahead.start(args, rows="1,2,4,8", contexts="514", prompts="514",
                                        has_tiers=True)  # fmt: skip
        vocab = index.spec.vocab_size
        # Two chunks with rows enough for experts to be copied ahead, and a window.
        prompt, args.chunk = rng.integers(0, vocab, 514).astype(np.int32), 256
        windows = [rng.integers(0, vocab, n).astype(np.int32) for n in (1, 4, 8, 1, 8, 2, 1, 1)]

        def logits_of(model) -> list[np.ndarray]:
            session = model.new_session(1024)
            found = [session.prefill(prompt)[None]]
            for window in windows:
                found.append(session.decode(window))
                session.commit(max(1, len(window) // 2))
            return found

        resident = GpuModel(index, index.spec, DEVICE, direct_io=False, chunk_tokens=args.chunk)
        compiling.wait()
        expected = logits_of(resident)
        del resident
        is_good = True
        num = index.spec.num_experts
        for slots, share, policy, keeps in (
            (num // 4, 0.0, "ema", False),
            (num // 4, 0.5, "lru", False),
            (num // 4, 0.5, "ema", True),
            (1, 0.0, "lru", False),
            (1, 1.0, "swaps", False),
            (1, 1.0, "ema", True),
            (num, 0.5, "ema", False),
        ):
            model = tiered(
                index, slots, args, staged_share=share, policy=policy, keeps_copied=keeps
            )
            found = logits_of(model)
            same = [same_bits(a, b) for a, b in zip(found, expected, strict=True)]
            is_good &= all(same)
            served = model.experts.counts().sum(axis=0)
            copied = model.tier_counts().total("copied")
            bring_all(model.experts)
            print(
                f"{slots:4} slots a layer, share {share}, {policy}{', kept' if keeps else ''}: "
                f"prompt and windows {'equal' if all(same) else same}; asked for {served[1]} "
                f"entries, copied {copied}; all slots hold what they are meant to",
                flush=True,
            )
            model.close()
        # Half of the slots, and prompts that borrow from them.
        for keeps in (False, True):
            loans = LoanRules(args.chunk, 0)
            model = tiered(index, 1, args, num_slots=2 * num, loans=loans, staged_share=0.5,
                           keeps_copied=keeps)  # fmt: skip
            found = logits_of(model)
            same = [same_bits(a, b) for a, b in zip(found, expected, strict=True)]
            bring_all(model.experts)
            is_good &= all(same)
            print(f"{2 * num} slots that are lent{', kept' if keeps else ''}: prompt and windows "
                  f"{'equal' if all(same) else same}; all slots hold what they are meant to",
                  flush=True)  # fmt: skip
            model.close()
        print("all bits equal" if is_good else "BITS DIFFER")
        if not is_good:
            raise SystemExit(1)


def bring_all(cache) -> None:
    """Until all are where they are meant to be; every byte of every slot is compared then."""
    while len(cache._table.wanting()) or cache._traffic.mover.is_busy:
        cache.begin()
        cache.work()
        cache.end()
    cache.verify(None)


def decode(session, tokens: int, cache=None) -> tuple[float, dict]:
    """Milliseconds a window of one row whose token the card picks, as the decode loop runs it:
    median of the second half; what was served there."""
    rng = np.random.default_rng(3)
    vocab = session._spec.vocab_size
    walls, before = [], None
    session.picker.begin(SamplingParams(temperature=0.0), [])
    for number in range(tokens):
        if number == tokens // 2 and cache is not None:
            before, moved = cache.counts().sum(axis=0), cache.moved_bytes
            counted = cache.tier_counts()
        token = rng.integers(0, vocab, 1).astype(np.int32)
        begin = time.perf_counter()
        session.picker.decode(token)
        session.commit(1)
        walls.append(time.perf_counter() - begin)
    told = {}
    if cache is not None:
        served = (cache.counts().sum(axis=0) - before) / (tokens - tokens // 2)
        told = dict(zip(SERVED, served.tolist(), strict=True))
        told["moved"] = (cache.moved_bytes - moved) / (tokens - tokens // 2)
        since = cache.tier_counts() - counted
        for name in ("hits", "copied"):
            told[name] = since.total(name) / max(1, since.windows)
    return float(np.median(walls[tokens // 2 :]) * 1e3), told


def read_prompt(session, length: int) -> float:
    prompt = np.random.default_rng(5).integers(0, session._spec.vocab_size, length)
    seconds = []
    for _ in range(2):
        session.reset()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        session.prefill(prompt.astype(np.int32))
        seconds.append(time.perf_counter() - begin)
    return length / seconds[-1]


def slots_left(args, index, chunk: int) -> int:
    """Slots a layer that ``--vram`` MiB leave."""
    spec = index.spec
    plan = plan_memory(index, spec, Wishes(capacity_of(args), "f16", chunk))
    routed = plan.weights["routed experts"]
    dense = sum(plan.weights.values()) - routed + sum(plan.session.values())
    room = args.vram * MiB - DRIVER_BYTES - dense - 512 * MiB
    num = max(1, min(spec.num_experts, int(room / (routed / spec.num_experts))))
    print(f"{torch.cuda.get_device_name()}; {args.geometry} {args.mix}, {spec.num_layers} "
          f"layers: experts {routed / 1e9:.2f} GB, the rest {dense / 1e9:.2f} GB; {args.vram} "
          f"MiB leave {num} of {spec.num_experts} slots a layer", flush=True)  # fmt: skip
    return num


def capacity_of(args) -> int:
    return max([args.tokens, *numbers(args.prompts)]) + 64


def prompts(args) -> None:
    """Tokens a second of prompts, by chunk and by how experts come."""
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        compiling = compile_ahead.start(args, contexts="64", prompts=args.prompts, has_tiers=True)
        slots = lending_slots(args, index)
        loans = None if slots is None else LoanRules()
        args.chunk = 8192
        num = slots_left(args, index, 2048) if slots is None else 1
        model = tiered(index, num, args, num_slots=0 if slots is None else slots.num_slots,
                       loans=loans, num_streamed=args.streamed)  # fmt: skip
        compiling.wait()
        ahead = model.experts.layers[0].ahead
        for chunk in numbers(args.chunks):
            for is_ahead in (True, False) if args.in_turn else (True,):
                for tier in model.experts.layers:
                    tier.ahead = ahead if is_ahead else None
                if model.lender is None:
                    model._chunk = chunk
                else:
                    model.lender._rules = LoanRules(chunk or None)
                session = model.new_session(capacity_of(args))
                for length in numbers(args.prompts):
                    rate = read_prompt(session, length)
                    how = "lent" if model.lender else "own"
                    print(f"chunks of {chunk or 'auto'} in {how} memory, experts "
                          f"{'ahead' if is_ahead else 'in turn'}: prompt of {length}: "
                          f"{rate:.0f} tokens/s", flush=True)  # fmt: skip
                if args.profile and is_ahead:
                    show_prompt(session, chunk or 8192)
                del session
                torch.cuda.empty_cache()
        model.close()


def lending_slots(args, index):
    """The slots that ``--vram`` MiB leave where prompts borrow; None without ``--lend``."""
    if not args.lend:
        return None
    layout = model_layout(index, index.spec)
    wishes, wished = Wishes(capacity_of(args), "f16", 8192), SlotWishes(reserve_bytes=256 * MiB)
    room = args.vram * MiB - DRIVER_BYTES
    plan, slots = plan_card(index, layout, index.spec, wishes, wished, room)
    print(f"{plan.table()}\n{slots.num_slots} slots, lent: {plan.wishes.has_loans}", flush=True)
    return slots


def show_prompt(session, chunk: int) -> None:
    """The kernels and copies of one chunk, and its time."""
    tokens = np.random.default_rng(6).integers(0, session._spec.vocab_size, chunk)

    def run() -> None:
        session.reset()
        session.prefill(tokens.astype(np.int32))

    begin = time.perf_counter()
    run()
    print(f"    one chunk: {1e3 * (time.perf_counter() - begin):.1f} ms", flush=True)
    for item in kernel_times(run, 1)[:16]:
        print(f"    {item.name[:40]:40} {item.calls:6.0f} {item.seconds * 1e6:9.1f} us")


def speed(args) -> None:
    """Tokens a second of decoding and of prompts."""
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    lengths, capacity = numbers(args.prompts), capacity_of(args)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        spec = index.spec
        compiling = compile_ahead.start(args, rows="1", contexts=str(args.tokens),
                                        prompts=args.prompts, has_tiers=True)  # fmt: skip
        num = slots_left(args, index, args.chunk)
        if args.with_resident:
            model = GpuModel(index, spec, DEVICE, direct_io=False, chunk_tokens=args.chunk)
            session = model.new_session(capacity)
            compiling.wait()
            ms, _ = decode(session, 80)
            print(f"all resident: {ms:.2f} ms, {1e3 / ms:.1f} tokens/s", flush=True)
            for length in lengths:
                print(f"  prompt of {length}: {read_prompt(session, length):.0f} tokens/s")
            model.close()
            del session, model
            torch.cuda.empty_cache()
        text = SyntheticText(spec.num_layers, spec.num_experts, spec.top_k, args.tokens)
        trace = synthetic_trace(text, seed=1)
        model = tiered(index, num, args, keeps_copied=args.keep_copied)
        compiling.wait()
        keeper = model.experts._keeper
        for policy in args.policies.split(","):
            for share in shares_of(args):
                for keeps in (False, True) if args.keep_copied else (False,):
                    # A session of its own for each, so that its graphs are captured anew.
                    model.experts._keeper = keeper if keeps else None
                    for tier in model.experts.layers:
                        tier.keeps = keeps
                    options = PolicyOptions(max_admissions=args.admissions)
                    model.experts.change_policy(policy, options)
                    model.experts.set_share(share)
                    label = f"{policy}{', kept' if keeps else ''}, share {share}"
                    timed(label, model, capacity, trace, args)
        model.close()


def timed(label: str, model, capacity: int, trace: RoutingTrace, args) -> None:
    """One line of ``speed``; each begins with the trace's first token."""
    spec = model.spec
    model.force_routing(RoutingFeed(trace, spec))
    session = model.new_session(capacity)
    ms, told = decode(session, args.tokens, model.experts)
    staged = model.experts.staged_counts[1:11]
    rate = told["bytes"] / max(1, told["nanoseconds"])
    print(
        f"{label} {staged}: {ms:.2f} ms, {1e3 / ms:.1f} tokens/s; a token: "
        f"{told['hits']:.0f} of {spec.num_layers * spec.top_k} experts in slots, "
        f"{told['experts']:.0f} asked for in {told['requests']:.0f} requests, "
        f"{told['nanoseconds'] / 1e6:.2f} ms at {rate:.1f} GB/s; {told['copied']:.0f} copied, "
        f"moved {told['moved'] / 1e6:.1f} MB",
        flush=True,
    )
    if args.profile:
        show(session, model)
    for length in numbers(args.prompts) if label.endswith("share 0.0") else []:
        print(f"  prompt of {length}: {read_prompt(session, length):.0f} tokens/s", flush=True)


def shares_of(args) -> list[float | None]:
    return [None if text == "auto" else float(text) for text in args.shares.split(",")]


def show(session, model) -> None:
    """The kernels of a window."""
    with model.serving_experts():
        times = kernel_times(session.relaunch(1), 5)
    for item in times[:24]:
        print(f"    {item.name[:40]:40} {item.calls:6.0f} {item.seconds * 1e6:9.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("hand_off", "equal", "speed", "prompts"))
    add_model_options(parser, num_layers=0)
    add_threads(parser)
    parser.add_argument("--vram", type=int, default=12 * 1024)
    parser.add_argument("--shares", default="0,0.3,auto")
    parser.add_argument("--policies", default="ema")
    parser.add_argument("--admissions", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--prompts", default="")
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--chunks", default="0", help="of prompts; 0 with --lend: what is best")
    parser.add_argument("--lend", action="store_true", help="prompts borrow memory of slots")
    parser.add_argument("--in-turn", action="store_true", help="also without copying ahead")
    parser.add_argument("--streamed", type=int, default=NUM_STREAMED)
    parser.add_argument("--with-resident", action="store_true")
    parser.add_argument("--keep-copied", action="store_true", help="speed: with and without")
    parser.add_argument("--profile", action="store_true")
    add_options(parser)
    args = parser.parse_args()
    args.layers = args.layers or (4 if args.what == "equal" else 48)
    if args.what == "prompts":
        args.prompts, args.tokens = args.prompts or "16384", 64
    tests = {"hand_off": hand_off, "equal": equal, "speed": speed, "prompts": prompts}
    with carried(args):
        tests[args.what](args)


if __name__ == "__main__":
    main()
