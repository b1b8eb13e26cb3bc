"""Tilings of the decode products on a card: equal bits for each, then their times side by side.

    python benchmarks/gpu/tilings_on_card.py [--only dense,bundle,gate_up,down]
                                             [--formats IQ3_S] [--rows 1,4]
                                             [--json FILE] [--workers 16] [--seconds 60]

Processes first check every variant against the reference, which also compiles it; then all are
timed alone, as ``products_on_card`` does. A line for each case, its variants from the fastest on.
Variants that would begin after ``--seconds`` are left out. Exit status 1 when a bit differs.

A dense variant is warps, panels of a program, "p" for pairs, and the most registers after an "r"
(``kernels.product.Tiling``); one of gate|up is warps, most registers and copies of a lattice in
shared memory; one of down or of a layer's bundle as dense. "chosen" is what a launch takes itself.
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
import products_on_card as products
import torch

from strata.formats.block_formats import FORMATS
from strata.gpu.expert_slots import BlobLayout, empty_slots
from strata.gpu.float_matrix import pack_floats
from strata.gpu.kernels import expert_window, unpack
from strata.gpu.kernels.bundle_product import bundle_product
from strata.gpu.kernels.float_product import float_product
from strata.gpu.kernels.product import product
from strata.gpu.packing import PackedMatrix, pack
from strata.reference import expert_numerics

HIDDEN, SIZE, TOP_K = products.HIDDEN, products.SIZE, products.TOP_K
# What multiplies what in the models this is for: format, rows, inner size.
DENSE = (
    ("IQ4_XS", 16384, 2560), ("Q5_K", 2560, 6144), ("Q6_K", 248320, 2560), ("Q4_0", 10240, 2560),
    ("IQ3_S", 10240, 2560), ("Q2_0", 10240, 2560),
)  # fmt: skip
# Of gate and up, of down, and of the shared expert's.
EXPERTS = (
    ("IQ3_S", "IQ4_NL", "Q6_K"), ("Q2_0",) * 3, ("Q4_0",) * 3, ("IQ4_NL",) * 3,
    ("Q4_K", "IQ4_NL", "Q4_K"), ("Q8_0",) * 3,
)  # fmt: skip
# What a layer multiplies its input by at once: of a delta net layer, and of an attention layer.
BUNDLES = (
    (("IQ4_XS", 16384), ("BF16", 96)),
    (("IQ4_XS", 12288), ("Q6_K", 512), ("Q8_0", 512), ("BF16", 640)),
)
ONE = {
    10: ((1, 1), (1, 2), (2, 2), (2, 4), (4, 1), (4, 3), (8, 3), (4, 8)),
    24: ((1, 1), (2, 1), (4, 1), (4, 2), (8, 1), (8, 4), (8, 2)),
    3: ((1, 1), (1, 2), (1, 4), (2, 5), (4, 5), (8, 10), (4, 10)),
}
PAIRS = {
    10: ((1, 2), (1, 4), (2, 2), (4, 2), (4, 2, 128), (4, 6), (4, 6, 128), (8, 6), (8, 6, 128)),
    24: ((1, 2), (2, 2), (4, 2), (8, 2), (8, 2, 128), (4, 4), (8, 8, 128)),
}
ONE_OF_SOME = {10: ((8, 3), (4, 3), (2, 2), (1, 1)), 24: ((4, 1), (4, 2), (8, 1))}
GATE_UP = ((4, 128, 8), (4, 128, 1), (4, 168, 8), (4, 96, 8), (8, 128, 8), (2, 168, 8))
DOWN = ((4, 5), (8, 10), (2, 5), (2, 2), (1, 1), (4, 10))
BUNDLE = {
    1: (None, (8, 3, False), (4, 3, False), (8, 3, False, 96), (4, 1, False), (2, 2, False)),
    4: (None, (8, 6, True, 128), (4, 6, True), (4, 6, True, 128), (8, 3, False), (4, 3, False),
        (4, 2, True, 128)),
}  # fmt: skip


def dense_tilings(groups, n):
    if n == 1:
        return [(*t, False) for t in ONE[groups]]
    return [(*t[:2], True, *t[2:]) for t in PAIRS[groups]] + [
        (*t, False) for t in ONE_OF_SOME[groups]
    ]


def cases(args):
    """(kind, what, N, variant) of all."""
    rows = [int(n) for n in args.rows.split(",")]
    formats = args.formats.split(",") if args.formats else None
    kinds = {"dense": DENSE, "bundle": BUNDLES, "gate_up": EXPERTS, "down": EXPERTS}
    return [
        (kind, what, n, variant)
        for kind in args.only.split(",")
        for what in kinds[kind]
        if not formats or what[0] in formats
        for n in rows
        for variant in variants(kind, what, n)
    ]


def variants(kind, what, n):
    """Of a case."""
    if kind == "dense":
        return [None, *dense_tilings(-(-what[2] // 256), n)]
    if kind == "bundle":
        return BUNDLE.get(n, (None,))
    if kind == "down":
        return [(*t, False) for t in DOWN]
    copies = (1, 8) if what[0].startswith("IQ3") else (8,)
    return [t for t in GATE_UP if t[2] in copies]


def checked(case):
    """The case whose check answers for this one: experts' kernels do not know the rows."""
    kind, what, n, variant = case
    return (kind, what, 1 if kind in ("gate_up", "down") else n, variant)


