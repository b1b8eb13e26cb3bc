"""Every kernel of a whole decode window compiled for sm_90, without a card.

    python benchmarks/gpu/compiled_window.py [--geometry coder] [--mix iq3_s] [--rows 1,4]
                                             [--only read,float]
    python benchmarks/gpu/compiled_window.py --chunk 8192 --position 4096

Walks through the launches of a window of the real geometry with tensors that have no memory, and
compiles each with the very arguments it would be launched with. Prints launches a window, and for
each kernel how often it is launched, its registers, spills and shared memory. With ``--chunk`` the
same for a chunk of a prompt.
"""

from __future__ import annotations

import argparse
import collections
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import triton
from compile_ahead import record_session
from compiled import check_lanes, disassemble
from model_options import add_model_options
from synthetic_index import SyntheticIndex
from triton.backends.compiler import GPUTarget

from strata.formats.synth import GEOMETRIES


def usage_of(compiled) -> str:
    check_lanes(compiled)
    usage, _ = disassemble(compiled)
    registers, stack = (re.search(rf"{name}:(\d+)", usage)[1] for name in ("REG", "STACK"))
    return f"reg {registers:>3} stack {stack:>4} smem {compiled.metadata.shared:6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser, num_layers=4)
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--position", type=int, default=4096)
    parser.add_argument("--only", default="", help="compile kernels whose names hold one of these")
    args = parser.parse_args()
    assert not triton.knobs.runtime.interpret, "unset TRITON_INTERPRET"  # noqa: S101
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        counts = [args.chunk] if args.chunk else list(map(int, args.rows.split(",")))
        for rows in counts:
            capacity = 4608 if not args.chunk else args.position + rows
            recorder = record_session(
                index, kv_format=args.kv, capacity=capacity, start=args.position,
                rows=() if args.chunk else [rows], prompts=[rows] if args.chunk else (),
            )  # fmt: skip
            print(f"rows {rows}: {recorder.total} launches, {len(recorder.requests)} kernels")
            names = collections.Counter()
            for place, request in enumerate(recorder.requests):
                times = recorder.counts[place]
                names[request.name] += times
                if not any(part in request.name for part in args.only.split(",")):
                    continue
                begin = time.perf_counter()
                compiled = request.compile(GPUTarget("cuda", 90, 32))
                constants = request.constants.values()
                what = next((value for value in constants if isinstance(value, str)), "")
                print(f"  {times:4} x {request.name:40} {what:8} {usage_of(compiled)} "
                      f"{time.perf_counter() - begin:5.1f} s", flush=True)  # fmt: skip
            print("  launches: " + ", ".join(f"{n} {name}" for name, n in names.most_common()))


if __name__ == "__main__":
    main()
