"""Tokens picked on the device against ``engine.sampler``, by equality; ties, masks, penalties."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.engine import philox  # noqa: E402
from strata.engine.sampler import SamplingParams  # noqa: E402
from strata.engine.sampler import sample as reference  # noqa: E402
from strata.gpu.kernels import sampling  # noqa: E402
from strata.gpu.kernels.philox import uniform  # noqa: E402


@triton.jit
def _uniform_kernel(seeds_ptr, positions_ptr, out_ptr):
    index = tl.program_id(0)
    seed = tl.load(seeds_ptr + index).to(tl.uint64, bitcast=True)
    position = tl.load(positions_ptr + index).to(tl.uint64, bitcast=True)
    tl.store(out_ptr + index, uniform(seed, position))


def test_random_numbers_are_those_of_the_engine(device: str) -> None:
    seeds = [0, 1, 2**63 + 5, 2**64 - 1, 0xDEADBEEF12345678]
    positions = [0, 7, 262_143, 2**32 + 1, 2**40]

    def signed(numbers: list[int]) -> torch.Tensor:
        return torch.tensor(np.array(numbers, np.uint64).view(np.int64), device=device)

    out = torch.full((5,), torch.nan, dtype=torch.float64, device=device)
    _uniform_kernel[(5,)](signed(seeds), signed(positions), out)
    expected = [philox.uniform(s, p) for s, p in zip(seeds, positions, strict=True)]
    assert out.tolist() == expected


class Window:
    """Logits of a window's rows, and the tokens up to and including it."""

    def __init__(self, vocab: int, num_rows: int, device: str, before: int = 40) -> None:
        rng = np.random.default_rng(vocab + num_rows)
        self.device, self.before = device, before
        self.logits = (4 * rng.standard_normal((num_rows, vocab))).astype(np.float32)
        self.tokens = rng.integers(0, min(vocab, 50), before + num_rows).astype(np.int32)
        self.mask = np.full((num_rows, -(-vocab // 32)), -1, np.int32)
        self.has_mask = False
        self.bad = torch.zeros(1, dtype=torch.int32, device=device)

    def tensor(self, a: np.ndarray) -> torch.Tensor:
        return torch.tensor(a, device=self.device)

    def options(self, p: SamplingParams) -> sampling.SamplingOptions:
        reals = [
            1.0 if p.is_greedy else p.temperature, p.top_p, p.min_p, p.repeat_penalty,
            p.frequency_penalty, p.presence_penalty,
        ]  # fmt: skip
        seed = np.array([p.seed or 0], np.uint64).view(np.int64)[0]
        penalised = p.penalty_last_n if p.has_penalties else 0
        integers = [1 if p.is_greedy else p.num_candidates, penalised, seed, int(self.has_mask)]
        return sampling.SamplingOptions(
            torch.tensor(reals, dtype=torch.float64, device=self.device),
            torch.tensor(integers, dtype=torch.int64, device=self.device),
            self.tensor(self.tokens), self.tensor(self.mask),
        )  # fmt: skip

    def sample(self, params: SamplingParams, rows: slice = slice(0, 8)) -> list[int]:
        logits = self.tensor(self.logits[rows])
        num = len(logits)
        ids = torch.full((num,), -9, dtype=torch.int32, device=self.device)
        scratch = sampling.SamplingScratch(
            torch.full((num, sampling.num_blocks(logits.shape[1])), 2**31 - 1, dtype=torch.int32),
            torch.full((num, 3, 64), 2**31 - 1, dtype=torch.int32), poison("cpu", num, 3, 64),
        )  # fmt: skip
        scratch = sampling.SamplingScratch(
            scratch.maxima.to(self.device), scratch.ints.to(self.device),
            scratch.reals.double().to(self.device),
        )  # fmt: skip
        options = self.options(params)
        options = sampling.SamplingOptions(
            options.reals, options.integers, options.tokens, options.mask[rows]
        )
        position = torch.tensor([self.before + rows.start], device=self.device)
        sampling.sample(logits, options, position, scratch, ids, self.bad)
        return ids.tolist()

    def expected(self, params: SamplingParams) -> list[int]:
        picked = []
        for row, logits in enumerate(self.logits):
            seen = self.before + row + 1
            mask = self.mask[row].view(np.uint32) if self.has_mask else None
            picked.append(reference(logits, params, self.tokens[:seen], seen, mask).id)
        return picked


PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, repeat_penalty=1.5, frequency_penalty=0.3, presence_penalty=0.7),
    SamplingParams(temperature=1, top_k=20, top_p=0.95, seed=7),
    SamplingParams(temperature=3, top_k=0, top_p=1, seed=2**64 - 1),
    SamplingParams(temperature=2.5, top_k=64, top_p=0.8, min_p=0.01, seed=5),
    SamplingParams(temperature=0.7, top_k=5, top_p=1, min_p=0.2, seed=6, repeat_penalty=1.2),
]


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("vocab", [100, 5000])
def test_picks_are_those_of_the_engine(params: SamplingParams, vocab: int, device: str) -> None:
    window = Window(vocab, 3, device)
    assert window.sample(params) == window.expected(params)
    assert window.bad.item() == 0


def test_many_draws_follow_the_engine(device: str) -> None:
    params = SamplingParams(temperature=2, top_k=40, top_p=0.9, seed=11)
    for before in range(40, 64, 8):
        window = Window(300, 8, device, before)
        window.logits[:] = window.logits[0]
        picked = window.sample(params)
        assert picked == window.expected(params)
        assert len(set(picked)) > 2


@pytest.mark.parametrize("params", [PARAMS[0], PARAMS[3]])
def test_equal_logits_are_taken_from_the_lowest_id(params: SamplingParams, device: str) -> None:
    window = Window(9000, 2, device)
    window.logits[:] = 0
    window.logits[0, ::2] = -0.0
    window.logits[1] = -3
    window.logits[1, 70:8000] = 1
    assert window.sample(params) == window.expected(params)


def test_masked_tokens_are_never_picked(device: str) -> None:
    window = Window(200, 2, device)
    rng = np.random.default_rng(0)
    window.mask = (
        (rng.integers(0, 2**32, (2, 7)) & rng.integers(0, 2**32, (2, 7)))
        .astype(np.uint32)
        .view(np.int32)
    )
    window.mask[1] = 0
    window.mask[1, 4] = 1 << 9  # one token is left
    window.has_mask = True
    for params in (PARAMS[0], PARAMS[1], PARAMS[3]):
        picked = window.sample(params)
        assert picked == window.expected(params)
        assert picked[1] == 4 * 32 + 9
    window.mask[:] = 0
    assert window.sample(PARAMS[3]) == [-1, -1]


def test_a_short_and_a_long_history(device: str) -> None:
    strong = {"temperature": 0, "repeat_penalty": 2.0, "frequency_penalty": 0.5}
    for before, last_n in ((0, 64), (1, 64), (200, 150), (200, 3)):
        window = Window(60, 2, device, before)
        params = SamplingParams(**strong, penalty_last_n=last_n)
        assert window.sample(params) == window.expected(params)


def test_huge_logits_stay_numbers_under_penalties(device: str) -> None:
    window = Window(60, 1, device)
    window.logits[:] = -3e38
    params = SamplingParams(temperature=0, repeat_penalty=1.9, presence_penalty=1.0)
    assert window.sample(params) == window.expected(params)
    assert window.bad.item() == 0


def test_a_row_is_sampled_alike_alone_and_in_a_window(device: str) -> None:
    window = Window(400, 8, device)
    together = window.sample(PARAMS[5])
    for row in (0, 3, 7):
        assert window.sample(PARAMS[5], slice(row, row + 1)) == [together[row]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_raises_the_flag(value: float, device: str) -> None:
    window = Window(100, 1, device)
    window.logits[0, 64] = value
    window.sample(PARAMS[2])
    assert window.bad.item() == 1
