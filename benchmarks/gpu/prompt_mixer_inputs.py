"""A layer's mixers and what they are given, at real shapes or tiny ones, with float64 beside them.

Owns inputs and expectations; ``prompt_mixers_on_card`` compares, ``mixer_variants_on_card`` times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from strata.gpu.kernels import (
    attention_prompt,
    conv_prompt,
    delta_scan,
    index_prompt,
    qsa_append,
)
from strata.gpu.kernels.causal_conv import ring_rows
from strata.gpu.kernels.gated_delta import STEP_RING, GdnConstants, GdnMemory
from strata.gpu.kernels.indexer import INDEX_GROUP

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
