"""The prompt's mixers on a card by what their launches may choose: same results, then times.

    python benchmarks/gpu/mixer_variants_on_card.py [--only scan,attention] [--workers 16]
                                                    [--seconds 60]

All are compiled side by side first, as ``compile_ahead`` does. Results of a variant are compared
with those of the first of its kind, which launches take now: "=" is the same bits, else the largest
difference by the largest value. A line for each kind, its variants from the fastest on. Attention
is timed with choices of random queries and with "alike" ones, which neighbours nearly share.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time

import compile_ahead
import prompt_mixer_inputs as mixers
import torch

from strata.gpu.float_matrix import pack_floats
from strata.gpu.kernels import attention_prompt, bf16_prompt, conv_prompt, delta_scan, read_prompt
from strata.gpu.kernels.prompt_codes import empty_prompt_codes

MODULES = (attention_prompt, bf16_prompt, conv_prompt, delta_scan, read_prompt)
SHAPE, RANK = mixers.Shape(), 320
HALVES, INT8 = attention_prompt.SPARSE_HALVES, attention_prompt.SPARSE_INT8
WALK = (delta_scan.WALK_COLUMNS, delta_scan.WALK_WARPS, delta_scan.WALK_STAGES,
        delta_scan.WALK_PARTS)  # fmt: skip
# By kind: what is set, and its values; the first are those in use.
SCAN = {
    "walk": [WALK, (32, 4, 3, 2), (32, 4, 2, 4), (64, 8, 2, 2), (32, 2, 2, 2), (16, 4, 2, 2)],
    "prepare": [delta_scan.PREPARE, (4, 4, 168), (8, 4, 168), (4, 4, None), (8, 4, None),
                (4, 4, 128), (2, 4, None)],
    "conv": [(conv_prompt.TILE_ROWS, conv_prompt.TILE_WARPS), (16, 4), (8, 2), (32, 4)],
    "norm": [(delta_scan.NORM_ROWS, delta_scan.NORM_WARPS), (8, 4), (32, 8), (32, 16), (16, 4)],
}  # fmt: skip
ATTENTION = {
    "halves": [HALVES, (32, 4, 2, None), (32, 2, 2, None), (64, 3, 4, None), (64, 2, 4, None),
               (16, 3, 2, None), (16, 5, 2, None), (32, 5, 2, None), (32, 3, 1, None)],
    "int8": [INT8, (32, 3, 2, None), (32, 1, 2, None), (16, 2, 1, None), (16, 3, 2, None),
             (64, 3, 4, None)],
    "dense": [(attention_prompt.DENSE_CELLS, attention_prompt.DENSE_ROWS), (64, 32), (64, 64),
              (128, 64), (128, 16)],
}  # fmt: skip
READ = {
    "down": [tuple(bf16_prompt.LARGE), (128, 5, 8, 2), (128, 3, 8, 3), (128, 2, 4, 3),
             (64, 4, 4, 3), (256, 2, 8, 4)],
    "up": [tuple(read_prompt.MIX_TILING), (32, 2, 4, 4), (32, 2, 2, 3), (32, 4, 4, 3),
           (64, 1, 4, 3), (64, 1, 8, 3), (128, 1, 4, 2), (16, 4, 4, 3)],
}  # fmt: skip
KINDS = {"scan": SCAN, "attention": ATTENTION, "read": READ}


@contextlib.contextmanager
def chosen(kind, variant):
    """Launches take this variant meanwhile."""
    before = [dict(vars(module)) for module in MODULES]
    if kind == "walk":
        (delta_scan.WALK_COLUMNS, delta_scan.WALK_WARPS, delta_scan.WALK_STAGES,
         delta_scan.WALK_PARTS) = variant  # fmt: skip
    elif kind == "prepare":
        delta_scan.PREPARE = variant
    elif kind == "conv":
        conv_prompt.TILE_ROWS, conv_prompt.TILE_WARPS = variant
    elif kind == "norm":
        delta_scan.NORM_ROWS, delta_scan.NORM_WARPS = variant
    elif kind == "down":
        bf16_prompt.LARGE = bf16_prompt.Tiling(*variant)
    elif kind == "up":
        read_prompt.MIX_TILING = read_prompt.MixTiling(*variant)
    elif kind == "dense":
        attention_prompt.DENSE_CELLS, attention_prompt.DENSE_ROWS = variant
    else:
        attention_prompt.SPARSE_HALVES = attention_prompt.SPARSE_INT8 = variant
    try:
        yield
    finally:
        for module, kept in zip(MODULES, before, strict=True):
            vars(module).update(kept)


class Scan:
    """A layer's delta net over a whole chunk."""

    def __init__(self, device):
        self.net = mixers.DeltaNet(SHAPE, SHAPE.rows, device)
        self.rows = slice(0, SHAPE.rows)
        self.codes = empty_prompt_codes(SHAPE.rows, self.net.out.shape[1], device)
        self.bad = torch.zeros(1, dtype=torch.int32, device=device)
        self.conv()
        self.walk()

    def conv(self):
        self.net.conv(self.net.state(), 0, self.rows)
        return self.net.mixed.keys, self.net.mixed.values

    def walk(self):
        state = self.net.state()
        self.net.scan(self.net.mixed, state, 0, self.rows, self.net.out)
        return self.net.out, state.memory

    prepare = walk

    def norm(self):
        """As codes; what they come from stays."""
        delta_scan.gated_norm(
            self.net.out, self.net.z, self.net.constants.gamma, 1e-6, is_silu_gate=True,
            codes=self.codes, bad=self.bad,
        )  # fmt: skip
        return self.codes.codes, self.codes.scales


