"""The kernel that the card's rate of integer products is measured with: sums and count."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from strata.gpu.card_facts import card_facts, driver_version, measure_rates  # noqa: E402
from strata.gpu.kernels.rate_probe import CHAINS, WORDS, many_dots  # noqa: E402


def test_it_makes_the_products_it_says(device: str) -> None:
    words = np.random.default_rng(1).integers(-(2**31), 2**31, WORDS).astype(np.int32)
    out = torch.full((2, WORDS), -1, dtype=torch.int32, device=device)
    count = many_dots(torch.from_numpy(words).to(device), out, 2, 8)
    # Two programs, eight rounds, a word of four products for each lane and sum.
    assert count == 2 * 8 * WORDS * CHAINS * 4
    bytes_of = words.view(np.int8).reshape(WORDS, 4).astype(np.int64)
    total = np.zeros(WORDS, np.int64)
    for chain in range(CHAINS):
        value = (words.astype(np.int64) + chain).astype(np.int32)
        for _ in range(8):
            dots = (bytes_of * value.view(np.int8).reshape(WORDS, 4)).sum(1)
            value = (value + dots).astype(np.int32)
        total += value
    assert np.array_equal(out.cpu().numpy(), np.stack([total.astype(np.int32)] * 2))


def test_the_driver_s_version_is_that_of_its_tool(tmp_path, monkeypatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.159.04\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert driver_version() == "580.159.04"
    tool.write_text("#!/bin/sh\necho no devices were found\nexit 6\n")
    assert driver_version() is None
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver_version() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_rates_of_a_card_are_of_this_world() -> None:
    device = torch.device("cuda")
    facts, rates = card_facts(device), measure_rates(device)
    assert facts["driver"] is not None
    assert 1e11 < rates.copy_bytes_per_s < 1e14
    # Tensor cores are there to be faster.
    assert 1e12 < rates.dot_products_per_s < rates.tensor_products_per_s < 1e16
