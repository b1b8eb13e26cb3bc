"""Requests for experts in the middle of a window, against what the mailbox and its table say."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from strata.gpu.kernels.hand_off import ASKED, IN_SLOT, HandOff, plan_stream, wait  # noqa: E402
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
    # Columns that came to wait once there was a fault stay as they were.
    assert np.isin(found[0], (0, -7)).all()
    assert found[1:] == (0, 1)


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
