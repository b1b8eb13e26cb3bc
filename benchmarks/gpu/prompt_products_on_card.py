"""Prompt products on a card: equal bits with the decode kernels at real shapes, then their speed.

    python benchmarks/gpu/prompt_products_on_card.py [--formats Q4_0,IQ3_S] [--json FILE] [--rows N]

One run, nothing to choose. First every format: a matrix of real size over 300 rows of a prompt,
all of it against the decode kernel (eight rows at a time), and experts in slots against the decode
kernels of experts. Then times, each the best of some runs between events: expanding (bytes written
a second), the dense product by tilings, the experts of a layer (routing skewed as a router's is),
sorting, plain matrices. "of 1024" is multiply-adds per clock and multiprocessor, out of what the
float operations of a term allow at the clock given. Exit status 1 when a bit differs or a format
fails. ``--tiny`` runs everything on small shapes and needs no card (set TRITON_INTERPRET=1).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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
from strata.gpu.float_matrix import pack_floats
from strata.gpu.kernels import experts
from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.expand import expand, expand_slots, expanded_bytes, expanded_in
from strata.gpu.kernels.expert_prompt import (
    ExpertRoom,
    empty_expert_room,
    expert_outputs,
    gate_up,
)
from strata.gpu.kernels.expert_sort import empty_plan, sort_by_expert
from strata.gpu.kernels.float_product import float_product
from strata.gpu.kernels.float_prompt import float_prompt_product
from strata.gpu.kernels.grouped_product import grouped_product, prompt_product
from strata.gpu.kernels.product import product
from strata.gpu.kernels.prompt_codes import empty_prompt_codes, quantize_prompt
from strata.gpu.kernels.prompt_tilings import DENSE_TILING, EXPERT_TILING, Tiling, WarpTiling
from strata.gpu.kernels.quantize import empty_codes, quantize
from strata.gpu.packing import pack
from strata.gpu.packing_fields import BLOCK_FORMATS

DEVICE = "cpu" if INTERPRETED else "cuda"
CLOCK_HZ = 1.755e9
NUM_SMS = 132
# ``prompt_tilings_on_card`` has more.
TILINGS = (
    EXPERT_TILING,
    Tiling(tokens=32, subs=1, rows=32, step=2, stages=3, warps=1),
    Tiling(tokens=64, subs=1, rows=32, step=2, stages=3, warps=2),
    WarpTiling(m=2, n=2, token_warps=2, row_warps=2, step=2, stages=2),
    WarpTiling(m=1, n=2, token_warps=2, row_warps=2, step=2, stages=2, registers=168),
)
TIMED_FORMATS = ("IQ3_S", "IQ4_NL", "Q2_0", "Q4_K", "Q6_K", "Q8_0")


class Sizes:
    """Shapes of a run: those of the 256-expert model, or small ones."""

    def __init__(self, *, tiny, rows):
        self.hidden, self.ffn, self.dense_rows = (256, 64, 72) if tiny else (2560, 640, 10240)
        self.num_experts, self.top_k = (4, 2) if tiny else (256, 10)
        self.check_rows = 19 if tiny else 300
        self.rows = 20 if tiny else rows
        self.repeats = 1 if tiny else 5
        self.checked_experts = min(self.num_experts, 24)


def stored_rows(name, rows, inner, seed):
    fmt = FORMATS[name]
    blocks = random_blocks(fmt, rows * inner // fmt.block_size, 0.02, np.random.default_rng(seed))
    return torch.from_numpy(np.ascontiguousarray(blocks.reshape(rows, -1))).to(DEVICE)


def random_x(rows, inner):
    return torch.from_numpy(np.random.default_rng().normal(0, 3, (rows, inner)).astype(np.float32))


def prompt_codes(x):
    codes = empty_prompt_codes(*x.shape, DEVICE)
    quantize_prompt(x, codes, torch.zeros(1, dtype=torch.int32, device=DEVICE))
    return codes


def decode_codes(x):
    codes = empty_codes(*x.shape, DEVICE)
    quantize(x, codes, torch.zeros(1, dtype=torch.int32, device=DEVICE))
    return codes


def room_for(name, matrices, rows, inner):
    size = expanded_bytes(name, matrices, rows, inner)
    scratch = torch.full((size,), 255, dtype=torch.uint8, device=DEVICE)
    return expanded_in(scratch, name, matrices, rows, inner)


def poison(*shape):
    return torch.full(shape, float("nan"), device=DEVICE)


def differing(label, found, expected):
    """How many values differ in their bits, as text, or nothing."""
    count = int((found.view(torch.int32) != expected.view(torch.int32)).sum())
    return [f"{label}: {count} of {found.numel()} differ"] if count else []


def seconds(action, repeats):
    """Best time of a call."""
    action()
    if INTERPRETED:
        return float("nan")
    best = float("inf")
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1000)
    return best


def check_dense(name, sizes):
    inner, num_rows = sizes.hidden, sizes.dense_rows // 8 + 24
    matrix = pack(name, stored_rows(name, num_rows, inner, 1), inner)
    x = random_x(sizes.check_rows, inner).to(DEVICE)
    weights = room_for(name, 1, num_rows, inner)
    expand(matrix, weights)
    expected = poison(len(x), num_rows)
    for first in range(0, len(x), 8):
        product(matrix, decode_codes(x[first : first + 8]), expected[first : first + 8])
    failures = []
    for tiling in (DENSE_TILING, *TILINGS[1:]):
        found = poison(len(x), num_rows)
        prompt_product(prompt_codes(x), weights, found, tiling)
        failures += differing(f"dense {name} {tiling}", found, expected)
    return failures


def filled_slots(formats, sizes, count):
    """Slots of ``count`` different experts: rows of the same matrices turned round."""
    layout = BlobLayout(formats, sizes.hidden, sizes.ffn)
    slots = empty_slots(layout, count, count, DEVICE)
    raws = [stored_rows(name, *layout.shape_of(role), role) for role, name in enumerate(formats)]
    for expert in range(count):
        turned = tuple(torch.roll(raw, 13 * expert, dims=0).contiguous() for raw in raws)
        slots.fill(count - 1 - expert, turned, (1.0, 0.5, 1.5))
        slots.slot_of[expert] = count - 1 - expert
    return slots


def expanded_experts(slots, formats, count):
    rooms = [
        room_for(name, count, *slots.layout.shape_of(role)) for role, name in enumerate(formats)
    ]
    for role, room in enumerate(rooms):
        expand_slots(slots, role, room)
    return rooms


def random_ids(rows, top_k, num_experts):
    """[rows, K] int32: a few experts are wanted several times as often as the others."""
    rng = np.random.default_rng(7)
    noise = rng.gumbel(size=(rows, num_experts)) + rng.normal(0, 0.7, num_experts)
    ids = np.argsort(-noise, axis=1)[:, :top_k].astype(np.int32)
    return torch.from_numpy(np.ascontiguousarray(ids)).to(DEVICE)


def check_experts(formats, sizes):
    count, top_k = sizes.checked_experts, min(sizes.top_k, sizes.checked_experts)
    slots = filled_slots(formats, sizes, count)
    ids = random_ids(sizes.check_rows, top_k, count)
    x = random_x(sizes.check_rows, sizes.hidden).to(DEVICE)
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    expected = poison(ids.numel(), sizes.hidden)
    for first in range(0, len(x), 8):
        some = ids[first : first + 8].contiguous()
        rows = experts.empty_rows(some.numel(), sizes.hidden, sizes.ffn, DEVICE)
        experts.gate_up(slots, decode_codes(x[first : first + 8]), some, rows)
        experts.gate(slots, some, rows, bad)
        experts.down(slots, some, rows)
        expected[first * top_k : first * top_k + some.numel()] = rows.y
    plan = empty_plan(ids.numel(), count, EXPERT_TILING.tile_tokens, DEVICE)
    sort_by_expert(ids, plan, slots.slot_of)
    room = empty_expert_room(ids.numel(), sizes.ffn, sizes.hidden, DEVICE)
    room = ExpertRoom(room.hidden, poison(*room.outputs.shape))
    expert_outputs(
        prompt_codes(x), *expanded_experts(slots, formats, count), plan, room, bad,
        num_pairs=ids.numel(), top_k=top_k,
    )  # fmt: skip
    failures = differing(f"experts {formats}", room.outputs, expected)
    return failures + (["the flag of bad values was raised"] if bad.item() else [])


def check_floats(name, sizes):
    values = random_x(sizes.num_experts, sizes.hidden)
    raw = {"F32": values, "F16": values.half(), "BF16": values.bfloat16()}[name]
    raw = raw.contiguous().view(torch.uint8).to(DEVICE)
    matrix = pack_floats(name, raw, sizes.hidden)
    x = random_x(sizes.check_rows, sizes.hidden).to(DEVICE)
    found, expected = (poison(len(x), sizes.num_experts) for _ in range(2))
    float_prompt_product(matrix, x, found)
    for first in range(0, len(x), 8):
        float_product(matrix, x[first : first + 8], expected[first : first + 8])
    return differing(f"plain {name}", found, expected)


def say(results, label, time_s, macs=0, num_bytes=0):
    line = f"  {label:54} {time_s * 1e6:10.1f} us"
    if macs:
        share = macs / time_s / (1024 * NUM_SMS * CLOCK_HZ)
        line += f"  {macs / time_s / 1e12:7.1f} TMAC/s  {share:5.1%} of 1024"
    if num_bytes:
        line += f"  {num_bytes / time_s / 1e9:7.0f} GB/s written"
    results.append({"what": label, "seconds": time_s, "macs": macs, "bytes": num_bytes})
    print(line, flush=True)


def time_dense(name, sizes, results):
    num_rows, inner = sizes.dense_rows, sizes.hidden
    matrix = pack(name, stored_rows(name, num_rows, inner, 1), inner)
    weights = room_for(name, 1, num_rows, inner)
    size = expanded_bytes(name, 1, num_rows, inner)
    spent = seconds(lambda: expand(matrix, weights), sizes.repeats)
    say(results, f"expand {name} {num_rows} x {inner}", spent, num_bytes=size)
    codes = prompt_codes(random_x(sizes.rows, inner).to(DEVICE))
    out = poison(sizes.rows, num_rows)
    macs = sizes.rows * num_rows * inner
    tilings = TILINGS if name == TIMED_FORMATS[0] else (DENSE_TILING,)
    for tiling in tilings:
        label = f"dense {name} {vars_of(tiling)}"
        spent = seconds(lambda t=tiling: prompt_product(codes, weights, out, t), sizes.repeats)
        say(results, label, spent, macs)


def vars_of(tiling):
    return dataclasses.astuple(tiling)


def time_experts(formats, sizes, results, tilings):
    count, pairs = sizes.num_experts, sizes.rows * sizes.top_k
    slots = filled_slots(formats, sizes, count)
    rooms = expanded_experts(slots, formats, count)
    for role, room in enumerate(rooms):
        shape = slots.layout.shape_of(role)
        spent = seconds(lambda r=role, m=room: expand_slots(slots, r, m), sizes.repeats)
        size = expanded_bytes(formats[role], count, *shape)
        say(results, f"expand {count} experts {formats[role]} {shape}", spent, num_bytes=size)
    ids = random_ids(sizes.rows, sizes.top_k, count)
    codes = prompt_codes(random_x(sizes.rows, sizes.hidden).to(DEVICE))
    room = empty_expert_room(pairs, sizes.ffn, sizes.hidden, DEVICE)
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    macs = pairs * sizes.hidden * sizes.ffn
    for tiling in tilings:
        plan = empty_plan(pairs, count, tiling.tile_tokens, DEVICE)
        spent = seconds(lambda p=plan: sort_by_expert(ids, p, slots.slot_of), sizes.repeats)
        say(results, f"sort {pairs} pairs", spent)
        routing = {"plan": plan, "num_pairs": pairs, "top_k": sizes.top_k, "tiling": tiling}
        spent = seconds(
            lambda r=routing: gate_up(codes, *rooms[:2], room.hidden, bad, **r), sizes.repeats
        )
        say(results, f"gate|up {formats[0]} {vars_of(tiling)}", spent, 2 * macs)
        spent = seconds(
            lambda p=plan, t=tiling: grouped_product(
                room.hidden, rooms[2], p, pairs, room.outputs, read_top_k=0, scatter=True, tiling=t
            ),
            sizes.repeats,
        )
        say(results, f"down {formats[2]} {vars_of(tiling)}", spent, macs)
    weights, shared = torch.rand_like(ids, dtype=torch.float32), poison(sizes.rows, sizes.hidden)
    rows = experts.ExpertRows(room.outputs, None, room.outputs)
    ones, out = torch.ones(sizes.rows, device=DEVICE), torch.empty_like(shared)
    spent = seconds(lambda: experts.combine(rows, weights, shared, ones, out), sizes.repeats)
    say(results, "combine", spent)


def time_floats(sizes, results):
    values = random_x(sizes.num_experts, sizes.hidden)
    matrix = pack_floats("F32", values.view(torch.uint8).to(DEVICE), sizes.hidden)
    x = random_x(sizes.rows, sizes.hidden).to(DEVICE)
    out = poison(sizes.rows, sizes.num_experts)
    macs = sizes.rows * sizes.num_experts * sizes.hidden
    spent = seconds(lambda: float_prompt_product(matrix, x, out), sizes.repeats)
    say(results, "plain F32 (64 a clock at best)", spent, macs)
    codes = empty_prompt_codes(*x.shape, DEVICE)
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    spent = seconds(lambda: quantize_prompt(x, codes, bad), sizes.repeats)
    say(results, f"quantise {tuple(x.shape)}", spent)


def attempt(failures, action, *arguments):
    """Runs a check, keeping what went wrong."""
    begin = time.perf_counter()
    try:
        found = action(*arguments) or []
    except Exception:  # noqa: BLE001 - one format's failure must not end the run
        found = [traceback.format_exc()]
    failures += found
    what = f"{action.__name__} {arguments[0] if isinstance(arguments[0], (str, tuple)) else ''}"
    state = "FAILED\n" + "\n".join(found) if found else "ok"
    print(f"{what:40} {time.perf_counter() - begin:6.1f} s  {state}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--json", default="")
    parser.add_argument("--tiny", action="store_true")
    add_options(parser)
    args = parser.parse_args()
    with carried(args):
        return measured(args)


def measured(args):
    formats = args.formats.split(",") if args.formats else list(BLOCK_FORMATS)
    sizes, failures, results = Sizes(tiny=args.tiny, rows=args.rows), [], []
    for name in formats:
        attempt(failures, check_dense, name, sizes)
    mixed = ("IQ3_S", "IQ3_S", "IQ4_NL")
    attempt(failures, check_experts, mixed, sizes)
    attempt(failures, check_experts, ("Q4_K", "Q6_K", "Q2_0"), sizes)
    for name in ("F32", "F16", "BF16"):
        attempt(failures, check_floats, name, sizes)
    for name in [name for name in TIMED_FORMATS if name in formats]:
        attempt(failures, time_dense, name, sizes, results)
    attempt(failures, time_experts, mixed, sizes, results, TILINGS)
    attempt(failures, time_experts, ("Q2_0",) * 3, sizes, results, (EXPERT_TILING,))
    attempt(failures, time_floats, sizes, results)
    if args.json:
        Path(args.json).write_text(json.dumps({"failures": failures, "results": results}, indent=1))
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
