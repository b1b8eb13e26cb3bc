"""Decode products on a card: equal bits for every block format at real shapes, then their speed.

    python benchmarks/gpu/products_on_card.py [--formats Q4_0,IQ3_S] [--json FILE] [--workers 16]

One run, nothing to choose. First processes check formats side by side against the reference,
which also fills Triton's cache of compiled kernels; then each format is timed alone: the dense
product of 1 to 8 rows, with two rows also by the matrix instruction, and the two launches of a
window's experts, ten distinct ones a row. Times are those of a CUDA graph over matrices that
together outgrow the card's cache; rates count stored bytes only, and their share is of a
device-to-device copy, read and written bytes both. Exit status 1 when a bit differs or a format
fails. ``--tiny`` checks small shapes only and needs no card (set TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from triton_cache import add_options, carried

from strata.formats.block_formats import FORMATS
from strata.formats.synth_blocks import random_blocks
from strata.gpu.expert_slots import BlobLayout, empty_slots
from strata.gpu.kernels import expert_window, experts
from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.product import product
from strata.gpu.kernels.quantize import empty_codes, quantize
from strata.gpu.packing import PackedMatrix, pack
from strata.gpu.packing_fields import BLOCK_FORMATS
from strata.reference import expert_numerics

HIDDEN, SIZE, TOP_K = 2560, 640, 10
DENSE_ROWS = 10240  # attn_qkv of a delta net layer, the largest dense matrix but the head
ROWS = (1, 2, 4, 8)
EXPERT_ROWS = (1, 4)
PAIRS = (4, 2, True)  # the tiling that windows of more rows have
DEVICE = "cpu" if INTERPRETED else "cuda"
COLD_BYTES = 320 << 20  # five times the second cache of an H200


def stored_rows(name, rows, inner, seed):
    fmt = FORMATS[name]
    rng = np.random.default_rng(seed)
    blocks = random_blocks(fmt, rows * inner // fmt.block_size, 0.02, rng)
    return np.ascontiguousarray(blocks.reshape(rows, -1))


def codes_of(x):
    codes = empty_codes(*x.shape, DEVICE)
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    quantize(torch.from_numpy(x).to(DEVICE), codes, bad)
    if bad.item():
        raise RuntimeError("the flag of bad values was raised")
    return codes


def differing(found, expected):
    """How many values differ in their bits, as text, or nothing."""
    bits = found.cpu().numpy().view(np.uint32)
    count = int((bits != np.ascontiguousarray(expected).view(np.uint32)).sum())
    return f"{count} of {bits.size} differ" if count else ""


def check_dense(name, rows, inner):
    raw = stored_rows(name, rows, inner, int(np.random.default_rng().integers(1 << 30)))
    x = np.random.default_rng().normal(0, 2, (8, inner)).astype(np.float32)
    expected = expert_numerics.product(name, raw, x, "check")
    matrix = pack(name, torch.from_numpy(raw).to(DEVICE), inner)
    failures = []
    for n, tiling in [(n, None) for n in ROWS] + [(2, PAIRS)]:
        out = torch.full((n, rows), float("nan"), device=DEVICE)
        product(matrix, codes_of(x[:n]), out, tiling)
        if text := differing(out, expected[:n]):
            failures.append(f"{name} {rows}x{inner} N={n} tiling {tiling}: {text}")
    return failures


def expert_formats(name):
    """Formats of gate, up and down; blocks of 256 do not fit the inner size of down."""
    down = name if SIZE % FORMATS[name].block_size == 0 else "IQ4_NL"
    return (name, name, down)


def filled_slots(layout, num, seed):
    """Slots of so many experts, expert e in slot num - 1 - e, and the stored rows of each."""
    slots = empty_slots(layout, num, num, DEVICE)
    stored = []
    for expert in range(num):
        raw = [
            stored_rows(layout.formats[role], *layout.shape_of(role), seed + 3 * expert + role)
            for role in range(3)
        ]
        on_card = tuple(torch.from_numpy(rows).to(DEVICE) for rows in raw)
        slots.fill(num - 1 - expert, on_card, (1.0, 1.0, 1.0))
        slots.slot_of[expert] = num - 1 - expert
        stored.append(raw)
    return slots, stored


def zeroed_rows(entries, hidden, size):
    """Room whose outputs are NaN, and whose codes are zero past the end of a row."""
    rows = experts.empty_rows(entries, hidden, size, DEVICE)
    rows.y.fill_(float("nan"))
    for field in dataclasses.fields(rows.h):
        getattr(rows.h, field.name).zero_()
    return rows


def check_experts(name, hidden, size):
    """Routed experts and a shared one of the same formats."""
    layout = BlobLayout(expert_formats(name), hidden, size)
    seed = int(np.random.default_rng().integers(1 << 30))
    slots, stored = filled_slots(layout, 3, seed)
    shared, shared_stored = filled_slots(layout, 1, seed + 99)
    x = np.random.default_rng().normal(0, 2, (2, hidden)).astype(np.float32)
    ids = np.array([[2, 0], [1, 2]], np.int32)

    def outputs(n, raw):
        matrices = (expert_numerics.StoredMatrix(layout.formats[r], raw[r]) for r in range(3))
        return expert_numerics.expert_mlp(x[n : n + 1], *matrices, "check")[0]

    expected = np.array([outputs(n, stored[e]) for n in range(2) for e in ids[n]])
    expected_shared = np.array([outputs(n, shared_stored[0]) for n in range(2)])
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    codes, expert_ids = codes_of(x), torch.from_numpy(ids).to(DEVICE)
    rows, shared_rows = zeroed_rows(4, hidden, size), zeroed_rows(2, hidden, size)
    expert_window.gate_up_codes(slots, shared, codes, expert_ids, rows, shared_rows, bad)
    expert_window.down_outputs(slots, shared, expert_ids, rows, shared_rows)
    failures = []
    for what, found, wanted in (
        ("routed", rows.y, expected),
        ("shared", shared_rows.y, expected_shared),
    ):
        if text := differing(found, wanted):
            failures.append(f"{name} {what} experts: {text}")
    if bad.item():
        failures.append(f"{name} experts: the flag of bad values was raised")
    return failures


def check(name, tiny):
    """(format, failures, seconds); runs in a process of its own."""
    begin = time.perf_counter()
    try:
        failures = check_dense(name, *((24, 512) if tiny else (328, HIDDEN)))
        failures += check_experts(name, *((256, 64) if tiny else (HIDDEN, SIZE)))
    except Exception:  # noqa: BLE001 - one format must not end the run
        failures = [f"{name}: {traceback.format_exc()[-1500:]}"]
    return name, failures, time.perf_counter() - begin


def check_all(names, tiny, workers):
    failed = []
    if tiny:
        results = (check(name, tiny) for name in names)
    else:
        spawn = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, spawn)
        futures = [pool.submit(check, name, tiny) for name in names]
        results = (future.result() for future in concurrent.futures.as_completed(futures))
    for name, failures, seconds in results:
        print(f"{name:8} {'differs' if failures else 'equal'} {seconds:5.1f} s", flush=True)
        for text in failures:
            print("   " + text, flush=True)
        failed += failures
    return failed


def graph_time(launches, repeats=5):
    """Seconds of one launch: the best of several replays of a graph of all of them."""
    for launch in launches[:2]:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    best = float("inf")
    graph.replay()
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best / len(launches)


def copy_rate():
    """Bytes per second of a device-to-device copy, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    return 2 * source.numel() / graph_time([lambda: target.copy_(source)] * 4)


