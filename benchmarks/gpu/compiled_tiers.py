"""Machine code of what brings missing experts to a window, read without a card.

python benchmarks/gpu/compiled_tiers.py [--formats IQ3_S,IQ4_NL] [--rows 1,8] [--sass DIR]
"""

from __future__ import annotations

import argparse
import itertools

from compiled import compile_kernel, describe

from strata.cpu.build import open_context
from strata.cpu.expert_serving import panel_bits
from strata.gpu.kernels import fetch, hand_off, stream_jobs
from strata.gpu.repack import make_repack
from strata.tiers.hand_off import MailboxLayout

EXPERTS, TOP_K, HIDDEN, SIZE, STAGES = 256, 10, 2560, 640, 16


def hand_off_cases(rows):
    layout = MailboxLayout(48, 8, TOP_K, HIDDEN)
    kept = {
        "places_ptr": "*i32", "holders_ptr": "*i32", "worth_ptr": "*i32", "coming_ptr": "*i32",
        "job_blobs_ptr": "*i64", "job_slot_factors_ptr": "*i64", "blobs": "i64",
        "blob_bytes": "i64", "scales": "i64", "scale_bytes": "i64",
    }  # fmt: skip
    for n, (stages, keeps) in itertools.product(
        rows, ((0, False), (STAGES, False), (STAGES, True))
    ):
        tile = 1 << (n * TOP_K - 1).bit_length()
        arguments = {
            "mailbox": "i64", "number_ptr": "*i32", "fault_ptr": "*i32", "source_ptr": "*i32",
            "share_ptr": "*i32", "job_sources_ptr": "*i64", "job_factors_ptr": "*i64",
            "factors": "i64", "layer": "i32", "ids_ptr": "*i32", "slot_of_ptr": "*i32",
            "reachable_ptr": "*i64",
            "stage_of_ptr": "*i32", "codes_ptr": "*i8", "scales_ptr": "*fp32",
            "clock": "i64", **kept, "KEEPS": keeps, "HAS_CLOCK": True,
            "OFFSETS": layout.offsets[:-1], "ROUTED": 8 * TOP_K, "ROWS": n, "TOP_K": TOP_K,
            "TILE": tile, "EXPERTS": EXPERTS, "EXPERT_TILE": EXPERTS, "STAGES": stages,
            "STAGE_TILE": max(1, stages), "HIDDEN": HIDDEN, "GROUPS": HIDDEN // 256,
            "HALF_TILE": 256,
        }  # fmt: skip
        warps = 4 if n == 1 else 8
        compiled = compile_kernel(hand_off._post_kernel, arguments, {"num_warps": warps})
        yield f"post N={n} S={stages}{' kept' if keeps else ''}", compiled
    arguments = {
        "mailbox": "i64", "number_ptr": "*i32", "answered_ptr": "*i32", "fault_ptr": "*i32",
        "source_ptr": "*i32", "outputs_ptr": "*fp32", "bad_ptr": "*i32", "limit": "i64",
        "clock": "i64", "layer": "i32", "places_ptr": "*i32", "holders_ptr": "*i32",
        "coming_ptr": "*i32", "table_ptr": "*i32", "kept": "i64", "STAGES": STAGES,
        "STAGE_TILE": STAGES, "HAS_CLOCK": True, "OFFSETS": layout.offsets[:-1], "HIDDEN": HIDDEN,
        "COLUMNS": hand_off._COLUMNS,
    }  # fmt: skip
    for keeps in (False, True):
        compiled = compile_kernel(
            hand_off._wait_kernel, arguments | {"KEEPS": keeps}, {"num_warps": 4}
        )
        yield f"wait{' kept' if keeps else ''}", compiled
    arguments = {
        "sources_ptr": "*i64", "factors_ptr": "*i64", "factors": "i64",
        "first": "i32", "count": "i32",
        "counts_ptr": "*i32", "slot_of_ptr": "*i32", "reachable_ptr": "*i64",
        "stage_of_ptr": "*i32", "EXPERTS": EXPERTS, "TILE": 2 * EXPERTS, "STAGES": STAGES,
    }  # fmt: skip
    yield "stream", compile_kernel(stream_jobs._stream_kernel, arguments, {"num_warps": 4})


def fetch_cases(formats):
    arguments = {
        "sources_ptr": "*i64", "raw_ptr": "*u8", "raw_stride": "i64", "num_bytes": "i64",
        "WORDS": fetch._COPY_BYTES // 8,
    }  # fmt: skip
    yield "copy", compile_kernel(fetch._copy_kernel, arguments, {"num_warps": 4})
    ctx = open_context(1, None)
    for name in formats:
        table = make_repack(name, panel_bits(ctx, name), "cpu")
        arguments = {
            "sources_ptr": "*i64", "factors_ptr": "*i64", "blobs_ptr": "*i64",
            "slot_factors_ptr": "*i64", "raw_ptr": "*u8", "raw_stride": "i64", "host_bytes": "i32",
            "offset": "i32", "role_bytes": "i32", "first_role": "i32", "terms_ptr": "*i32",
            "masks_ptr": "*i32", "flips_ptr": "*i32",
            **table.shape(SIZE, HIDDEN),
            "BEGINS": table.begins(SIZE, HIDDEN, fetch.UNITS.value, fetch.THREADS.value),
        }  # fmt: skip
        terms = sum(plane[2] * plane[3] for plane in table.planes)
        words = sum(plane[2] for plane in table.planes)
        compiled = compile_kernel(fetch._repack_kernel, arguments, {"num_warps": 4})
        yield f"repack {name} {terms / words:.1f} terms", compiled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="IQ3_S,IQ4_NL,Q4_K")
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--sass")
    args = parser.parse_args()
    for label, compiled in hand_off_cases(list(map(int, args.rows.split(",")))):
        describe(label, compiled, 0, args.sass)
    for label, compiled in fetch_cases(args.formats.split(",")):
        describe(label, compiled, 0, args.sass)


if __name__ == "__main__":
    main()
