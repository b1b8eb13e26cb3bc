"""A layer's experts over a prompt, bit for bit against ``expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.prompt_inputs import (  # noqa: E402
    expanded,
    expanded_room,
    poisoned_codes,
    prompt_codes,
    random_experts,
)
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.expert_slots import BlobLayout, empty_slots  # noqa: E402
from strata.gpu.kernels import experts  # noqa: E402
from strata.gpu.kernels.expand import expand_slots  # noqa: E402
from strata.gpu.kernels.expert_prompt import (  # noqa: E402
    ExpertRoom,
    expert_outputs,
    gated_mlp,
)
from strata.gpu.kernels.expert_sort import empty_plan, sort_by_expert  # noqa: E402
from strata.gpu.kernels.prompt_tilings import Tiling, WarpTiling  # noqa: E402
from strata.gpu.kernels.quantize import empty_codes  # noqa: E402
from strata.reference.expert_numerics import combine, product, silu_f32  # noqa: E402

TILING = Tiling(tokens=16, subs=1, rows=32, step=2, stages=2, warps=4)
TILINGS = (
    TILING,
    WarpTiling(m=1, n=2, token_warps=1, row_warps=1, step=2, stages=2),
    WarpTiling(m=2, n=4, token_warps=1, row_warps=2, step=4, stages=3),
)
HIDDEN, FFN = 256, 96
MISSING = 1
FACTORS = (0.7, 1.3, 0.9)


def _same_bits(found, expected: np.ndarray) -> bool:
    return np.array_equal(found.cpu().numpy().view(np.uint32), expected.view(np.uint32))


def _matrices(formats: tuple[str, str, str], num_experts: int) -> list[np.ndarray]:
    shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
    return [
        random_experts(name, num_experts, *shape)
        for name, shape in zip(formats, shapes, strict=True)
    ]


def _on_device(formats: tuple[str, str, str], raws: list[np.ndarray], device: str) -> list:
    inners = (HIDDEN, HIDDEN, FFN)
    return [
        expanded(name, raw, inner, device)
        for name, raw, inner in zip(formats, raws, inners, strict=True)
    ]


def _slots(formats: tuple[str, str, str], raws: list[np.ndarray], device: str):
    """Every expert but MISSING, in slots from the last down."""
    num_experts = len(raws[0])
    slots = empty_slots(BlobLayout(formats, HIDDEN, FFN), num_experts, num_experts, device)
    slots.blobs.fill_(255)
    for expert in set(range(num_experts)) - {MISSING}:
        slot = num_experts - 1 - expert
        parts = [torch.from_numpy(raw[expert].copy()).to(device) for raw in raws]
        slots.fill(slot, tuple(parts), FACTORS)
        slots.slot_of[expert] = slot
    return slots


def _reference(
    formats: tuple[str, str, str],
    raws: list[np.ndarray],
    expert: int,
    x: np.ndarray,
    factors: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> np.ndarray:
    gate, up, down = (
        (name, raw[expert], np.float32(factor))
        for name, raw, factor in zip(formats, raws, factors, strict=True)
    )
    h = silu_f32(product(*gate[:2], x, "gate") * gate[2]) * (product(*up[:2], x, "up") * up[2])
    return product(*down[:2], h, "down") * down[2]


@pytest.mark.parametrize("tiling", TILINGS)
@pytest.mark.parametrize(
    "formats",
    [
        ("IQ3_S", "IQ3_S", "IQ4_NL"),
        ("Q4_K", "Q5_K", "Q8_0"),
        ("Q4_K", "Q6_K", "Q4_1"),
        ("Q2_K", "NVFP4", "Q8_0"),
    ],
)
def test_experts_of_a_prompt_have_the_reference_bits(
    formats: tuple[str, str, str], tiling: Tiling | WarpTiling, device: str
) -> None:
    num_rows, top_k, num_experts = 21, 2, 4
    rng = np.random.default_rng()
    ids = rng.permuted(np.tile(np.arange(num_experts), (num_rows, 1)), axis=1)[:, :top_k]
    ids = np.ascontiguousarray(ids, np.int32)
    x = rng.normal(0, 3, (num_rows, HIDDEN)).astype(np.float32)
    raws = _matrices(formats, num_experts)
    slots = _slots(formats, raws, device)
    plan = empty_plan(ids.size, num_experts, tiling.tile_tokens, device)
    ids_there = torch.from_numpy(ids).to(device)
    sort_by_expert(ids_there, plan, slots.slot_of)
    room = ExpertRoom(poisoned_codes(ids.size, FFN, device), poison(device, ids.size, HIDDEN))
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    weights = [
        expanded_room(name, num_experts, *slots.layout.shape_of(role), device)
        for role, name in enumerate(formats)
    ]
    for role, matrices in enumerate(weights):
        expand_slots(slots, role, matrices)
    expert_outputs(
        prompt_codes(x, device), *weights, plan, room, bad,
        num_pairs=ids.size, top_k=top_k, tiling=tiling,
    )  # fmt: skip
    assert bad.item() == 0
    expected = np.full((num_rows, top_k, HIDDEN), np.nan, np.float32)
    for t, rank in np.argwhere(ids != MISSING):
        expected[t, rank] = _reference(formats, raws, ids[t, rank], x[t : t + 1], FACTORS)[0]
    assert _same_bits(room.outputs, expected.reshape(-1, HIDDEN))
    # What the card has not, somebody else answers; then the window's combination does.
    room.outputs.view(expected.shape)[ids_there == MISSING] = 0.5
    expected[ids == MISSING] = 0.5
    topk, shared = rng.random((num_rows, top_k), np.float32), x[::-1].copy()
    out = poison(device, num_rows, HIDDEN)
    rows = experts.ExpertRows(room.outputs, empty_codes(1, FFN, device), room.outputs)
    ones = torch.ones(num_rows, device=device)
    topk_there, shared_there = (torch.from_numpy(a).to(device) for a in (topk, shared))
    experts.combine(rows, topk_there, shared_there, ones, out)
    gate = np.full(num_rows, 100, np.float32)  # a sigmoid of one
    combined = [combine(expected[t], topk[t], shared[t], gate[t]) for t in range(num_rows)]
    assert _same_bits(out, np.array(combined))


def test_an_expert_nobody_wants_is_not_expanded(device: str) -> None:
    formats = ("Q4_0", "Q4_0", "Q8_0")
    slots = _slots(formats, _matrices(formats, 4), device)
    shape = slots.layout.shape_of(1)
    found, whole = (expanded_room("Q4_0", 2, *shape, device) for _ in range(2))
    untouched = found.codes.clone()
    expand_slots(slots, 1, whole, 2)
    counts = torch.tensor([0, 5, 0, 1], dtype=torch.int32, device=device)
    expand_slots(slots, 1, found, 2, counts)
    assert torch.equal(found.codes[0], untouched[0])
    assert not torch.equal(whole.codes[0], untouched[0])
    assert torch.equal(found.codes[1], whole.codes[1])
    assert not torch.equal(whole.codes[1], untouched[1])


@pytest.mark.parametrize("tiling", TILINGS)
def test_the_shared_expert_is_one_matrix_without_a_plan(
    tiling: Tiling | WarpTiling, device: str
) -> None:
    formats = ("Q5_K", "Q5_K", "Q5_0")
    x = np.random.default_rng().normal(0, 3, (19, HIDDEN)).astype(np.float32)
    raws = _matrices(formats, 1)
    out = poison(device, 19, HIDDEN)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    gated_mlp(
        prompt_codes(x, device), *_on_device(formats, raws, device),
        poisoned_codes(24, FFN, device), out, bad, tiling,
    )  # fmt: skip
    assert bad.item() == 0
    assert _same_bits(out, _reference(formats, raws, 0, x))


# Of numpy, in the interpreter: an infinite scale times codes whose sum happens to be zero.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("tiling", TILINGS[:2])
def test_a_hidden_value_that_is_no_number_is_told(tiling: Tiling | WarpTiling, device: str) -> None:
    formats = ("Q8_0", "Q8_0", "Q8_0")
    raws = _matrices(formats, 1)
    raws[1][0, 0, :2] = (0, 0x7C)  # an infinite scale
    x = np.ones((3, HIDDEN), np.float32)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    gated_mlp(
        prompt_codes(x, device), *_on_device(formats, raws, device),
        poisoned_codes(3, FFN, device), poison(device, 3, HIDDEN), bad, tiling,
    )  # fmt: skip
    assert bad.item() == 1
