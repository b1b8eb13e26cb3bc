"""Writes and reads of a prompt's streams against float64; tiles and cuts by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.prompt_inputs import poisoned_codes  # noqa: E402
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.float_matrix import FloatMatrix, pack_floats  # noqa: E402
from strata.gpu.kernels import bf16_prompt, read_prompt  # noqa: E402
from strata.gpu.kernels.bf16_prompt import PARTS, unpack_bf16  # noqa: E402
from strata.gpu.kernels.hyper_connections import ExpertOutputs, write_and_norm  # noqa: E402
from strata.gpu.kernels.prompt_codes import empty_prompt_codes, quantize_prompt  # noqa: E402
from strata.gpu.kernels.stream_read import read_order  # noqa: E402
from strata.gpu.kernels.write_prompt import write_prompt  # noqa: E402
from strata.reference.hyper_connections import HyperConnection  # noqa: E402

EPS, STREAMS = 1e-6, 4
WIDTH, RANK = 128, 96


def _random(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng().standard_normal(shape).astype(np.float32))


def _wide(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().cpu().numpy()


def _packed(values: torch.Tensor, device: str) -> FloatMatrix:
    return pack_floats("BF16", values.to(device).view(torch.uint8), values.shape[1])


def _mixture(num_rows: int, top_k: int, width: int, device: str) -> ExpertOutputs:
    shapes = ((num_rows, top_k, width), (num_rows, top_k), (num_rows, width), (num_rows,))
    return ExpertOutputs(*(_random(*shape).to(device) for shape in shapes))


@pytest.mark.parametrize(("width", "top_k"), [(96, 0), (1100, 3), (40, 1)])
@pytest.mark.parametrize("has_xn", [True, False])
def test_a_write_is_that_of_a_window(*, width: int, top_k: int, has_xn: bool, device: str) -> None:
    """Streams by equality, the norm's sum in another order."""
    num_rows = 5
    output = _mixture(num_rows, top_k, width, device) if top_k else _random(num_rows, width)
    if not top_k:
        output = output.to(device)
    inject = _random(num_rows, STREAMS + 3).to(device)[:, 2:-1]
    gamma = _random(STREAMS * width).to(device)
    given = _random(num_rows, STREAMS, width).to(device)
    expected, expected_xn = given.clone(), poison(device, num_rows, STREAMS * width)
    write_and_norm(expected, output, inject, gamma, EPS, expected_xn)
    inverse = poison(device, num_rows, STREAMS)
    xn = poison(device, num_rows, STREAMS * width) if has_xn else None
    write_prompt(given, output, inject, gamma, EPS, inverse, xn)
    assert torch.equal(given, expected)
    mean = (_wide(given) ** 2).mean(axis=2)
    np.testing.assert_allclose(_wide(inverse), 1 / np.sqrt(mean + EPS), rtol=1e-6)
    if xn is not None:
        torch.testing.assert_close(xn, expected_xn, rtol=1e-6, atol=1e-6)


def test_a_norm_alone_leaves_the_streams(device: str) -> None:
    given = _random(3, STREAMS, WIDTH).to(device)
    kept, inverse = given.clone(), poison(device, 3, STREAMS)
    write_prompt(given, None, None, _random(STREAMS * WIDTH).to(device), EPS, inverse, None)
    assert torch.equal(given, kept)
    mean = (_wide(given) ** 2).mean(axis=2)
    np.testing.assert_allclose(_wide(inverse), 1 / np.sqrt(mean + EPS), rtol=1e-6)


@pytest.mark.parametrize(("num_rows", "inner"), [(20, 64), (9, 608)])
def test_a_matrix_is_unpacked_as_it_was(num_rows: int, inner: int, device: str) -> None:
    values = _random(num_rows, inner).bfloat16()
    out = torch.full((num_rows, inner), torch.nan, dtype=torch.bfloat16, device=device)
    unpack_bf16(_packed(values, device), out)
    assert torch.equal(out.cpu().view(torch.int16), values.view(torch.int16))


