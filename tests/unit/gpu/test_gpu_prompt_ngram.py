"""The memory of a prompt chunk: the bits of decode windows, however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.unit.gpu.row_codes import poison  # noqa: E402
from tests.unit.gpu.test_gpu_ngram_memory import DILATION, EPS, STREAMS, Block  # noqa: E402

from strata.gpu.kernels.ngram_memory import NgramConstants  # noqa: E402
from strata.gpu.kernels.ngram_prompt import add_memory_prompt  # noqa: E402


def _run(block: Block, first: int, num: int, room: int) -> torch.Tensor:
    rows = slice(first, first + num)
    streams = block.tensor(block.streams[rows])
    constants = NgramConstants(
        *map(block.tensor, block.gammas), block.tensor(np.ascontiguousarray(block.conv.T)), DILATION
    )
    scratch = (poison(block.device, room, STREAMS * block.width) for _ in range(2))
    add_memory_prompt(
        streams, block.tensor(block.key[rows]), block.tensor(block.value[rows]), constants,
        block.ring, first, EPS, *scratch,
    )  # fmt: skip
    return streams


@pytest.mark.parametrize("width", [64, 40])
def test_a_chunk_is_the_reference(width: int, device: str) -> None:
    block = Block(width, 20, device)
    out = _run(block, 0, 20, 20)
    np.testing.assert_allclose(out.cpu(), block.expected(), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def windows(device: str) -> torch.Tensor:
    """What windows of eight give."""
    block = Block(32, 32, device)
    return torch.cat([block.run(first, 8) for first in range(0, 32, 8)])


@pytest.mark.parametrize(("cuts", "room"), [([29], 32), ([29], 7), ([1, 12, 29], 32), ([17], 16)])
def test_bits_and_ring_are_those_of_windows(cuts, room, windows, device: str) -> None:
    block, outs, first = Block(32, 32, device), [], 0
    for end in cuts:
        outs.append(_run(block, first, end - first, room))
        first = end
    while first < 32:  # decoding goes on
        outs.append(block.run(first, min(8, 32 - first)))
        first += 8
    assert torch.equal(torch.cat(outs), windows)


def test_the_ring_holds_what_single_tokens_leave(device: str) -> None:
    block, single = Block(32, 35, device), Block(32, 35, device)
    for row in range(35):
        single.run(row, 1)
    _run(block, 0, 35, 24)
    assert torch.equal(block.ring, single.ring)
