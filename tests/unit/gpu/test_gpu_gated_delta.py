"""A delta net's window against the float64 reference; kept and dropped rows by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import assert_equal_codes, zero_codes  # noqa: E402

from strata.gpu.kernels import gated_delta  # noqa: E402
from strata.gpu.kernels.causal_conv import ring_rows  # noqa: E402
from strata.gpu.kernels.gated_delta import (  # noqa: E402
    STEP_RING,
    GdnConstants,
    GdnMemory,
    gdn_window,
)
from strata.gpu.kernels.quantize import Codes, quantize  # noqa: E402
from strata.reference import gated_delta as reference  # noqa: E402
from strata.reference.norms import l2_norm, rms_norm, sigmoid, silu, softplus  # noqa: E402

EPS = 1e-6
KERNEL = 4
# key heads, value heads, key width, value width
SMALL, UNEVEN = (2, 4, 16, 32), (1, 2, 12, 36)


class Layer:
    """One layer's constants, its state on the device, and the inputs of a run of tokens."""

    def __init__(self, geometry: tuple[int, int, int, int], num: int, device: str) -> None:
        self.key_heads, self.heads, self.dk, self.dv = geometry
        self.device = device
        self.rng = np.random.default_rng(sum(geometry) + num)
        self.channels = 2 * self.key_heads * self.dk + self.heads * self.dv
        self.conv = self._random(self.channels, KERNEL)
        self.dt, self.a = self._random(self.heads), -np.exp(self._random(self.heads))
        self.gamma = 1 + self._random(self.dv) / 4
        self.qkv, self.z = self._random(num, self.channels), self._random(num, self.heads * self.dv)
        # Some steps are large enough for the linear part of softplus.
        self.alpha, self.beta = 9 * self._random(num, self.heads), self._random(num, self.heads)
        self.memory = self._random(self.heads, self.dk, self.dv) / 4
        self.history = self._random(KERNEL - 1, self.channels)

    def _random(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def tensor(self, a: np.ndarray) -> torch.Tensor:
        return torch.tensor(a, device=self.device)

    def constants(self) -> GdnConstants:
        taps = np.ascontiguousarray(self.conv.T)
        return GdnConstants(*map(self.tensor, (taps, self.dt, self.a, self.gamma)))

    def state(self, position: int) -> GdnMemory:
        """The state before the first token; what must not be read is poison."""
        ring = np.full((ring_rows(KERNEL), self.channels), np.nan, np.float32)
        for back in range(1, KERNEL):
            if position >= back:
                ring[(position - back) % len(ring)] = self.history[-back]

        def poison(*shape: int) -> torch.Tensor:
            return torch.full(shape, torch.nan, device=self.device)

        return GdnMemory(
            self.tensor(self.memory), self.tensor(ring), poison(STEP_RING, self.heads, self.dk),
            poison(STEP_RING, self.heads, self.dv), poison(STEP_RING, self.heads, 2),
        )  # fmt: skip

    def window(
        self, state: GdnMemory, first: int, num: int, position: int, pending: int,
        codes: Codes | None = None, bad: torch.Tensor | None = None, *, is_silu: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        rows = slice(first, first + num)
        out = torch.full((num, self.heads * self.dv), torch.nan, device=self.device)
        gdn_window(
            *(self.tensor(a[rows]) for a in (self.qkv, self.z, self.alpha, self.beta)),
            self.constants(), state, torch.tensor([position], device=self.device),
            torch.tensor([pending], dtype=torch.int32, device=self.device), out, codes, bad,
            is_silu_gate=is_silu, eps=EPS,
        )  # fmt: skip
        return out

    def expected(self, *, history: bool, is_silu: bool) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of all rows and the memory after them, in float64."""
        past = self.history.astype(np.float64) * history
        mixed = silu(reference.causal_conv(self.qkv.astype(np.float64), past, self.conv))
        keys = self.key_heads * self.dk
        q, k, v = np.split(mixed, [keys, 2 * keys], axis=1)
        heads = np.arange(self.heads) % self.key_heads
        q, k = (l2_norm(a.reshape(len(a), -1, self.dk))[:, heads] for a in (q, k))
        v = v.reshape(len(v), self.heads, self.dv)
        log_decay = softplus(self.alpha.astype(np.float64) + self.dt) * self.a
        beta = sigmoid(self.beta.astype(np.float64))
        out, memory = reference.stepwise(q, k, v, log_decay, beta, self.memory.astype(np.float64))
        z = self.z.astype(np.float64).reshape(v.shape)
        gated = rms_norm(out, self.gamma, EPS) * (silu(z) if is_silu else sigmoid(z))
        return gated.reshape(len(v), -1), memory


@pytest.mark.parametrize("geometry", [SMALL, UNEVEN])
@pytest.mark.parametrize("position", [0, 2, 13])
def test_a_window_is_the_reference(
    geometry: tuple[int, int, int, int], position: int, device: str
) -> None:
    layer, is_silu = Layer(geometry, 5, device), position == 2
    layer.history[: max(KERNEL - 1 - position, 0)] = 0
    state = layer.state(position)
    out = layer.window(state, 0, 5, position, 0, is_silu=is_silu)
    expected, memory = layer.expected(history=True, is_silu=is_silu)
    np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=2e-5, atol=2e-5)
    assert torch.equal(state.memory, layer.tensor(layer.memory))  # nothing is committed yet
    layer.window(state, 0, 0, position + 5, 5)
    np.testing.assert_allclose(state.memory.cpu().numpy(), memory, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [[1] * 8, [8], [3, 5], [2, 1, 5]])
def test_rows_are_the_same_bits_however_they_are_windowed(rows: list[int], device: str) -> None:
    layer = Layer(SMALL, 8, device)
    whole = layer.window(layer.state(6), 0, 8, 6, 0)
    state, first, pending, outs = layer.state(6), 0, 0, []
    for num in rows:
        outs.append(layer.window(state, first, num, 6 + first, pending))
        first, pending = first + num, num
    assert torch.equal(torch.cat(outs), whole)
    stepped = layer.state(6)
    layer.window(stepped, 0, 8, 6, 0)
    layer.window(stepped, 0, 0, 14, 8)
    layer.window(state, 0, 0, 14, pending)
    assert torch.equal(state.memory, stepped.memory)


@pytest.mark.parametrize("shape", [(4, 4), (2, 2), (1, 8)])
def test_how_columns_are_dealt_out_changes_no_bit(
    shape: tuple[int, int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Layer(SMALL, 3, device)
    states = layer.state(6), layer.state(6)
    expected = layer.window(states[0], 0, 3, 6, 0)
    layer.window(states[0], 0, 0, 9, 3)
    monkeypatch.setattr(gated_delta, "STEP_COLUMNS", shape[0])
    monkeypatch.setattr(gated_delta, "STEP_WARPS", shape[1])
    assert torch.equal(layer.window(states[1], 0, 3, 6, 0), expected)
    layer.window(states[1], 0, 0, 9, 3)
    assert torch.equal(states[1].memory, states[0].memory)


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_dropped_rows_leave_no_trace(kept: int, device: str) -> None:
    """A window whose first rows are kept, then the true rows, against the true rows alone."""
    layer = Layer(SMALL, 8, device)
    state = layer.state(9)
    truth = {name: getattr(layer, name).copy() for name in ("qkv", "z", "alpha", "beta")}
    for name in truth:  # rows behind the kept ones are wrong drafts
        getattr(layer, name)[kept:5] += 1
    layer.window(state, 0, 5, 9, 0)
    for name, values in truth.items():
        setattr(layer, name, values)
    out = layer.window(state, kept, 4, 9 + kept, kept)
    whole = layer.window(layer.state(9), 0, 8, 9, 0)
    assert torch.equal(out, whole[kept : kept + 4])


def test_codes_are_those_of_the_output(device: str) -> None:
    layer = Layer(SMALL, 3, device)
    codes, expected = (zero_codes(3, layer.heads * layer.dv, device) for _ in range(2))
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    quantize(layer.window(layer.state(4), 0, 3, 4, 0, codes, bad), expected, bad)
    assert_equal_codes(codes, expected)
    assert bad.item() == 0


def test_a_nan_raises_the_flag(device: str) -> None:
    layer = Layer(SMALL, 1, device)
    layer.gamma[5] = np.nan
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    codes = zero_codes(1, layer.heads * layer.dv, device)
    layer.window(layer.state(4), 0, 1, 4, 0, codes, bad)
    assert bad.item() == 1
