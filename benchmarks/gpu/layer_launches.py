"""Launches of a decode window's layers at the geometry of the 256-expert model.

``launches`` makes one closure for each operation, on any device: on "meta" it serves to compile
them (``compiled_layers.py``), on "cuda" to time them (``layers_on_card.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from strata.gpu.kernels import argmax, attention, hyper_connections, indexer, norms, sampling
from strata.gpu.kernels.causal_conv import ring_rows
from strata.gpu.kernels.gated_delta import STEP_RING, GdnConstants, GdnMemory, gdn_window
from strata.gpu.kernels.ngram_memory import NgramConstants, add_memory
from strata.gpu.kernels.qsa_append import Cells, IndexInputs, IndexKeys, RopeTable, append
from strata.gpu.kernels.quantize import empty_codes
from strata.gpu.kernels.router import route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from strata.gpu.kernels.quantize import Codes

D, STREAMS, RANK, EPS = 2560, 4, 320, 1e-6
KEY_HEADS, VALUE_HEADS, WIDTH = 16, 48, 128
HEADS, KV_HEADS, HEAD_DIM, INDEX_HEADS, INDEX_DIM, PAIRS = 24, 2, 256, 4, 128, 32
BUDGET, BLOCK = 2048, 4
EXPERTS, TOP_K, VOCAB = 256, 10, 248_320


@dataclass(frozen=True)
class Launch:
    """One operation.

    ``copies``: the same on different states, so that a card's cache does not hold what would come
    from memory in a whole step. ``num_bytes``: that must come from memory, at least.
    """

    name: str
    copies: list[Callable[[], None]]
    num_bytes: int


class Maker:
    """Tensors of one device, and counters of a conversation of ``num_cells`` cells."""

    def __init__(self, device: str, num_rows: int, num_cells: int, capacity: int) -> None:
        self.device, self.n, self.cells, self.capacity = device, num_rows, num_cells, capacity
        self.position = self.whole([1], torch.int64, num_cells - num_rows)
        self.pending = self.whole([1], torch.int32, num_rows)
        self.bad = self.whole([1], torch.int32, 0)

    def real(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Random numbers."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        return torch.randn(shape, device=self.device).to(dtype)

    def whole(self, shape: list[int], dtype: torch.dtype, value: int) -> torch.Tensor:
        """Integers of one value."""
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def codes(self, width: int) -> Codes:
        """Room for codes."""
        return empty_codes(self.n, width, self.device)


def launches(
    device: str, num_rows: int, num_cells: int, capacity: int, num_copies: int
) -> Iterator[Launch]:
    """Every operation of a window but products and experts, in the order of a step."""
    make = Maker(device, num_rows, num_cells, capacity)
    for family in (_streams, _gdn, _qsa, _ends):
        yield from family(make, num_copies)


def _streams(make: Maker, _num_copies: int) -> Iterator[Launch]:
    n, hyper = make.n, STREAMS * D
    streams, gamma, inject = make.real(n, STREAMS, D), make.real(hyper), make.real(n, STREAMS)
    xn, low, x = make.real(n, hyper), make.real(n, RANK), make.real(n, D)
    wide, narrow, ranked = make.codes(hyper), make.codes(D), make.codes(RANK)
    parts = hyper_connections.ExpertOutputs(
        make.real(n, TOP_K, D), make.real(n, TOP_K), make.real(n, D), make.real(n)
    )
    for name, out in (("write and norm", make.real(n, D)), ("write experts and norm", parts)):
        yield Launch(
            name,
            [
                lambda out=out: hyper_connections.write_and_norm(
                    streams, out, inject, gamma, EPS, xn, wide, make.bad
                )
            ],
            4 * hyper,
        )
    yield Launch(
        "silu of quotient",
        [lambda: hyper_connections.silu_of_quotient(low, STREAMS, low, ranked, make.bad)],
        0,
    )
    yield Launch("mix", [lambda: hyper_connections.mix(xn, xn, STREAMS, x, narrow, make.bad)], 0)
    ids = make.whole([n, TOP_K], torch.int32, 0)
    logits, weights, shared = make.real(n, EXPERTS), make.real(n, TOP_K), make.real(n)
    yield Launch(
        "route", [lambda: route(logits, shared[:, None], 1.0, ids, weights, shared, make.bad)], 0
    )


def _gdn(make: Maker, num_copies: int) -> Iterator[Launch]:
    n, size = make.n, VALUE_HEADS * WIDTH
    channels = 2 * KEY_HEADS * WIDTH + size
    inputs = [make.real(n, width) for width in (channels, size, VALUE_HEADS, VALUE_HEADS)]
    constants = GdnConstants(
        make.real(4, channels), make.real(VALUE_HEADS), -make.real(VALUE_HEADS).abs(),
        make.real(WIDTH),
    )  # fmt: skip
    out, codes = make.real(n, size), make.codes(size)
    heads = (VALUE_HEADS, WIDTH)

    def one() -> Callable[[], None]:
        state = GdnMemory(
            make.real(*heads, WIDTH), make.real(ring_rows(4), channels),
            make.real(STEP_RING, *heads), make.real(STEP_RING, *heads),
            make.real(STEP_RING, VALUE_HEADS, 2).sigmoid(),
        )  # fmt: skip
        return lambda: gdn_window(
            *inputs, constants, state, make.position, make.pending, out, codes, make.bad,
            is_silu_gate=False, eps=EPS,
        )  # fmt: skip

    memory = 4 * VALUE_HEADS * WIDTH * WIDTH
    yield Launch("gdn window", [one() for _ in range(num_copies)], 2 * memory)


def _qsa(make: Maker, num_copies: int) -> Iterator[Launch]:
    n, capacity = make.n, make.capacity
    q_gate, k = make.real(n, HEADS, 2 * HEAD_DIM), make.real(n, KV_HEADS, HEAD_DIM)
    queries, index_q = make.real(n, HEADS, HEAD_DIM), make.real(n, INDEX_HEADS, INDEX_DIM)
    gamma, index_gamma = make.real(HEAD_DIM), make.real(INDEX_DIM)
    rope = RopeTable(make.real(capacity, PAIRS), make.real(capacity, PAIRS))
    groups = -(-capacity // (BLOCK * indexer.INDEX_GROUP))
    width, blocks = groups * indexer.INDEX_GROUP, BUDGET // BLOCK
    keys = [
        IndexKeys(make.real(16, INDEX_DIM), make.real(groups, INDEX_DIM, indexer.INDEX_GROUP))
        for _ in range(num_copies)
    ]
    scores = make.real(n, width).abs()
    chosen = make.whole([n, blocks], torch.int32, 0)
    candidates = make.whole(list(indexer.candidate_shape(n, width, blocks)), torch.int32, 0)
    inputs = IndexInputs(
        index_q, make.real(n, INDEX_DIM), index_gamma, index_gamma, index_q.clone(), BLOCK
    )
    position = make.position
    visible = 4 * INDEX_DIM * (make.cells // BLOCK)
    yield Launch(
        "score blocks",
        [
            lambda key=key: indexer.score_blocks(
                index_q, key.pooled, position, BUDGET, BLOCK, scores
            )
            for key in keys
        ],
        visible,
    )
    yield Launch(
        "select blocks",
        [lambda: indexer.select_blocks(scores, position, n, blocks, BLOCK, candidates, chosen)],
        0,
    )
    out, codes = make.real(n, HEADS * HEAD_DIM), make.codes(HEADS * HEAD_DIM)
    for kind in ("half", "int8"):
        cells = _cells(make, kind)
        yield Launch(
            f"append {kind}",
            [
                lambda cells=cells: append(
                    q_gate, k, k, gamma, gamma, rope, position, EPS, cells, queries,
                    (inputs, keys[0]),
                )
            ],
            0,
        )  # fmt: skip
        for name, table in (("sparse", chosen), ("dense", None)):
            selection = attention.Selection(table, BLOCK, capacity)
            size = (n, selection.num_parts, HEADS)
            parts = attention.Parts(make.real(*size, HEAD_DIM), make.real(*size, 2))
            seen = make.cells if table is None else min(make.cells, BUDGET + BLOCK - 1)
            cell_bytes = 2 * KV_HEADS * (2 * HEAD_DIM if kind == "half" else HEAD_DIM + 8)
            yield Launch(
                f"attend {name} {kind}",
                [
                    lambda cells=cells, selection=selection, parts=parts: attention.attend(
                        queries, q_gate[:, :, HEAD_DIM:], cells, selection, position, parts, out,
                        codes, make.bad,
                    )
                ],
                seen * cell_bytes,
            )  # fmt: skip


def _cells(make: Maker, kind: str) -> Cells:
    shape = (KV_HEADS, make.capacity, HEAD_DIM)
    if kind == "half":
        return Cells(*(make.real(*shape, dtype=torch.float16) for _ in "kv"))
    scales = (*shape[:2], HEAD_DIM // 64)
    return Cells(
        *(make.whole(list(shape), torch.int8, 3) for _ in "kv"),
        *(make.real(*scales, dtype=torch.float16) for _ in "kv"),
    )


def _ends(make: Maker, _num_copies: int) -> Iterator[Launch]:
    n, hyper = make.n, STREAMS * D
    streams, key, value = make.real(n, STREAMS, D), make.real(n, hyper), make.real(n, D)
    gammas = [make.real(hyper) for _ in range(3)]
    constants = NgramConstants(*gammas, make.real(4, hyper), 3)
    ring = make.real(ring_rows(4, 3), hyper)
    room = [make.real(n, hyper) for _ in range(2)]
    yield Launch(
        "n-gram memory",
        [lambda: add_memory(streams, key, value, constants, ring, make.position, EPS, *room)],
        0,
    )
    codes = make.codes(hyper)
    yield Launch(
        "rms norm of 10,240",
        [lambda: norms.rms_norm(key, gammas[0], EPS, room[0], codes, make.bad)],
        0,
    )
    yield Launch("spread", [lambda: norms.spread(value, streams)], 0)
    logits, ids = make.real(n, VOCAB), make.whole([n], torch.int32, 0)
    parts = argmax.num_parts(VOCAB)
    best, sums = make.whole([n, parts], torch.int64, 0), make.real(n, parts)
    probs = make.real(n)
    yield Launch(
        "argmax", [lambda: argmax.argmax(logits, best, sums, ids, probs, make.bad)], 4 * n * VOCAB
    )
    reals = torch.tensor([1.0, 0.95, 0.0, 1.1, 0.1, 0.1], dtype=torch.float64)
    options = sampling.SamplingOptions(
        reals.to(make.device), torch.tensor([20, 64, 7, 0]).to(make.device),
        make.whole([make.capacity], torch.int32, 5), make.whole([n, VOCAB // 32], torch.int32, -1),
    )  # fmt: skip
    scratch = sampling.SamplingScratch(
        make.whole([n, sampling.num_blocks(VOCAB)], torch.int32, 0),
        make.whole([n, 3, 64], torch.int32, 0), make.real(n, 3, 64, dtype=torch.float64),
    )  # fmt: skip
    yield Launch(
        "sample",
        [lambda: sampling.sample(logits, options, make.position, scratch, ids, make.bad)],
        4 * n * VOCAB,
    )
