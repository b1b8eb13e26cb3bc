"""Tilings of the decode products on a card: times side by side, and equal bits of those that win.

    python benchmarks/gpu/tilings_on_card.py [--only bundle,gate_up,down,dense] [--formats all]
        [--rows 1,4] [--seconds 60] [--workers 0] [--json FILE] [--compile]

Everything is compiled first, side by side. Then every case is timed with the tiling in use and its
best guesses; when all have figures, with the other variants; cases come in the order of CASES.
What would begin after ``--seconds`` is left out. A line for each case and turn, printed at once,
variants from the fastest on. Only what is faster than the tiling in use is compared with it, bit by
bit (which ``products_on_card`` compares with the reference): "=" are equal bits. Exit status 1 when
a bit differs or a variant fails.

A variant of gate and up is warps and most registers; one of the others warps and panels of a
program, "p" for pairs, and the most registers after an "r" (``kernels.product.Tiling``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import products_on_card as products
import torch
from compile_ahead import Recorder, compile_all

from strata.formats.block_formats import FORMATS
from strata.gpu.expert_slots import BlobLayout, empty_slots
from strata.gpu.float_matrix import FloatMatrix, pack_floats
from strata.gpu.kernels import expert_window, experts
from strata.gpu.kernels.bundle_product import bundle_product
from strata.gpu.kernels.product import product
from strata.gpu.kernels.quantize import empty_codes
from strata.gpu.packing import PackedMatrix, pack, panel_bytes

HIDDEN, SIZE, TOP_K, EXPERTS = products.HIDDEN, products.SIZE, products.TOP_K, 240
# What a layer multiplies its input by at once: of a delta net layer, and of an attention layer.
BUNDLES = (
    (("IQ4_XS", 16384), ("BF16", 96)),
    (("IQ4_XS", 12288), ("Q6_K", 512), ("Q8_0", 512), ("BF16", 640)),
)
# Of gate and up, of down, and of the shared expert's.
MIXES = (
    ("IQ3_S", "IQ4_NL", "Q6_K"), ("Q2_0",) * 3, ("Q4_0",) * 3, ("IQ4_NL",) * 3,
    ("Q4_K", "IQ4_NL", "Q4_K"), ("Q8_0",) * 3,
)  # fmt: skip
# Format, rows, inner size.
DENSE = (
    ("Q5_K", 2560, 6144), ("IQ4_XS", 16384, 2560), ("Q6_K", 248320, 2560), ("Q4_0", 10240, 2560),
    ("IQ3_S", 10240, 2560), ("Q2_0", 10240, 2560),
)  # fmt: skip
CASES = {"bundle": BUNDLES, "gate_up": MIXES, "down": MIXES, "dense": DENSE}
# Best guesses first, so many; None is what a launch takes itself.
GUESSES = 3
GATE_UP = (None, (4, 168), (8, 128), (4, 96), (2, 168), (8, 96))
DOWN = (None, (2, 5, False), (4, 10, False), (8, 10, False), (2, 2, False), (1, 1, False))
BUNDLE = {
    1: (None, (4, 3, False), (8, 3, False, 96), (8, 6, False), (4, 1, False), (2, 2, False)),
    4: (None, (8, 6, True, 96), (4, 6, True, 128), (4, 6, True), (8, 3, False), (4, 2, True, 128)),
}  # fmt: skip
ONE = {
    10: ((8, 3), (4, 3), (4, 1), (1, 1), (1, 2), (2, 2), (2, 4), (4, 8)),
    24: ((8, 4), (4, 2), (8, 2), (1, 1), (2, 1), (4, 1), (8, 1)),
}
PAIRS = {
    10: ((4, 6, 128), (8, 6, 128), (4, 2, 128), (1, 2), (1, 4), (2, 2), (4, 2), (4, 6), (8, 6)),
    24: ((8, 8, 128), (8, 2, 128), (4, 4), (1, 2), (2, 2), (4, 2), (8, 2)),
}


def variants(kind, what, n):
    """Of a case; the first is what is in use."""
    if kind == "gate_up":
        return GATE_UP
    if kind == "down":
        return DOWN
    if kind == "bundle":
        return BUNDLE.get(n, (None,))
    groups = -(-what[2] // 256)
    if n == 1:
        return (None, *((*t, False) for t in ONE[groups]))
    return (None, *((*t[:2], True, *t[2:]) for t in PAIRS[groups]))


def label(variant):
    if variant is None:
        return "in use"
    if len(variant) == 2:
        return f"{variant[0]}w r{variant[1]}"
    bound = "".join(f"r{bound}" for bound in variant[3:])
    return f"{variant[0]}w{variant[1]}" + ("p" if variant[2] else "") + bound


def random_rows(n, inner, device):
    """Codes and rows; without a card they have no values."""
    if device == "meta":
        return empty_codes(n, inner, device), torch.empty(n, inner, device=device)
    x = np.random.default_rng(0).normal(0, 2, (n, inner)).astype(np.float32)
    return products.codes_of(x), torch.from_numpy(x).to(device)


def matrix_of(name, rows, inner, device):
    """Few blocks of its own, and many times those."""
    if name == "BF16":
        values = torch.randn(rows, inner, device=device if device != "meta" else "cpu") / 20
        packed = pack_floats(name, values.bfloat16().view(torch.uint8), inner)
        return dataclasses.replace(packed, panels=packed.panels.to(device))
    panels = -(-rows // 8)
    if device == "meta":
        whole = torch.empty(panels, panel_bytes(name, inner), dtype=torch.uint8, device=device)
    else:
        some = products.stored_rows(name, min(rows, 512) // 8 * 8, inner, rows)
        one = pack(name, torch.from_numpy(some).to(device), inner).panels
        whole = one.repeat(-(-panels // len(one)), 1)[:panels].contiguous()
    return PackedMatrix(name, rows, inner, whole)


class DenseCase:
    """A bundle or a matrix, in copies that outgrow the cache."""

    def __init__(self, kind, what, n, device, kept):
        self.is_bundle = kind == "bundle"
        shapes = [(*pair, HIDDEN) for pair in what] if self.is_bundle else [what]
        if what not in kept:
            first = [matrix_of(*shape, device) for shape in shapes]
            self.size = sum(m.panels.numel() * m.panels.element_size() for m in first)
            count = 1 if device == "meta" else max(2, -(-products.COLD_BYTES // self.size))
            kept[what] = [first] + [
                [dataclasses.replace(m, panels=m.panels.clone()) for m in first]
                for _ in range(count - 1)
            ]
        columns = np.cumsum([0] + [rows for _, rows, _ in shapes])
        self.copies = [
            list(zip(matrices, map(int, columns), strict=False)) for matrices in kept[what]
        ]
        self.codes, self.rows = random_rows(n, shapes[0][2], device)
        self.out = torch.empty(n, int(columns[-1]), device=device)
        self.stored = sum(
            m.num_rows * (2 * m.inner if isinstance(m, FloatMatrix)
                          else FORMATS[m.format_name].row_bytes(m.inner))
            for m, _ in self.copies[0]
        )  # fmt: skip

    def launch(self, variant, copy):
        places = self.copies[copy]
        if self.is_bundle:
            bundle_product(places, self.codes, self.rows, self.out, is_split=False, tiling=variant)
        else:
            product(places[0][0], self.codes, self.out, variant)

    def results(self):
        return [self.out.view(torch.int32)]


class ExpertCase:
    """Gate and up, or down, of ten distinct experts a row and the shared one; ids by copy."""

    def __init__(self, kind, what, n, device, kept):
        self.is_down = kind == "down"
        if ("experts", what) not in kept:
            kept["experts", what] = [
                filled(formats, num, device)
                for formats, num in (((what[0], what[0], what[1]), EXPERTS), ((what[2],) * 3, 1))
            ]
        self.slots = kept["experts", what]
        self.codes, _ = random_rows(n, HIDDEN, device)
        every = torch.arange(EXPERTS, dtype=torch.int32, device=device)
        # Each in memory of its own: aligned as a window's are, so no kernel is compiled anew.
        self.copies = [ids.clone() for ids in every.view(-1, n, TOP_K)]
        self.rooms = [experts.empty_rows(num, HIDDEN, SIZE, device) for num in (n * TOP_K, n)]
        for room in self.rooms:
            for field in dataclasses.fields(room.h):
                getattr(room.h, field.name).zero_()
        self.bad = torch.zeros(1, dtype=torch.int32, device=device)
        if self.is_down and device != "meta":
            self._gate_up(None, 0)
        roles = (2,) if self.is_down else (0, 1)
        self.stored = sum(
            num * expert_bytes(slots.layout, role)
            for slots, num in zip(self.slots, (n * TOP_K, 1), strict=True)
            for role in roles
        )

    def _gate_up(self, variant, copy):
        expert_window.gate_up_codes(
            *self.slots, self.codes, self.copies[copy], *self.rooms, self.bad, variant
        )

    def launch(self, variant, copy):
        if self.is_down:
            expert_window.down_outputs(*self.slots, self.copies[copy], *self.rooms, variant)
        else:
            self._gate_up(variant, copy)

    def results(self):
        if self.is_down:
            return [room.y.view(torch.int32) for room in self.rooms]
        fields = [getattr(room.h, f.name) for room in self.rooms
                  for f in dataclasses.fields(room.h)]  # fmt: skip
        return [a.view(torch.int32) if a.is_floating_point() else a for a in fields]


def filled(formats, num, device):
    """Slots of so many experts, all the same."""
    if SIZE % FORMATS[formats[2]].block_size:
        formats = (*formats[:2], "Q8_0")
    layout = BlobLayout(formats, HIDDEN, SIZE)
    slots = empty_slots(layout, num, num, device)
    if device != "meta":
        raw = tuple(
            torch.from_numpy(products.stored_rows(formats[r], *layout.shape_of(r), r)).to(device)
            for r in range(3)
        )
        slots.fill(0, raw, (1.0, 1.0, 1.0))
        slots.blobs[1:] = slots.blobs[0]
        slots.scales[1:] = slots.scales[0]
        slots.slot_of.copy_(torch.randperm(num, dtype=torch.int32))
    return slots


def expert_bytes(layout, role):
    """Stored bytes of one expert's matrix."""
    rows, inner = layout.shape_of(role)
    return rows * FORMATS[layout.formats[role]].row_bytes(inner)


