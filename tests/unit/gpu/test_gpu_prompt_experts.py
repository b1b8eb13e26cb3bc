"""A layer's experts over a prompt, bit for bit against ``expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.prompt_inputs import (  # noqa: E402
    expanded,
    poisoned_codes,
    prompt_codes,
    random_experts,
)
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.gpu.kernels.expert_prompt import (  # noqa: E402
    ExpertRoom,
    combine,
    expert_outputs,
    gated_mlp,
)
from strata.gpu.kernels.expert_sort import empty_plan, sort_by_expert  # noqa: E402
from strata.gpu.kernels.grouped_product import Tiling  # noqa: E402
from strata.reference.expert_numerics import StoredMatrix, expert_mlp  # noqa: E402
from strata.reference.expert_numerics import combine as reference_combine  # noqa: E402

TILING = Tiling(tokens=16, subs=1, rows=32, step=2, stages=2, warps=4)
HIDDEN, FFN = 256, 96


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


def _reference(formats: tuple[str, str, str], raws: list[np.ndarray], expert: int, x: np.ndarray):
    stored = [StoredMatrix(name, raw[expert]) for name, raw in zip(formats, raws, strict=True)]
    return expert_mlp(x, *stored, where="test")


@pytest.mark.parametrize(
    "formats", [("IQ3_S", "IQ3_S", "IQ4_NL"), ("Q4_K", "Q6_K", "Q4_1"), ("Q2_K", "NVFP4", "Q8_0")]
)
def test_experts_of_a_prompt_have_the_reference_bits(
    formats: tuple[str, str, str], device: str
) -> None:
    num_rows, top_k, num_experts = 21, 2, 4
    rng = np.random.default_rng()
    ids = rng.permuted(np.tile(np.arange(num_experts), (num_rows, 1)), axis=1)[:, :top_k]
    ids = np.ascontiguousarray(ids, np.int32)
    ids[3, 0] = -1
    x = rng.normal(0, 3, (num_rows, HIDDEN)).astype(np.float32)
    raws = _matrices(formats, num_experts)
    plan = empty_plan(ids.size, num_experts, TILING.tile_tokens, device)
    ids_there = torch.from_numpy(ids).to(device)
    sort_by_expert(ids_there, plan)
    room = ExpertRoom(poisoned_codes(ids.size, FFN, device), poison(device, ids.size, HIDDEN))
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    expert_outputs(
        prompt_codes(x, device), *_on_device(formats, raws, device), plan, room, bad,
        num_pairs=ids.size, top_k=top_k, tiling=TILING,
    )  # fmt: skip
    assert bad.item() == 0
    weights = rng.random((num_rows, top_k), np.float32)
    shared = rng.normal(0, 1, (num_rows, HIDDEN)).astype(np.float32)
    gate = rng.normal(0, 1, num_rows).astype(np.float32)
    out = poison(device, num_rows, HIDDEN)
    weights_there, shared_there, gate_there = (
        torch.from_numpy(a).to(device) for a in (weights, shared, gate)
    )
    combine(room.outputs, weights_there, ids_there, shared_there, gate_there, out)
    expected = np.empty((num_rows, HIDDEN), np.float32)
    for t in range(num_rows):
        known = ids[t] >= 0
        experts = [_reference(formats, raws, e, x[t : t + 1])[0] for e in ids[t][known]]
        expected[t] = reference_combine(experts, weights[t][known], shared[t], gate[t])
    assert _same_bits(out, expected)


def test_the_shared_expert_is_one_matrix_without_a_plan(device: str) -> None:
    formats = ("Q5_K", "Q5_K", "Q5_0")
    x = np.random.default_rng().normal(0, 3, (19, HIDDEN)).astype(np.float32)
    raws = _matrices(formats, 1)
    out = poison(device, 19, HIDDEN)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    gated_mlp(
        prompt_codes(x, device), *_on_device(formats, raws, device),
        poisoned_codes(24, FFN, device), out, bad, TILING,
    )  # fmt: skip
    assert bad.item() == 0
    assert _same_bits(out, _reference(formats, raws, 0, x))


def test_a_hidden_value_that_is_no_number_is_told(device: str) -> None:
    formats = ("Q8_0", "Q8_0", "Q8_0")
    raws = _matrices(formats, 1)
    raws[1][0, 0, :2] = (0, 0x7C)  # an infinite scale
    x = np.ones((3, HIDDEN), np.float32)
    bad = torch.zeros(1, dtype=torch.int32, device=device)
    gated_mlp(
        prompt_codes(x, device), *_on_device(formats, raws, device),
        poisoned_codes(3, FFN, device), poison(device, 3, HIDDEN), bad, TILING,
    )  # fmt: skip
    assert bad.item() == 1