class Read:
    """A hyper-connection's read of a whole chunk, with random matrices."""

    def __init__(self, device):
        hyper, streams = SHAPE.streams * SHAPE.hidden, SHAPE.streams
        torch.manual_seed(1)
        self.streams = torch.randn(SHAPE.rows, streams, SHAPE.hidden, device=device) * 3
        self.gamma = torch.rand(hyper, device=device) + 0.5
        both = (torch.randn(RANK + streams, hyper, device=device) / 8).bfloat16()
        up = (torch.randn(hyper, RANK, device=device) / 4).bfloat16()
        self.down_matrix, self.up_matrix = (
            pack_floats("BF16", matrix.view(torch.uint8), matrix.shape[1]) for matrix in (both, up)
        )
        self.inverse = torch.rand(SHAPE.rows, streams, device=device)
        self.room = torch.empty(both.numel(), dtype=torch.bfloat16, device=device)
        self.sums = torch.empty(streams, SHAPE.rows, len(both), device=device)
        self.parts = torch.empty(3, SHAPE.rows, RANK, dtype=torch.bfloat16, device=device)
        self.inject = torch.empty(SHAPE.rows, streams, device=device)
        self.x = torch.empty(SHAPE.rows, SHAPE.hidden, device=device)
        self.codes = empty_prompt_codes(SHAPE.rows, SHAPE.hidden, device)
        self.bad = torch.zeros(1, dtype=torch.int32, device=device)

    def down(self):
        read_prompt.down_prompt(
            self.streams, self.inverse, self.gamma, self.down_matrix, self.room, self.sums
        )
        return (self.sums,)

    def up(self):
        columns = ((0, RANK), (RANK, RANK + SHAPE.streams))
        read_prompt.between_prompt(self.sums, columns, self.parts, self.inject)
        read_prompt.up_mix_prompt(
            self.parts, self.up_matrix, self.streams, self.inverse, self.gamma, self.x, self.codes,
            self.bad, read_prompt.MIX_TILING,
        )  # fmt: skip
        return self.x, self.codes.codes