def label(variant):
    if variant is None:
        return "chosen"
    if isinstance(variant[2], bool):
        bound = "".join(f"r{bound}" for bound in variant[3:])
        return f"{variant[0]}w{variant[1]}" + ("p" if variant[2] else "") + bound
    return f"{variant[0]}w r{variant[1]} {variant[2]}c,"


def set_copies(kind, variant):
    if kind == "gate_up":
        unpack._COPIES.update(IQ3_S=variant[2], IQ3_XXS=variant[2])
    else:
        unpack._COPIES.update(IQ3_S=8, IQ3_XXS=8)


class Checker:
    """Of one process: makes inputs and what is expected once for each case."""

    def __init__(self):
        self.kept = {}

    def dense(self, what, n, variant):
        name, _, inner = what
        if what not in self.kept:
            raw = products.stored_rows(name, 88, inner, 7)
            x = np.random.default_rng(8).normal(0, 2, (8, inner)).astype(np.float32)
            expected = expert_numerics.product(name, raw, x, "check")
            self.kept[what] = (
                pack(name, torch.from_numpy(raw).to(products.DEVICE), inner),
                x,
                expected,
            )
        matrix, x, expected = self.kept[what]
        out = torch.full((n, 88), float("nan"), device=products.DEVICE)
        product(matrix, products.codes_of(x[:n]), out, variant)
        return products.differing(out, expected[:n])

    def bundle(self, what, n, variant):
        """Against the products one by one, which ``products_on_card`` checks."""
        if what not in self.kept:
            self.kept[what] = bundle_matrices([(name, 88) for name, _ in what], 7)
        matrices = self.kept[what]
        x = np.random.default_rng(8).normal(0, 2, (n, HIDDEN)).astype(np.float32)
        codes, rows = products.codes_of(x), torch.from_numpy(x).to(products.DEVICE)
        found, expected = (
            torch.full((n, 88 * len(what)), float("nan"), device=products.DEVICE) for _ in range(2)
        )
        places = [(matrix, 88 * at) for at, matrix in enumerate(matrices)]
        bundle_product(places, codes, rows, found, is_split=False, tiling=variant)
        for matrix, column in places:
            out = expected[:, column : column + 88]
            if isinstance(matrix, PackedMatrix):
                product(matrix, codes, out)
            else:
                float_product(matrix, rows, out)
        return products.differing(found, expected.cpu().numpy())

    def experts(self, what):
        if what not in self.kept:
            routed = BlobLayout((what[0], what[0], what[1]), HIDDEN, SIZE)
            both = [
                products.filled_slots(routed, 2, 11),
                products.filled_slots(BlobLayout((what[2],) * 3, HIDDEN, SIZE)
                                      if SIZE % FORMATS[what[2]].block_size == 0
                                      else BlobLayout((what[2], what[2], "Q8_0"), HIDDEN, SIZE),
                                      1, 12),
            ]  # fmt: skip
            x = np.random.default_rng(8).normal(0, 2, (4, HIDDEN)).astype(np.float32)
            self.kept[what] = (both, x)
        return self.kept[what]

    def outputs(self, what, n, gate_up_tiling, down_tiling):
        """y of routed and shared experts, and what they should be: every row takes both."""
        ((slots, stored), (shared, shared_stored)), x = self.experts(what)
        x = x[:n]
        ids = np.arange(n * 10, dtype=np.int32).reshape(n, 10) % 2
        key = (what, n)
        if key not in self.kept:

            def mlp(layout, raw, row):
                parts = [expert_numerics.StoredMatrix(layout.formats[r], raw[r]) for r in range(3)]
                return expert_numerics.expert_mlp(x[row : row + 1], *parts, "check")[0]

            once = [[mlp(slots.layout, stored[e], row) for e in range(2)] for row in range(n)]
            routed = np.array([once[row][e] for row in range(n) for e in ids[row]])
            common = np.array([mlp(shared.layout, shared_stored[0], row) for row in range(n)])
            self.kept[key] = (routed, common)
        codes, expert_ids = products.codes_of(x), torch.from_numpy(ids).to(products.DEVICE)
        rows = products.zeroed_rows(n * 10, HIDDEN, SIZE)
        shared_rows = products.zeroed_rows(n, HIDDEN, SIZE)
        bad = torch.zeros(1, dtype=torch.int32, device=products.DEVICE)
        expert_window.gate_up_codes(
            slots, shared, codes, expert_ids, rows, shared_rows, bad, gate_up_tiling
        )
        expert_window.down_outputs(slots, shared, expert_ids, rows, shared_rows, down_tiling)
        routed, common = self.kept[key]
        return products.differing(rows.y, routed) or products.differing(shared_rows.y, common)

    def check(self, case):
        kind, what, n, variant = case
        set_copies(kind, variant)
        if kind in ("dense", "bundle"):
            return getattr(self, kind)(what, n, variant)
        if kind == "gate_up":
            return self.outputs(what, n, variant[:2], None)
        return self.outputs(what, n, None, variant)