def case_of(kind, what, n, device, kept):
    made = ExpertCase if kind in ("gate_up", "down") else DenseCase
    return made(kind, what, n, device, kept)


class Timer:
    """Microseconds by case and variant, and what went wrong."""

    def __init__(self, copy_rate, until):
        self.copy_rate, self.until = copy_rate, until
        self.cases, self.kept, self.expected = {}, {}, {}
        self.figures, self.failures = {}, []

    def turn(self, key, chosen):
        """Times these variants of a case and prints a line of them."""
        if time.perf_counter() > self.until or not chosen:
            return
        if key not in self.cases:
            self.cases[key] = case_of(*key, "cuda", self.kept)
        case, figures = self.cases[key], self.figures.setdefault(key, {})
        verdicts = {}
        for variant in chosen:
            if time.perf_counter() > self.until:
                break
            try:
                launches = [
                    lambda c=c, v=variant: case.launch(v, c) for c in range(len(case.copies))
                ]
                figures[variant] = products.graph_time(launches, 3) * 1e6
                verdicts[variant] = self._verdict(key, case, variant)
            except Exception:  # noqa: BLE001 - one variant must not end the run
                self.failures.append(f"{key} {label(variant)}: {traceback.format_exc()[-500:]}")
        ranked = sorted(verdicts, key=figures.get)
        text = " | ".join(f"{label(v)} {figures[v]:.1f}{verdicts[v]}" for v in ranked)
        used, floor = figures.get(None, float("nan")), case.stored / self.copy_rate * 1e6
        print(f"{name_of(key):44} in use {used:5.1f}us, floor {floor:5.1f} | {text}", flush=True)

    def _verdict(self, key, case, variant):
        """Whether a variant that wins has the bits of the one in use."""
        if variant is not None and self.figures[key][variant] >= self.figures[key].get(None, 0.0):
            return ""
        for field in case.results():
            field.fill_(-1)
        case.launch(variant, 0)
        torch.cuda.synchronize()
        if variant is None:
            self.expected[key] = [field.clone() for field in case.results()]
            return ""
        if all(map(torch.equal, case.results(), self.expected[key])):
            return " ="
        self.failures.append(f"{key} {label(variant)}: other bits")
        return " DIFFERS"


