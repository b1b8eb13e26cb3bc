"""Norms of rows against the float64 reference; spreading by equality."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import assert_equal_codes, poison, zero_codes  # noqa: E402

from strata.gpu.kernels import norms  # noqa: E402
from strata.gpu.kernels.quantize import quantize  # noqa: E402
from strata.reference.norms import rms_norm  # noqa: E402

RNG = np.random.default_rng(8)


@pytest.mark.parametrize("width", [320, 20])
def test_rms_norm_and_its_codes(width: int, device: str) -> None:
    x, gamma = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, width), width))
    out, bad = poison(device, 3, width), torch.zeros(1, dtype=torch.int32, device=device)
    codes = zero_codes(3, width, device) if width % 32 == 0 else None
    given = torch.tensor(x, device=device)
    norms.rms_norm(given, torch.tensor(gamma, device=device), 1e-6, out, codes, bad)
    expected = rms_norm(x.astype(np.float64), gamma, 1e-6)
    np.testing.assert_allclose(out.cpu(), expected, rtol=1e-5, atol=1e-6)
    if codes is not None:
        wanted = zero_codes(3, width, device)
        quantize(out, wanted, bad)
        assert_equal_codes(codes, wanted)
    alone = poison(device, 1, width)
    norms.rms_norm(given[1:2], torch.tensor(gamma, device=device), 1e-6, alone)
    assert torch.equal(alone[0], out[1])


def test_spread(device: str) -> None:
    rows, added = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 40), (3, 4, 40)))
    streams = poison(device, 3, 4, 40)
    norms.spread(torch.tensor(rows, device=device), streams)
    assert np.array_equal(streams.cpu(), np.repeat(rows[:, None], 4, axis=1))
    given = torch.tensor(added, device=device)
    norms.spread(torch.tensor(rows, device=device), given, given)
    assert np.array_equal(given.cpu(), rows[:, None] + added)
