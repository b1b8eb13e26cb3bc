"""Products of a prompt, bit for bit against ``reference.expert_numerics``."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
from tests.unit.gpu.prompt_inputs import (  # noqa: E402
    INNERS,
    expanded,
    prompt_codes,
    random_experts,
)
from tests.unit.gpu.row_codes import poison  # noqa: E402

from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.kernels.expert_sort import empty_plan, sort_by_expert  # noqa: E402
from strata.gpu.kernels.grouped_product import grouped_product, prompt_product  # noqa: E402
from strata.gpu.kernels.prompt_tilings import Tiling, WarpTiling  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS  # noqa: E402
from strata.reference import expert_numerics  # noqa: E402

TILING = Tiling(tokens=16, subs=2, rows=16, step=2, stages=2, warps=4)
WARPS = WarpTiling(m=1, n=1, token_warps=2, row_warps=1, step=4, stages=2)


def _same_bits(found, expected: np.ndarray) -> bool:
    return np.array_equal(found.cpu().numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("tiling", [TILING, WARPS])
@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_dense_products_have_the_reference_bits(
    name: str, tiling: Tiling | WarpTiling, device: str
) -> None:
    inner, num_rows = INNERS[FORMATS[name].block_size], 36 if tiling is WARPS else 34
    raw = random_experts(name, 1, num_rows, inner)
    x = np.random.default_rng().normal(0, 3, (18, inner)).astype(np.float32)
    out = poison(device, 18, num_rows)
    prompt_product(prompt_codes(x, device), expanded(name, raw, inner, device), out, tiling)
    assert _same_bits(out, expert_numerics.product(name, raw[0], x, "test"))


@pytest.mark.parametrize(
    "tiling",
    [
        Tiling(tokens=16, subs=1, rows=16, step=1, stages=2, warps=2),
        Tiling(tokens=32, subs=1, rows=64, step=4, stages=3, warps=4),
        Tiling(tokens=64, subs=1, rows=16, step=8, stages=1, warps=4),
        WarpTiling(m=2, n=1, token_warps=1, row_warps=2, step=8, stages=2),
        WarpTiling(m=1, n=2, token_warps=1, row_warps=1, step=1, stages=4),
        WarpTiling(m=4, n=1, token_warps=1, row_warps=2, step=2, stages=3),
        WarpTiling(m=2, n=1, token_warps=1, row_warps=1, step=4, stages=2),
    ],
)
@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "IQ4_XS"])
def test_tiles_change_no_bit(name: str, tiling: Tiling | WarpTiling, device: str) -> None:
    inner = 352 if name == "Q4_1" else 256
    raw = random_experts(name, 1, 24, inner)
    x = np.random.default_rng().normal(0, 3, (19, inner)).astype(np.float32)
    weights, codes = expanded(name, raw, inner, device), prompt_codes(x, device)
    found, expected = poison(device, 19, 24), poison(device, 19, 24)
    prompt_product(codes, weights, found, tiling)
    prompt_product(codes, weights, expected, TILING)
    assert torch.equal(found, expected)
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("tiling", [TILING, WARPS])
@pytest.mark.parametrize("name", ["Q4_0", "Q2_K", "NVFP4"])
def test_largest_codes_stay_exact(name: str, tiling: Tiling | WarpTiling, device: str) -> None:
    inner = 256
    raw = np.full((1, 8, FORMATS[name].row_bytes(inner)), 0x77, np.uint8)
    x = np.full((3, inner), -1.0, np.float32)
    out = poison(device, 3, 8)
    prompt_product(prompt_codes(x, device), expanded(name, raw, inner, device), out, tiling)
    assert _same_bits(out, expert_numerics.product(name, raw[0], x, "test"))


@pytest.mark.parametrize("routing", ["random", "one expert", "some missing"])
@pytest.mark.parametrize("order", ["pairs", "positions"])
@pytest.mark.parametrize("tiling", [TILING, WARPS])
def test_rows_meet_their_experts(
    routing: str, order: str, tiling: Tiling | WarpTiling, device: str
) -> None:
    scatter = order == "pairs"
    num_rows, top_k, num_experts, inner, num_out = 41, 2, 5, 96, 40
    rng = np.random.default_rng()
    ids = rng.permuted(np.tile(np.arange(num_experts - 1), (num_rows, 1)), axis=1)[:, :top_k]
    if routing == "one expert":
        ids = np.full((num_rows, top_k), 2)
    if routing == "some missing":
        ids[::3, 1] = -1
    ids = np.ascontiguousarray(ids, np.int32)
    raw = random_experts("IQ4_NL", num_experts, num_out, inner)
    x = rng.normal(0, 3, (num_rows, inner)).astype(np.float32)
    plan = empty_plan(ids.size, num_experts, tiling.tile_tokens, device)
    sort_by_expert(torch.from_numpy(ids).to(device), plan)
    out = poison(device, ids.size, num_out)
    grouped_product(
        prompt_codes(x, device), expanded("IQ4_NL", raw, inner, device), plan, ids.size, out,
        read_top_k=top_k, scatter=scatter, tiling=tiling,
    )  # fmt: skip
    flat = ids.reshape(-1)
    by_expert = np.argsort(flat, kind="stable")[(flat < 0).sum() :]
    expected = np.full((ids.size, num_out), np.nan, np.float32)
    for position, pair in enumerate(by_expert):
        row = x[pair // top_k][None]
        place = pair if scatter else position
        expected[place] = expert_numerics.product("IQ4_NL", raw[flat[pair]], row, "test")
    assert _same_bits(out, expected)


def test_experts_may_come_in_parts(device: str) -> None:
    num_rows, num_experts, inner, num_out = 23, 6, 64, 24
    ids = np.random.default_rng().integers(0, num_experts, (num_rows, 1)).astype(np.int32)
    raw = random_experts("Q8_0", num_experts, num_out, inner)
    x = np.random.default_rng().normal(0, 3, (num_rows, inner)).astype(np.float32)
    plan = empty_plan(num_rows, num_experts, TILING.tile_tokens, device)
    sort_by_expert(torch.from_numpy(ids).to(device), plan)
    codes, out = prompt_codes(x, device), poison(device, num_rows, num_out)
    for first in (0, 2, 4):
        grouped_product(
            codes, expanded("Q8_0", raw[first : first + 2], inner, device), plan, num_rows, out,
            read_top_k=1, scatter=True, first_expert=first, tiling=TILING,
        )  # fmt: skip
    expected = [
        expert_numerics.product("Q8_0", raw[ids[t, 0]], x[t : t + 1], "test")[0]
        for t in range(num_rows)
    ]
    assert _same_bits(out, np.array(expected))
