"""Machine code of a prompt's kernels around the products of codes, read without a card.

    python benchmarks/gpu/compiled_chunk.py [--only bf16,scan] [--sass DIR]

Compiles for sm_90 at the geometry of the 256-expert model and prints the line of ``compiled`` for
each kernel, and what the longest loop of the products and of the walk is made of.
"""

from __future__ import annotations

import argparse
import collections
import re

from compiled import compile_kernel, describe, disassemble
from compiled_prompt import longest_loop

from strata.gpu.kernels import (
    attention_prompt,
    bf16_prompt,
    conv_prompt,
    delta_scan,
    read_prompt,
    write_prompt,
)

CODES = {"codes_ptr": "*i8", "scales_ptr": "*fp32", "scaled_ptr": "*fp32", "halves_ptr": "*fp32",
         "bad_ptr": "*i32"}  # fmt: skip
HIDDEN, STREAMS, RANK = 2560, 4, 320
SCAN = {"KEY_HEADS": 16, "HEADS": 48, "DK": 128, "DK_TILE": 128, "C": 64, "ROOM": 130}


def show(label, kernel, arguments, warps, stages, sass_dir, *, has_loop=False):
    options = {"num_warps": warps} | ({"num_stages": stages} if stages else {})
    compiled = compile_kernel(kernel, arguments, options)
    describe(label, compiled, 0, sass_dir)
    if has_loop:
        loop = longest_loop(disassemble(compiled)[1])
        kinds = collections.Counter(
            re.split(r"[.\s]", re.sub(r"^@!?U?P\w+\s+", "", op))[0] for op in loop
        )
        print(
            f"    loop {len(loop)}: {' '.join(f'{kind} {n}' for kind, n in kinds.most_common(9))}"
        )


def bf16(sass_dir):
    for tiling in (bf16_prompt.LARGE, bf16_prompt.SMALL):
        count, tail, _ = bf16_prompt.tiles_of_rows(RANK + STREAMS, tiling.count)
        arguments = {
            "x_ptr": "*fp32", "x_stride": "i32", "gamma_ptr": "*fp32", "inverse_ptr": "*fp32",
            "weights_ptr": "*bf16", "out_ptr": "*fp32", "plane": "i32", "out_stride": "i32",
            "num_tokens": "i32", "num_rows": "i32", "INNER": HIDDEN, "STREAMS": STREAMS,
            "TOKENS": tiling.tokens, "ROWS": 64, "COUNT": count,
            "TAIL": tail, "STAGES": tiling.stages,
        }  # fmt: skip
        kernel = bf16_prompt._bf16_kernel
        label = f"BF16 {tuple(tiling)}"
        show(label, kernel, arguments, tiling.warps, 0, sass_dir, has_loop=True)
    mix = read_prompt.MIX_TILING
    arguments = {
        "parts_ptr": "*bf16", "plane": "i32", "panels_ptr": "*bf16", "streams_ptr": "*fp32",
        "inverse_ptr": "*fp32", "gamma_ptr": "*fp32", "x_ptr": "*fp32", **CODES,
        "num_tokens": "i32", "INNER": RANK, "LOADS": RANK // 32, "D": HIDDEN,
        "STREAMS": STREAMS, "PARTS": bf16_prompt.PARTS, "TOKENS": mix.tokens,
        "BLOCKS": mix.blocks, "STAGES": mix.stages,
    }  # fmt: skip
    kernel = read_prompt._up_mix_kernel
    show(f"up and mix {tuple(mix)}", kernel, arguments, mix.warps, 0, sass_dir, has_loop=True)
    arguments = {
        "sums_ptr": "*fp32", "plane": "i32", "stride": "i32", "first": "i32", "first_inject": "i32",
        "parts_ptr": "*bf16", "parts_plane": "i32", "inject_ptr": "*fp32", "RANK": RANK,
        "RANK_TILE": 512, "STREAMS": STREAMS, "STREAM_TILE": STREAMS, "PARTS": bf16_prompt.PARTS,
    }  # fmt: skip
    show("between them", read_prompt._between_kernel, arguments, 2, 0, sass_dir)


def streams(sass_dir):
    for top_k in (0, 10):
        arguments = {
            "streams_ptr": "*fp32", "plain_ptr": "*fp32", "experts_ptr": "*fp32",
            "weights_ptr": "*fp32", "shared_ptr": "*fp32", "shared_weight_ptr": "*fp32",
            "inject_ptr": "*fp32", "inject_stride": "i32", "gamma_ptr": "*fp32", "xn_ptr": None,
            "inverse_ptr": "*fp32", "eps": "fp32", "TOP_K": top_k, "STREAMS": STREAMS,
            "STREAM_TILE": STREAMS, "D": HIDDEN, "COLUMNS": write_prompt._COLUMNS,
        }  # fmt: skip
        kernel = write_prompt._write_prompt_kernel
        show(f"write, {top_k} experts", kernel, arguments, 4, 0, sass_dir)


