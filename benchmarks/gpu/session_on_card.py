"""A whole model on a card: the processor's logits again, then milliseconds of decode windows.

    python benchmarks/gpu/session_on_card.py equal
    python benchmarks/gpu/session_on_card.py speed --geometry coder --mix iq3_s --rows 1,2,4,8 \
        --contexts 4096,131072 --prompts 512,32768 [--layers 48] [--kv int8] [--profile] \
        [--out FILE.json] [--cache-in FILE] [--cache-out FILE]

``equal`` writes tiny models and needs the compiled extension; without it only the card's own
promises are compared. ``speed`` makes its model in memory. Kernels are compiled by processes of
their own meanwhile. All plain times come first, each when it is known, then the file, then with
``--profile`` the kernels of each case, prompts first. "floor" is the bytes a window reads, once, at
the card's copy speed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import compile_ahead
import numpy as np
import torch
from model_options import add_model_options
from synthetic_index import SyntheticIndex
from triton_cache import add_options, carried

from strata.engine.sampler import SamplingParams
from strata.formats.naming import check_layout
from strata.formats.synth import GEOMETRIES, MIXES, synthesize
from strata.formats.tensor_index import open_model
from strata.gpu.memory_plan import Wishes, plan_memory
from strata.gpu.model import GpuModel
from strata.gpu.sampler import Choice
from strata.model_spec import LayerKind
from strata.spec_reader import read_spec

COPY_BYTES_PER_S = 4.27e12
DEVICE = torch.device("cuda")
WINDOWS = 24


def same_bits(a, b) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


def compare(mix: str, folder: Path, num_tokens: int, row_counts: list[int]) -> bool:
    """One tiny model on both devices; prints what was found, gives whether all promises held."""
    file = folder / f"{mix}.gguf"
    synthesize(file, GEOMETRIES["tiny"], MIXES[mix], seed=3)
    index = open_model(file)
    shapes = {name: entry.shape for name, entry in index.items()}
    spec = read_spec(index.metadata, tensor_shapes=shapes, source=str(file))
    check_layout(index, spec)
    tokens = np.random.default_rng(1).integers(0, spec.vocab_size, num_tokens).astype(np.int32)
    model = GpuModel(index, spec, DEVICE)
    session = model.new_session(512)
    begin = time.perf_counter()
    single = []
    for token in tokens:
        single.append(session.decode(np.array([token], np.int32))[0])
        session.commit(1)
    single = np.array(single)
    print(f"{mix}: {num_tokens} windows of one row, {time.perf_counter() - begin:.1f} s")
    is_good = True
    for rows in row_counts:
        session.reset()
        found = []
        while len(found) < num_tokens // 3:
            at = session.position
            window = tokens[at : at + rows].copy()
            logits = session.decode(window)
            kept = 1 + at % rows
            found.extend(logits[:kept])
            session.commit(kept)
        same = same_bits(np.array(found), single[: len(found)])
        is_good &= same
        print(f"  windows of {rows}: bits {'equal' if same else 'DIFFER'}", flush=True)
    session.reset()
    prompt = session.prefill(tokens[: num_tokens - 8])
    kept = session.snapshot()
    after = session.decode(tokens[num_tokens - 8 :])
    other = model.new_session(600)
    other.restore(kept)
    again = other.decode(tokens[num_tokens - 8 :])
    session.reset()
    session.prefill(tokens[:64])
    in_two = session.prefill(tokens[64 : num_tokens - 8])
    largest = np.abs(np.concatenate([prompt[None], after]) - single[num_tokens - 9 :]).max()
    print(f"  prompt and eight rows after it: differ by {largest:.1e} from single rows")
    checks = {
        "prompt within 1e-3": largest <= 1e-3,
        "restored": same_bits(again, after),
        "prompt in two calls": same_bits(in_two, prompt)
        and same_bits(session.decode(tokens[num_tokens - 8 :]), after),
    }
    is_good &= all(checks.values())
    print("  " + ", ".join(f"{name}: {'equal' if ok else 'DIFFER'}" for name, ok in checks.items()))
    return is_good & against_processor(index, spec, tokens, single)


def against_processor(index, spec, tokens, single) -> bool:
    try:
        from strata.cpu.build import open_context
        from strata.cpu.model import CpuModel
    except ImportError as error:
        print(f"  the processor's engine is not built here: {error}")
        return True
    session = CpuModel(open_context(None, None), index, spec).new_session(512)
    expected = []
    for token in tokens:
        expected.append(session.decode(np.array([token], np.int32))[0])
        session.commit(1)
    expected = np.array(expected)
    largest = float(np.abs(expected - single).max())
    same = int((expected.argmax(1) == single.argmax(1)).sum())
    print(f"  against the processor: largest difference {largest:.2e} (deviation of logits "
          f"{expected.std():.2f}), same choice {same} of {len(tokens)}", flush=True)  # fmt: skip
    return largest <= 1e-3 and same == len(tokens)


def equal(args) -> None:
    """Each mix in a process of its own, side by side: most of the time goes into compiling."""
    with carried(args):
        compare_all(args)


def compare_all(args) -> None:
    mixes = args.mixes.split(",")
    if len(mixes) > 1:
        own = [sys.executable, __file__, "equal", "--tokens", str(args.tokens), "--rows", args.rows]
        running = [
            subprocess.Popen([*own, "--mixes", mix], stdout=subprocess.PIPE, text=True)
            for mix in mixes
        ]
        good = []
        for process in running:
            print(process.communicate()[0], end="", flush=True)
            good.append(process.returncode == 0)
    else:
        rows = [int(n) for n in args.rows.split(",")]
        with tempfile.TemporaryDirectory() as folder:
            good = [compare(mixes[0], Path(folder), args.tokens, rows)]
    print("all promises held" if all(good) else "PROMISES BROKEN")
    sys.exit(0 if all(good) else 1)


def window_bytes(spec, plan, rows: int, position: int) -> float:
    """Bytes a window reads at least: dense weights once, distinct experts, cells, memories."""
    experts = plan.weights["routed experts"] / spec.num_experts
    most = rows * spec.top_k
    distinct = spec.num_experts * (1 - (1 - 1 / spec.num_experts) ** most)
    kinds = spec.layer_kinds
    cells = min(position, spec.index_budget + spec.index_block - 1)
    cell_bytes = (
        2 * spec.num_kv_heads * spec.head_dim * (1 if plan.wishes.kv_format == "int8" else 2)
    )
    pooled = (
        position // spec.index_block * spec.index_dim * 4 if position > spec.index_budget else 0
    )
    memory = spec.gdn_value_heads * spec.gdn_key_dim * spec.gdn_value_dim * 4
    return (
        plan.weights["dense weights"]
        + plan.weights["shared experts"]
        + experts * distinct
        + kinds.count(LayerKind.QSA) * (rows * cells * cell_bytes + pooled)
        + kinds.count(LayerKind.GDN) * 2 * memory
    )


def at_position(session, position: int) -> None:
    """As if so many tokens had been read: random cells and keys, since equal ones tie."""
    session.reset()
    generator = torch.Generator(device=DEVICE).manual_seed(1)
    for layer in session._state.layers:
        if hasattr(layer, "cells"):
            layer.index.pooled.normal_(generator=generator)
            for cells in (layer.cells.keys, layer.cells.values):
                if cells.dtype == torch.int8:
                    cells.random_(-127, 128, generator=generator)
                else:
                    cells.normal_(generator=generator)
            for scales in (layer.cells.key_scales, layer.cells.value_scales):
                if scales is not None:
                    scales.fill_(0.01)
    session._position = position


def measure(session, spec, rows: int, position: int) -> dict[str, float]:
    """Median milliseconds of a window: as the decode loop runs it, tokens picked by the card; with
    all its logits fetched; what of the first the card worked."""
    rng = np.random.default_rng(rows)
    walls = {}
    session.picker.begin(SamplingParams(temperature=0.0), [])
    for name, decode in (("logits", session.decode), ("wall", session.picker.decode)):
        at_position(session, position)
        session.prepare(rows)
        seconds = []
        for _ in range(WINDOWS + 4):
            window = rng.integers(0, spec.vocab_size, rows).astype(np.int32)
            begin = time.perf_counter()
            decode(window)
            session.commit(1)
            seconds.append(time.perf_counter() - begin)
        walls[f"{name}_ms"] = float(np.median(seconds[4:]) * 1e3)
    shape = session._shape(rows, has_head=True, choice=Choice.LIKELIEST)
    graph = session._runner._graph(shape)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(WINDOWS + 1)]
    for event in events:
        event.record()
        graph.replay()
    torch.cuda.synchronize()
    cards = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {**walls, "card_ms": float(np.median(cards[2:]))}


def profile(session, rows: int, position: int) -> None:
    """Kernels of one window by time."""
    at_position(session, position)
    session.prepare(rows)
    graph = session._runner._graph(session._shape(rows, has_head=True))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
    show_kernels(seen, 3, f"a window of {rows}, {position} cells")


def profile_prompt(session, prompt) -> None:
    """Kernels of a prompt by time."""
    session.reset()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        session.prefill(prompt)
    show_kernels(seen, 1, f"a prompt of {len(prompt)}")


def show_kernels(seen, repeats: int, what: str) -> None:
    table: dict[str, list[float]] = {}
    for event in seen.events():
        entry = table.setdefault(event.name[:60], [0, 0.0])
        entry[0] += 1 / repeats
        entry[1] += event.device_time_total / repeats
    total = sum(time_us for _, time_us in table.values())
    print(f"  kernels of {what}: {total / 1e3:.3f} ms in kernels")
    for name, (calls, time_us) in sorted(table.items(), key=lambda item: -item[1][1])[:24]:
        share = 100 * time_us / total
        each = time_us / calls
        print(f"    {name:60} {calls:6.0f} x {each:8.2f} us = {time_us:9.1f} us {share:5.1f} %")


def random_prompt(spec, length: int):
    return np.random.default_rng(5).integers(0, spec.vocab_size, length).astype(np.int32)


class PromptClock:
    """Seconds of a prompt by what the host does, and by the card's own clock."""

    STEPS = ("gather", "ready", "launch", "approach", "wait")

    def __init__(self, reader) -> None:
        self._reader = reader
        self.clear()

    def clear(self) -> None:
        """Forgets what was measured."""
        self.seconds = dict.fromkeys(self.STEPS, 0.0)
        self.chunks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> PromptClock:
        for name in self.STEPS:
            setattr(self._reader, name, partial(self._timed, name, getattr(self._reader, name)))
        return self

    def __exit__(self, *error: object) -> None:
        for name in self.STEPS:
            delattr(self._reader, name)

    def _timed(self, name, step, *args):
        begin = time.perf_counter()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        if name == "launch":
            events[0].record()
        found = step(*args)
        if name == "launch":
            events[1].record()
            self.chunks.append(tuple(events))
        self.seconds[name] += time.perf_counter() - begin
        return found

    @property
    def card(self) -> float:
        """Seconds from the first launch of each chunk to the end of its last, summed up."""
        return sum(first.elapsed_time(last) for first, last in self.chunks) / 1e3


