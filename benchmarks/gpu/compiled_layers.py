"""Machine code of the kernels of a window's layers, read without a card.

    python benchmarks/gpu/compiled_layers.py [--only gdn] [--sass DIR]

Calls the launchers themselves on tensors without memory and compiles what they would launch for
sm_90. Lines are those of ``compiled.py``.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
import triton
from compiled import TARGET, describe
from layer_launches import launches
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {
    torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.int8: "*i8",
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8",
}  # fmt: skip
OPTIONS = {field.name for field in dataclasses.fields(triton.backends.nvidia.compiler.CUDAOptions)}


def compiled(kernel, args, kwargs):
    """What a launch with these arguments would run, specialised as Triton does."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature, constexprs, attrs = {}, {}, {}
    for place, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        is_special = not parameter.do_not_specialize
        kind = None
        if isinstance(value, torch.Tensor):
            kind = TYPES[value.dtype]
        elif isinstance(value, float):
            kind = "fp32"
        elif isinstance(value, int) and not (value == 1 and is_special):
            kind = "i32" if abs(value) < 2**31 else "i64"
        if parameter.is_constexpr or kind is None:
            signature[parameter.name] = "constexpr"
            constexprs[(place,)] = value
            continue
        signature[parameter.name] = kind
        if kind.startswith("*") or (kind[0] == "i" and is_special and value % 16 == 0):
            attrs[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    options = {name: value for name, value in kwargs.items() if name in OPTIONS}
    return triton.compile(source, target=TARGET, options=options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--sass", default="")
    args = parser.parse_args()
    label = ""

    def run(self, *given, grid, **kwargs):
        del kwargs["warmup"]
        name = f"{label}: {self.__name__.strip('_').removesuffix('_kernel')} {tuple(grid)}"
        describe(name, compiled(self, given, kwargs), 0, args.sass)

    JITFunction.run = run
    for launch in launches("meta", 1, 131_072, 131_072, 1):
        if args.only in launch.name:
            label = launch.name
            launch.copies[0]()


if __name__ == "__main__":
    main()
