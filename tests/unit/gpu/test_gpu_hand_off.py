"""Requests for experts in the middle of a window, against what the mailbox and its table say."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.kernels import hand_off as kernels  # noqa: E402
from strata.gpu.kernels.hand_off import (  # noqa: E402
    ASKED,
    IN_SLOT,
    HandOff,
    post,
    wait,
)
from strata.gpu.kernels.quantize import empty_codes  # noqa: E402
from strata.gpu.kernels.stream_jobs import plan_stream  # noqa: E402
from strata.tiers.hand_off import FIELDS, MailboxLayout  # noqa: E402

TOP_K, HIDDEN, STAGES = 2, 1280, 4


class Made:
    """A mailbox, and what a card keeps beside it."""

    def __init__(self, device: str, limit_seconds: float = 0.2) -> None:
        self.layout = MailboxLayout(1, 1, TOP_K, HIDDEN)
        is_card = device == "cuda"
        self.box = torch.zeros(self.layout.num_bytes, dtype=torch.uint8, pin_memory=is_card)
        zeros = {
            name: torch.zeros(num, dtype=dtype, device=device)
            for name, num, dtype in [
                ("number", 1, torch.int32), ("answered", 2, torch.int32),
                ("fault", 1, torch.int32),
                ("source", TOP_K, torch.int32), ("share", TOP_K + 1, torch.int32),
                ("sources", STAGES, torch.int64), ("factors", STAGES, torch.int64),
            ]
        }  # fmt: skip
        limit = int(limit_seconds * 1e9)
        self.hand_off = HandOff(self.box.data_ptr(), self.layout, limit=limit, **zeros)

    def field(self, name: str, dtype: type) -> np.ndarray:
        number = FIELDS.index(name)
        first, size = self.layout.offsets[number], self.layout.sizes[number]
        return self.box.numpy()[first : first + size].view(dtype)


def waited(device: str, *, answered: int, status: int = 0):
    """Outputs, flag and fault of a window whose second entry was asked for by request 5."""
    made = Made(device)
    made.hand_off.number.fill_(5)
    made.hand_off.source.copy_(torch.tensor([IN_SLOT, ASKED]))
    made.field("answer", np.int32)[:2] = answered, status
    made.field("outputs", np.float32)[:] = np.arange(TOP_K * HIDDEN) + 1
    outputs = torch.full((TOP_K, HIDDEN), -7.0, device=device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    wait(made.hand_off, outputs, TOP_K, bad)
    fault = int(made.hand_off.fault)  # waits for the launch, so the mailbox is read after it
    told = int(made.field("request", np.int32)[3])
    assert fault == told
    assert (outputs[0] == -7).all()  # of an entry that nobody asked for
    return outputs[1].cpu().numpy(), int(bad), told


@pytest.mark.parametrize("status", [0, 1])
def test_an_answer_is_copied_whole(device: str, status: int) -> None:
    found = waited(device, answered=5, status=status)
    assert np.array_equal(found[0], np.arange(HIDDEN, 2 * HIDDEN) + 1)
    assert found[1:] == (status, 0)


def test_a_refusal_is_a_fault(device: str) -> None:
    assert waited(device, answered=5, status=2)[1:] == (0, 2)


@pytest.mark.parametrize("answered", [4, 6, -5])
def test_no_answer_is_a_fault_and_no_value_is_taken(device: str, answered: int) -> None:
    found = waited(device, answered=answered, status=1)
    assert not found[0].any()
    assert found[1:] == (0, 1)


def test_no_value_is_taken_where_the_first_program_comes_too_late(device: str, monkeypatch) -> None:
    if device != "cpu":
        pytest.skip("on a card programs begin in their order")
    answer_to, num_waits = kernels.answer_to, iter(range(9))

    def late(pointer, number, end):
        found = answer_to(pointer, number, end)
        return found if next(num_waits) == 0 else found * 0 - 1

    monkeypatch.setattr(kernels, "answer_to", late)
    found = waited(device, answered=5)
    assert not found[0].any()
    assert found[1:] == (0, 1)


EXPERTS = 6
# What becomes of a layer: nothing is asked for, or how the host takes it.
NOTHING, GOOD, NOT_FINITE, REFUSED, NOT_READ, SILENT = range(6)
FAULTS = {REFUSED: 2, NOT_READ: 2, SILENT: 1}


class Windows:
    """Layers of windows one after the other, and a host that is told what to do about each."""

    def __init__(self, device: str, number: int) -> None:
        self.made, self.device, self.number = Made(device, limit_seconds=0.02), device, number
        self.made.hand_off.number.fill_(number)
        self.made.hand_off.answered[0] = number
        self.made.field("answer", np.int32)[0] = number
        self.codes = empty_codes(1, HIDDEN, device)
        self.factors = torch.ones((EXPERTS, 3), device=device)
        self.table = torch.zeros(EXPERTS, dtype=torch.int32, device=device)
        self.reachable = torch.zeros(EXPERTS, dtype=torch.int64, device=device)
        self.fault = 0

    def layer(self, what: int, missing: int) -> None:
        """One of two experts in slots but ``missing`` (a bit each), if anything is asked for."""
        hand_off, device = self.made.hand_off, self.device
        is_asked = np.array([what != NOTHING and missing >> i & 1 for i in range(TOP_K)], bool)
        ids = torch.tensor([[1, 4]], dtype=torch.int32, device=device)
        self.table.fill_(0)
        self.table[[1, 4]] = torch.tensor(-is_asked.astype(np.int32), device=device)
        post(
            hand_off, 0, ids, self.table, self.reachable, self.table.clone(), self.factors,
            self.codes, has_staging=False,
        )  # fmt: skip
        sent = int(hand_off.number)
        if is_asked.any() and not self.fault:
            self.number = (self.number + 1 + 2**31) % 2**32 - 2**31
            assert int(self.made.field("request", np.int32)[0]) == self.number
            values = np.arange(TOP_K * HIDDEN, dtype=np.float32) + self.number % 1000
            self.made.field("outputs", np.float32)[:] = values
            if what != SILENT:
                status = {GOOD: 0, NOT_FINITE: 1, REFUSED: 2, NOT_READ: 3}[what]
                self.made.field("answer", np.int32)[:2] = self.number, status
        assert sent == self.number
        outputs = torch.full((TOP_K, HIDDEN), -7.0, device=device)
        bad = torch.zeros(1, dtype=torch.int32, device=device)
        wait(hand_off, outputs, TOP_K, bad)
        was_well = not self.fault
        if is_asked.any() and was_well:
            self.fault = FAULTS.get(what, 0)
        assert int(hand_off.fault) == self.fault
        assert int(self.made.field("request", np.int32)[3]) == self.fault
        assert int(bad) == (what == NOT_FINITE and bool(is_asked.any()) and was_well)
        # Nobody is left to wait for a number that does not come.
        assert int(hand_off.answered[0]) == self.number
        found = outputs.cpu().numpy()
        assert (found[~is_asked] == -7).all()
        if self.fault:
            assert not found[is_asked].any()
        elif is_asked.any():
            assert np.array_equal(found[is_asked], values.reshape(TOP_K, HIDDEN)[is_asked])

    def restart(self) -> None:
        """What ``ExpertCache.check`` does: the host answers again, from this number on."""
        self.fault = 0
        self.made.hand_off.fault.zero_()
        self.made.field("request", np.int32)[3] = 0


@pytest.mark.parametrize("number", [0, 2**31 - 3, -3])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_becomes_of_a_layer_the_next_ones_wait_for_what_they_asked_for(
    device: str, number: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    windows = Windows(device, number)
    for _ in range(6):
        fault = rng.choice([NOTHING, REFUSED, NOT_READ, SILENT])
        kinds = [*rng.choice([NOTHING, GOOD, GOOD, NOT_FINITE], 2), fault, GOOD, NOTHING, GOOD]
        for what in kinds:
            windows.layer(what, int(rng.integers(1, 4)))
        windows.restart()


@pytest.mark.parametrize("first", [0, 4, 8])
def test_staging_jobs_of_a_step_leave_none_of_an_earlier_one(device: str, first: int) -> None:
    num_experts = 10
    made = Made(device)
    made.hand_off.sources.fill_(99)  # jobs of a step before
    counts = torch.tensor([1, 0, 2, 1, 1, 1, 0, 3, 1, 1], dtype=torch.int32, device=device)
    slot_of = torch.full((num_experts,), -1, dtype=torch.int32, device=device)
    slot_of[3] = slot_of[9] = 0
    reachable = torch.arange(1, num_experts + 1, device=device) * 64
    stage_of = torch.full((num_experts,), 7, dtype=torch.int32, device=device)
    factors = torch.ones((num_experts, 3), device=device)
    count = min(STAGES, num_experts - first)
    plan_stream(made.hand_off, first, count, counts, slot_of, reachable, stage_of, factors)
    wanted = [e for e in range(first, first + count) if counts[e] > 0 and slot_of[e] < 0]
    jobs, stages = [0] * STAGES, [-1] * num_experts
    for expert in wanted:
        jobs[expert - first] = 64 * (expert + 1)
        stages[expert] = expert - first
    assert made.hand_off.sources.tolist() == jobs
    assert stage_of.tolist() == stages
    for expert in wanted:
        address = factors.data_ptr() + 12 * expert
        assert int(made.hand_off.factors[expert - first]) == address
