"""Machine code of the prompt's product kernels, read without a card.

    python benchmarks/gpu/compiled_prompt.py [--formats IQ3_S,Q6_K] [--sass DIR]

Compiles for sm_90 at the geometry of the 256-expert model. After the line of ``compiled`` comes the
longest loop of a product: instructions a thread issues for one block of 32 and one result, those of
the matrix unit and shared work included; four of them are the float operations of a term.
"""

from __future__ import annotations

import argparse
import collections
import re
from dataclasses import replace

from compiled import compile_kernel, describe, disassemble

from strata.gpu.kernels import expand, expert_prompt, expert_sort, float_prompt, grouped_product
from strata.gpu.kernels.product import shape_of
from strata.gpu.kernels.prompt_tilings import Tiling, WarpTiling

BLOCKS = 80
KINDS = {"single": (0, 0), "minima": (0, 1), "wide": (1, 0), "split": (2, 0), "Q2_K": (0, 2)}
PLAIN = Tiling(tokens=32, subs=1, rows=32, step=2, stages=3, warps=1)
STEP_4 = replace(PLAIN, step=4, stages=2)
WARPS = (
    WarpTiling(m=2, n=2, token_warps=2, row_warps=2, step=2, stages=2),
    WarpTiling(m=1, n=2, token_warps=2, row_warps=2, step=2, stages=2, registers=168),
)
WARP_GROUP = Tiling(tokens=64, subs=1, rows=64, step=2, stages=3, warps=4)
X = {"x_codes": "*i8", "x_scales": "*fp32", "x_scaled": "*fp32", "x_halves": "*fp32"}
ROUTING = {
    "order_ptr": "*i32", "offsets_ptr": "*i32", "tiles_ptr": "*i32", "first_expert": "i32",
    "num_matrices": "i32", "num_tokens": "i32",
}  # fmt: skip


def weights(prefix):
    types = {"codes": "*i8", "scales": "*fp32", "minima": "*fp32", "factors": "*fp32"}
    return {f"{prefix}_{field}": type_ for field, type_ in types.items()}


def tiles(tiling):
    return {
        "TOKENS": tiling.tokens, "SUBS": tiling.subs, "TILE": tiling.rows, "STEP": tiling.step,
        "STAGES": tiling.stages, "BLOCKS": BLOCKS,
    }  # fmt: skip


def longest_loop(sass):
    """Instructions of the longest piece of code that ends in a jump to its beginning."""
    places, code, best = {}, [], []
    for label, text in re.findall(r"^(\.L_x_\d+):|^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);", sass, re.M):
        if label:
            places[label] = len(code)
            continue
        code.append(text)
        target = re.search(r"BRA.*`\((\.L_x_\d+)\)", text)
        if target and target[1] in places:
            best = max(best, code[places[target[1]] :], key=len)
    return best


def show_warps(tiling, minima, sass_dir):
    """Of one kept loop inside another: the outer one also adds a group's sums, once in 8 blocks."""
    out = {"out_ptr": "*fp32", "out_stride": "i32"}
    arguments = {
        **X, **weights("w"), **ROUTING, **out, "MINIMA": minima, "BLOCKS": BLOCKS, "ROWS": 640,
        "IS_GROUPED": True, "READ_TOP_K": 10, "SCATTER": False, "M": tiling.m, "N": tiling.n,
        "TOKEN_WARPS": tiling.token_warps, "ROW_WARPS": tiling.row_warps, "STEP": tiling.step,
        "STAGES": tiling.stages,
    }  # fmt: skip
    arguments.pop("x_halves")
    options = {"num_warps": tiling.token_warps * tiling.row_warps}
    options |= {"maxnreg": tiling.registers} if tiling.registers else {}
    compiled = compile_kernel(grouped_product._grouped_warps_kernel, arguments, options)
    describe(f"product by warps, {minima} minima", compiled, 0, sass_dir)
    show_loop(compiled, tiling.m * tiling.n * 16 * tiling.step)


def show(label, kernel, arguments, warps, sass_dir, tiling=None):
    compiled = compile_kernel(kernel, arguments, {"num_warps": warps})
    describe(label, compiled, 0, sass_dir)
    if tiling is not None:
        show_loop(
            compiled, tiling.tile_tokens * 2 * tiling.rows // (32 * tiling.warps) * tiling.step
        )


