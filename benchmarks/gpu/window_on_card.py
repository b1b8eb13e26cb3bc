"""Where the time of a decode window goes: every kernel of it, and what lies between them.

    python benchmarks/gpu/window_on_card.py [--mix iq3_s] [--layers 8] [--rows 1,4]
        [--contexts 4096] [--kv int8] [--out FILE.json]

A model of few layers, in memory; every fourth layer is a sparse attention one. Windows are CUDA
graphs, as always. Each is timed with dependent launches and with plain ones of the same machine
code; both must give the same logits, bit for bit. The table is of plain launches, since in a
profile the time of a dependent one counts its waiting too. "gap" is the window's time less that of
its kernels, by launch; "floor" what a kernel's bytes take at the card's copy speed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import compile_ahead
import numpy as np
import torch
from model_options import add_model_options
from session_on_card import COPY_BYTES_PER_S, DEVICE, at_position
from synthetic_index import SyntheticIndex
from triton.backends.nvidia import driver
from triton_cache import add_options, carried

from strata.formats.synth import GEOMETRIES
from strata.gpu.kernel_work import window_work
from strata.gpu.kernels.dependent import IS_DEPENDENT
from strata.gpu.model import GpuModel
from strata.gpu.profile import card_seconds, kernel_times

REPEATS, PROFILED = 40, 5


class Switch:
    """Whether launches are dependent: of all kernels, those that are compiled already too."""

    is_on = True

    @classmethod
    def install(cls) -> None:
        # Every launcher looks here; what it was compiled with counts only when the switch is on.
        wished: dict[int, bool] = {}
        driver.CudaLauncher.launch_pdl = property(
            lambda launcher: cls.is_on and wished[id(launcher)],
            lambda launcher, value: wished.__setitem__(id(launcher), value),
        )


def window_of(session, rows: int, context: int):
    """Launches a window at that position; and a window's logits from there."""
    at_position(session, context)
    session._runner._graphs.clear()
    tokens = np.random.default_rng(rows).integers(0, session._spec.vocab_size, rows)
    logits = session.decode(tokens.astype(np.int32))
    return session.relaunch(rows), logits


def compare(model, session, rows: int, context: int) -> dict[str, object]:
    """One window both ways; prints its line and its table."""
    micros, logits = {}, {}
    for is_on in (False, True):
        Switch.is_on = is_on
        run, logits[is_on] = window_of(session, rows, context)
        micros[is_on] = card_seconds(run, REPEATS) * 1e6
        if not is_on:
            times = kernel_times(run, PROFILED)
    is_same = np.array_equal(logits[False].view(np.uint32), logits[True].view(np.uint32))
    in_kernels = sum(time.seconds for time in times) * 1e6
    launches = sum(time.calls for time in times)
    work = window_work(
        model.layout, model.spec, num_rows=rows, position=context, kv_format=model.kv_format
    )
    floor = sum(item.num_bytes for item in work.values()) / COPY_BYTES_PER_S * 1e6
    print(f"\ncontext {context}, rows {rows}: {launches:.0f} launches; plain "
          f"{micros[False]:.1f} us, dependent {micros[True]:.1f} us, bits "
          f"{'equal' if is_same else 'DIFFER'}; in kernels "
          f"{in_kernels:.1f} us, gap {(micros[False] - in_kernels) / launches:.2f} us; floor "
          f"{floor:.1f} us")  # fmt: skip
    print(f"  {'kernel':28} {'calls':>6} {'us each':>8} {'us':>9} {'share':>6} {'MB':>8} "
          f"{'of floor':>8}")  # fmt: skip
    table = []
    for time in times:
        seconds = time.seconds
        num_bytes = work[time.name].num_bytes if time.name in work else 0.0
        of_floor = num_bytes / COPY_BYTES_PER_S / seconds if seconds else 0.0
        table.append({"name": time.name, "calls": time.calls, "us": seconds * 1e6,
                      "bytes": num_bytes})  # fmt: skip
        print(f"  {time.name[:28]:28} {time.calls:6.0f} {seconds * 1e6 / time.calls:8.2f} "
              f"{seconds * 1e6:9.1f} {seconds * 1e8 / in_kernels:5.1f}% {num_bytes / 1e6:8.2f} "
              f"{100 * of_floor:7.1f}%", flush=True)  # fmt: skip
    return {"rows": rows, "context": context, "plain_us": micros[False], "floor_us": floor,
            "dependent_us": micros[True], "same_bits": is_same, "kernels": table}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser, num_layers=8)
    parser.add_argument("--rows", default="1,4")
    parser.add_argument("--contexts", default="4096")
    parser.add_argument("--out")
    add_options(parser)
    args = parser.parse_args()
    with carried(args):
        measured(args)


def measured(args) -> None:
    assert IS_DEPENDENT, "this card has no dependent launches"  # noqa: S101
    Switch.install()
    contexts = [int(n) for n in args.contexts.split(",")]
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    compiling = compile_ahead.start(args, rows=args.rows, contexts=args.contexts)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        model = GpuModel(index, index.spec, DEVICE, kv_format=args.kv, direct_io=False)
        session = model.new_session(max(contexts) + 512)
        compiling.wait()
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {args.geometry} "
              f"{args.mix}, {args.layers} layers, kv {args.kv}")  # fmt: skip
        found = [
            compare(model, session, rows, context)
            for context in contexts
            for rows in map(int, args.rows.split(","))
        ]
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1))
    if not all(item["same_bits"] for item in found):
        raise SystemExit("dependent launches changed bits")


if __name__ == "__main__":
    main()
