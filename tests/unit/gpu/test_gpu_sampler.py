"""A window's picks from options to ids, against ``engine.sampler`` on the same logits."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from strata.engine.sampler import SamplingParams, sample  # noqa: E402
from strata.gpu import sampler_layout  # noqa: E402
from strata.gpu.arena import Arena  # noqa: E402
from strata.gpu.kernels import argmax, sampling  # noqa: E402
from strata.gpu.sampler import Choice, GpuPicker, Sampler  # noqa: E402
from strata.gpu.shapes import total_bytes  # noqa: E402

VOCAB, CAPACITY = 5000, 40
GREEDY = SamplingParams(temperature=0)
DRAWN = SamplingParams(temperature=1.5, top_k=0, top_p=0.98, seed=2**63 + 9)
PENALISED = SamplingParams(
    temperature=2, top_k=30, min_p=0.001, seed=3, repeat_penalty=1.3, frequency_penalty=0.4,
    presence_penalty=0.2, penalty_last_n=6,
)  # fmt: skip
FORBIDDING = SamplingParams(temperature=0, presence_penalty=100, penalty_last_n=9)


class Conversation:
    """Tokens, and logits that a window of them has: a function of the row's position."""

    def __init__(self, device: str) -> None:
        shapes = sampler_layout.sampler_shapes(VOCAB, CAPACITY)
        arena = Arena(total_bytes(shapes.values()), torch.device(device), "a test")
        sampler = Sampler(arena.take_all(shapes))
        self.picker = GpuPicker(sampler, self.run, VOCAB)
        self.chosen: list[Choice] = []
        self.position = 0
        self.bad = torch.zeros(1, dtype=torch.int32, device=device)
        rng = np.random.default_rng(2)
        self.tokens = rng.integers(0, 40, CAPACITY).astype(np.int32)
        # Ties and near ties, so that penalties decide.
        self.logits = rng.integers(-8, 9, (CAPACITY, VOCAB)).astype(np.float32) / 2
        self._sampler, self._device = sampler, device

    def run(self, window: np.ndarray, choice: Choice) -> None:
        self.chosen.append(choice)
        rows = slice(self.position, self.position + len(window))
        logits = torch.tensor(self.logits[rows], device=self._device)
        position = torch.tensor([self.position], device=self._device)
        self._sampler.launch(choice, logits, position, self.bad)
        if logits.is_cuda:
            torch.cuda.synchronize()  # as the runner of windows does before anybody reads

    def expected(self, params: SamplingParams, rows: int, masks=None) -> list[int]:
        masks = [None] * rows if masks is None else masks
        ends = range(self.position + 1, self.position + rows + 1)
        return [
            sample(self.logits[end - 1], params, self.tokens[:end], end, mask).id
            for end, mask in zip(ends, masks, strict=True)
        ]


@pytest.mark.parametrize(
    ("params", "choice"),
    [
        (GREEDY, Choice.LIKELIEST),
        (DRAWN, Choice.DRAWN),
        (PENALISED, Choice.DRAWN),
        (FORBIDDING, Choice.DRAWN),
    ],
)
def test_windows_one_after_the_other(params: SamplingParams, choice: Choice, device: str) -> None:
    talk = Conversation(device)
    talk.position = 5
    talk.picker.begin(params, talk.tokens[:5].tolist())
    # What is kept varies; rows behind it are written over, in the history too.
    for rows, kept in [(3, 1), (8, 8), (2, 0), (4, 4)]:
        end = talk.position + rows
        window = talk.tokens[talk.position : end].copy()
        assert talk.picker.decode(window) == talk.expected(params, rows)
        talk.tokens[talk.position + kept : end] += 3
        talk.position += kept
    assert set(talk.chosen) == {choice}
    assert talk.bad.item() == 0


def test_masks_come_and_go(device: str) -> None:
    talk = Conversation(device)
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**32, (3, -(-VOCAB // 32)), dtype=np.uint32)
    window = talk.tokens[:3]
    for params in (GREEDY, PENALISED):
        talk.picker.begin(params, [])
        free = talk.expected(params, 3)
        assert talk.picker.decode(window) == free
        masks = [None, words[1], words[2]]
        assert talk.picker.decode(window, masks) == talk.expected(params, 3, masks)
        nothing = np.zeros_like(words[0])
        assert talk.picker.decode(window, [None, nothing, None])[1] == -1
        assert talk.picker.decode(window) == free


def test_sizes_known_without_the_kernels_are_theirs() -> None:
    assert argmax._TILE == sampler_layout.ARGMAX_TILE
    assert sampling._BLOCK.value == sampler_layout.SAMPLE_BLOCK
    assert sampling.MAX_CANDIDATES == sampler_layout.MAX_CANDIDATES
    shapes = sampler_layout.sampler_shapes(VOCAB, CAPACITY)
    assert shapes["argmax_best"].sizes == (8, argmax.num_parts(VOCAB))
    assert shapes["pick_maxima"].sizes == (8, sampling.num_blocks(VOCAB))
