"""A sparse layer from projections to mixed heads, windows and dropped rows, against the reference.

The reference gets the same projections through identity weights, in float64; cells on the device
are halves, which sets the tolerance. Selections are exact, so they must be the reference's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels import indexer  # noqa: E402
from strata.gpu.kernels.attention import Parts, Selection, attend  # noqa: E402
from strata.gpu.kernels.causal_conv import ring_rows  # noqa: E402
from strata.gpu.kernels.qsa_append import (  # noqa: E402
    Cells,
    IndexInputs,
    IndexKeys,
    RopeTable,
    append,
)
from strata.model_spec import RopeSpec  # noqa: E402
from strata.reference.rope import rope_tables  # noqa: E402
from strata.reference.sparse_attention import QsaState, sparse_attention  # noqa: E402

CAPACITY, BUDGET, BLOCK, EPS = 48, 16, 4, 1e-6
HEADS, KV_HEADS, DH, INDEX_HEADS, DI = 2, 1, 32, 2, 16
SIZES = {
    "attn_q": HEADS * 2 * DH,
    "attn_k": KV_HEADS * DH,
    "attn_v": KV_HEADS * DH,
    "indexer.q_proj": INDEX_HEADS * DI,
    "indexer.k_proj": DI,
}


@dataclass
class Geometry:
    """The fields of a ModelSpec that the reference layer reads."""

    rms_eps: float = EPS
    num_heads: int = HEADS
    num_kv_heads: int = KV_HEADS
    head_dim: int = DH
    index_heads: int = INDEX_HEADS
    index_dim: int = DI
    index_budget: int = BUDGET
    index_block: int = BLOCK
    rope: RopeSpec = RopeSpec(dim=8, base=1e4, sections=(4, 0, 0))  # noqa: RUF009 - frozen


class Device:
    """The layer's state and launches, as a decode window makes them."""

    def __init__(self, x: np.ndarray, gammas: dict[str, np.ndarray], device: str) -> None:
        self.device = device
        columns = np.cumsum([0, *SIZES.values()])
        self.x = {
            name: x[:, first:end].copy()
            for name, first, end in zip(SIZES, columns[:-1], columns[1:], strict=True)
        }
        self.gammas = {name: self._tensor(gamma) for name, gamma in gammas.items()}
        tables = rope_tables(Geometry.rope, np.arange(CAPACITY), np.float32)
        self.rope = RopeTable(*(self._tensor(np.ascontiguousarray(t)) for t in tables))
        halves = [
            torch.full((KV_HEADS, CAPACITY, DH), torch.nan, dtype=torch.float16, device=device)
            for _ in "kv"
        ]
        self.cells = Cells(*halves)
        groups = CAPACITY // BLOCK // indexer.INDEX_GROUP + 1
        self.index = IndexKeys(
            poison(device, ring_rows(BLOCK), DI), poison(device, groups, DI, indexer.INDEX_GROUP)
        )

    def _tensor(self, a: np.ndarray) -> torch.Tensor:
        return torch.tensor(a, dtype=torch.float32, device=self.device)

    def window(self, first: int, num: int) -> torch.Tensor:
        position = torch.tensor([first], device=self.device)
        parts = {name: self._tensor(a[first : first + num]) for name, a in self.x.items()}
        q_gate = parts["attn_q"].reshape(num, HEADS, 2 * DH)
        k, v = (parts[n].reshape(num, KV_HEADS, DH) for n in ("attn_k", "attn_v"))
        queries = poison(self.device, num, HEADS, DH)
        index_q = poison(self.device, num, INDEX_HEADS, DI)
        inputs = IndexInputs(
            parts["indexer.q_proj"].reshape(num, INDEX_HEADS, DI), parts["indexer.k_proj"],
            self.gammas["indexer.q_norm"], self.gammas["indexer.k_norm"], index_q, BLOCK,
        )  # fmt: skip
        append(
            q_gate, k, v, self.gammas["attn_q_norm"], self.gammas["attn_k_norm"], self.rope,
            position, EPS, self.cells, queries, (inputs, self.index),
        )  # fmt: skip
        scores = poison(self.device, num, self.index.pooled.shape[0] * indexer.INDEX_GROUP)
        indexer.score_blocks(index_q, self.index.pooled, position, BUDGET, BLOCK, scores)
        blocks = BUDGET // BLOCK
        chosen = torch.full((num, blocks), 10**6, dtype=torch.int32, device=self.device)
        candidates = torch.zeros((2, num, blocks), dtype=torch.int32, device=self.device)
        indexer.select_blocks(scores, position, num, blocks, BLOCK, candidates, chosen)
        selection = Selection(chosen, BLOCK, CAPACITY)
        shape = (num, selection.num_parts, HEADS)
        scratch = Parts(poison(self.device, *shape, DH), poison(self.device, *shape, 2))
        out = poison(self.device, num, HEADS * DH)
        attend(queries, q_gate[:, :, DH:], self.cells, selection, position, scratch, out)
        return out


def _inputs(num: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(num)
    x = rng.standard_normal((num, sum(SIZES.values()))).astype(np.float32)
    widths = {"attn_q_norm": DH, "attn_k_norm": DH, "indexer.q_norm": DI, "indexer.k_norm": DI}
    return x, {name: (1 + rng.random(n)).astype(np.float32) for name, n in widths.items()}


def _reference(x: np.ndarray, gammas: dict[str, np.ndarray]) -> np.ndarray:
    """The layer in float64, its projections picking columns of x, its output left as it is."""
    weights, first, identity = {}, 0, np.eye(x.shape[1])
    for name, size in SIZES.items():
        weights[f"blk.3.{name}.weight"] = identity[first : first + size]
        first += size
    weights |= {f"blk.3.{name}.weight": gamma.astype(np.float64) for name, gamma in gammas.items()}
    weights["blk.3.attn_output.weight"] = np.eye(HEADS * DH)
    empty = np.zeros((0, KV_HEADS, DH))
    state = QsaState(empty, empty, np.zeros((0, DI)))
    positions = np.repeat(np.arange(len(x))[:, None], 3, axis=1)
    return sparse_attention(x.astype(np.float64), positions, state, weights, 3, Geometry())


def test_windows_and_dropped_rows_give_the_reference_layer(device: str) -> None:
    x, gammas = _inputs(36)
    layer = Device(x, gammas, device)
    outs, position = [], 0
    for num in (8, 8, 3, 1, 8, 1, 2, 5):
        if num > 2:  # first a window of wrong drafts, none of which is kept
            true = {name: a.copy() for name, a in layer.x.items()}
            for a in layer.x.values():
                a[position : position + num] += 1
            layer.window(position, num)
            layer.x = true
        outs.append(layer.window(position, num).cpu())
        position += num
    assert position == len(x)
    np.testing.assert_allclose(torch.cat(outs), _reference(x, gammas), rtol=0, atol=4e-3)
