"""Model operations of the extension, each against numpy, and across instruction sets bit for bit.

``exp``, ``sigmoid`` and ``silu`` equal ``reference.expert_numerics`` in every bit; the others are
compared with the float64 reference, and between instruction sets, threads and rows by their bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from strata import _native
from strata.cpu.buffers import zeros
from strata.model_spec import RopeSpec
from strata.reference import expert_numerics, gated_delta, norms
from strata.reference.rope import rope_tables, rotate
from strata.reference.sparse_attention import attend, select_cells

if TYPE_CHECKING:
    from collections.abc import Callable

ISAS = [isa for isa in ("scalar", "avx2", "avx512", "amx") if _native.is_isa_supported(isa)]
CONTEXTS = [_native.Context(threads, isa) for isa in ISAS for threads in (1, 2)]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(np.asarray(a).view(np.uint32), np.asarray(b).view(np.uint32))


def on_all(compute: Callable[[_native.Context], np.ndarray]) -> np.ndarray:
    """The result, after checking that every context gives the same bits."""
    first = compute(CONTEXTS[0])
    for ctx in CONTEXTS[1:]:
        assert same_bits(compute(ctx), first), (ctx.isa, ctx.num_threads)
    return first


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def many_floats() -> np.ndarray:
    """Values of every magnitude, both signs, and the corners."""
    rng = np.random.default_rng(1)
    spread = rng.uniform(-110, 110, 20_003)
    small = rng.standard_normal(5_000) * 10.0 ** rng.integers(-40, 2, 5_000)
    corners = [0.0, -0.0, 1.0, -104.0, 88.7, 1e30, -1e30, np.inf, -np.inf, 1e-45]
    return np.concatenate([spread, small, corners]).astype(np.float32)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "silu"])
def test_pointwise_functions_have_the_documented_bits(name: str) -> None:
    x = many_floats()
    expected = getattr(expert_numerics, f"{name}_f32")
    if name == "silu":
        x = x[np.isfinite(x)]  # -inf / inf has no one NaN
    out = on_all(lambda ctx: _applied(ctx, name, x))
    with np.errstate(all="ignore"):
        assert same_bits(out, expected(x))


def _applied(ctx: _native.Context, name: str, x: np.ndarray) -> np.ndarray:
    out = np.full_like(x, np.nan)
    getattr(_native, name)(ctx, x, out)
    return out


def test_exp_of_nan_is_nan() -> None:
    assert np.isnan(_applied(CONTEXTS[-1], "exp", np.array([np.nan], np.float32))).all()


def test_softplus_is_accurate_to_a_few_units_in_the_last_place() -> None:
    x = many_floats()
    x = x[(x > -80) & (x < 1e6)]
    out = on_all(lambda ctx: _applied(ctx, "softplus", x))
    wide = x.astype(np.float64)
    exact = np.where(x > 20, wide, np.log1p(np.exp(np.minimum(wide, 20))))
    assert np.abs(out / exact - 1).max() < 4 * 2.0**-23


@pytest.mark.parametrize(("rows", "streams", "width"), [(1, 4, 2560), (5, 3, 36), (9, 2, 7)])
def test_hyper_connection_parts(rows: int, streams: int, width: int) -> None:
    residual, gamma = normal(rows, streams, width, seed=2), normal(streams, width, seed=3)
    out, inject = normal(rows, width, seed=4), normal(rows, streams, seed=5)
    gate = normal(rows, streams * width, seed=6)
    eps = 1e-6

    def write_then_norm(ctx: _native.Context) -> np.ndarray:
        r, xn = residual.copy(), np.full((rows, streams * width), np.nan, np.float32)
        _native.hc_write(ctx, r, out, inject, gamma, eps, xn)
        plain, alone = residual.copy(), np.full_like(xn, np.nan)
        _native.hc_write(ctx, plain, out, inject, None, eps, None)
        _native.hc_norm(ctx, plain, gamma, eps, alone)
        assert same_bits(r, plain)
        assert same_bits(xn, alone)
        mixed = np.full((rows, width), np.nan, np.float32)
        _native.hc_mix(ctx, xn, gate, streams, mixed)
        return np.concatenate([r.reshape(-1), xn.reshape(-1), mixed.reshape(-1)])

    found = on_all(write_then_norm)
    r64 = (
        residual
        + out[:, None].astype(np.float64)
        * 2
        * norms.sigmoid(inject.astype(np.float64) / streams)[:, :, None]
    )
    xn64 = norms.rms_norm(r64, gamma, eps)
    gate64 = norms.sigmoid(gate.astype(np.float64)).reshape(xn64.shape)
    expected = np.concatenate(
        [r64.reshape(-1), xn64.reshape(-1), (xn64 * gate64).mean(1).reshape(-1)]
    )
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=3e-6)


class GdnCase:
    """One layer with random weights and rows."""

    def __init__(self, key_heads: int, value_heads: int, dk: int, dv: int, kernel: int) -> None:
        self.sizes = (key_heads, value_heads, dk, dv)
        channels = 2 * key_heads * dk + value_heads * dv
        self.conv_weight = normal(kernel, channels, seed=7, scale=0.5)
        self.ssm_a = -np.abs(normal(value_heads, seed=8))
        self.dt, self.gamma = normal(value_heads, seed=9), normal(dv, seed=10)
        self.num_rows = 21
        self.conv_in = normal(kernel - 1 + self.num_rows, channels, seed=11)
        self.alpha = normal(self.num_rows, value_heads, seed=12)
        self.beta = normal(self.num_rows, value_heads, seed=13)
        self.z = normal(self.num_rows, value_heads * dv, seed=14)
        self.layer = _native.GdnLayer(
            key_heads, value_heads, 1e-6, False, self.conv_weight, self.ssm_a, self.dt, self.gamma
        )

    def buffers(self, rows: int) -> _native.GdnRows:
        key_heads, value_heads, dk, dv = self.sizes
        keys = (rows, key_heads * dk)
        return _native.GdnRows(
            zeros(keys),
            zeros(keys),
            zeros((rows, value_heads * dv)),
            zeros((rows, value_heads)),
            zeros((rows, value_heads)),
        )

    def run(self, ctx, first, rows, state, computed, pending, num_pending, *, is_window):
        history = len(self.conv_in) - self.num_rows
        out = np.full((rows, self.z.shape[1]), np.nan, np.float32)
        part = slice(first, first + rows)
        self.layer.run(
            ctx, rows, self.conv_in[first : first + history + rows], self.alpha[part],
            self.beta[part], self.z[part], computed, pending, num_pending, state, is_window, out,
        )  # fmt: skip
        return out

    def expected(self) -> np.ndarray:
        key_heads, value_heads, dk, dv = self.sizes
        history = len(self.conv_in) - self.num_rows
        wide = self.conv_in.astype(np.float64)
        conv = gated_delta.causal_conv(wide[history:], wide[:history], self.conv_weight.T)
        q, k, v = np.split(norms.silu(conv), [key_heads * dk, 2 * key_heads * dk], axis=1)
        head = np.arange(value_heads) % key_heads
        shape = (self.num_rows, key_heads, dk)
        q, k = (norms.l2_norm(a.reshape(shape))[:, head] for a in (q, k))
        v = v.reshape(self.num_rows, value_heads, dv)
        log_decay = norms.softplus(self.alpha.astype(np.float64) + self.dt) * self.ssm_a
        beta = norms.sigmoid(self.beta.astype(np.float64))
        out, _ = gated_delta.stepwise(q, k, v, log_decay, beta, np.zeros((value_heads, dk, dv)))
        gate = norms.sigmoid(self.z.astype(np.float64)).reshape(v.shape)
        return (norms.rms_norm(out, self.gamma, 1e-6) * gate).reshape(self.num_rows, -1)


@pytest.mark.parametrize(
    "sizes", [(2, 6, 128, 128, 4), (3, 3, 12, 20, 2), (1, 2, 5, 33, 3), (2, 2, 8, 16, 1)]
)
def test_gated_delta_net_in_one_go_equals_windows_with_pending_rows(sizes) -> None:
    case = GdnCase(*sizes)

    def whole(ctx: _native.Context) -> np.ndarray:
        state = zeros((case.layer.state_size,))
        nothing = case.buffers(1)
        return case.run(
            ctx, 0, case.num_rows, state, case.buffers(case.num_rows), nothing, 0, is_window=False
        )

    out = on_all(whole)
    # Small outputs before the norm are ill-conditioned; the tolerance is that of float32 there.
    np.testing.assert_allclose(out, case.expected(), rtol=2e-3, atol=2e-4)

    state = zeros((case.layer.state_size,))
    computed, pending, num_pending, at = case.buffers(8), case.buffers(8), 0, 0
    while at < case.num_rows:
        rows = min(1 + at % 5, case.num_rows - at)
        kept = max(1, rows - at % 2)
        before = state.copy()
        found = case.run(
            CONTEXTS[-1], at, rows, state, computed, pending, num_pending, is_window=True
        )
        if num_pending == 0:
            assert same_bits(state, before)  # a window leaves the state alone
        assert same_bits(found, out[at : at + rows])
        computed, pending, num_pending = pending, computed, kept
        at += kept


class QsaCase:
    """One layer's cells filled by a prompt, then asked for rows."""

    def __init__(self, *, kv_heads: int, group: int, dh: int, block: int, budget: int, cells: int):
        self.heads, self.kv_heads, self.dh = kv_heads * group, kv_heads, dh
        self.block, self.budget, self.num_cells = block, budget, cells
        self.index_heads, self.di = 3, 24
        self.rope = RopeSpec(dim=8, base=1000.0, sections=(2, 1, 1))
        self.q_gate = normal(cells, self.heads * 2 * dh, seed=20)
        self.k, self.v = (
            normal(cells, kv_heads * dh, seed=21),
            normal(cells, kv_heads * dh, seed=22),
        )
        self.index_q = normal(cells, self.index_heads * self.di, seed=23)
        self.index_k = normal(cells, self.di, seed=24)
        # Blocks of equal raw keys: their scores differ by their rotation only, and many are zero.
        self.index_k[: cells // 2] = np.repeat(self.index_k[: cells // 2 : 8], 8, axis=0)[
            : cells // 2
        ]
        self.gammas = [normal(n, seed=25 + n) for n in (dh, dh, self.di, self.di)]
        self.layer = _native.QsaLayer(
            self.heads, kv_heads, self.index_heads, block, budget // block, self.rope.dim, 1e-6,
            *self.gammas,
        )  # fmt: skip
        cos, sin = rope_tables(self.rope, np.arange(cells), np.float32)
        self.cos, self.sin = cos, sin
        self.rope_rows = _native.RopeRows(cos, sin, 0)

    def run(self, ctx: _native.Context, pieces: list[int], cell_type: type) -> np.ndarray:
        n = self.num_cells
        k_cells, v_cells = (zeros((self.kv_heads, n, self.dh), cell_type) for _ in range(2))
        groups = n // self.block // 16 + 1
        cells = _native.QsaCells(
            k_cells, v_cells, zeros((n + self.block, self.di)), zeros((groups, self.di, 16))
        )
        scratch = _native.QsaScratch(
            zeros((n, self.heads * self.dh)),
            zeros((n, self.index_heads * self.di)),
            zeros((8, groups * 16)),
            zeros((8, self.budget // self.block), np.int32),
            zeros((8, self.heads, self.budget + self.block + 15)),
        )
        out = np.full((n, self.heads * self.dh), np.nan, np.float32)
        at = 0
        for rows in pieces:
            part = slice(at, at + rows)
            self.layer.run(
                ctx, rows, at, self.q_gate[part], self.k[part], self.v[part], self.index_q[part],
                self.index_k[part], self.rope_rows, cells, scratch, out[part],
            )  # fmt: skip
            at += rows
        assert at == n
        return out

    def expected(self) -> np.ndarray:
        """In float64, but blocks are chosen by float32 scores: a tie must fall the same way."""
        n, q_gamma, k_gamma, iq_gamma, ik_gamma = self.num_cells, *self.gammas
        cos, sin = rope_tables(self.rope, np.arange(n), np.float64)

        def turned(x: np.ndarray, heads: int, gamma: np.ndarray) -> np.ndarray:
            wide = x.reshape(n, heads, -1).astype(np.float64)
            return rotate(norms.rms_norm(wide, gamma, 1e-6), cos, sin)

        q, gate = np.split(self.q_gate.reshape(n, self.heads, -1).astype(np.float64), 2, axis=-1)
        q = turned(q, self.heads, q_gamma)
        k = turned(self.k, self.kv_heads, k_gamma)
        v = self.v.reshape(n, self.kv_heads, -1).astype(np.float64)
        index_q = turned(self.index_q, self.index_heads, iq_gamma)
        blocks = n // self.block
        raw = self.index_k[: blocks * self.block].reshape(blocks, self.block, -1)
        pooled = norms.rms_norm(raw.astype(np.float64).mean(axis=1), ik_gamma, 1e-6)
        starts = slice(0, blocks * self.block, self.block)
        pooled = rotate(pooled[:, None], cos[starts], sin[starts])[:, 0]
        out = np.zeros_like(q)
        for t in range(n):
            visible = pooled[: (t + 1) // self.block]
            scores = np.maximum(index_q[t] @ visible.T, 0).sum(axis=0)
            cells = select_cells(scores, t + 1, self.budget, self.block)
            out[t] = attend(q[t], k, v, cells, self.heads // self.kv_heads)
        return (out * norms.sigmoid(gate)).reshape(n, -1)


@pytest.mark.parametrize(
    "case",
    [
        QsaCase(kv_heads=2, group=6, dh=64, block=4, budget=64, cells=301),
        QsaCase(kv_heads=1, group=3, dh=20, block=3, budget=12, cells=100),
        QsaCase(kv_heads=3, group=1, dh=9, block=2, budget=8, cells=90),
        QsaCase(kv_heads=1, group=5, dh=48, block=4, budget=1200, cells=330),
    ],
    ids=["grouped", "odd-block", "narrow", "all-cells"],
)
def test_sparse_attention(case: QsaCase) -> None:
    n = case.num_cells
    out = on_all(lambda ctx: case.run(ctx, [n], np.float32))
    np.testing.assert_allclose(out, case.expected(), rtol=1e-4, atol=2e-5)
    pieces = [1, 2, 8, 3, 40]
    pieces.append(n - sum(pieces))
    assert same_bits(case.run(CONTEXTS[-1], pieces, np.float32), out)
    half = on_all(lambda ctx: case.run(ctx, [n], np.float16))
    assert same_bits(case.run(CONTEXTS[-1], [1] * n, np.float16), half)
    np.testing.assert_allclose(half, out, rtol=0, atol=5e-3)


def test_equal_block_scores_take_the_lower_blocks() -> None:
    # Every score is zero: the wanted number of blocks are the first ones.
    case = QsaCase(kv_heads=1, group=1, dh=16, block=4, budget=8, cells=61)
    case.index_k[:] = 0  # a zero key has zero products whatever its rotation
    out = case.run(CONTEXTS[-1], [case.num_cells], np.float32)
    np.testing.assert_allclose(out, case.expected(), rtol=1e-4, atol=2e-5)
    # Cells 8 to 59 are in no chosen block of the last row: they must not matter to it.
    changed = QsaCase(kv_heads=1, group=1, dh=16, block=4, budget=8, cells=61)
    changed.index_k[:] = 0
    changed.v[8:60] += 1
    assert same_bits(changed.run(CONTEXTS[-1], [61], np.float32)[60], out[60])


@pytest.mark.parametrize(("experts", "top_k"), [(64, 10), (512, 10), (7, 7), (33, 1), (3, 2)])
def test_routing(experts: int, top_k: int) -> None:
    logits = normal(40, experts, seed=30, scale=2.0)
    logits[:8] = np.round(logits[:8])  # ties
    logits[8] = 0.5
    shared = normal(40, seed=31)

    def route(ctx: _native.Context) -> np.ndarray:
        ids, weights = np.full((40, top_k), -1, np.int32), np.full((40, top_k), np.nan, np.float32)
        gate = shared.copy()
        assert _native.route(ctx, logits, 1.5, ids, weights, gate) == -1
        return np.concatenate([ids.view(np.float32), weights, gate[:, None]], axis=1)

    found = on_all(route)
    ids, weights = found[:, :top_k].view(np.int32), found[:, top_k : 2 * top_k]
    probs = norms.softmax(logits.astype(np.float64))
    # Equal logits give equal probabilities: stable order is by probability, then index.
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :top_k]
    np.testing.assert_array_equal(ids, expected)
    chosen = np.take_along_axis(probs, expected, axis=1)
    wanted = 1.5 * chosen / chosen.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, wanted, rtol=2e-6)
    assert same_bits(found[:, -1], expert_numerics.sigmoid_f32(shared))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_routing_tells_the_first_row_without_a_number(bad: float) -> None:
    logits = normal(20, 9, seed=32)
    logits[7, 2] = logits[13, 8] = bad
    ids, weights = np.zeros((20, 3), np.int32), np.zeros((20, 3), np.float32)
    for ctx in CONTEXTS:
        assert _native.route(ctx, logits, 1.0, ids, weights, None) == 7


def test_a_wrong_size_is_refused_before_anything_is_written() -> None:
    ctx = CONTEXTS[0]
    residual, gamma = normal(2, 4, 16), normal(4, 16)
    with pytest.raises(ValueError, match="xn holds 127 values, 128 are needed"):
        _native.hc_norm(ctx, residual, gamma, 1e-6, np.zeros(127, np.float32))
    with pytest.raises(ValueError, match="more experts"):
        _native.route(
            ctx, normal(1, 3), 1.0, np.zeros((1, 4), np.int32), np.zeros((1, 4), np.float32), None
        )
