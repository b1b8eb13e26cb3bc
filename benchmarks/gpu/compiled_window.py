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

import torch
import triton
from compiled import check_lanes, disassemble
from synthetic_index import SyntheticIndex
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from strata.formats.synth import GEOMETRIES, MIXES
from strata.gpu.model import GpuModel
from strata.gpu.window import WindowShape

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.int8: "*i8", torch.uint8: "*u8",
    torch.int32: "*i32", torch.int64: "*i64", torch.bfloat16: "*bf16", torch.float64: "*fp64",
}  # fmt: skip
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg", "launch_pdl")


class Recorder:
    """Stands in for the launch of kernels: keeps what each was launched with."""

    def __init__(self) -> None:
        self.launches: dict[tuple, list] = {}
        self.total = 0

    def run(self, kernel, *args, grid, warmup=False, **kwargs) -> None:  # noqa: ARG002
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        values = dict(zip(kernel.arg_names, args)) | kwargs  # noqa: B905
        signature, constants, attrs = {}, {}, {}
        for place, parameter in enumerate(kernel.params):
            value = values[parameter.name]
            is_plain = not parameter.is_constexpr and value is not None
            is_free = parameter.do_not_specialize
            if is_plain and isinstance(value, torch.Tensor):
                signature[parameter.name] = TYPES[value.dtype]
                is_aligned = value.storage_offset() * value.element_size() % 16 == 0
            elif is_plain and isinstance(value, float):
                signature[parameter.name], is_aligned = "fp32", False
            elif is_plain and isinstance(value, int) and (is_free or value != 1):
                signature[parameter.name] = "i32" if abs(value) < 1 << 31 else "i64"
                is_aligned = not is_free and value % 16 == 0
            else:
                signature[parameter.name] = "constexpr"
                constants[(place,)] = value
                continue
            if is_aligned:
                attrs[(place,)] = [["tt.divisibility", 16]]
        key = (kernel.fn.__module__.split(".")[-1], kernel.fn.__name__, repr(signature),
               repr(constants), repr(attrs), repr(options))  # fmt: skip
        entry = self.launches.setdefault(key, [0, kernel, signature, constants, attrs, options])
        entry[0] += 1
        self.total += 1


def launches_of(index, kv_format: str, rows: int, position: int | None) -> Recorder:
    """Those of a window, or of a chunk of a prompt that begins at ``position``."""
    model = GpuModel(index, index.spec, torch.device("meta"), kv_format=kv_format, direct_io=False)
    session = model.new_session(4608 if position is None else position + rows)
    recorder, original = Recorder(), JITFunction.run
    JITFunction.run = lambda self, *args, **kwargs: recorder.run(self, *args, **kwargs)
    try:
        if position is None:
            session._runner._window.launch(WindowShape(rows, has_head=True, has_selection=True))
        else:
            prompt, buffers = session._reader._prompt, session._reader._buffers
            session._runner._window.head(prompt.launch(buffers.host_rows[0][:rows], position))
    finally:
        JITFunction.run = original
    return recorder


def usage_of(compiled) -> str:
    check_lanes(compiled)
    usage, _ = disassemble(compiled)
    registers, stack = (re.search(rf"{name}:(\d+)", usage)[1] for name in ("REG", "STACK"))
    return f"reg {registers:>3} stack {stack:>4} smem {compiled.metadata.shared:6}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--geometry", default="coder", choices=sorted(GEOMETRIES))
    parser.add_argument("--mix", default="iq3_s", choices=sorted(MIXES))
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--position", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--kv", default="f16", choices=("f16", "int8"))
    parser.add_argument("--only", default="", help="compile kernels whose names hold one of these")
    args = parser.parse_args()
    assert not triton.knobs.runtime.interpret, "unset TRITON_INTERPRET"  # noqa: S101
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        counts = [args.chunk] if args.chunk else list(map(int, args.rows.split(",")))
        for rows in counts:
            position = args.position if args.chunk else None
            recorder = launches_of(index, args.kv, rows, position)
            print(f"rows {rows}: {recorder.total} launches, {len(recorder.launches)} kernels")
            names = collections.Counter()
            for key, (times, kernel, *source, options) in recorder.launches.items():
                names[f"{key[0]}.{key[1]}"] += times
                if not any(part in key[1] for part in args.only.split(",")):
                    continue
                begin = time.perf_counter()
                signature, constants, attrs = source
                compiled = triton.compile(
                    ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs),
                    target=GPUTarget("cuda", 90, 32),
                    options=options,
                )
                what = next((str(v) for v in constants.values() if isinstance(v, str)), "")
                print(f"  {times:4} x {key[0] + '.' + key[1]:40} {what:8} {usage_of(compiled)} "
                      f"{time.perf_counter() - begin:5.1f} s", flush=True)  # fmt: skip
            print("  launches: " + ", ".join(f"{n} {name}" for name, n in names.most_common()))


if __name__ == "__main__":
    main()