def show_loop(compiled, results):
    loop = longest_loop(disassemble(compiled)[1])
    kinds = collections.Counter(
        re.split(r"[.\s]", re.sub(r"^@!?U?P\w+\s+", "", op))[0] for op in loop
    )
    counts = " ".join(f"{kind} {n}" for kind, n in kinds.most_common(9))
    print(f"    loop {len(loop)}, {len(loop) / results:.1f} a block and result: {counts}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="IQ3_S,IQ4_NL,Q2_0,Q6_K")
    parser.add_argument("--sass", default="")
    args = parser.parse_args()
    tilings = {"experts": PLAIN, "step 4": STEP_4, "warp group": WARP_GROUP}
    out = {"out_ptr": "*fp32", "out_stride": "i32"}
    cases = [(kind, "experts") for kind in KINDS] + [("single", "step 4"), ("single", "warp group")]
    for kind, tiling in cases:
        number, minima = KINDS[kind]
        arguments = {
            **X, **weights("w"), **ROUTING, **out, **tiles(tilings[tiling]), "KIND": number,
            "MINIMA": minima, "ROWS": 640, "IS_GROUPED": True, "READ_TOP_K": 10, "SCATTER": False,
        }  # fmt: skip
        kernel, warps = grouped_product._grouped_kernel, tilings[tiling].warps
        show(f"product {kind} {tiling}", kernel, arguments, warps, args.sass, tilings[tiling])
    for tiling in WARPS:
        for minima in (0, 1):
            show_warps(tiling, minima, args.sass)
    hidden = {"h_codes": "*i8", "h_scales": "*fp32", "h_scaled": "*fp32", "h_halves": "*fp32"}
    for tiling in (PLAIN, STEP_4):
        arguments = {
            **X, **weights("gate"), **weights("up"), **ROUTING, **hidden, **tiles(tiling),
            "bad_ptr": "*i32", "GATE_KIND": 0, "UP_KIND": 0, "GATE_MINIMA": 0, "UP_MINIMA": 0,
            "SUMS": 0, "ROWS": 640, "IS_GROUPED": True, "TOP_K": 10,
        }  # fmt: skip
        kernel = expert_prompt._gate_up_prompt_kernel
        show(f"gate|up step {tiling.step}", kernel, arguments, tiling.warps, args.sass, tiling)
    for name in args.formats.split(","):
        shape = {**shape_of(name, 32 * BLOCKS), "FORMAT": "=" + name}
        shape.pop("GROUPS")
        arguments = {
            "panels_ptr": "*u8", "matrix_bytes": "i32", "slots_ptr": "*i32",
            "factors_in_ptr": "*fp32", "counts_ptr": "*i32", "num_panels": "i32",
            "grid_ptr": "*i32", "codes_ptr": "*i32", "scales_ptr": "*fp32", "minima_ptr": "*fp32",
            "factors_ptr": "*fp32", **shape, "KIND": expand.kind_of(name),
            "MINIMA": expand.traits(name)[3], "FOLD": -1 if name == "Q3_K" else 1,
            "BLOCKS": BLOCKS, "ROWS": 640, "HAS_SLOTS": True, "TILE": 4,
        }  # fmt: skip
        show(f"expand {name}", expand._expand_kernel, arguments, 1, args.sass)
    arguments = {
        "ids_ptr": "*i32", "slot_of_ptr": "*i32", "num_pairs": "i32", "histogram_ptr": "*i32",
        "counts_ptr": "*i32", "order_ptr": "*i32", "offsets_ptr": "*i32", "tiles_ptr": "*i32",
        "max_tiles": "i32", "EXPERTS": 256, "HAS_SLOTS": True, "WIDTH": 256, "CHUNK": 128,
        "TOKENS": 32, "TILES": 8,
    }  # fmt: skip
    show("sort, placing", expert_sort._place_kernel, arguments, 8, args.sass)
    arguments = {
        "panels_ptr": "*u8", "num_panels": "i32", "x_ptr": "*fp32", "x_stride": "i32",
        "num_tokens": "i32", "num_rows": "i32", **out, "FORMAT": "=F32", "INNER": 32 * BLOCKS,
        "LOADS": 160, "VALUES": 4, "STEPS": 20, "TOKENS": 32, "LANES": 32, "TIMES": 2,
    }  # fmt: skip
    show("plain F32", float_prompt._float_prompt_kernel, arguments, 4, args.sass)


if __name__ == "__main__":
    main()
