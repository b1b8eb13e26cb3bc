"""Streams against the float64 reference; rows, codes and the sum of experts by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import assert_equal_codes, zero_codes  # noqa: E402

from strata.gpu.kernels import hyper_connections as hc  # noqa: E402
from strata.gpu.kernels.quantize import quantize  # noqa: E402
from strata.gpu.kernels.stream_read import read_order  # noqa: E402
from strata.reference.hyper_connections import write  # noqa: E402
from strata.reference.norms import rms_norm, sigmoid, silu  # noqa: E402

EPS, STREAMS = 1e-6, 4
RNG = np.random.default_rng(4)


def _random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _poison(device: str, *shape: int) -> torch.Tensor:
    return torch.full(shape, torch.nan, device=device)


def _wide(tensor: torch.Tensor | np.ndarray) -> np.ndarray:
    return np.asarray(tensor.cpu() if isinstance(tensor, torch.Tensor) else tensor, np.float64)


@pytest.mark.parametrize("width", [96, 40])
def test_write_and_norm_is_the_reference(width: int, device: str) -> None:
    streams, out, inject = _random(3, STREAMS, width), _random(3, width), _random(3, STREAMS)
    gamma = _random(STREAMS * width)
    given, xn = torch.tensor(streams, device=device), _poison(device, 3, STREAMS * width)
    codes, bad = zero_codes(3, STREAMS * width, device), torch.zeros(1, dtype=torch.int32)
    bad = bad.to(device)
    hc.write_and_norm(
        given, *(torch.tensor(a, device=device) for a in (out, inject, gamma)), EPS, xn,
        codes if width % 32 == 0 else None, bad,
    )  # fmt: skip
    expected = write(_wide(streams), _wide(out), 2 * sigmoid(_wide(inject) / STREAMS))
    np.testing.assert_allclose(given.cpu(), expected, rtol=1e-5, atol=1e-6)
    normed = rms_norm(expected, _wide(gamma).reshape(STREAMS, width), EPS)
    np.testing.assert_allclose(xn.cpu(), normed.reshape(3, -1), rtol=1e-5, atol=1e-5)
    if width % 32 == 0:
        wanted = zero_codes(3, STREAMS * width, device)
        quantize(xn, wanted, bad)
        assert_equal_codes(codes, wanted)
    assert bad.item() == 0


def test_a_norm_alone_leaves_the_streams(device: str) -> None:
    streams, gamma = _random(2, STREAMS, 64), _random(STREAMS * 64)
    given, xn = torch.tensor(streams, device=device), _poison(device, 2, STREAMS * 64)
    hc.write_and_norm(given, None, None, torch.tensor(gamma, device=device), EPS, xn)
    assert np.array_equal(given.cpu(), streams)
    expected = rms_norm(_wide(streams), _wide(gamma).reshape(STREAMS, 64), EPS)
    np.testing.assert_allclose(xn.cpu(), expected.reshape(2, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [64, 40])
def test_experts_add_up_in_the_promised_bits(width: int, device: str) -> None:
    """With a zero stream and an injection of exactly one, the stream becomes the token."""
    outputs, weights = _random(2, 3, width), np.abs(_random(2, 3))
    shared, shared_logit = _random(2, width), _random(2)
    shared_weight = (1 / (1 + np.exp(-shared_logit))).astype(np.float32)
    parts = hc.ExpertOutputs(
        *(torch.tensor(a, device=device) for a in (outputs, weights, shared, shared_weight))
    )
    streams = torch.zeros((2, STREAMS, width), device=device)
    zeros = torch.zeros((2, STREAMS), device=device)  # 2 sigmoid(0) = 1
    ones = torch.ones(STREAMS * width, device=device)
    hc.write_and_norm(streams, parts, zeros, ones, EPS, _poison(device, 2, STREAMS * width))
    token = weights[:, 0, None] * outputs[:, 0]
    for k in range(1, 3):
        token = token + weights[:, k, None] * outputs[:, k]
    token = token + shared_weight[:, None] * shared
    assert token.dtype == np.float32
    for stream in range(STREAMS):
        assert np.array_equal(streams[:, stream].cpu(), token)


@pytest.mark.parametrize("rank", [96, 20])
def test_silu_of_quotient(rank: int, device: str) -> None:
    low = _random(3, rank)
    out, bad = _poison(device, 3, rank), torch.zeros(1, dtype=torch.int32, device=device)
    codes = zero_codes(3, rank, device) if rank % 32 == 0 else None
    hc.silu_of_quotient(torch.tensor(low, device=device), STREAMS, out, codes, bad)
    np.testing.assert_allclose(out.cpu(), silu(_wide(low) / STREAMS), rtol=1e-6, atol=1e-7)
    if codes is not None:
        wanted = zero_codes(3, rank, device)
        quantize(out, wanted, bad)
        assert_equal_codes(codes, wanted)


@pytest.mark.parametrize("width", [320, 96])
def test_mix(width: int, device: str) -> None:
    xn, gate = _random(3, STREAMS * width), _random(3, STREAMS * width)
    x, bad = _poison(device, 3, width), torch.zeros(1, dtype=torch.int32, device=device)
    codes = zero_codes(3, width, device)
    laid = torch.tensor(gate, device=device)[:, read_order(STREAMS, width).to(device)]
    hc.mix(torch.tensor(xn, device=device), laid.contiguous(), STREAMS, x, codes, bad)
    expected = (_wide(xn) * sigmoid(_wide(gate))).reshape(3, STREAMS, width).mean(axis=1)
    np.testing.assert_allclose(x.cpu(), expected, rtol=1e-5, atol=1e-6)
    wanted = zero_codes(3, width, device)
    quantize(x, wanted, bad)
    assert_equal_codes(codes, wanted)


def test_a_row_is_the_same_alone_and_in_a_window(device: str) -> None:
    streams, out, inject = _random(8, STREAMS, 64), _random(8, 64), _random(8, STREAMS)
    gamma = torch.tensor(_random(STREAMS * 64), device=device)

    def run(rows: slice) -> tuple[torch.Tensor, ...]:
        given = torch.tensor(streams[rows], device=device)
        xn = _poison(device, len(given), STREAMS * 64)
        x, low = _poison(device, len(given), 64), _poison(device, len(given), 64)
        parts = (torch.tensor(a[rows], device=device) for a in (out, inject))
        hc.write_and_norm(given, *parts, gamma, EPS, xn)
        hc.mix(xn, xn, STREAMS, x)
        hc.silu_of_quotient(x, STREAMS, low)
        return given, xn, x, low

    together = run(slice(0, 8))
    for row in range(8):
        for alone, window in zip(run(slice(row, row + 1)), together, strict=True):
            assert torch.equal(alone[0], window[row])
