"""Speed of weight products by block format: decode (1 row) and prompt (128 rows).

    python benchmarks/products.py [--threads 2] [--isa avx512] [--formats Q8_0,Q4_K]

Weights are larger than the last-level cache; each figure is the median of several passes.
Bandwidth is measured between passes and the share is the median of their ratios, so that it
holds on a machine whose speed drifts.
"""

import argparse
import time

import numpy as np

import strata.cpu.native  # noqa: F401 - hands the kernels their tables
from strata import _native
from strata.formats.block_formats import FORMATS

INNER = 2560
PLAIN_TENSORS = ("I8", "I16", "I32", "I64", "F64")


def timed(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def random_rows(rng, block, rows):
    """Stored rows whose numbers are ordinary: a subnormal costs some processors dearly."""
    if block.name in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, INNER), dtype=np.float32)
        if block.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if block.name == "F16" else np.float32).view(np.uint8)
    return rng.integers(0, 60, (rows, block.row_bytes(INNER)), dtype=np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=_native.best_isa())
    parser.add_argument("--formats", default=",".join(f for f in FORMATS if f not in PLAIN_TENSORS))
    parser.add_argument("--mib", type=int, default=192, help="weights of each format")
    parser.add_argument("--passes", type=int, default=5)
    args = parser.parse_args()
    ctx = _native.Context(args.threads, args.isa)
    rng = np.random.default_rng(0)
    print(f"{args.isa}, {args.threads} threads, rows of {INNER}")
    print(
        f"{'format':8} {'GB/s':>6} {'share':>6} {'Gw/s':>6} {'4 rows':>7} {'128 rows, GMAC/s':>17}"
    )
    for name in args.formats.split(","):
        block = FORMATS[name]
        row_bytes = block.row_bytes(INNER)
        rows = (args.mib << 20) // row_bytes // 16 * 16
        raw = random_rows(rng, block, rows)
        matrix = _native.Matrix.pack(ctx, block.ggml_id, raw, INNER)
        del raw
        few = rows // 8 // 16 * 16
        few_raw = random_rows(rng, block, few)
        small = _native.Matrix.pack(ctx, block.ggml_id, few_raw, INNER)
        figures = []
        for matrix_used, num in ((matrix, 1), (matrix, 4), (small, 128)):
            x = rng.standard_normal((num, INNER)).astype(np.float32)
            out = np.empty((num, matrix_used.rows), np.float32)

            def call(m=matrix_used, x=x, out=out):
                _native.product(ctx, [m], x, [out])

            call()
            times, rates = [], []
            for _ in range(args.passes):
                times.append(timed(call))
                if num == 1:
                    rates.append(_native.measure_bandwidth(ctx, args.mib << 20, 1))
            figures.append(median(times))
            if num == 1:
                pairs = zip(times, rates, strict=True)
                share = median(rows * row_bytes / seconds / rate for seconds, rate in pairs)
        rate = rows * row_bytes / figures[0]
        print(
            f"{name:8} {rate / 1e9:6.1f} {share:6.0%}"
            f" {rows * INNER / figures[0] / 1e9:6.1f}"
            f" {figures[1] / figures[0]:6.2f}x {few * INNER * 128 / figures[2] / 1e9:17.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
