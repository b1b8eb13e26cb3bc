"""Routed experts of a window, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.reference.stored_rows import random_rows  # noqa: E402

from strata.gpu.expert_slots import BlobLayout, empty_slots  # noqa: E402
from strata.gpu.kernels import experts  # noqa: E402
from strata.gpu.kernels.quantize import empty_codes, quantize  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402

# Sizes end inside a group where the formats allow it.
CASES = [
    (("Q4_0", "Q4_0", "Q2_0"), 96, 64),
    (("IQ3_S", "IQ3_S", "IQ4_NL"), 256, 32),
    (("Q8_0", "Q5_1", "NVFP4"), 288, 64),
]
NUM_EXPERTS, TOP_K = 5, 3


class Layer:
    """Random experts as stored and in slots, in an order of their own."""

    def __init__(self, formats: tuple[str, str, str], hidden: int, size: int, device: str) -> None:
        self.rng = np.random.default_rng()
        layout = BlobLayout(formats, hidden, size)
        self.slots = empty_slots(layout, NUM_EXPERTS, NUM_EXPERTS, device)
        self.stored, self.scales = [], []
        for expert, slot in enumerate(self.rng.permutation(NUM_EXPERTS).tolist()):
            raw = [
                random_rows(formats[role], *layout.shape_of(role), seed=int(self.rng.integers(1e9)))
                for role in range(3)
            ]
            scales = tuple(self.rng.uniform(0.5, 2, 3).tolist())
            on_card = tuple(torch.from_numpy(rows.copy()).to(device) for rows in raw)
            self.slots.fill(slot, on_card, scales)
            self.slots.slot_of[expert] = slot
            self.stored.append(raw)
            self.scales.append(scales)

    def expected(self, x: np.ndarray, expert: int) -> np.ndarray:
        def times(role: int, values: np.ndarray) -> np.ndarray:
            format_name = self.slots.layout.formats[role]
            found = expert_numerics.product(format_name, self.stored[expert][role], values, "test")
            return found * np.float32(self.scales[expert][role])

        return times(2, expert_numerics.silu_f32(times(0, x)) * times(1, x))[0]


def run(layer: Layer, x: np.ndarray, ids: np.ndarray, device: str):
    layout = layer.slots.layout
    rows = experts.empty_rows(ids.size, layout.hidden_size, layout.expert_size, device)
    rows.gate_up.fill_(float("nan"))
    rows.y.fill_(float("nan"))
    rows.h.scales.fill_(float("nan"))
    codes = empty_codes(*x.shape, device)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    expert_ids = torch.from_numpy(ids).to(device)
    quantize(torch.from_numpy(x).to(device), codes, bad)
    experts.gate_up(layer.slots, codes, expert_ids, rows)
    experts.gate(layer.slots, expert_ids, rows, bad)
    experts.down(layer.slots, expert_ids, rows)
    return rows, bad


@pytest.mark.parametrize(("formats", "hidden", "size"), CASES)
def test_experts_have_the_reference_bits(formats, hidden: int, size: int, device: str) -> None:
    layer = Layer(formats, hidden, size, device)
    num_rows = 2
    x = layer.rng.normal(0, 2, (num_rows, hidden)).astype(np.float32)
    ids = np.stack([layer.rng.permutation(NUM_EXPERTS)[:TOP_K] for _ in range(num_rows)])
    ids = ids.astype(np.int32)
    rows, bad = run(layer, x, ids, device)
    assert bad.item() == 0
    expected = [[layer.expected(x[n : n + 1], e) for e in ids[n]] for n in range(num_rows)]
    found = rows.y.cpu().numpy().reshape(num_rows, TOP_K, hidden)
    assert np.array_equal(found.view(np.uint32), np.array(expected).view(np.uint32))

    weights = layer.rng.uniform(0.1, 1, (num_rows, TOP_K)).astype(np.float32)
    shared = layer.rng.normal(size=(num_rows, hidden)).astype(np.float32)
    logit = layer.rng.normal(size=num_rows).astype(np.float32)
    arguments = (weights, shared, expert_numerics.sigmoid_f32(logit))
    out = torch.full((num_rows, hidden), float("nan"), device=device)
    experts.combine(rows, *(torch.from_numpy(v).to(device) for v in arguments), out)
    for n in range(num_rows):
        combined = expert_numerics.combine(expected[n], weights[n], shared[n], logit[n])
        assert np.array_equal(out[n].cpu().numpy().view(np.uint32), combined.view(np.uint32))


def test_an_expert_without_a_slot_is_left_alone(device: str) -> None:
    layer = Layer(("Q4_0", "Q4_0", "Q4_0"), 64, 32, device)
    layer.slots.slot_of[2] = -1
    x = layer.rng.normal(size=(1, 64)).astype(np.float32)
    rows, bad = run(layer, x, np.array([[1, 2, 3]], np.int32), device)
    # Poison of the missing entry neither raises the flag nor is written over.
    assert bad.item() == 0
    assert rows.y[1].isnan().all()
    for entry, expert in ((0, 1), (2, 3)):
        expected = layer.expected(x, expert)
        assert np.array_equal(rows.y[entry].cpu().numpy().view(np.uint32), expected.view(np.uint32))


def test_an_infinite_activation_raises_the_flag(device: str) -> None:
    layer = Layer(("Q4_0", "Q4_0", "Q4_0"), 64, 32, device)
    layer.slots.scales.fill_(float("inf"))
    x = layer.rng.normal(size=(1, 64)).astype(np.float32)
    with np.errstate(all="ignore"):
        _, bad = run(layer, x, np.array([[0, 1, 2]], np.int32), device)
    assert bad.item() == 1
