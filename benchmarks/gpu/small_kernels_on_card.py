"""Microseconds of the plain-type and small kernels of a decode window, in every tiling, on a card.

    python benchmarks/gpu/small_kernels_on_card.py [--rows 1,2,4] [--only down,read] [--workers 12]

Geometry of the 256-expert model. Each line: a launch inside a graph of launches that wait for each
other ("plain"), and of dependent ones; weights lie in as many copies as do not stay in the second
level cache. Tilings of one product must agree in every bit. Before all of it, sigmoid and silu are
compared with the card's own division for every float32 there is. What is to be compiled is compiled
by processes side by side first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import torch
import triton
import triton.language as tl
from layer_launches import BLOCK, BUDGET, HEAD_DIM, HEADS, Maker, _cells, _gdn, launches
from window_on_card import Switch

from strata.gpu.float_matrix import pack_floats
from strata.gpu.kernels import arith, attention, gated_delta, indexer
from strata.gpu.kernels.float_product import float_product
from strata.gpu.kernels.float_tiling import FloatTiling, tiling_of
from strata.gpu.kernels.quantize import empty_codes
from strata.gpu.kernels.stream_read import read_activated

D, STREAMS, RANK, CELLS, COPIES = 2560, 4, 320, 4096, 14
SMALL = ("write", "route", "score", "select")
TILINGS = {
    "down": [(2, 1), (4, 1), (4, 2), (4, 4), (3, 3), (8, 2), (8, 4)],
    "router": [(2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 4)],
}


def matrix(rows: int, inner: int):
    raw = torch.randn(rows, inner, device="cuda").to(torch.bfloat16).view(torch.uint8)
    return pack_floats("BF16", raw.view(rows, -1), inner)


def product_cases(kind: str, n: int):
    rows, inner = (RANK + STREAMS, STREAMS * D) if kind == "down" else (257, D)
    matrices = [matrix(rows, inner) for _ in range(COPIES * (1 if kind == "down" else 5))]
    x = torch.randn(n, inner, device="cuda")
    out = torch.empty(n, rows, device="cuda")
    low = torch.empty(n, RANK, device="cuda") if kind == "down" else None
    usual = tiling_of(rows, inner, n)
    tilings = [FloatTiling(*each) for each in TILINGS[kind]]
    tilings += [FloatTiling(*each, 20) for each in TILINGS[kind] if n > 1 and each[0] in (4, 8)]
    for tiling in tilings:
        name = f"rows {tiling.rows} share {tiling.share} x {tiling.most_inputs}"
        name += " (usual)" if tiling == usual else ""
        yield kind, name, [
            lambda m=m, tiling=tiling: float_product(
                m, x, out, is_split=True, low=low, divisor=STREAMS, tiling=tiling
            )
            for m in matrices
        ], (out, low)  # fmt: skip


def read_cases(n: int):
    ups = [matrix(STREAMS * D, RANK) for _ in range(COPIES)]
    low, xn = torch.randn(n, RANK, device="cuda"), torch.randn(n, STREAMS * D, device="cuda")
    x, split = torch.empty(n, D, device="cuda"), torch.empty(n, D, device="cuda")
    codes, bad = empty_codes(n, D, "cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    for share in (1, 2, 4):
        for is_touched in (False, True):
            yield "read", f"share {share} touched {is_touched}", [
                lambda up=up, share=share, is_touched=is_touched: read_activated(
                    low, up, xn, x, codes, bad, split, share=share, is_touched=is_touched
                )
                for up in ups
            ], (x, split, codes.codes, codes.scales)  # fmt: skip


def attention_cases(n: int):
    make = Maker("cuda", n, CELLS, CELLS + 256)
    queries = make.real(n, HEADS, HEAD_DIM) / 16
    gate, out = make.real(n, HEADS, HEAD_DIM), make.real(n, HEADS * HEAD_DIM)
    codes, blocks = make.codes(HEADS * HEAD_DIM), BUDGET // BLOCK
    chosen = torch.stack([
        torch.randperm((CELLS - n) // BLOCK, device="cuda")[:blocks].sort().values for _ in range(n)
    ]).int()  # fmt: skip
    cells = [_cells(make, "half") for _ in range(COPIES)]
    selection = attention.Selection(chosen, BLOCK, make.capacity)
    parts = attention.Parts(make.real(n, 140, HEADS, HEAD_DIM), make.real(n, 140, HEADS, 2))
    for tile, warps, together, width, join_warps in (
        (64, 4, 16, 256, 4), (64, 4, 64, 64, 4), (64, 8, 64, 64, 4), (32, 4, 128, 64, 4),
        (32, 4, 128, 32, 4), (32, 4, 128, 64, 8), (32, 2, 128, 64, 4), (32, 8, 128, 64, 4),
        (16, 4, 256, 64, 8), (16, 2, 256, 64, 8),
    ):  # fmt: skip

        def run(each, setting=(tile, warps, together, width, join_warps)):
            (
                attention._TILE_CELLS, attention._PART_WARPS, attention._PART_TILE,
                attention._JOIN_WIDTH, attention._JOIN_WARPS,
            ) = setting  # fmt: skip
            attention.attend(queries, gate, each, selection, make.position, parts, out, codes,
                             make.bad)  # fmt: skip

        name = f"cells {tile} warps {warps}; join {together} x {width}, warps {join_warps}"
        yield "attend", name, [lambda each=each, run=run: run(each) for each in cells], (out,)


def select_cases(n: int):
    make = Maker("cuda", n, CELLS, CELLS + 256)
    groups = -(-make.capacity // (BLOCK * indexer.INDEX_GROUP))
    width, blocks = groups * indexer.INDEX_GROUP, BUDGET // BLOCK
    scores = make.real(n, width).abs() * 30
    chosen = make.whole([n, blocks], torch.int32, 0)
    candidates = make.whole(list(indexer.candidate_shape(n, width, blocks)), torch.int32, 0)
    for warps in (1, 2, 4, 8, 16):

        def run(warps=warps):
            indexer._SELECT_WARPS = warps
            indexer.select_blocks(scores, make.position, n, blocks, BLOCK, candidates, chosen)

        yield "select", f"warps {warps}", [run], (chosen,)


def step_cases(n: int):
    """Columns of a warp and warps; their equal bits are tested in ``test_gpu_gated_delta``."""
    for columns, warps in ((4, 4), (4, 8), (8, 2), (8, 4), (16, 2), (4, 2)):
        (window,) = _gdn(Maker("cuda", n, CELLS, CELLS + 256), 36)

        def run(one, setting=(columns, warps)):
            gated_delta.STEP_COLUMNS, gated_delta.STEP_WARPS = setting
            one()

        name = f"columns {columns} warps {warps}; with the gated norm"
        yield "step", name, [lambda one=one, run=run: run(one) for one in window.copies], ()


def cases(n: int):
    torch.manual_seed(n)
    for kind in TILINGS:
        yield from product_cases(kind, n)
    yield from read_cases(n)
    yield from attention_cases(n)
    yield from select_cases(n)
    yield from step_cases(n)
    for launch in launches("cuda", n, CELLS, CELLS + 256, 36):
        if launch.name.startswith(SMALL):
            yield "small", launch.name, launch.copies, ()


@triton.jit
def _compare_kernel(first, bad_ptr, BLOCK: tl.constexpr):
    bits = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = bits.to(tl.float32, bitcast=True)
    y = 1.0 + arith.exp(-x)
    sigmoid = arith.sigmoid(x).to(tl.int32, bitcast=True)
    silu = arith.silu(x).to(tl.int32, bitcast=True)
    is_other = sigmoid != tl.div_rn(1.0, y).to(tl.int32, bitcast=True)
    is_other |= silu != tl.div_rn(x, y).to(tl.int32, bitcast=True)
    tl.atomic_add(bad_ptr, tl.sum((is_other & (x == x)).to(tl.int32), axis=0))


def compare_divisions() -> int:
    """How many of all float32 numbers have another sigmoid or silu than by the card's division."""
    bad = torch.zeros(1, dtype=torch.int32, device="cuda")
    for first in range(-(2**31), 2**31, 2**28):
        _compare_kernel[(2**28 // 1024,)](first, bad, BLOCK=1024, num_warps=4, **arith.LAUNCH)
    return int(bad.item())


def microseconds(copies) -> float:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(140):
            copies[index % len(copies)]()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(4):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / 140)
    return min(times)


def measure(case, wanted) -> str:
    """A line of the table; results are compared with the first case of this kind in ``wanted``."""
    kind, name, copies, results = case
    micros = []
    for Switch.is_on in (False, True):
        copies[0]()
        micros.append(microseconds(copies))
    copies[0]()
    found = [each.clone() for each in results if each is not None]
    first = wanted.setdefault(kind, found)
    verdict = ""
    if kind == "attend":
        verdict = f"differs by {(found[0] - first[0]).abs().max().item():.1e}"
    elif not all(torch.equal(a, b) for a, b in zip(found, first, strict=True)):
        verdict = "BITS DIFFER"
    return (f"{kind:7} {name:52} plain {micros[0]:6.2f} dependent {micros[1]:6.2f} us "
            f"{verdict}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="1,2,4")
    parser.add_argument("--only", default="")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--part", type=int, default=-1)
    args = parser.parse_args()
    begin = time.perf_counter()
    if args.part < 0:
        command = [sys.executable, __file__, "--rows", args.rows, "--only", args.only]
        command += ["--workers", str(args.workers)]
        workers = [
            subprocess.Popen([*command, "--part", str(part)]) for part in range(args.workers)
        ]
        if sum(worker.wait() for worker in workers):
            raise SystemExit("a worker failed")
        print(f"compiled after {time.perf_counter() - begin:.1f} s")
        print(f"sigmoid, silu: {compare_divisions()} of 2^32 differ from the card's division")
        Switch.install()
    for n in map(int, args.rows.split(",")):
        wanted: dict[str, list[torch.Tensor]] = {}
        for number, case in enumerate(cases(n)):
            if args.only and case[0] not in args.only.split(","):
                continue
            if args.part < 0:
                print(f"N {n} {measure(case, wanted)}", flush=True)
            elif number % args.workers == args.part:
                case[2][0]()
    if args.part < 0:
        print(f"after {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
