"""Two launches for routed and shared experts against four for each, by equality.

Those four have the reference's bits: ``test_gpu_experts``.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.row_codes import assert_equal_codes, poison, zero_codes  # noqa: E402
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.gpu.expert_slots import BlobLayout, ExpertSlots, empty_slots  # noqa: E402
from strata.gpu.kernels import experts  # noqa: E402
from strata.gpu.kernels.expert_window import (  # noqa: E402
    down_outputs,
    gate_up_codes,
    is_fusible,
)
from strata.gpu.kernels.experts import ExpertRows  # noqa: E402
from strata.gpu.kernels.quantize import Codes, quantize  # noqa: E402

# Routed formats, shared formats, hidden size, sizes of routed and shared experts.
CASES = [
    (("IQ3_S", "IQ3_S", "IQ4_NL"), ("Q6_K", "Q6_K", "Q8_0"), 256, 64, 32),
    (("Q4_0", "Q4_0", "Q2_0"), ("NVFP4", "NVFP4", "Q5_1"), 320, 64, 128),
]
NUM_EXPERTS, TOP_K, NUM_ROWS = 4, 3, 2
RNG = np.random.default_rng()


def _slots(formats: tuple[str, str, str], hidden: int, size: int, num: int, device: str):
    layout = BlobLayout(formats, hidden, size)
    slots = empty_slots(layout, num, num, device)
    for slot in range(num):
        raw = [
            random_rows(formats[role], *layout.shape_of(role), seed=int(RNG.integers(1e9)))
            for role in range(3)
        ]
        on_card = tuple(torch.from_numpy(rows.copy()).to(device) for rows in raw)
        slots.fill(slot, on_card, tuple(RNG.uniform(0.5, 2, 3).tolist()))
        slots.slot_of[num - 1 - slot] = slot
    return slots


def _room(num_entries: int, hidden: int, size: int, device: str) -> ExpertRows:
    return ExpertRows(
        poison(device, num_entries, 2 * size),
        zero_codes(num_entries, size, device),
        poison(device, num_entries, hidden),
    )


def _one_by_one(
    slots: ExpertSlots, x: Codes, ids: torch.Tensor, rows: ExpertRows, bad: torch.Tensor
) -> None:
    experts.gate_up(slots, x, ids, rows)
    experts.gate(slots, ids, rows, bad)
    experts.down(slots, ids, rows)


@pytest.mark.parametrize(("formats", "shared_formats", "hidden", "size", "shared_size"), CASES)
def test_two_launches_have_the_bits_of_eight(
    formats, shared_formats, hidden: int, size: int, shared_size: int, device: str
) -> None:
    routed = _slots(formats, hidden, size, NUM_EXPERTS, device)
    shared = _slots(shared_formats, hidden, shared_size, 1, device)
    routed.slot_of[1] = -1  # an expert that lies elsewhere
    assert is_fusible(routed)
    assert is_fusible(shared)
    ids = np.array([[2, 1, 0], [3, 0, 2]], np.int32)
    expert_ids = torch.from_numpy(ids).to(device)
    x = torch.from_numpy(RNG.normal(0, 2, (NUM_ROWS, hidden)).astype(np.float32)).to(device)
    codes, bad = zero_codes(NUM_ROWS, hidden, device), torch.zeros(1, dtype=torch.int32)
    bad = bad.to(device)
    quantize(x, codes, bad)

    wanted = _room(ids.size, hidden, size, device)
    wanted_shared = _room(NUM_ROWS, hidden, shared_size, device)
    _one_by_one(routed, codes, expert_ids, wanted, bad)
    zeros = torch.zeros((NUM_ROWS, 1), dtype=torch.int32, device=device)
    _one_by_one(shared, codes, zeros, wanted_shared, bad)

    rows = _room(ids.size, hidden, size, device)
    shared_rows = _room(NUM_ROWS, hidden, shared_size, device)
    gate_up_codes(routed, shared, codes, expert_ids, rows, shared_rows, bad)
    down_outputs(routed, shared, expert_ids, rows, shared_rows)
    assert bad.item() == 0
    assert_equal_codes(rows.h, wanted.h)
    assert_equal_codes(shared_rows.h, wanted_shared.h)
    missing = ids.reshape(-1) == 1
    assert np.array_equal(rows.y.isnan().all(dim=1).cpu().numpy(), missing)
    assert torch.equal(rows.y.view(torch.int32), wanted.y.view(torch.int32))
    assert torch.equal(shared_rows.y.view(torch.int32), wanted_shared.y.view(torch.int32))


def test_an_infinite_value_raises_the_flag(device: str) -> None:
    formats = ("Q4_0", "Q4_0", "Q4_0")
    routed, shared = (_slots(formats, 64, 32, num, device) for num in (2, 1))
    shared.scales.fill_(float("inf"))
    x = torch.ones((1, 64), device=device)
    codes, bad = zero_codes(1, 64, device), torch.zeros(1, dtype=torch.int32, device=device)
    quantize(x, codes, bad)
    ids = torch.tensor([[1, 0]], dtype=torch.int32, device=device)
    rows, shared_rows = _room(2, 64, 32, device), _room(1, 64, 32, device)
    with np.errstate(all="ignore"):
        gate_up_codes(routed, shared, codes, ids, rows, shared_rows, bad)
    assert bad.item() == 1


def test_two_formats_are_no_one_launch(device: str) -> None:
    assert not is_fusible(_slots(("Q4_0", "Q8_0", "Q4_0"), 64, 32, 1, device))