def scan(sass_dir):
    pairs = {"queries_ptr": "*fp16", "keys_ptr": "*fp16", "plane": "i32"}
    arguments = {
        "qkv_ptr": "*fp32", "ring_ptr": "*fp32", "conv_ptr": "*fp32", **pairs,
        "values_ptr": "*fp32", "num_rows": "i32", "position": "i32", "KERNEL": 4, "RING": 16,
        "KEY_HEADS": 16, "CHANNELS": 10240, "STRIDE": 16480, "DK": 128, "DV": 128,
        "ROWS": conv_prompt.TILE_ROWS, "TILE": 128,
    }  # fmt: skip
    show("convolution", conv_prompt._conv_prompt_kernel, arguments, 4, 0, sass_dir)
    scratch = {"inverse_ptr": "*fp16", "within_ptr": "*fp16", "rates_ptr": "*fp32"}
    arguments = {
        **pairs, "alpha_ptr": "*fp32", "beta_ptr": "*fp32", "dt_ptr": "*fp32", "a_ptr": "*fp32",
        "lower_ptr": "*fp32", **scratch, "alpha_stride": "i32", "beta_stride": "i32",
        "first_row": "i32", "num_rows": "i32", "scale": "fp32", **SCAN,
        "PARTS": delta_scan.PREPARE[0],
    }  # fmt: skip
    show("scan, before", delta_scan._prepare_kernel, arguments, 4, 0, sass_dir)
    arguments = {
        **pairs, "values_ptr": "*fp32", "memory_ptr": "*fp32", **scratch, "out_ptr": "*fp32",
        "first_row": "i32", "num_rows": "i32", "num_chunks": "i32", "scale": "fp32", **SCAN,
        "DV": 128, "COLUMNS": delta_scan.WALK_COLUMNS, "PARTS": delta_scan.WALK_PARTS,
    }  # fmt: skip
    kernel, warps = delta_scan._walk_kernel, delta_scan.WALK_WARPS
    stages = delta_scan.WALK_STAGES
    show("scan, walk", kernel, arguments, warps, stages, sass_dir, has_loop=True)
    arguments = {
        "out_ptr": "*fp32", "z_ptr": "*fp32", "gamma_ptr": "*fp32", **CODES, "count": "i32",
        "z_stride": "i32", "eps": "fp32", "HEADS": 48, "DV": 128, "DV_TILE": 128,
        "ROWS": delta_scan.NORM_ROWS, "IS_SILU": False,
    }  # fmt: skip
    show("gated norm, codes", delta_scan._scan_norm_kernel, arguments, 4, 0, sass_dir)


def attention(sass_dir):
    for is_int8 in (False, True):
        cells = "*i8" if is_int8 else "*fp16"
        tile, stages, warps, _ = (
            attention_prompt.SPARSE_INT8 if is_int8 else attention_prompt.SPARSE_HALVES
        )
        scales = "*fp16" if is_int8 else None
        arguments = {
            "q_ptr": "*fp32", "keys_ptr": cells, "values_ptr": cells, "key_scales_ptr": scales,
            "value_scales_ptr": scales, "chosen_ptr": "*i32", "gate_ptr": "*fp32",
            "out_ptr": "*fp32", "gate_row_stride": "i32", "gate_head_stride": "i32",
            "capacity": "i32", "position": "i32", "first_row": "i32", "end_row": "i32",
            "HEADS": 24, "KV_HEADS": 2, "DH": 256, "GROUPS": 4 if is_int8 else 1,
            "WIDTH": 64 if is_int8 else 256, "IS_INT8": is_int8,
            "WEIGHT_UNIT": 256.0 if is_int8 else 1.0, "BLOCK": 4, "BUDGET_BLOCKS": 512,
            "IS_DENSE": False, "ROWS": 16, "TILE": tile,
        }  # fmt: skip
        kernel, kind = attention_prompt._attend_kernel, "int8" if is_int8 else "halves"
        show(f"attention, {kind}", kernel, arguments, warps, stages, sass_dir, has_loop=True)


FAMILIES = {"bf16": bf16, "streams": streams, "scan": scan, "attention": attention}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--sass", default="")
    args = parser.parse_args()
    for family in args.only.split(","):
        FAMILIES[family](args.sass)


if __name__ == "__main__":
    main()