class Attention:
    """One layer over the fourth chunk of a prompt, or over the first rows of one."""

    def __init__(self, kind, device):
        is_dense = kind == "dense"
        rows = SHAPE.budget if is_dense else SHAPE.rows
        context = rows if is_dense else 4 * rows
        self.layer = mixers.Attention(
            SHAPE, context, rows, "int8" if kind == "int8" else "float16", device
        )
        self.layer.select()
        self.choices = {"random": self.layer.chosen}
        if not is_dense and device != "meta":
            self.choices["alike"] = alike(self.layer.chosen, context // mixers.BLOCK)

    def run(self, choice="random"):
        self.layer.chosen = self.choices[choice]
        self.layer.attend()
        return (self.layer.out,)


def alike(chosen, num_blocks):
    """As many blocks a row, ascending, those of 16 neighbours all but the same."""
    count = chosen.shape[1]
    torch.manual_seed(3)
    least = num_blocks * 3 // 4  # blocks that every row sees
    groups = torch.rand(len(chosen) // 16 + 1, least, device=chosen.device)
    scores = groups.repeat_interleave(16, dim=0)[: len(chosen)]
    scores = scores + torch.rand(scores.shape, device=chosen.device) / 64
    return torch.sort(scores.topk(count, dim=1).indices, dim=1).values.int()


def subjects(kinds, device):
    """By kind, what runs a variant of it."""
    scan = Scan(device) if SCAN.keys() & kinds else None
    read = Read(device) if READ.keys() & kinds else None
    runs = {}
    for kind in kinds:
        owner = scan if kind in SCAN else read if kind in READ else None
        runs[kind] = Attention(kind, device).run if owner is None else getattr(owner, kind)
    return runs


def compile_variants(kinds, workers):
    """Everything that the runs launch."""
    with compile_ahead.Recorder() as recorder:
        runs = subjects(kinds, "meta")
        for kind, variants in kinds.items():
            for variant in variants:
                with chosen(kind, variant):
                    runs[kind]()
    compile_ahead.compile_all(recorder.requests, workers)


def verdict(run, kind, first, variant):
    """How the results of a variant differ from those of the first."""
    with chosen(kind, first):
        expected = [part.clone() for part in run()]
    with chosen(kind, variant):
        found = run()
    torch.cuda.synchronize()
    if all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)):
        return "="
    largest = max(
        ((a.double() - b.double()).abs().max() / a.double().abs().max()).item()
        for a, b in zip(expected, found, strict=True)
    )
    return f"{largest:.0e}"


def card_ms(run, repeats=4):
    """Median milliseconds by the card's clock."""
    run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def time_kind(kind, run, variants, begin, seconds):
    """A line for each choice of blocks, its variants from the fastest on."""
    verdicts = {}
    for choice in ("random", "alike") if kind in ("halves", "int8") else ("",):
        figures = {}
        for variant in variants:
            if time.perf_counter() - begin > seconds:
                continue
            try:
                if variant not in verdicts:
                    verdicts[variant] = verdict(run, kind, variants[0], variant)
                with chosen(kind, variant):
                    figures[variant] = card_ms(lambda c=choice: run(c) if c else run())
            except Exception as error:  # noqa: BLE001 - the others go on
                print(f"{kind} {variant} failed: {str(error)[:200]}", flush=True)
        ranked = sorted(figures.items(), key=lambda item: item[1])
        text = " | ".join(
            f"{' '.join(map(str, variant))} {ms:.3f} {verdicts[variant]}"
            + ("*" if variant == variants[0] else "")
            for variant, ms in ranked
        )
        print(f"{kind:8} {choice:6} ms: {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="scan,attention")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    begin = time.perf_counter()
    kinds = {
        kind: variants for name in args.only.split(",") for kind, variants in KINDS[name].items()
    }
    compile_variants(kinds, args.workers)
    print(f"{torch.cuda.get_device_name()}, {SHAPE.rows} rows; * is in use; prepare's and walk's "
          f"times are of both; {time.perf_counter() - begin:.0f} s", flush=True)  # fmt: skip
    for kind, run in subjects(kinds, "cuda").items():
        time_kind(kind, run, kinds[kind], begin, args.seconds)
    print(f"{time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
