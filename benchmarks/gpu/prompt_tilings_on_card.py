"""Tilings of a prompt's products on a card: equal bits for each, then their times side by side.

    python benchmarks/gpu/prompt_tilings_on_card.py [--only dense,minima,gate_up,down]
        [--rows 8192] [--seconds 45] [--workers 0] [--json FILE]

Kernels are compiled first, side by side. Then every variant runs at the real shape of the
256-expert model, its results are compared, bit by bit, with those of the plain tiling (which
``prompt_products_on_card`` compares with the decode kernels), and it is timed. A line for each case
with its variants from the fastest on; what would begin after ``--seconds`` is left out. Exit status
1 when a bit differs.

A variant is sixteens of rows and blocks of 32 weight rows of a warp, warps along both, blocks of a
stage, stages, and the most registers of a thread (``grouped_product.WarpTiling``); "plain" is the
``Tiling`` that all are compared with.
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

import prompt_products_on_card as products
import torch
from compile_ahead import Recorder, compile_all

from strata.gpu.kernels.expand import expand, expand_slots, expanded_bytes, expanded_in
from strata.gpu.kernels.expert_prompt import gate_up
from strata.gpu.kernels.expert_sort import empty_plan, sort_by_expert
from strata.gpu.kernels.grouped_product import grouped_product, prompt_product
from strata.gpu.kernels.prompt_codes import empty_prompt_codes
from strata.gpu.kernels.prompt_tilings import Tiling, WarpTiling
from strata.gpu.packing import pack

HIDDEN, FFN, EXPERTS, TOP_K = 2560, 640, 256, 10
PLAIN = Tiling(tokens=32, subs=1, rows=32, step=2, stages=3, warps=1)
DENSE = (
    (2, 2, 2, 2, 2, 2), (2, 2, 2, 2, 2, 3), (2, 2, 2, 2, 1, 4), (4, 1, 2, 2, 2, 2),
    (2, 2, 2, 4, 2, 2), (2, 2, 4, 2, 2, 2), (4, 1, 2, 4, 2, 2), (2, 1, 2, 2, 2, 2, 168),
    (2, 1, 2, 2, 2, 4, 168), (1, 2, 2, 2, 2, 2, 168), (2, 1, 2, 2, 4, 2, 168),
    (2, 1, 2, 4, 2, 2, 128), (2, 1, 2, 4, 1, 4, 128), (2, 1, 4, 4, 2, 2, 128),
    (1, 2, 4, 2, 2, 2, 128), (2, 2, 1, 1, 2, 3),
)  # fmt: skip
SOME = (
    (2, 2, 2, 2, 2, 2), (2, 2, 2, 2, 2, 3), (2, 2, 1, 4, 2, 2), (2, 2, 2, 4, 2, 2),
    (2, 2, 1, 2, 2, 3), (1, 2, 2, 2, 2, 2, 168), (1, 2, 2, 2, 2, 3, 168), (1, 2, 2, 4, 2, 2, 128),
    (1, 2, 4, 2, 2, 2, 128), (2, 2, 1, 1, 2, 3),
)  # fmt: skip
# Kind: formats of its matrices, their rows and columns, what is tried.
CASES = {
    "dense": (("IQ4_XS",), 16384, HIDDEN, DENSE),
    "minima": (("Q5_K",), HIDDEN, 6144, SOME),
    "gate_up": (("IQ3_S", "IQ3_S"), FFN, HIDDEN, SOME),
    "down": (("IQ4_NL",), HIDDEN, FFN, (*SOME, (2, 1, 2, 2, 2, 2, 168), (2, 1, 2, 4, 2, 2, 128))),
}


class Case:
    """Inputs of a kind, on a device; on "meta" they have no memory and nothing is computed."""

    def __init__(self, kind, rows, device):
        self.kind, self.device, self.rows = kind, device, rows
        self.formats, self.num_rows, self.inner, _ = CASES[kind]
        self.is_grouped = kind in ("gate_up", "down")
        self.pairs = rows * TOP_K if self.is_grouped else rows
        self.plans = {}
        matrices = EXPERTS if self.is_grouped else 1
        self.weights = [
            self._weights(name, matrices, role) for role, name in enumerate(self.formats)
        ]
        num_x = self.pairs if kind == "down" else rows
        self.x = empty_prompt_codes(num_x, self.inner, device)
        if device != "meta":
            # Several experts share a row in the measurement of "down"; that changes no time.
            x = products.random_x(min(num_x, 8192), self.inner).to(device)
            self.x = products.prompt_codes(x.repeat(-(-num_x // len(x)), 1)[:num_x])
            self.ids = products.random_ids(rows, TOP_K, EXPERTS)
        self.bad = torch.zeros(1, dtype=torch.int32, device=device)
        if kind == "gate_up":
            self.found = empty_prompt_codes(self.pairs, FFN, device)
        else:
            self.found = torch.empty((self.pairs, self.num_rows), device=device)

    def _weights(self, name, matrices, role):
        size = expanded_bytes(name, matrices, self.num_rows, self.inner)
        scratch = torch.empty(size, dtype=torch.uint8, device=self.device)
        out = expanded_in(scratch, name, matrices, self.num_rows, self.inner)
        if self.device == "meta":
            return out
        if matrices == 1:
            raw = products.stored_rows(name, self.num_rows, self.inner, 3)
            expand(pack(name, raw, self.inner), out)
            return out
        sizes = products.Sizes(tiny=False, rows=self.rows)
        formats = ("IQ3_S", "IQ3_S", "IQ4_NL")
        slots = products.filled_slots(formats, sizes, matrices)
        expand_slots(slots, 2 if self.kind == "down" else role, out)
        return out

    def plan(self, tokens):
        if tokens not in self.plans:
            self.plans[tokens] = empty_plan(self.pairs, EXPERTS, tokens, self.device)
            if self.device != "meta":
                sort_by_expert(self.ids, self.plans[tokens])
        return self.plans[tokens]

    def launch(self, tiling):
        if not self.is_grouped:
            prompt_product(self.x, self.weights[0], self.found, tiling)
            return
        plan = self.plan(tiling.tile_tokens)
        if self.kind == "gate_up":
            gate_up(
                self.x, *self.weights, self.found, self.bad, plan=plan, num_pairs=self.pairs,
                top_k=TOP_K, tiling=tiling,
            )  # fmt: skip
        else:
            grouped_product(
                self.x, self.weights[0], plan, self.pairs, self.found, read_top_k=0, scatter=True,
                tiling=tiling,
            )  # fmt: skip

    def results(self):
        if self.kind == "gate_up":
            fields = [getattr(self.found, f.name) for f in dataclasses.fields(self.found)]
            return [fields[0], *(field.view(torch.int32) for field in fields[1:])]
        return [self.found.view(torch.int32)]

    def spoil(self):
        for field in self.results():
            field.fill_(-1)

    @property
    def macs(self):
        return self.pairs * self.num_rows * self.inner * len(self.weights)


def tilings(kind):
    return {"plain": PLAIN} | {
        ",".join(map(str, shape)): WarpTiling(*shape) for shape in CASES[kind][3]
    }


def compile_kinds(kinds, rows, workers):
    with Recorder() as recorder:
        for kind in kinds:
            case = Case(kind, rows, "meta")
            for tiling in tilings(kind).values():
                case.launch(tiling)
    compile_all(recorder.requests, workers)


def measure(kind, rows, until):
    """Seconds by variant, and what went wrong."""
    case, figures, failures, expected = Case(kind, rows, "cuda"), {}, [], None
    for name, tiling in tilings(kind).items():
        if time.perf_counter() > until:
            break
        try:
            case.spoil()
            case.launch(tiling)
            torch.cuda.synchronize()
            if expected is None:
                expected = [field.clone() for field in case.results()]
            differing = sum(
                int((a != b).sum()) for a, b in zip(case.results(), expected, strict=True)
            )
            if differing:
                failures.append(f"{kind} {name}: {differing} values differ")
            figures[name] = products.seconds(lambda t=tiling: case.launch(t), 3)
        except Exception:  # noqa: BLE001 - one variant must not end the run
            failures.append(f"{kind} {name}: {traceback.format_exc()[-400:]}")
    ranked = sorted(figures.items(), key=lambda item: item[1])
    print(f"{kind} {'/'.join(case.formats)} {case.num_rows} x {case.inner}, {case.pairs} rows")
    for name, seconds in ranked:
        print(f"    {name:20} {seconds * 1e6:8.1f} us {case.macs / seconds / 1e12:6.1f} TMAC/s")
    for failure in failures:
        print("    FAILED " + failure)
    sys.stdout.flush()
    return figures, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--json", default="")
    parser.add_argument("--compile", action="store_true", help="and no more; needs no card")
    args = parser.parse_args()
    begin = time.perf_counter()
    kinds = args.only.split(",")
    compile_kinds(kinds, args.rows, args.workers or os.cpu_count() or 1)
    if args.compile:
        return 0
    results, failed = {}, []
    for kind in kinds:
        results[kind], failures = measure(kind, args.rows, begin + args.seconds)
        failed += failures
        torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}: {len(failed)} failed, "
          f"{time.perf_counter() - begin:.0f} s")  # fmt: skip
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