def time_dense(name):
    """Rates by rows and tilings of DENSE_ROWS x HIDDEN, over copies that outgrow the cache."""
    raw = torch.from_numpy(stored_rows(name, 1024, HIDDEN, 0)).cuda()
    small = pack(name, raw, HIDDEN)
    one = small.panels.repeat(DENSE_ROWS // 1024, 1)
    copies = max(3, -(-COLD_BYTES // one.numel()))
    matrices = [PackedMatrix(name, DENSE_ROWS, HIDDEN, one.clone()) for _ in range(copies)]
    stored = DENSE_ROWS * FORMATS[name].row_bytes(HIDDEN)
    x = np.random.default_rng(0).normal(0, 2, (8, HIDDEN)).astype(np.float32)
    result = {"stored_bytes": stored}
    for n in ROWS:
        codes = codes_of(x[:n])
        out = torch.empty(n, DENSE_ROWS, device="cuda")
        for tiling in (None, PAIRS) if n == 2 else (None,):
            seconds = graph_time(
                [lambda m=m, t=tiling, c=codes, o=out: product(m, c, o, t) for m in matrices]
            )
            label = f"N={n}" if tiling is None else f"N={n} pairs"
            result[label] = {"us": seconds * 1e6, "bytes_per_s": stored / seconds}
    return result


def time_experts(name):
    """Rates of a window's two launches, TOP_K distinct experts a row, in turn over all."""
    layout = BlobLayout(expert_formats(name), HIDDEN, SIZE)
    num = max(128, -(-COLD_BYTES // layout.blob_bytes // TOP_K) * TOP_K)
    slots = empty_slots(layout, num, num, "cuda")
    raw = tuple(
        torch.from_numpy(stored_rows(layout.formats[role], *layout.shape_of(role), role)).cuda()
        for role in range(3)
    )
    slots.fill(0, raw, (1.0, 1.0, 1.0))
    slots.blobs[1:] = slots.blobs[0]
    slots.slot_of.copy_(torch.randperm(num, dtype=torch.int32))
    shared = empty_slots(layout, 1, 1, "cuda")
    shared.fill(0, raw, (1.0, 1.0, 1.0))
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    row_bytes = [FORMATS[layout.formats[r]].row_bytes(layout.shape_of(r)[1]) for r in range(3)]
    result = {"formats": layout.formats}
    for n in EXPERT_ROWS:
        x = np.random.default_rng(0).normal(0, 2, (n, HIDDEN)).astype(np.float32)
        codes, entries = codes_of(x), n * TOP_K
        every = torch.arange(num // entries * entries, dtype=torch.int32, device="cuda")
        # Each in memory of its own: aligned as a window's are, so no kernel is compiled anew.
        ids = [some.clone() for some in every.view(-1, n, TOP_K)]
        rows, shared_rows = zeroed_rows(entries, HIDDEN, SIZE), zeroed_rows(n, HIDDEN, SIZE)

        def gate_up(e, codes=codes, rows=rows, shared_rows=shared_rows):
            expert_window.gate_up_codes(slots, shared, codes, e, rows, shared_rows, bad)

        def down(e, rows=rows, shared_rows=shared_rows):
            expert_window.down_outputs(slots, shared, e, rows, shared_rows)

        def both(e, gate_up=gate_up, down=down):
            gate_up(e)
            down(e)

        gate_up(ids[0])
        num_entries = entries + 1  # the shared expert is read once
        sizes = (SIZE * (row_bytes[0] + row_bytes[1]), HIDDEN * row_bytes[2])
        for part, call, stored in (
            ("gate|up", gate_up, sizes[0]), ("down", down, sizes[1]), ("both", both, sum(sizes)),
        ):  # fmt: skip
            seconds = graph_time([lambda e=e, c=call: c(e) for e in ids])
            rate = num_entries * stored / seconds
            result[f"N={n} {part}"] = {"us": seconds * 1e6, "bytes_per_s": rate}
    return result


def report(name, kind, figures, copy):
    cells = [
        f"{label} {cell['us']:.1f}us {cell['bytes_per_s'] / copy:.0%}"
        for label, cell in figures.items()
        if isinstance(cell, dict)
    ]
    print(f"{name:8} {kind:7} " + " | ".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default=",".join(BLOCK_FORMATS))
    parser.add_argument("--json", default="")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    add_options(parser)
    args = parser.parse_args()
    with carried(args):
        return measured(args)


def measured(args):
    names = args.formats.split(",")
    failed = [] if args.no_check else check_all(names, args.tiny, args.workers)
    if args.tiny:
        return int(bool(failed))
    copy = copy_rate()
    results = {"device": torch.cuda.get_device_name(), "copy_bytes_per_s": copy}
    print(f"{results['device']}, torch {torch.__version__}, copy {copy / 1e12:.2f} TB/s")
    for name in names:
        for kind, measure in (("dense", time_dense), ("experts", time_experts)):
            try:
                figures = measure(name)
            except Exception:  # noqa: BLE001 - likewise
                failed.append(f"{name} {kind}: {traceback.format_exc()[-1500:]}")
                print(failed[-1], flush=True)
                continue
            results.setdefault(name, {})[kind] = figures
            report(name, kind, figures, copy)
        if args.json:
            Path(args.json).write_text(json.dumps({**results, "failed": failed}, indent=1))
        torch.cuda.empty_cache()
    print(f"{len(failed)} failures")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
