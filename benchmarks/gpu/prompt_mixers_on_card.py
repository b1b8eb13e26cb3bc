"""The prompt path's mixers on a card: accuracy against float64 at real shapes, then times.

Times are those of what launches take now; ``mixer_variants_on_card`` has the choices.

    PYTHONPATH=src python benchmarks/gpu/prompt_mixers_on_card.py [--rows 8192] [--only scan,times]
    TRITON_INTERPRET=1 PYTHONPATH=src python benchmarks/gpu/prompt_mixers_on_card.py --tiny

Every section reports and goes on if it fails. ``--tiny`` only shows that the script runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback

import torch
import triton
from prompt_mixer_inputs import BLOCK, EPS, TINY, Attention, DeltaNet, Shape
from triton_cache import add_options, carried

from strata.gpu.kernels import (
    delta_scan,
    index_prompt,
    ngram_prompt,
    qsa_append,
)
from strata.gpu.kernels.causal_conv import ring_rows
from strata.gpu.kernels.indexer import INDEX_GROUP
from strata.gpu.kernels.ngram_memory import NgramConstants, add_memory


def seconds(call, repeats):
    """Median seconds of a call, after one that compiles."""
    call()
    times = []
    is_card = torch.cuda.is_available()
    for _ in range(repeats):
        if is_card:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        else:
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def report(name, call, repeats, work=""):
    took = seconds(call, repeats)
    print(f"  {name:44} {took * 1e3:9.3f} ms  {work(took) if work else ''}", flush=True)
    return took


def errors(name, actual, expected, bounds):
    error = (actual.double() - expected).abs()
    share = (error / expected.abs().clamp(min=1e-4)).max().item()
    largest = error.max().item()
    verdict = "within" if largest <= bounds[0] and share <= bounds[1] else "OUTSIDE"
    size = expected.abs().max().item()
    print(f"  {name:24} abs {largest:.2e} rel {share:.2e} (largest {size:.2f}) {verdict} {bounds}")


def check_scan(shape, device):
    print("delta net against float64 steps; bounds of the specification")
    for position, num in ((0, 64), (128, 128), (37, 200), (64, shape.checked)):
        net = DeltaNet(shape, num, device)
        for back in range(1, 4):
            if position < back:
                net.history[(position - back) % len(net.history)] = 0
        out, state = net.run(position, ())
        expected, memory = net.expected(position)
        errors(f"{num} rows at {position}, out", out, expected, (1e-5, 2e-2))
        errors(f"{num} rows at {position}, memory", state.memory, memory, (5e-7, 2e-3))
        cuts = [c - position for c in (64, 128, 192) if 0 < c - position < num]
        again, cut_state = net.run(position, cuts)
        equal = torch.equal(out, again) and torch.equal(state.memory, cut_state.memory)
        print(f"  cut after {cuts}: {'same bits' if equal else 'DIFFERENT'}")


def check_attention(shape, device):
    print("selection and attention against float64; every row's cells by the kernels' own choice")
    for kind in ("float16", "int8"):
        num = max(2 * shape.checked, 64)
        layer = Attention(shape, shape.budget + 3 * num // 2, num, kind, device)
        layer.select()
        layer.attend()
        first = layer.out.clone(), layer.chosen.clone()
        layer.out.fill_(torch.nan)
        layer.attend()
        same = torch.equal(layer.out, first[0])
        keys, values = layer.wide("keys"), layer.wide("values")
        rows = range(0, num, max(num // 40, 1))
        expected = torch.stack([layer.expected(row, keys, values) for row in rows])
        actual = layer.out[list(rows)].double()
        norm = ((actual - expected).norm() / expected.norm()).item()
        worst = ((actual - expected).abs().max() / expected.abs().max()).item()
        print(
            f"  {kind:8} relative {norm:.2e}, worst {worst:.2e} of the largest; repeat same: {same}"
        )
    wrong = 0
    dense = index_prompt.num_dense_rows(layer.position, num, shape.budget // BLOCK, BLOCK)
    picked = list(range(dense, num, max((num - dense) // 50, 1)))
    gap = 0.0
    for row in picked:
        scores = layer.scores(row)
        best = torch.sort(scores, descending=True, stable=True).indices[: shape.budget // BLOCK]
        mine, theirs = set(layer.chosen[row].tolist()), set(best.tolist())
        if mine != theirs:  # allowed only within rounding of the threshold
            wrong += 1
            low = min(scores[list(theirs)].min().item(), scores[list(mine)].min().item())
            gap = max(gap, (scores[list(mine ^ theirs)] - low).abs().max().item() / low)
    print(
        f"  selection: {wrong} of {len(picked)} rows differ from float64, by {gap:.1e} of a score"
    )


def check_ngram(shape, device):
    torch.manual_seed(0)
    num, width = 70, shape.streams * shape.hidden
    streams = torch.randn(num, shape.streams, shape.hidden, device=device)
    key, value = (
        torch.randn(num, width, device=device),
        torch.randn(num, shape.hidden, device=device),
    )
    gammas = [torch.ones(width, device=device)] * 3
    constants = NgramConstants(*gammas, torch.randn(4, width, device=device), 3)
    scratch = [torch.empty(32, width, device=device) for _ in range(2)]
    results = []
    for is_prompt in (False, True):
        ring, out = torch.zeros(ring_rows(4, 3), width, device=device), streams.clone()
        if is_prompt:
            ngram_prompt.add_memory_prompt(out, key, value, constants, ring, 0, EPS, *scratch)
        else:
            for first in range(0, num, 8):
                rows = slice(first, first + 8)
                add_memory(
                    out[rows], key[rows], value[rows], constants, ring,
                    torch.tensor([first], device=device), EPS, *(s[:8] for s in scratch),
                )  # fmt: skip
        results.append((out, ring))
    same = torch.equal(results[0][0], results[1][0])
    print(f"n-gram memory: prompt and windows {'same bits' if same else 'DIFFERENT'}")


def time_scan(shape, device):
    print(f"delta net, {shape.rows} rows, one layer")
    net = DeltaNet(shape, shape.rows, device)
    state, rows = net.state(), slice(0, shape.rows)
    size = net.qkv.numel() * 8
    report(
        "conv",
        lambda: net.conv(state, 0, rows),
        shape.repeats,
        lambda t: f"{size / t / 1e9:.0f} GB/s",
    )
    flops = 2 * shape.rows * shape.heads * shape.width * (3 * shape.width + 2 * 64)
    report(
        "prepare and walk",
        lambda: net.scan(net.mixed, state, 0, rows, net.out),
        shape.repeats,
        lambda t: f"walk alone {3 * flops / t / 1e12:.0f} TFLOP/s of halves",
    )
    report(
        "gated norm",
        lambda: delta_scan.gated_norm(net.out, net.z, net.constants.gamma, EPS, is_silu_gate=False),
        shape.repeats,
        lambda t: f"{net.out.numel() * 12 / t / 1e9:.0f} GB/s",
    )


def time_attention(shape, device):
    for context in shape.contexts:
        print(f"sparse attention, {shape.rows} rows up to {context} cells, one layer")
        for kind in ("float16", "int8"):
            layer = Attention(shape, context, shape.rows, kind, device)
            if kind == "float16":
                report("scores and selection", layer.select, shape.repeats)
            else:
                layer.select()
            size = shape.rows * min(shape.budget, context) * 2 * shape.kv_heads * shape.head_dim
            size *= layer.cells.keys.element_size()
            report(
                f"attention {kind}", layer.attend, shape.repeats,
                lambda t, size=size: f"{size / t / 1e12:.2f} TB/s of cells",
            )  # fmt: skip


def time_append(shape, device):
    print(f"append, {shape.rows} rows, one layer")
    num, dim, heads = shape.rows, shape.head_dim, shape.query_heads
    positions = torch.arange(num, device=device)
    rope = qsa_append.RopeTable(*(torch.rand(num, shape.pairs, device=device) for _ in "cs"))
    cells = qsa_append.Cells(
        *(torch.empty(shape.kv_heads, num, dim, dtype=torch.float16, device=device) for _ in "kv")
    )
    q_gate = torch.randn(num, heads, 2 * dim, device=device)
    k, v = (torch.randn(num, shape.kv_heads, dim, device=device) for _ in "kv")
    queries, gamma = torch.empty(num, heads, dim, device=device), torch.ones(dim, device=device)
    report(
        "queries and cells",
        lambda: qsa_append.append(
            q_gate, k, v, gamma, gamma, rope, positions[:1], EPS, cells, queries
        ),
        shape.repeats,
    )
    width = shape.index_dim
    index_q = torch.randn(num, shape.index_heads, width, device=device)
    one = torch.ones(width, device=device)
    inputs = qsa_append.IndexInputs(
        index_q, torch.randn(num, width, device=device), one, one, torch.empty_like(index_q), BLOCK
    )
    groups = triton.cdiv(num // BLOCK + 1, INDEX_GROUP)
    state = qsa_append.IndexKeys(
        torch.zeros(ring_rows(BLOCK), width, device=device),
        torch.empty(groups, width, INDEX_GROUP, device=device),
    )
    pairs = torch.empty(2, *index_q.shape, dtype=torch.float16, device=device)
    report(
        "index queries and keys",
        lambda: index_prompt.append_index(inputs, rope, positions, 0, EPS, state, pairs),
        shape.repeats,
    )


SECTIONS = {
    "scan": check_scan,
    "attention": check_attention,
    "ngram": check_ngram,
    "time_scan": time_scan,
    "time_append": time_append,
    "time_attention": time_attention,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--tiny", action="store_true")
    add_options(parser)
    args = parser.parse_args()
    with carried(args):
        measured(args)


def measured(args):
    shape = TINY if args.tiny else Shape(rows=args.rows)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        print(
            torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__
        )
    for name in args.only.split(","):
        begin = time.perf_counter()
        try:
            SECTIONS[name](shape, device)
        except Exception:  # noqa: BLE001 - the other sections are worth their time
            print(f"{name} FAILED")
            traceback.print_exc()
        print(f"  ({name}: {time.perf_counter() - begin:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
