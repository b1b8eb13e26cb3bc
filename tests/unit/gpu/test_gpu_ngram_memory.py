"""The memory against the float64 reference; kept and dropped rows by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels.causal_conv import ring_rows  # noqa: E402
from strata.gpu.kernels.ngram_memory import NgramConstants, add_memory  # noqa: E402
from strata.reference.gated_delta import causal_conv  # noqa: E402
from strata.reference.norms import rms_norm, sigmoid, silu  # noqa: E402

EPS, STREAMS, KERNEL, DILATION = 1e-6, 4, 4, 3


class Block:
    """Weights and the inputs of a run of tokens; a ring on the device."""

    def __init__(self, width: int, num: int, device: str) -> None:
        rng = np.random.default_rng(width)
        self.device, self.width = device, width

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.streams, self.key = random(num, STREAMS, width), random(num, STREAMS * width)
        self.value = random(num, width)
        self.gammas = [random(STREAMS * width) for _ in range(3)]
        self.conv = random(STREAMS * width, KERNEL)
        self.ring = poison(device, ring_rows(KERNEL, DILATION), STREAMS * width)

    def tensor(self, a: np.ndarray) -> torch.Tensor:
        return torch.tensor(a, device=self.device)

    def run(self, first: int, num: int) -> torch.Tensor:
        rows = slice(first, first + num)
        streams = self.tensor(self.streams[rows])
        constants = NgramConstants(
            *map(self.tensor, self.gammas), self.tensor(np.ascontiguousarray(self.conv.T)), DILATION
        )
        scratch = (poison(self.device, num, STREAMS * self.width) for _ in range(2))
        add_memory(
            streams, self.tensor(self.key[rows]), self.tensor(self.value[rows]), constants,
            self.ring, torch.tensor([first], device=self.device), EPS, *scratch,
        )  # fmt: skip
        return streams

    def expected(self) -> np.ndarray:
        shape = (len(self.key), STREAMS, self.width)

        def normed(a: np.ndarray, gamma: np.ndarray) -> np.ndarray:
            return rms_norm(a.astype(np.float64).reshape(shape), gamma.reshape(shape[1:]), EPS)

        key, query = normed(self.key, self.gammas[0]), normed(self.streams, self.gammas[1])
        s = (key * query).sum(axis=-1) * self.width**-0.5
        gate = sigmoid(np.sign(s) * np.sqrt(np.maximum(np.abs(s), 1e-6)))
        gated = gate[:, :, None] * self.value[:, None, :]
        inputs = normed(gated, self.gammas[2]).reshape(len(gated), -1)
        history = np.zeros(((KERNEL - 1) * DILATION, inputs.shape[1]))
        local = silu(causal_conv(inputs, history, self.conv, dilation=DILATION))
        return self.streams + gated + local.reshape(shape)


@pytest.mark.parametrize("width", [64, 40])
def test_the_memory_is_the_reference_from_the_first_token(width: int, device: str) -> None:
    block = Block(width, 22, device)
    out = torch.cat([block.run(first, num) for first, num in ((0, 8), (8, 8), (16, 6))])
    np.testing.assert_allclose(out.cpu(), block.expected(), rtol=1e-5, atol=1e-5)


def test_windows_and_dropped_rows_do_not_show(device: str) -> None:
    block, single = Block(32, 20, device), Block(32, 20, device)
    alone = torch.cat([single.run(row, 1) for row in range(20)])
    outs = [block.run(0, 8), block.run(8, 2)]
    true_value = block.value.copy()
    block.value[10:] += 1
    block.run(10, 8)  # wrong drafts, none kept
    block.value = true_value
    outs += [block.run(10, 7), block.run(17, 3)]
    assert torch.equal(torch.cat(outs), alone)


def test_a_gate_of_zero_is_a_half(device: str) -> None:
    block = Block(32, 1, device)
    block.key[:] = 0
    block.gammas[2][:] = 0  # nothing comes from the convolution
    out = block.run(0, 1)
    expected = block.streams[0] + block.value[0] * np.float32(0.5)
    np.testing.assert_allclose(out[0].cpu(), expected, rtol=1e-6)
