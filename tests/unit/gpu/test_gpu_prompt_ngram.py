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
    block = Block(width, 50, device)
    out = _run(block, 0, 50, 50)
    np.testing.assert_allclose(out.cpu(), block.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("cuts", "room"), [([60], 64), ([60], 7), ([1, 20, 60], 64), ([33], 16)])
def test_bits_and_ring_are_those_of_windows(cuts: list[int], room: int, device: str) -> None:
    block, windows = Block(32, 68, device), Block(32, 68, device)
    expected = torch.cat([windows.run(first, min(8, 68 - first)) for first in range(0, 68, 8)])
    outs, first = [], 0
    for end in cuts:
        outs.append(_run(block, first, end - first, room))
        first = end
    while first < 68:  # decoding goes on
        outs.append(block.run(first, min(8, 68 - first)))
        first += 8
    assert torch.equal(torch.cat(outs), expected)


def test_the_ring_holds_what_single_tokens_leave(device: str) -> None:
    block, single = Block(32, 40, device), Block(32, 40, device)
    for row in range(40):
        single.run(row, 1)
    _run(block, 0, 40, 24)
    assert torch.equal(block.ring, single.ring)
