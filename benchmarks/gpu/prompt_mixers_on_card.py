"""The prompt path's mixers on a card: accuracy against float64 at real shapes, then times.

    PYTHONPATH=src python benchmarks/gpu/prompt_mixers_on_card.py [--rows 8192] [--only scan,times]
    TRITON_INTERPRET=1 PYTHONPATH=src python benchmarks/gpu/prompt_mixers_on_card.py --tiny

Every section reports and goes on if it fails. ``--tiny`` only shows that the script runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
import traceback
from dataclasses import dataclass

import torch
import triton
from triton_cache import add_options, carried

from strata.gpu.kernels import (
    attention_prompt,
    conv_prompt,
    delta_scan,
    index_prompt,
    ngram_prompt,
    qsa_append,
)
from strata.gpu.kernels.causal_conv import ring_rows
from strata.gpu.kernels.gated_delta import STEP_RING, GdnConstants, GdnMemory
from strata.gpu.kernels.indexer import INDEX_GROUP
from strata.gpu.kernels.ngram_memory import NgramConstants, add_memory

EPS, BLOCK = 1e-6, 4


@dataclass(frozen=True)
class Shape:
    rows: int = 8192
    contexts: tuple[int, ...] = (8192, 32768, 131072)
    key_heads: int = 16
    heads: int = 48
    width: int = 128
    query_heads: int = 24
    kv_heads: int = 2
    head_dim: int = 256
    pairs: int = 32
    index_heads: int = 4
    index_dim: int = 128
    budget: int = 2048
    streams: int = 4
    hidden: int = 2560
    checked: int = 320  # rows of the accuracy sections
    repeats: int = 5


TINY = Shape(
    rows=70, contexts=(80, 160), key_heads=1, heads=2, width=32, query_heads=4, kv_heads=2,
    head_dim=64, pairs=8, index_heads=2, index_dim=32, budget=32, hidden=64, checked=70, repeats=1,
)  # fmt: skip


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


class DeltaNet:
    def __init__(self, shape, num, device):
        self.shape, self.num, self.device = shape, num, device
        torch.manual_seed(num)
        self.channels = (2 * shape.key_heads + shape.heads) * shape.width
        self.qkv = torch.randn(num, self.channels, device=device)
        self.z = torch.randn(num, shape.heads * shape.width, device=device)
        self.alpha, self.beta = (torch.randn(num, shape.heads, device=device) for _ in "ab")
        self.constants = GdnConstants(
            torch.randn(4, self.channels, device=device) / 2,
            torch.randn(shape.heads, device=device),
            -torch.rand(shape.heads, device=device), torch.ones(shape.width, device=device),
        )  # fmt: skip
        self.memory = torch.randn(shape.heads, shape.width, shape.width, device=device) / 10
        self.history = torch.randn(ring_rows(4), self.channels, device=device)
        self.mixed = conv_prompt.empty_rows(num, shape.key_heads, self.memory.shape, device)
        self.scratch = delta_scan.scan_scratch(num, shape.heads, device)
        self.out = torch.empty(num, shape.heads * shape.width, device=device)

    def state(self):
        rings = [torch.empty(STEP_RING, self.shape.heads, 1, device=self.device)] * 3
        return GdnMemory(self.memory.clone(), self.history.clone(), *rings)

    def conv(self, state, position, rows):
        mixed = self.mixed.rows(rows.stop - rows.start)
        conv_prompt.conv_prompt(self.qkv[rows], self.constants, state, position, mixed)
        return mixed

    def scan(self, mixed, state, position, rows, out):
        delta_scan.delta_scan(
            mixed, self.alpha[rows], self.beta[rows], self.constants, state.memory, position,
            self.scratch, out,
        )  # fmt: skip

    def run(self, position, cuts):
        """Outputs and state of a chunk that is cut after so many rows."""
        state, out, first = self.state(), torch.full_like(self.out, torch.nan), 0
        for end in (*cuts, self.num):
            rows = slice(first, end)
            self.scan(
                self.conv(state, position + first, rows), state, position + first, rows, out[rows]
            )
            first = end
        return out, state

    def expected(self, position):
        """float64, token by token."""
        shape, dim = self.shape, self.shape.width
        past = [self.history[(position - back) % len(self.history)] for back in (3, 2, 1)]
        wide = torch.cat([torch.stack(past), self.qkv]).double()
        taps = self.constants.conv.double()
        mixed = sum(wide[tap : tap + self.num] * taps[tap] for tap in range(4))
        mixed = mixed * torch.sigmoid(mixed)
        keys = shape.key_heads * dim
        q, k = (
            part.reshape(self.num, shape.key_heads, dim).repeat(
                1, shape.heads // shape.key_heads, 1
            )
            for part in (mixed[:, :keys], mixed[:, keys : 2 * keys])
        )
        q, k = (a / (a.square().sum(-1, keepdim=True) + 1e-6).sqrt() for a in (q, k))
        v = mixed[:, 2 * keys :].reshape(self.num, shape.heads, dim)
        step = torch.nn.functional.softplus(self.alpha.double() + self.constants.dt_bias)
        decay, rate = (step * self.constants.ssm_a).exp(), torch.sigmoid(self.beta.double())
        memory, out = self.memory.double(), []
        for t in range(self.num):
            memory = memory * decay[t][:, None, None]
            delta = rate[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", memory, k[t]))
            memory = memory + k[t][:, :, None] * delta[:, None, :]
            out.append(torch.einsum("hkv,hk->hv", memory, q[t]) * dim**-0.5)
        return torch.stack(out).reshape(self.num, -1), memory


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


class Attention:
    """A layer's cells and a chunk's queries behind ``context`` cells, the chunk included."""

    def __init__(self, shape, context, num, kind, device):
        self.shape, self.num, self.device, self.context = shape, num, device, context
        torch.manual_seed(context)
        self.position = context - num
        cells = (shape.kv_heads, context, shape.head_dim)
        if kind == "int8":
            stored = [
                torch.randint(-127, 128, cells, dtype=torch.int8, device=device) for _ in "kv"
            ]
            scales = [torch.rand(*cells[:2], shape.head_dim // 64, device=device) for _ in "kv"]
            self.cells = qsa_append.Cells(*stored, *(s.half() / 40 for s in scales))
        else:
            stored = [torch.randn(cells, dtype=torch.float32, device=device).half() for _ in "kv"]
            self.cells = qsa_append.Cells(*stored)
        wide = torch.randn(num, shape.query_heads, 2 * shape.head_dim, device=device)
        self.q = wide[..., : shape.head_dim].contiguous() * shape.head_dim**-0.5
        self.gate = wide[..., shape.head_dim :]
        groups = triton.cdiv(context // BLOCK + 1, INDEX_GROUP)
        self.pooled = torch.randn(groups, shape.index_dim, INDEX_GROUP, device=device)
        index_q = 16 * torch.randn(num, shape.index_heads, shape.index_dim, device=device)
        self.pairs = torch.stack([index_q.half(), (index_q - index_q.half().float()).half()])
        self.positions = torch.arange(self.position, context, device=device)
        self.scratch = index_prompt.index_scratch(context, shape.budget // BLOCK, BLOCK, device)
        self.chosen = torch.zeros(num, shape.budget // BLOCK, dtype=torch.int32, device=device)
        self.out = torch.full((num, shape.query_heads * shape.head_dim), torch.nan, device=device)

    def select(self):
        index_prompt.select_prompt(
            self.pairs, self.pooled, self.positions, self.position, self.shape.budget // BLOCK,
            BLOCK, self.scratch, self.chosen,
        )  # fmt: skip

    def attend(self):
        attention_prompt.attend_prompt(
            self.q, self.gate, self.cells, self.chosen, BLOCK, self.position, self.out
        )

    def wide(self, name):
        values = getattr(self.cells, name).double()
        scales = {"keys": self.cells.key_scales, "values": self.cells.value_scales}[name]
        if scales is not None:
            values = values * scales.double().repeat_interleave(64, dim=-1)
        return values

    def scores(self, row):
        q = self.pairs[:, row].double().sum(0) / 16
        keys = self.pooled.double().permute(0, 2, 1).reshape(-1, self.shape.index_dim)
        return (q @ keys.T).clamp(min=0).sum(0)[: (self.position + row + 1) // BLOCK]

    def expected(self, row, keys, values):
        cells, seen = torch.arange(0, self.context, device=self.device), self.position + row + 1
        budget = self.shape.budget // BLOCK
        cells = cells[:seen]
        if seen // BLOCK > budget:
            blocks = self.chosen[row].long()
            tail = torch.arange(seen - seen % BLOCK, seen, device=self.device)
            inside = torch.arange(BLOCK, device=self.device)
            cells = torch.cat([(blocks[:, None] * BLOCK + inside).flatten(), tail])
        per_kv = self.shape.query_heads // self.shape.kv_heads
        k, v = (a[:, cells].repeat_interleave(per_kv, dim=0) for a in (keys, values))
        p = torch.softmax(torch.einsum("hd,hsd->hs", self.q[row].double(), k), dim=-1)
        y = torch.einsum("hs,hsd->hd", p, v) * torch.sigmoid(self.gate[row].double())
        return y.flatten()


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
    defaults = delta_scan.WALK_COLUMNS, delta_scan.WALK_WARPS, delta_scan.WALK_STAGES
    for columns, warps, stages in (
        (32, 4, 1),
        (32, 4, 2),
        (64, 4, 1),
        (64, 8, 1),
        (32, 8, 1),
        (16, 4, 1),
    ):
        delta_scan.WALK_COLUMNS, delta_scan.WALK_WARPS, delta_scan.WALK_STAGES = (
            columns,
            warps,
            stages,
        )
        try:
            report(
                f"prepare + walk, {columns} columns, {warps} warps, {stages} stages",
                lambda: net.scan(net.mixed, state, 0, rows, net.out), shape.repeats,
                lambda t: f"walk alone {3 * flops / t / 1e12:.0f} TFLOP/s of halves",
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - one variant may not fit the card
            print(f"  walk {columns} {warps} {stages}: {error}")
    delta_scan.WALK_COLUMNS, delta_scan.WALK_WARPS, delta_scan.WALK_STAGES = defaults
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
            setting = "SPARSE_INT8" if kind == "int8" else "SPARSE_HALVES"
            default = getattr(attention_prompt, setting)
            for variant in (default, (64, 1, 4), (64, 2, 4), (32, 2, 2), (32, 3, 2)):
                setattr(attention_prompt, setting, variant)
                cells = min(shape.budget, context)
                size = shape.rows * cells * 2 * shape.kv_heads * shape.head_dim
                size *= layer.cells.keys.element_size()
                report(
                    f"attention {kind}, (cells, stages, warps) {variant}",
                    layer.attend, shape.repeats,
                    lambda t, size=size: f"{size / t / 1e12:.2f} TB/s of cells",
                )  # fmt: skip
            setattr(attention_prompt, setting, default)
            del layer


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
