"""A prompt chunk's delta net against float64, within the specified bounds; cuts by equality."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.prompt_inputs import poisoned_codes  # noqa: E402
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels import conv_prompt, delta_scan  # noqa: E402
from strata.gpu.kernels.causal_conv import ring_rows  # noqa: E402
from strata.gpu.kernels.gated_delta import (  # noqa: E402
    STEP_RING,
    GdnConstants,
    GdnMemory,
    gdn_window,
)
from strata.gpu.kernels.prompt_codes import empty_prompt_codes, quantize_prompt  # noqa: E402
from strata.reference import gated_delta as reference  # noqa: E402
from strata.reference.norms import l2_norm, rms_norm, sigmoid, silu, softplus  # noqa: E402

EPS, KERNEL = 1e-6, 4
# key heads, value heads, key width, value width
SMALL, UNEVEN = (1, 2, 16, 32), (2, 2, 12, 20)
IN_PARTS = (1, 2, 40, 32)  # keys wide enough for products of some values at a time


class Layer:
    """Constants of a layer and the inputs of a prompt."""

    def __init__(self, geometry: tuple[int, int, int, int], num: int, device: str) -> None:
        self.key_heads, self.heads, self.dk, self.dv = geometry
        self.num, self.device = num, device
        rng = np.random.default_rng(num + sum(geometry))

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.channels = 2 * self.key_heads * self.dk + self.heads * self.dv
        self.taps = random(KERNEL, self.channels)
        self.dt, self.a = random(self.heads), -np.exp(random(self.heads))
        self.gamma = 1 + random(self.dv) / 4
        self.qkv, self.z = random(num, self.channels), random(num, self.heads * self.dv)
        # From no decay at all to one that forgets everything at once.
        self.alpha, self.beta = 9 * random(num, self.heads), 2 * random(num, self.heads)
        self.memory = random(self.heads, self.dk, self.dv) / 4
        self.history = random(KERNEL - 1, self.channels)

    def tensor(self, a: np.ndarray) -> torch.Tensor:
        return torch.tensor(a, device=self.device)

    def constants(self) -> GdnConstants:
        return GdnConstants(*map(self.tensor, (self.taps, self.dt, self.a, self.gamma)))

    def state(self, position: int) -> GdnMemory:
        ring = np.full((ring_rows(KERNEL), self.channels), np.nan, np.float32)
        for back in range(1, KERNEL):
            ring[(position - back) % len(ring)] = self.history[-back]
        rings = [
            poison(self.device, STEP_RING, self.heads, width) for width in (self.dk, self.dv, 2)
        ]
        return GdnMemory(self.tensor(self.memory), self.tensor(ring), *rings)

    def chunk(self, state: GdnMemory, position: int, first: int, num: int) -> torch.Tensor:
        """Outputs of rows ``first`` and on; ``state`` moves on."""
        rows = slice(first, first + num)
        mixed = conv_prompt.empty_rows(num, self.key_heads, state.memory.shape, self.device)
        out = poison(self.device, num, self.heads * self.dv)
        scratch = delta_scan.scan_scratch(num, self.heads, self.device)
        for holder in (mixed, scratch):
            for field in fields(holder):
                getattr(holder, field.name).fill_(torch.nan)
        constants = self.constants()
        conv_prompt.conv_prompt(self.tensor(self.qkv[rows]), constants, state, position, mixed)
        delta_scan.delta_scan(
            mixed, self.tensor(self.alpha[rows]), self.tensor(self.beta[rows]), constants,
            state.memory, position, scratch, out,
        )  # fmt: skip
        return out

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """What all rows read, and the memory after them, in float64."""
        wide = self.qkv.astype(np.float64)
        mixed = silu(reference.causal_conv(wide, self.history.astype(np.float64), self.taps.T))
        keys = self.key_heads * self.dk
        q, k, v = np.split(mixed, [keys, 2 * keys], axis=1)
        heads = np.arange(self.heads) % self.key_heads
        q, k = (l2_norm(a.reshape(len(a), -1, self.dk))[:, heads] for a in (q, k))
        decay = softplus(self.alpha.astype(np.float64) + self.dt) * self.a
        out, memory = reference.stepwise(
            q, k, v.reshape(self.num, self.heads, self.dv), decay,
            sigmoid(self.beta.astype(np.float64)), self.memory.astype(np.float64),
        )  # fmt: skip
        return out.reshape(self.num, -1), memory


def assert_within(actual: torch.Tensor, expected: np.ndarray, absolute: float, share: float):
    error = np.abs(actual.cpu().numpy() - expected)
    assert error.max() <= absolute
    assert (error / np.maximum(np.abs(expected), 1e-4)).max() <= share


@pytest.mark.parametrize(
    ("geometry", "position", "num"),
    [
        *itertools.product([SMALL, UNEVEN], [0], [64]),
        *itertools.product([SMALL, UNEVEN, IN_PARTS], [128], [130]),
        *itertools.product([SMALL, UNEVEN], [37], [20]),
        *itertools.product([SMALL, IN_PARTS], [250], [75]),
    ],
)
def test_a_chunk_is_the_reference_within_its_bounds(geometry, position, num, device) -> None:
    layer = Layer(geometry, num, device)
    layer.history[: max(KERNEL - 1 - position, 0)] = 0
    state = layer.state(position)
    out = layer.chunk(state, position, 0, num)
    expected, memory = layer.expected()
    assert_within(out, expected, 1e-5, 2e-2)
    # The bound of 5e-7 is for a memory below one; here its values reach three.
    assert_within(state.memory, memory, 5e-7 * max(1.0, np.abs(memory).max()), 2e-3)


@pytest.mark.parametrize("gain", [0.0, 8.0])
def test_equal_keys_do_not_lose_the_inverse(gain: float, device: str) -> None:
    """Every token has the same key: products of the triangle grow fastest here."""
    layer = Layer(SMALL, 64, device)
    layer.qkv[:] = layer.qkv[:1]
    layer.history[:] = layer.qkv[0]
    layer.alpha[:] = -30
    layer.beta[:] = gain
    state = layer.state(64)
    out = layer.chunk(state, 64, 0, 64)
    expected, memory = layer.expected()
    assert_within(out, expected, 1e-5, 2e-2)
    # Every correction but the first is the rest of a cancellation; float32 steps err by 9e-6 here.
    assert_within(state.memory, memory, 2e-5, 2e-3)


@pytest.mark.parametrize("cuts", [[64], [128], [64, 128]])
def test_cuts_at_multiples_of_64_leave_no_trace(cuts: list[int], device: str) -> None:
    position, num = 41, 160  # positions 41 .. 200
    layer = Layer(SMALL, num, device)
    whole_state, state = layer.state(position), layer.state(position)
    whole = layer.chunk(whole_state, position, 0, num)
    ends = [*cuts, position + num]
    outs, first = [], 0
    for end in ends:
        outs.append(layer.chunk(state, position + first, first, end - position - first))
        first = end - position
    assert torch.equal(torch.cat(outs), whole)
    assert torch.equal(state.memory, whole_state.memory)
    for back in range(1, KERNEL):
        slot = (position + num - back) % len(state.ring)
        assert torch.equal(state.ring[slot], layer.tensor(layer.qkv[-back]))


def test_decoding_goes_on_where_the_prompt_ended(device: str) -> None:
    layer, position, num = Layer(SMALL, 70, device), 10, 66
    state = layer.state(position)
    layer.chunk(state, position, 0, num)
    rows = slice(num, num + 4)
    out = poison(device, 4, layer.heads * layer.dv)
    gdn_window(
        *(layer.tensor(a[rows]) for a in (layer.qkv, layer.z, layer.alpha, layer.beta)),
        layer.constants(), state, torch.tensor([position + num], device=device),
        torch.zeros(1, dtype=torch.int32, device=device), out, is_silu_gate=False, eps=EPS,
    )  # fmt: skip
    expected = layer.expected()[0].reshape(70, layer.heads, layer.dv)
    gated = rms_norm(expected, layer.gamma, EPS) * sigmoid(layer.z.reshape(expected.shape))
    np.testing.assert_allclose(out.cpu().numpy(), gated.reshape(70, -1)[rows], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("is_silu", [False, True])
def test_gated_norm(*, is_silu: bool, device: str) -> None:
    layer = Layer(UNEVEN, 5, device)
    rows = np.random.default_rng(0).standard_normal((5, layer.heads, layer.dv))
    out = torch.tensor(rows.reshape(5, -1), dtype=torch.float32, device=device)
    wide = poison(device, 5, 3 + layer.heads * layer.dv)
    wide[:, 3:] = layer.tensor(layer.z)
    delta_scan.gated_norm(out, wide[:, 3:], layer.tensor(layer.gamma), EPS, is_silu_gate=is_silu)
    z = layer.z.astype(np.float64).reshape(rows.shape)
    expected = rms_norm(rows, layer.gamma, EPS) * (silu(z) if is_silu else sigmoid(z))
    np.testing.assert_allclose(out.cpu().numpy(), expected.reshape(5, -1), rtol=2e-6, atol=2e-6)


def test_gated_norm_as_codes(device: str) -> None:
    """Those of the rows that it would have written, which it leaves alone."""
    layer = Layer(SMALL, 5, device)
    rows = np.random.default_rng(0).standard_normal((5, layer.heads * layer.dv))
    given = torch.tensor(rows, dtype=torch.float32, device=device)
    out, z, gamma = given.clone(), layer.tensor(layer.z), layer.tensor(layer.gamma)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    codes = poisoned_codes(5, rows.shape[1], device)
    delta_scan.gated_norm(given, z, gamma, EPS, is_silu_gate=False, codes=codes, bad=bad)
    assert torch.equal(given, out)
    delta_scan.gated_norm(out, z, gamma, EPS, is_silu_gate=False)
    wanted = empty_prompt_codes(5, rows.shape[1], device)
    quantize_prompt(out, wanted, bad)
    for field in fields(wanted):
        assert torch.equal(getattr(codes, field.name), getattr(wanted, field.name)), field.name
    assert bad.item() == 0
