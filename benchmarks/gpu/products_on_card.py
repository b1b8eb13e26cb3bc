"""Decode products on a card: equal bits for every block format at real shapes, then their speed.

    python benchmarks/gpu/products_on_card.py [--formats Q4_0,IQ3_S] [--json FILE] [--workers 12]

One run, nothing to choose. First processes check formats side by side against the reference,
which also fills Triton's cache of compiled kernels; then each format is timed alone: the dense
product by rows and tilings, gate|up and down of ten experts. Times are those of a CUDA graph over
matrices that together outgrow the card's cache; rates count stored bytes only, and their share is
of a device-to-device copy, read and written bytes both. Exit status 1 when a bit differs or a
format fails. ``--tiny`` checks small shapes only and needs no card (set TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch

from strata.formats.block_formats import FORMATS
from strata.formats.synth_blocks import random_blocks
from strata.gpu.expert_slots import BlobLayout, empty_slots
from strata.gpu.kernels import experts
from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.product import product
from strata.gpu.kernels.quantize import empty_codes, quantize
from strata.gpu.packing import PackedMatrix, pack
from strata.gpu.packing_fields import BLOCK_FORMATS
from strata.reference import expert_numerics

HIDDEN, SIZE, TOP_K = 2560, 640, 10
DENSE_ROWS = 10240  # attn_qkv of a delta net layer, the largest dense matrix but the head
# Each is a compilation of some seconds for every format.
TILINGS = ((4, 1), (2, 2), (1, 4), (4, 4))
EXPERT_TILINGS = ((4, 1), (2, 2), (1, 4))
ROWS = (1, 2, 4, 8)
DEVICE = "cpu" if INTERPRETED else "cuda"
COLD_BYTES = 320 << 20  # five times the second cache of an H200
NUM_EXPERTS = 64


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


def check_dense(name, sizes, tiny):
    failures = []
    rng = np.random.default_rng()
    for rows, inner in sizes:
        if inner % FORMATS[name].block_size:
            continue
        raw = stored_rows(name, rows, inner, int(rng.integers(1 << 30)))
        x = rng.normal(0, 2, (8, inner)).astype(np.float32)
        expected = expert_numerics.product(name, raw, x, "check")
        matrix = pack(name, torch.from_numpy(raw).to(DEVICE), inner)
        is_timed = inner == HIDDEN
        for n in (1,) if tiny else ROWS if is_timed else (1, 8):
            tilings = TILINGS if n == 1 and is_timed else (None,)
            for tiling in tilings:
                out = torch.full((n, rows), float("nan"), device=DEVICE)
                product(matrix, codes_of(x[:n]), out, tiling)
                if text := differing(out, expected[:n]):
                    failures.append(f"{name} {rows}x{inner} N={n} tiling {tiling}: {text}")
    return failures


def expert_formats(name):
    """Formats of gate, up and down; blocks of 256 do not fit the inner size of down."""
    down = name if SIZE % FORMATS[name].block_size == 0 else "IQ4_NL"
    return (name, name, down)


def check_experts(name, hidden, size, tiny):
    rng = np.random.default_rng()
    layout = BlobLayout(expert_formats(name), hidden, size)
    num = 3
    slots = empty_slots(layout, num, num, DEVICE)
    stored = []
    for expert in range(num):
        raw = [
            stored_rows(layout.formats[role], *layout.shape_of(role), int(rng.integers(1 << 30)))
            for role in range(3)
        ]
        on_card = tuple(torch.from_numpy(rows).to(DEVICE) for rows in raw)
        slots.fill(num - 1 - expert, on_card, (1.0, 1.0, 1.0))
        slots.slot_of[expert] = num - 1 - expert
        stored.append(raw)
    x = rng.normal(0, 2, (2, hidden)).astype(np.float32)
    ids = np.array([[2, 0], [1, 2]], np.int32)
    expected = np.array(
        [
            expert_numerics.expert_mlp(
                x[n : n + 1],
                *(expert_numerics.StoredMatrix(layout.formats[r], stored[e][r]) for r in range(3)),
                "check",
            )[0]
            for n in range(2)
            for e in ids[n]
        ]
    )
    failures = []
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    codes, expert_ids = codes_of(x), torch.from_numpy(ids).to(DEVICE)
    for tiling in (None,) if tiny else EXPERT_TILINGS:
        rows = experts.empty_rows(ids.size, hidden, size, DEVICE)
        rows.gate_up.fill_(float("nan"))
        rows.y.fill_(float("nan"))
        experts.gate_up(slots, codes, expert_ids, rows, tiling)
        experts.gate(slots, expert_ids, rows, bad)
        experts.down(slots, expert_ids, rows, tiling)
        if text := differing(rows.y, expected):
            failures.append(f"{name} experts tiling {tiling}: {text}")
        if bad.item():
            failures.append(f"{name} experts: the flag of bad values was raised")
    return failures


def check(name, tiny):
    """(format, failures, seconds); runs in a process of its own."""
    begin = time.perf_counter()
    try:
        if tiny:
            failures = check_dense(name, ((16, 256), (8, 608)), tiny)
            failures += check_experts(name, 256, 64, tiny) if name == "Q2_0" else []
        else:
            failures = check_dense(name, ((328, HIDDEN), (64, SIZE), (72, 6144)), tiny)
            failures += check_experts(name, HIDDEN, SIZE, tiny)
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
        for tiling in TILINGS if n == 1 else (None,):
            seconds = graph_time(
                [lambda m=m, t=tiling, c=codes, o=out: product(m, c, o, t) for m in matrices]
            )
            label = f"N={n}" if tiling is None else f"N={n} {tiling[0]}x{tiling[1]}"
            result[label] = {"us": seconds * 1e6, "bytes_per_s": stored / seconds}
    return result


def time_experts(name):
    """Rates of gate|up and of down with TOP_K distinct experts of one row, in turn over all."""
    layout = BlobLayout(expert_formats(name), HIDDEN, SIZE)
    num = max(NUM_EXPERTS, -(-COLD_BYTES // layout.blob_bytes // TOP_K) * TOP_K)
    slots = empty_slots(layout, num, num, "cuda")
    raw = tuple(
        torch.from_numpy(stored_rows(layout.formats[role], *layout.shape_of(role), role)).cuda()
        for role in range(3)
    )
    slots.fill(0, raw, (1.0, 1.0, 1.0))
    slots.blobs[1:] = slots.blobs[0]
    slots.slot_of.copy_(torch.randperm(num, dtype=torch.int32))
    ids = torch.arange(num // TOP_K * TOP_K, dtype=torch.int32, device="cuda").view(-1, 1, TOP_K)
    x = np.random.default_rng(0).normal(0, 2, (1, HIDDEN)).astype(np.float32)
    codes = codes_of(x)
    rows = experts.empty_rows(TOP_K, HIDDEN, SIZE, "cuda")
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    experts.gate_up(slots, codes, ids[0], rows)
    experts.gate(slots, ids[0], rows, bad)
    row_bytes = [FORMATS[layout.formats[r]].row_bytes(layout.shape_of(r)[1]) for r in range(3)]
    parts = {
        "gate|up": (experts.gate_up, (slots, codes), TOP_K * SIZE * (row_bytes[0] + row_bytes[1])),
        "down": (experts.down, (slots,), TOP_K * HIDDEN * row_bytes[2]),
    }
    result = {"formats": layout.formats}
    for part, (call, arguments, stored) in parts.items():
        for tiling in EXPERT_TILINGS:
            seconds = graph_time(
                [lambda e=e, c=call, a=arguments, t=tiling: c(*a, e, rows, t) for e in ids]
            )
            label = f"{part} {tiling[0]}x{tiling[1]}"
            result[label] = {"us": seconds * 1e6, "bytes_per_s": stored / seconds}
    whole = [
        lambda e=e: (
            experts.gate_up(slots, codes, e, rows),
            experts.gate(slots, e, rows, bad),
            experts.down(slots, e, rows),
        )
        for e in ids
    ]
    seconds = graph_time(whole)
    stored = sum(stored for _, _, stored in parts.values())
    result["all three"] = {"us": seconds * 1e6, "bytes_per_s": stored / seconds}
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
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
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