class _Read:
    """Random weights of a read, and the launches of one."""

    def __init__(self, device: str) -> None:
        self.device = device
        hyper = STREAMS * WIDTH
        self.gamma = _random(hyper)
        self.down = (_random(RANK, hyper) / 8).bfloat16()
        self.inject = (_random(STREAMS, hyper) / 8).bfloat16()
        self.up = (_random(hyper, RANK) / 4).bfloat16()
        both = torch.cat([self.down, self.inject])
        self._both = _packed(both, device)
        self._up = _packed(self.up[read_order(STREAMS, WIDTH)], device)

    def run(self, streams: torch.Tensor):
        """x, its codes, the injection's products, the flag."""
        n, device = len(streams), self.device
        streams, gamma = streams.to(device), self.gamma.to(device)
        inverse = poison(device, n, STREAMS)
        write_prompt(streams, None, None, gamma, EPS, inverse, None)
        rows = self._both.num_rows
        size = (rows + 2) * STREAMS * WIDTH
        room = torch.full((size,), torch.nan, dtype=torch.bfloat16, device=device)
        sums = poison(device, STREAMS * (n + 3) * (rows + 4)).view(STREAMS, n + 3, rows + 4)
        sums = sums[:, :n, :rows]
        parts = torch.full((PARTS, n + 3, RANK), torch.nan, dtype=torch.bfloat16, device=device)
        inject, x = poison(device, n, STREAMS), poison(device, n, WIDTH)
        codes, bad = poisoned_codes(n, WIDTH, device), torch.zeros(1, dtype=torch.int32)
        bad = bad.to(device)
        read_prompt.down_prompt(streams, inverse, gamma, self._both, room, sums)
        columns = ((0, RANK), (RANK, RANK + STREAMS))
        read_prompt.between_prompt(sums, columns, parts, inject)
        read_prompt.up_mix_prompt(parts, self._up, streams, inverse, gamma, x, codes, bad)
        return x, codes, inject, bad

    def reference(self) -> HyperConnection:
        return HyperConnection(
            _wide(self.gamma), _wide(self.down), _wide(self.up), _wide(self.inject)
        )


def test_a_read_is_the_reference(device: str) -> None:
    read = _Read(device)
    streams = _random(70, STREAMS, WIDTH) * 3
    streams[0] *= 1e-3
    streams[1, :, ::2] *= 1e4
    x, codes, inject, bad = read.run(streams)
    expected, injection = read.reference().read(_wide(streams), EPS)
    np.testing.assert_allclose(_wide(x), expected, rtol=2e-5, atol=2e-6)
    found = 2 / (1 + np.exp(-_wide(inject) / STREAMS))
    np.testing.assert_allclose(found, injection, rtol=1e-5, atol=1e-6)
    wanted, none = empty_prompt_codes(len(x), WIDTH, device), torch.zeros_like(bad)
    quantize_prompt(x, wanted, none)
    for field in ("codes", "scales", "scaled_sums", "scaled_half_sums"):
        assert torch.equal(getattr(codes, field), getattr(wanted, field)), field
    assert bad.item() == 0


def test_a_row_has_its_bits_alone_and_in_any_tile(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _Read(device)
    streams = _random(130, STREAMS, WIDTH)
    x, codes, inject, _ = read.run(streams)
    for first, end in ((0, 1), (64, 130)):
        part_x, part_codes, part_inject, _ = read.run(streams[first:end].clone())
        assert torch.equal(part_x, x[first:end])
        assert torch.equal(part_inject, inject[first:end])
        assert torch.equal(part_codes.codes, codes.codes[first:end])
    monkeypatch.setattr(bf16_prompt, "_LEAST_PROGRAMS", 0)
    large_x, _, large_inject, _ = read.run(streams)
    assert torch.equal(large_x, x)
    assert torch.equal(large_inject, inject)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_infinity_is_told(device: str) -> None:
    streams = _random(3, STREAMS, WIDTH)
    streams[1, 2, 5] = torch.inf
    *_, bad = _Read(device).run(streams)
    assert bad.item() == 1
