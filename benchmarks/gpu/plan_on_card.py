"""Speed foretold by the planner beside the speed measured, in eight configurations of caps.

    python benchmarks/gpu/plan_on_card.py [--geometry coder] [--mix iq3_s] [--slots 128,96,64,32]
        [--shares 0,auto] [--tokens 300] [--rates-out FILE] [--json FILE]

One model is loaded with the most slots; the others are the same model after slots have been given
back while it runs, whose memory is shown. Made-up routing takes the place of the routers'. Costs
are learned in the first configurations of each share's kind (``--calibrate``) and hold for all.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import compile_ahead
import numpy as np
import torch
from compile_ahead import numbers
from model_options import add_model_options, add_threads
from synthetic_index import SyntheticIndex
from tiers_on_card import shares_of, tiered
from triton_cache import add_options, carried

from strata.engine.sampler import SamplingParams
from strata.formats.synth import GEOMETRIES
from strata.gpu.memory_plan import DRIVER_BYTES
from strata.gpu.slot_plan import ADMISSIONS
from strata.tiers.forced_routing import RoutingFeed
from strata.tiers.forecast import Places, demands, forecast
from strata.tiers.policy_table import PolicyOptions
from strata.tiers.rates import write_rates
from strata.tiers.synthetic import SyntheticText, synthetic_trace
from strata.units import MiB


def limited(model, slots_a_layer: int) -> None:
    """So many slots open, filled as at a start; the policy has forgotten everything."""
    cache = model.experts
    cache.limit_slots(slots_a_layer * model.spec.num_layers)
    cache.carry_out_limit()
    torch.cuda.synchronize()
    cache.change_policy("ema", PolicyOptions(max_admissions=ADMISSIONS))
    for slot in range(len(cache.residency.key_in)):
        cache.residency.clear(slot)
    cache.fill(None)


def decode(session, tokens: int) -> np.ndarray:
    """Seconds of each window of one row, whose token the card picks."""
    rng = np.random.default_rng(3)
    ids = rng.integers(0, session._spec.vocab_size, tokens).astype(np.int32)
    begins = []
    session.picker.begin(SamplingParams(temperature=0.0), [])
    for token in ids:
        begins.append(time.perf_counter())
        session.picker.decode(np.array([token]))
        session.commit(1)
    return np.diff(np.array([*begins, time.perf_counter()]))


class Bench:
    """One loaded model; measures and foretells configurations."""

    def __init__(self, args, model, trace) -> None:
        self.args, self.model, self.trace = args, model, trace
        self.cut = args.tokens // 2

    def measured(self, slots: int, share: float | None) -> dict:
        args, model = self.args, self.model
        limited(model, slots)
        model.experts.set_share(share)
        model.force_routing(RoutingFeed(self.trace, model.spec))
        session = model.new_session(args.tokens + 16)
        decode(session, self.cut)
        before = model.tier_counts()
        walls = decode(session, args.tokens - self.cut)
        counts = model.tier_counts() - before
        usual = walls[walls < 4 * np.median(walls)]
        free, total = torch.cuda.mem_get_info()
        return {
            "slots": slots, "share": share, "window_s": float(usual.mean()),
            "hit_rate": counts.hit_rate, "rates": model.tier_rates(),
            "staged": model.experts.staged_counts[1:11], "taken": total - free,
            "wait_s": counts.total("wait_ns") / 1e9 / counts.windows,
            "copied": counts.total("copied") / counts.windows,
            "computed": counts.total("computed") / counts.windows,
        }  # fmt: skip

    def foretold(self, slots: int, share: float | None, rates):
        spec = self.model.spec
        places = Places(
            spec.num_layers, spec.num_experts, slots * spec.num_layers,
            spec.num_layers * spec.num_experts, is_per_layer=True,
        )  # fmt: skip
        (demand,) = demands(
            self.trace, places, ((self.cut, self.args.tokens),), max_admissions=ADMISSIONS
        )
        return forecast(demand, spec.num_layers, rates.expert_bytes, rates, share)


def run(args) -> None:
    geometry = replace(GEOMETRIES[args.geometry], num_layers=args.layers)
    slots, shares = numbers(args.slots), shares_of(args)
    with tempfile.TemporaryDirectory() as folder:
        index = SyntheticIndex(geometry, args.mix, Path(folder))
        spec = index.spec
        compiling = compile_ahead.start(
            args, rows="1", contexts=str(args.tokens), prompts="", has_tiers=True
        )
        text = SyntheticText(spec.num_layers, spec.num_experts, spec.top_k, args.tokens)
        trace = synthetic_trace(text, seed=1)
        model = tiered(index, max(slots), args, staged_share=None, policy="ema")
        compiling.wait()
        bench = Bench(args, model, trace)
        middle = sorted(slots)[len(slots) // 2]
        known = bench.measured(middle, None)["rates"]
        print(f"rates, learned with {middle} slots a layer: {known}", flush=True)
        if args.rates_out:
            write_rates(Path(args.rates_out), known)
        rows = [
            bench.measured(num, share) | {"foretold": bench.foretold(num, share, known)}
            for share in shares
            for num in sorted(slots, reverse=True)
        ]
        report(args, rows)
        model.close()


def report(args, rows: list[dict]) -> None:
    num_good = 0
    for row in rows:
        told = row["foretold"]
        off = told.window_s / row["window_s"] - 1
        num_good += abs(off) <= 0.15
        share = "auto" if row["share"] is None else row["share"]
        print(
            f"{row['slots']:4} slots a layer, share {share}: hits {100 * told.hit_rate:.1f} % "
            f"foretold, {100 * row['hit_rate']:.1f} % measured; {1 / told.window_s:.1f} tokens/s "
            f"foretold, {1 / row['window_s']:.1f} measured ({100 * off:+.1f} %); computed "
            f"{row['computed']:.0f}, copied {row['copied']:.0f}, waited {1e3 * row['wait_s']:.2f} "
            f"ms a window; {row['taken'] / MiB:.0f} MiB taken, staged {row['staged']}",
            flush=True,
        )
    print(f"{num_good} of {len(rows)} within 15 %; the driver's share is planned as "
          f"{DRIVER_BYTES / MiB:.0f} MiB")  # fmt: skip
    if args.json:
        told = [
            {name: str(value) if name == "rates" else value for name, value in row.items()}
            | {"foretold": row["foretold"].as_dict()}
            for row in rows
        ]
        Path(args.json).write_text(json.dumps(told, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser, num_layers=48)
    add_threads(parser)
    parser.add_argument("--slots", default="128,96,64,32", help="of a layer")
    parser.add_argument("--shares", default="0,auto")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--rates-out")
    parser.add_argument("--json")
    add_options(parser)
    args = parser.parse_args()
    with carried(args):
        run(args)


if __name__ == "__main__":
    main()