def measure_prompt(session, spec, length: int) -> dict[str, float]:
    """Tokens a second of a prompt from position 0, best of two; and what the host did meanwhile."""
    prompt, found = random_prompt(spec, length), []
    with PromptClock(session._reader) as clock:
        for _ in range(3):  # the first may compile
            session.reset()
            clock.clear()
            begin = time.perf_counter()
            session.prefill(prompt)
            wall = time.perf_counter() - begin
            found.append((wall, {**clock.seconds, "card": clock.card}))
    wall, steps = min(found[1:], key=lambda one: one[0])
    text = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in steps.items())
    print(f"prompt of {length:6}: {length / wall:8.0f} tokens/s, {wall * 1e3:8.1f} ms; {text} ms, "
          f"{len(clock.chunks)} chunks", flush=True)  # fmt: skip
    return {"tokens": length, "seconds": wall, "steps": steps}


def speed(args) -> None:
    with carried(args):
        measure_all(args)


def measure_all(args) -> None:
    compiling = compile_ahead.start(
        args, rows=args.rows, contexts=args.contexts, prompts=args.prompts
    )
    geometry = GEOMETRIES[args.geometry]
    geometry = replace(geometry, num_layers=args.layers or geometry.num_layers)
    contexts = [int(n) for n in args.contexts.split(",")]
    lengths = [int(n) for n in args.prompts.split(",") if n]
    capacity = max([*contexts, *lengths]) + 512
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        spec = index.spec
        plan = plan_memory(index, spec, Wishes(capacity, args.kv))
        begin = time.perf_counter()
        model = GpuModel(index, spec, DEVICE, kv_format=args.kv, direct_io=False)
        loading = torch.cuda.max_memory_allocated()
        session = model.new_session(capacity)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {args.geometry} "
              f"{args.mix}, {spec.num_layers} layers, kv {args.kv}; loaded in "
              f"{time.perf_counter() - begin:.0f} s")  # fmt: skip
        print(plan.table(), flush=True)
        compiling.wait()
        results = []
        rows_wanted = [int(n) for n in args.rows.split(",") if n]
        for context in contexts:
            for rows in rows_wanted:
                found = measure(session, spec, rows, context)
                floor = window_bytes(spec, plan, rows, context) / COPY_BYTES_PER_S * 1e3
                results.append({"rows": rows, "context": context, "floor_ms": floor, **found})
                print(f"context {context:7}, rows {rows}: window {found['wall_ms']:7.3f} ms, with "
                      f"all logits {found['logits_ms']:7.3f} ms, card {found['card_ms']:7.3f} ms, "
                      f"floor {floor:6.3f} ms; one row a window: {1e3 / found['wall_ms']:6.1f} "
                      "tokens/s", flush=True)  # fmt: skip
        peak = torch.cuda.max_memory_allocated()
        print(f"peak: {loading / 2**30:.3f} GiB while loading, {peak / 2**30:.3f} GiB in all; "
              f"planned {plan.total_bytes / 2**30:.3f} GiB", flush=True)  # fmt: skip
        prompts = [measure_prompt(session, spec, length) for length in lengths]
        if args.out:
            Path(args.out).write_text(json.dumps(
                {"device": torch.cuda.get_device_name(), "geometry": args.geometry,
                 "mix": args.mix, "layers": spec.num_layers, "kv": args.kv,
                 "peak_bytes": peak, "planned_bytes": plan.total_bytes,
                 "prompts": prompts, "windows": results}, indent=1))  # fmt: skip
        for length in lengths if args.profile else ():
            profile_prompt(session, random_prompt(spec, length))
        for context, rows in itertools.product(contexts, rows_wanted if args.profile else ()):
            profile(session, rows, context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_subparsers(required=True)
    one = modes.add_parser("equal")
    one.add_argument("--mixes", default="q4_k,iq3_s,q2_0")
    one.add_argument("--tokens", type=int, default=160)
    one.add_argument("--rows", default="2,3,4,5,6,7,8")
    add_options(one)
    one.set_defaults(run=equal)
    two = modes.add_parser("speed")
    add_model_options(two, num_layers=0)
    two.add_argument("--rows", default="1,2,4,8")
    two.add_argument("--contexts", default="4096,131072")
    two.add_argument("--prompts", default="512,2048,8192,32768")
    two.add_argument("--profile", action="store_true")
    two.add_argument("--out")
    add_options(two)
    two.set_defaults(run=speed)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
