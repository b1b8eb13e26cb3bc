"""Machine code of the kernels, read without a card: registers, spills, loads, instructions.

    python benchmarks/gpu/compiled.py [--only product,experts,rows] [--formats Q4_0,IQ3_S]
                                      [--rows 1,4] [--sass DIR]

Compiles for sm_90 at the geometry of the 256-expert model and prints a line for each kernel.
"inst/w" is instructions of the whole kernel by the weights of one lane in one round of its loop.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from strata.formats.block_formats import FORMATS
from strata.gpu.packing_fields import BLOCK_FORMATS

TARGET = GPUTarget("cuda", 90, 32)
BIN = Path(triton.__file__).parent / "backends/nvidia/bin"
KINDS = {
    "LDG": "global loads",
    "STG": "stores",
    "LDS|STS": "shared",
    "SHFL": "shuffles",
    "IMMA": "mma",
    "LOP3|SHF|IADD3|PRMT|SEL|FSEL|LEA|ISETP": "alu",
    "IMAD": "imad",
    "BAR": "barriers",
    "IDP": "dp4a",
    "FADD|FMUL|FFMA": "float",
    "I2F|F2F|HADD2|I2FP": "convert",
    "LDL|STL": "spilled",
}


def compile_kernel(kernel, arguments, options):
    """CompiledKernel of a jitted function; ``arguments``: name to Triton type, or to a value."""
    names = kernel.arg_names
    signature, constexprs, attrs = {}, {}, {}
    for place, name in enumerate(names):
        value = arguments[name]
        if isinstance(value, str) and (value.startswith("*") or value in ("i32", "i64", "fp32")):
            signature[name] = value
            # So is a stride: a launch tells the compiler of multiples of 16.
            if value.startswith("*") or name.endswith(("stride", "plane")):
                attrs[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "constexpr"
            constexprs[(place,)] = value.removeprefix("=") if isinstance(value, str) else value
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    return triton.compile(source, target=TARGET, options={"enable_fp_fusion": False, **options})


def disassemble(compiled):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [BIN / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
        sass = subprocess.run(
            [BIN / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    return usage, sass


def check_lanes(compiled):
    """Fails where what a warp does together is not in the order of lanes (``kernels.warp``)."""
    code = compiled.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", code, re.M))
    for line in code.splitlines():
        if "elementwise_inline_asm" in line and ("shfl" in line or "mma.sync" in line):
            for name in re.findall(r"tensor<\w+, (#\w+)>", line):
                layout = layouts[name]
                if "blocked" not in layout or "sizePerThread = [1]," not in layout:
                    raise SystemExit(f"lanes of {compiled.metadata.name} lie as {layout}")


def describe(label, compiled, weights, sass_dir):
    """Prints one line; ``weights`` is how many weights one thread covers, or 0."""
    check_lanes(compiled)
    usage, sass = disassemble(compiled)
    ops = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", sass, re.M)
    ops = [op for op in ops if op != "NOP"]
    counts = collections.Counter()
    for op in ops:
        for pattern, kind in KINDS.items():
            if re.match(f"(?:{pattern})(?:\\.|$)", op):
                counts[kind] += 1
    widths = collections.Counter(
        int(m[1]) if (m := re.search(r"\.(64|128)", op)) else 32
        for op in ops
        if op.startswith("LDG")
    )
    registers = int(re.search(r"REG:(\d+)", usage)[1])
    stack = int(re.search(r"STACK:(\d+)", usage)[1])
    shared = compiled.metadata.shared
    per_weight = f"{len(ops) / weights:5.2f}" if weights else "     "
    loads = " ".join(f"{n}x{bits}" for bits, n in sorted(widths.items(), reverse=True))
    other = " ".join(f"{kind} {n}" for kind, n in counts.items() if kind != "global loads")
    print(
        f"{label:34} reg {registers:3} stack {stack:3} smem {shared:5} inst {len(ops):5} "
        f"inst/w {per_weight} LDG {loads:18} {other}",
        flush=True,
    )
    if sass_dir:
        (Path(sass_dir) / (label.replace(" ", "_") + ".sass")).write_text(sass)


def product_cases(formats, rows):
    from strata.gpu.kernels import product as module

    pointers = {
        "panels_ptr": "*u8", "codes_ptr": "*i8", "scales_ptr": "*fp32", "sums_ptr": "*i32",
        "scaled_ptr": "*fp32", "halves_ptr": "*fp32", "grid_ptr": "*i32", "out_ptr": "*fp32",
    }  # fmt: skip
    for name in formats:
        for n in rows:
            shape = module.shape_of(name, 2560)
            shape["FORMAT"] = "=" + name
            _, options = module.tiling_options(None, 1280, shape["GROUPS"], n)
            num_warps = options.pop("num_warps")
            arguments = {
                **pointers, **shape, "num_panels": "i32", "num_rows": "i32", "out_stride": "i32",
                "N": n, **options,
            }  # fmt: skip
            compiled = compile_kernel(module._product_kernel, arguments, {"num_warps": num_warps})
            # A round of the loop, and one behind it.
            yield f"product {name} N={n}", compiled, 1024 if options["IS_PAIR"] else 512


CODES = {
    "codes_ptr": "*i8", "scales_ptr": "*fp32", "sums_ptr": "*i32", "scaled_ptr": "*fp32",
    "halves_ptr": "*fp32",
}  # fmt: skip


def expert_cases(formats):
    from strata.gpu.kernels import experts as module
    from strata.gpu.kernels.product import shape_of, tiling_options

    for name in formats:
        for label, inner, rows in (("gate|up", 2560, 1280), ("down", 640, 2560)):
            if FORMATS[name].block_size > inner or inner % FORMATS[name].block_size:
                continue
            shape = {**shape_of(name, inner), "FORMAT": "=" + name}
            _, options = tiling_options(None, rows // 8, shape["GROUPS"])
            arguments = {
                **CODES, **shape, "blobs_ptr": "*u8", "blob_bytes": "i64", "num_panels": "i32",
                "grid_ptr": "*i32", "ids_ptr": "*i32", "slot_of_ptr": "*i32",
                "factors_ptr": "*fp32", "out_ptr": "*fp32", "out_stride": "i32",
                "entries_of_row": "i32", "num_rows": "i32", "rows_of_role": "i32",
                "THREADS": options["THREADS"], "TILE": options["TILE"],
            }  # fmt: skip
            compiled = compile_kernel(
                module._entry_kernel, arguments, {"num_warps": options["num_warps"]}
            )
            yield f"experts {label} {name}", compiled, 256


def row_cases():
    from strata.gpu.kernels import experts, quantize

    arguments = {
        **CODES, "x_ptr": "*fp32", "x_stride": "i32", "bad_ptr": "*i32", "INNER": 2560,
        "GROUPS": 10, "BLOCK": 16,
    }  # fmt: skip
    yield "quantize", compile_kernel(quantize._quantize_kernel, arguments, {"num_warps": 2}), 0
    arguments = {
        **CODES, "gate_up_ptr": "*fp32", "ids_ptr": "*i32", "slot_of_ptr": "*i32",
        "bad_ptr": "*i32", "SIZE": 640, "GROUPS": 3, "BLOCK": 4,
    }  # fmt: skip
    yield "gate", compile_kernel(experts._gate_kernel, arguments, {"num_warps": 1}), 0
    arguments = {
        "y_ptr": "*fp32", "weights_ptr": "*fp32", "shared_ptr": "*fp32", "shared_stride": "i32",
        "shared_weight_ptr": "*fp32", "out_ptr": "*fp32", "out_stride": "i32", "size": "i32",
        "TOP_K": 10, "HAS_SHARED": True, "BLOCK": 256,
    }  # fmt: skip
    yield "combine", compile_kernel(experts._combine_kernel, arguments, {"num_warps": 2}), 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="product,experts,rows")
    parser.add_argument("--formats", default="")
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--sass", default="")
    args = parser.parse_args()
    formats = args.formats.split(",") if args.formats else BLOCK_FORMATS
    rows = [int(n) for n in args.rows.split(",")]
    families = {
        "product": lambda: product_cases(formats, rows),
        "experts": lambda: expert_cases(formats),
        "rows": row_cases,
    }
    for family in args.only.split(","):
        for label, compiled, weights in families[family]():
            describe(label, compiled, weights, args.sass)


if __name__ == "__main__":
    main()
