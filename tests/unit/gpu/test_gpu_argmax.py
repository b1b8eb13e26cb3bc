"""Largest logit by equality with numpy, its probability against float64."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels.argmax import argmax, num_parts  # noqa: E402
from strata.reference.norms import softmax  # noqa: E402


def _argmax(logits: np.ndarray, device: str) -> tuple[list[int], np.ndarray, int]:
    num, vocab = logits.shape
    best = torch.full((num, num_parts(vocab)), 2**62, dtype=torch.int64, device=device)
    ids = torch.full((num,), -9, dtype=torch.int32, device=device)
    probs, sums = poison(device, num), poison(device, num, num_parts(vocab))
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    argmax(torch.tensor(logits, device=device), best, sums, ids, probs, bad)
    return ids.tolist(), probs.cpu().numpy(), bad.item()


@pytest.mark.parametrize("vocab", [9, 4096, 9001])
def test_argmax_is_numpys_and_its_probability_softmax(vocab: int, device: str) -> None:
    rng = np.random.default_rng(vocab)
    logits = (3 * rng.standard_normal((3, vocab))).astype(np.float32)
    logits[2] -= 100  # all negative
    ids, probs, bad = _argmax(logits, device)
    assert ids == logits.argmax(axis=1).tolist()
    expected = softmax(logits.astype(np.float64)).max(axis=1)
    np.testing.assert_allclose(probs, expected, rtol=3e-6)
    assert bad == 0


@pytest.mark.parametrize("value", [0.0, -0.0, 5.0, -5.0])
def test_equal_logits_go_to_the_lower_id(value: float, device: str) -> None:
    logits = np.full((1, 9000), -7, np.float32)
    for last, place in enumerate((8999, 4097, 4096, 300, 17)):
        logits[0, place] = value if last < 4 else -value if value == 0 else value
        assert _argmax(logits, device)[0] == [place]


def test_what_is_no_number_raises_the_flag(device: str) -> None:
    logits = np.zeros((1, 50), np.float32)
    logits[0, 7] = -np.inf
    assert _argmax(logits, device)[2] == 0
    for value in (np.nan, np.inf):
        logits[0, 7] = value
        assert _argmax(logits, device)[2] == 1


def test_nothing_to_choose(device: str) -> None:
    ids, probs, bad = _argmax(np.full((1, 50), -np.inf, np.float32), device)
    assert (ids, probs.tolist(), bad) == ([-1], [0], 0)