def name_of(key):
    kind, what, n = key
    parts = [part if isinstance(part, str) else "-".join(map(str, part)) for part in what] \
        if kind == "bundle" else map(str, what)  # fmt: skip
    return f"{kind} {'/'.join(parts)} N={n}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="bundle,gate_up,down")
    parser.add_argument("--formats", default="IQ3_S,Q2_0,Q4_0", help="of all but bundles, or all")
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--json", default="")
    parser.add_argument("--compile", action="store_true", help="and no more; needs no card")
    args = parser.parse_args()
    begin = time.perf_counter()
    formats = args.formats.split(",")
    keys = [
        (kind, what, int(n))
        for kind in args.only.split(",")
        for what in CASES[kind]
        if kind == "bundle" or "all" in formats or what[0] in formats
        for n in args.rows.split(",")
    ]
    with Recorder() as recorder:
        kept = {}
        for key in keys:
            case = case_of(*key, "meta", kept)
            for variant in variants(*key):
                case.launch(variant, 0)
    compile_all(recorder.requests, args.workers or os.cpu_count() or 1)
    if args.compile:
        return 0
    copy_rate = products.copy_rate()
    print(f"{torch.cuda.get_device_name()}, copy {copy_rate / 1e12:.2f} TB/s, begun after "
          f"{time.perf_counter() - begin:.0f} s", flush=True)  # fmt: skip
    timer = Timer(copy_rate, begin + args.seconds)
    for part in (slice(0, GUESSES), slice(GUESSES, None)):
        for key in keys:
            timer.turn(key, variants(*key)[part])
    for failure in timer.failures:
        print("FAILED " + failure)
    if args.json:
        figures = {
            name_of(key): {label(variant): us for variant, us in of_case.items()}
            for key, of_case in timer.figures.items()
        }
        Path(args.json).write_text(json.dumps(figures, indent=1))
    print(f"{len(timer.failures)} failed, {time.perf_counter() - begin:.0f} s")
    return int(bool(timer.failures))


if __name__ == "__main__":
    sys.exit(main())