CHECKER = Checker()


def check(case):
    """(case, what is wrong or nothing); in a process that may have done others."""
    try:
        return case, CHECKER.check(case)
    except Exception:  # noqa: BLE001 - one variant must not end the run
        return case, "failed: " + traceback.format_exc()[-600:]


def dense_launches(what, n, kept):
    """A function of a tiling: launches over matrices that outgrow the cache; stored bytes."""
    name, rows, inner = what
    if what not in kept:
        kept.clear()
        raw = torch.from_numpy(products.stored_rows(name, 512, inner, 0)).to(products.DEVICE)
        one = pack(name, raw, inner).panels.repeat(rows // 512, 1)
        copies = max(2 if rows > 100000 else 3, -(-products.COLD_BYTES // one.numel()))
        kept[what] = [PackedMatrix(name, rows, inner, one.clone()) for _ in range(copies)]
    x = np.random.default_rng(0).normal(0, 2, (n, inner)).astype(np.float32)
    codes, out = products.codes_of(x), torch.empty(n, rows, device=products.DEVICE)

    def launches(variant):
        return [lambda m=m: product(m, codes, out, variant) for m in kept[what]]

    return launches, rows * FORMATS[name].row_bytes(inner)


def bundle_matrices(shapes, seed):
    """Of HIDDEN columns: format and rows of each."""
    made = []
    for name, rows in shapes:
        if name == "BF16":
            values = np.random.default_rng(seed).normal(0, 0.05, (rows, HIDDEN))
            raw = torch.from_numpy(values.astype(np.float32)).bfloat16().view(torch.uint8)
            made.append(pack_floats(name, raw.to(products.DEVICE), HIDDEN))
        else:
            # Few blocks of their own, and many times those.
            some = products.stored_rows(name, min(rows, 512) // 8 * 8, HIDDEN, seed)
            one = pack(name, torch.from_numpy(some).to(products.DEVICE), HIDDEN).panels
            panels = one.repeat(-(-rows // (8 * len(one))), 1)[: -(-rows // 8)]
            made.append(PackedMatrix(name, rows, HIDDEN, panels.contiguous()))
    return made


def bundle_launches(what, n, kept):
    """As ``dense_launches``, of bundles."""
    columns = np.cumsum([0] + [rows for _, rows in what])
    if what not in kept:
        kept.clear()
        first = bundle_matrices(what, 0)
        size = sum(matrix.panels.numel() * matrix.panels.element_size() for matrix in first)
        copies = -(-products.COLD_BYTES // size) - 1
        kept[what] = [first] + [
            [dataclasses.replace(m, panels=m.panels.clone()) for m in first] for _ in range(copies)
        ]
    x = np.random.default_rng(0).normal(0, 2, (n, HIDDEN)).astype(np.float32)
    codes, rows = products.codes_of(x), torch.from_numpy(x).to(products.DEVICE)
    out = torch.empty(n, int(columns[-1]), device=products.DEVICE)

    placed = [
        [(m, int(c)) for m, c in zip(matrices, columns, strict=False)] for matrices in kept[what]
    ]

    def launches(variant):
        return [
            lambda p=places: bundle_product(p, codes, rows, out, is_split=False, tiling=variant)
            for places in placed
        ]

    stored = sum(
        rows * (2 * HIDDEN if name == "BF16" else FORMATS[name].row_bytes(HIDDEN))
        for name, rows in what
    )
    return launches, stored


def expert_launches(kind, what, n, kept):
    if ("experts", what) not in kept:
        kept.clear()
        made = []
        for formats, num in ((what[0], what[0], what[1]), 240), ((what[2],) * 3, 1):
            if SIZE % FORMATS[formats[2]].block_size:
                formats = (*formats[:2], "Q8_0")
            layout = BlobLayout(formats, HIDDEN, SIZE)
            slots = empty_slots(layout, num, num, products.DEVICE)
            raw = tuple(
                torch.from_numpy(products.stored_rows(formats[r], *layout.shape_of(r), r)).to(
                    products.DEVICE
                )
                for r in range(3)
            )
            slots.fill(0, raw, (1.0, 1.0, 1.0))
            slots.blobs[1:] = slots.blobs[0]
            slots.slot_of.copy_(torch.randperm(num, dtype=torch.int32))
            made.append(slots)
        kept["experts", what] = made
    slots, shared = kept["experts", what]
    x = np.random.default_rng(0).normal(0, 2, (n, HIDDEN)).astype(np.float32)
    codes = products.codes_of(x)
    every = torch.arange(240, dtype=torch.int32, device=products.DEVICE)
    # Each in memory of its own: aligned as a window's are, so no kernel is compiled anew.
    ids = [some.clone() for some in every.view(-1, n, TOP_K)]
    rows = products.zeroed_rows(n * TOP_K, HIDDEN, SIZE)
    shared_rows = products.zeroed_rows(n, HIDDEN, SIZE)
    bad = torch.zeros(1, dtype=torch.int32, device=products.DEVICE)
    expert_window.gate_up_codes(slots, shared, codes, ids[0], rows, shared_rows, bad)

    def launches(variant):
        if kind == "down":
            return [
                lambda e=e: expert_window.down_outputs(slots, shared, e, rows, shared_rows, variant)
                for e in ids
            ]
        return [
            lambda e=e: expert_window.gate_up_codes(
                slots, shared, codes, e, rows, shared_rows, bad, variant[:2]
            )
            for e in ids
        ]

    one, common = slots.layout, shared.layout
    roles = (2,) if kind == "down" else (0, 1)
    stored = sum(
        num * layout.shape_of(r)[0] * FORMATS[layout.formats[r]].row_bytes(layout.shape_of(r)[1])
        for layout, num in ((one, n * TOP_K), (common, 1))
        for r in roles
    )
    return launches, stored


def time_all(equal, begin, seconds, copy):
    """Microseconds of every variant, by case."""
    results, kept = {}, {}
    for kind, what, n in dict.fromkeys(case[:3] for case in equal):
        if kind == "dense":
            launches, stored = dense_launches(what, n, kept)
        elif kind == "bundle":
            launches, stored = bundle_launches(what, n, kept)
        else:
            launches, stored = expert_launches(kind, what, n, kept)
        figures = {}
        for case in equal:
            if case[:3] != (kind, what, n) or time.perf_counter() - begin > seconds:
                continue
            set_copies(kind, case[3])
            figures[label(case[3])] = products.graph_time(launches(case[3]), 3) * 1e6
        ranked = sorted(figures.items(), key=lambda item: item[1])
        parts = [part if isinstance(part, str) else "-".join(map(str, part)) for part in what]
        name = f"{kind} {'/'.join(map(str, parts if kind == 'bundle' else what))} N={n}"
        results[name] = {"stored_bytes": stored, "us": figures}
        text = " ".join(f"{variant} {us:.1f}" for variant, us in ranked)
        floor = stored / copy * 1e6
        print(f"{name:34} floor {floor:5.1f}us | {text}", flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="bundle,gate_up,down")
    parser.add_argument("--formats", default="")
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--json", default="")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=100.0)
    args = parser.parse_args()
    begin = time.perf_counter()
    todo = cases(args)
    right, failed = set(), 0
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.workers, spawn) as pool:
        # One to a process at a time: compiling takes longer than making what is expected.
        for case, wrong in pool.map(check, dict.fromkeys(map(checked, todo))):
            if wrong:
                failed += 1
                print(f"{case}: {wrong}", flush=True)
            else:
                right.add(case)
    equal = [case for case in todo if checked(case) in right]
    print(
        f"{len(equal)} of {len(todo)} equal after {time.perf_counter() - begin:.0f} s", flush=True
    )
    copy = products.copy_rate()
    print(f"{torch.cuda.get_device_name()}, copy {copy / 1e12:.2f} TB/s", flush=True)
    results = time_all(equal, begin, args.seconds, copy)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))
    print(f"{failed} failed, {time.perf_counter() - begin:.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
