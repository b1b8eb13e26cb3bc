"""The experts of a prompt: gate and up with their product's codes, then down.

Owns the fusion of silu(gate) * up and its quantisation into the product of gate and up. Rows of the
hidden layer lie in the order of positions of the plan, rows of the outputs in the order of pairs,
as ``experts.combine`` reads them. A dense gated layer (the shared expert) is the same with one
matrix and no plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.gpu.kernels import arith
from strata.gpu.kernels.grouped_product import (
    clamped,
    find_tile,
    grouped_product,
    matrix_at,
    positions_of,
    prompt_product,
)
from strata.gpu.kernels.prompt_codes import PromptCodes, empty_prompt_codes, store_prompt_codes
from strata.gpu.kernels.prompt_tile import tile_sums
from strata.gpu.kernels.prompt_tilings import (
    DENSE_TILING,
    EXPERT_TILING,
    Tiling,
    WarpTiling,
    plain_tiling,
    warp_options,
)
from strata.gpu.kernels.prompt_warps import stage_words, warp_sums
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.kernels.sizes import cdiv
from strata.gpu.kernels.warp import from_lane

if TYPE_CHECKING:
    from strata.gpu.kernels.expand import Expanded
    from strata.gpu.kernels.expert_sort import ExpertPlan


@dataclass(frozen=True, slots=True)
class ExpertRoom:
    """What lies between the kernels of a layer's experts, for P pairs.

    Attributes:
        hidden: codes of silu(gate) * up, P rows by position.
        outputs: [P, D] float32, each pair's expert output.
    """

    hidden: PromptCodes
    outputs: Tensor


def empty_expert_room(
    max_pairs: int, ffn_size: int, hidden_size: int, device: torch.device | str
) -> ExpertRoom:
    """Room for up to ``max_pairs`` pairs; not initialised."""
    outputs = torch.empty((max_pairs, hidden_size), dtype=torch.float32, device=device)
    return ExpertRoom(empty_prompt_codes(max_pairs, ffn_size, device), outputs)


@triton.jit(do_not_specialize=["first_expert", "num_matrices", "num_tokens"])
def _gate_up_prompt_kernel(
    x_codes,
    x_scales,
    x_scaled,
    x_halves,
    gate_codes,
    gate_scales,
    gate_minima,
    gate_factors,
    up_codes,
    up_scales,
    up_minima,
    up_factors,
    order_ptr,
    offsets_ptr,
    tiles_ptr,
    first_expert,
    num_matrices,
    num_tokens,
    h_codes,
    h_scales,
    h_scaled,
    h_halves,
    bad_ptr,
    GATE_KIND: tl.constexpr,
    UP_KIND: tl.constexpr,
    GATE_MINIMA: tl.constexpr,
    UP_MINIMA: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    TOP_K: tl.constexpr,
    TOKENS: tl.constexpr,
    SUBS: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
):
    matrix, first, end, first_row = find_tile(
        tiles_ptr, offsets_ptr, first_expert, num_matrices, num_tokens, IS_GROUPED, TOKENS * SUBS,
        ROWS, TILE,
    )  # fmt: skip
    if matrix < 0:
        return
    x = (x_codes, x_scales, x_scaled, x_halves)
    gate = matrix_at(
        (gate_codes, gate_scales, gate_minima), matrix, GATE_KIND, GATE_MINIMA, BLOCKS, ROWS
    )
    up = matrix_at((up_codes, up_scales, up_minima), matrix, UP_KIND, UP_MINIMA, BLOCKS, ROWS)
    token = positions_of(first, end, order_ptr, IS_GROUPED, TOP_K, TOKENS, SUBS)
    row = clamped(first_row + tl.arange(0, TILE), ROWS, TILE // 2)
    totals = tile_sums(
        x, token, gate, row, up, row, (GATE_KIND, UP_KIND), (GATE_MINIMA, UP_MINIMA), SUMS,
        BLOCKS, (ROWS, ROWS), STEP, STAGES, TOKENS, SUBS, TILE,
    )  # fmt: skip
    gate_factor, up_factor = tl.load(gate_factors + matrix), tl.load(up_factors + matrix)
    for s in tl.static_range(SUBS):
        position = first + s * TOKENS + tl.arange(0, TOKENS)
        hidden = arith.silu(totals[s] * gate_factor) * (totals[SUBS + s] * up_factor)
        store_prompt_codes(
            hidden, position.to(tl.int64), position < end, first_row // 32,
            h_codes, h_scales, h_scaled, h_halves, bad_ptr, ROWS // 32, TOKENS, TILE // 32,
        )  # fmt: skip


@triton.jit
def _store_hidden(
    values, row, is_row, block, thread, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Codes of a block of 32 of a row: eight values of each of four neighbouring lanes."""
    t = thread % 4
    lane = thread % 32
    cleaned = ()
    is_bad = thread < 0
    amax = (thread * 0).to(tl.float32)
    for i in tl.static_range(8):
        is_finite = tl.abs(values[i]) < float("inf")
        is_bad = is_bad | (is_finite == 0)
        value = tl.where(is_finite, values[i], 0.0)  # told by the flag
        amax = tl.maximum(amax, tl.abs(value))
        cleaned += (value,)
    tl.store(bad_ptr + thread * 0, thread * 0 + 1, mask=is_bad & is_row)
    amax = tl.maximum(amax, from_lane(amax, lane ^ 1))
    amax = tl.maximum(amax, from_lane(amax, lane ^ 2))
    scale = arith.div(amax, 127.0)
    divisor = tl.where(scale == 0, 1.0, scale)
    total = thread * 0
    words = ()
    for w in tl.static_range(2):
        word = thread * 0
        for i in tl.static_range(4):
            q = arith.rint(arith.div(cleaned[4 * w + i], divisor))
            # A subnormal scale is so coarse that the quotient can pass 127.
            q = tl.minimum(tl.maximum(q, -127.0), 127.0)
            code = tl.where(scale == 0, 0.0, q).to(tl.int32)
            total += code
            word = word | ((code & 255) << (8 * i))
        words += (word,)
    sums = total.to(tl.float32)
    sums = sums + from_lane(sums, lane ^ 1)
    whole = sums + from_lane(sums, lane ^ 2)
    at = row * BLOCKS + block
    words_ptr = codes_ptr.to(tl.pointer_type(tl.int32), bitcast=True) + at * 8 + t * 2
    for w in tl.static_range(2):
        tl.store(words_ptr + w, words[w], mask=is_row)
    tl.store(scales_ptr + at, scale, mask=is_row & (t == 0))
    tl.store(scaled_ptr + at, scale * whole, mask=is_row & (t == 0))
    tl.store(halves_ptr + 2 * at + t // 2, scale * sums, mask=is_row & (t % 2 == 0))


@triton.jit(do_not_specialize=["first_expert", "num_matrices", "num_tokens"])
def _gate_up_warps_kernel(
    x_codes, x_scales, x_scaled, gate_codes, gate_scales, gate_minima, gate_factors, up_codes,
    up_scales, up_minima, up_factors, order_ptr, offsets_ptr, tiles_ptr, first_expert,
    num_matrices, num_tokens, h_codes, h_scales, h_scaled, h_halves, bad_ptr, MINIMA: tl.constexpr,
    BLOCKS: tl.constexpr, ROWS: tl.constexpr, IS_GROUPED: tl.constexpr, TOP_K: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, TOKEN_WARPS: tl.constexpr, ROW_WARPS: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    TOKENS: tl.constexpr = 16 * M * TOKEN_WARPS
    TILE: tl.constexpr = 32 * N * ROW_WARPS
    matrix, first, end, first_row = find_tile(
        tiles_ptr, offsets_ptr, first_expert, num_matrices, num_tokens, IS_GROUPED, TOKENS, ROWS,
        TILE,
    )  # fmt: skip
    if matrix < 0:
        return
    thread = tl.arange(0, 32 * TOKEN_WARPS * ROW_WARPS)
    gate = matrix_at((gate_codes, gate_scales, gate_minima), matrix, 0, MINIMA, BLOCKS, ROWS)
    up = matrix_at((up_codes, up_scales, up_minima), matrix, 0, MINIMA, BLOCKS, ROWS)
    sums = warp_sums(
        (x_codes, x_scales, x_scaled), first, end, order_ptr, (gate, up), first_row,
        shared_words(stage_words(TOKENS, 2 * TILE, STEP, STAGES, MINIMA)), thread, IS_GROUPED,
        TOP_K, 2, MINIMA, BLOCKS, ROWS, STEP, STAGES, M, N, TOKEN_WARPS, ROW_WARPS,
    )  # fmt: skip
    gate_factor, up_factor = tl.load(gate_factors + matrix), tl.load(up_factors + matrix)
    token = first + thread // (32 * ROW_WARPS) * (16 * M) + thread % 32 // 4
    first_block = first_row // 32 + thread // 32 % ROW_WARPS * N
    for m in tl.static_range(2 * M):
        position = token + 8 * m
        for n in tl.static_range(N):
            block = first_block + n
            hidden = ()
            for i in tl.static_range(8):
                # Of column 2 j + i % 2, j = i // 2; 16 sums for each block and half of the rows.
                up_sum = sums[((N + n) * M + m // 2) * 16 + i // 2 * 4 + m % 2 * 2 + i % 2]
                gate_sum = sums[(n * M + m // 2) * 16 + i // 2 * 4 + m % 2 * 2 + i % 2]
                hidden += (arith.silu(gate_sum * gate_factor) * (up_sum * up_factor),)
            _store_hidden(
                hidden, position.to(tl.int64), (position < end) & (block < ROWS // 32), block,
                thread, h_codes, h_scales, h_scaled, h_halves, bad_ptr, ROWS // 32,
            )  # fmt: skip


def gate_up(
    x: PromptCodes,
    gate: Expanded,
    up: Expanded,
    out: PromptCodes,
    bad: Tensor,
    *,
    plan: ExpertPlan | None = None,
    num_pairs: int = 0,
    top_k: int = 1,
    first_expert: int = 0,
    tiling: Tiling | WarpTiling | None = None,
) -> None:
    """Codes of silu(gate x) * (up x).

    Args:
        x: codes of T rows.
        gate, up: matrices of the same shape, formats may differ; experts ``first_expert`` and on.
        out: room for codes of T rows, with a plan of ``num_pairs`` rows by position.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
        plan: of these pairs, tiles as ``tiling`` says; None: every row times matrix 0.
        num_pairs: T * K.
        top_k: K.
        first_expert: the expert of matrix 0.
        tiling: shape of a tile, its rows a multiple of 32.
    """
    tiling = tiling or (DENSE_TILING if plan is None else EXPERT_TILING)
    num_tokens = x.num_rows
    num_tiles = cdiv(num_tokens, tiling.tile_tokens)
    if plan is not None:
        num_tiles = plan.max_tiles(num_pairs)
    if isinstance(tiling, WarpTiling):
        options = warp_options(tiling, x, (gate, up))
        if options is not None:
            _gate_up_warps_kernel[(num_tiles * cdiv(2 * gate.num_rows, tiling.tile_rows),)](
                x.codes, x.scales, x.scaled_sums,
                gate.codes, gate.scales, gate.minima, gate.factors,
                up.codes, up.scales, up.minima, up.factors,
                None if plan is None else plan.order,
                None if plan is None else plan.offsets,
                None if plan is None else plan.tiles,
                first_expert, gate.num_matrices, num_tokens,
                out.codes, out.scales, out.scaled_sums, out.scaled_half_sums, bad,
                BLOCKS=gate.inner // 32, ROWS=gate.num_rows, IS_GROUPED=plan is not None,
                TOP_K=top_k, **options, **arith.LAUNCH,
            )  # fmt: skip
            return
        tiling = plain_tiling(tiling)
    _gate_up_prompt_kernel[(num_tiles * cdiv(gate.num_rows, tiling.rows),)](
        x.codes, x.scales, x.scaled_sums, x.scaled_half_sums,
        gate.codes, gate.scales, gate.minima, gate.factors,
        up.codes, up.scales, up.minima, up.factors,
        None if plan is None else plan.order,
        None if plan is None else plan.offsets,
        None if plan is None else plan.tiles,
        first_expert, gate.num_matrices, num_tokens,
        out.codes, out.scales, out.scaled_sums, out.scaled_half_sums, bad,
        GATE_KIND=gate.kind, UP_KIND=up.kind, GATE_MINIMA=gate.num_minima,
        UP_MINIMA=up.num_minima, SUMS=max(gate.num_minima, up.num_minima),
        BLOCKS=gate.inner // 32, ROWS=gate.num_rows, IS_GROUPED=plan is not None, TOP_K=top_k,
        TOKENS=tiling.tokens, SUBS=tiling.subs, TILE=tiling.rows, STEP=tiling.step,
        STAGES=tiling.stages, num_warps=tiling.warps, **arith.LAUNCH,
    )  # fmt: skip


def expert_outputs(
    x: PromptCodes,
    gate: Expanded,
    up: Expanded,
    down: Expanded,
    plan: ExpertPlan,
    room: ExpertRoom,
    bad: Tensor,
    *,
    num_pairs: int,
    top_k: int,
    first_expert: int = 0,
    tiling: Tiling | WarpTiling = EXPERT_TILING,
) -> None:
    """Output of every pair whose expert is one of these, to ``room.outputs`` by pair."""
    gate_up(
        x, gate, up, room.hidden, bad, plan=plan, num_pairs=num_pairs, top_k=top_k,
        first_expert=first_expert, tiling=tiling,
    )  # fmt: skip
    grouped_product(
        room.hidden, down, plan, num_pairs, room.outputs, read_top_k=0, scatter=True,
        first_expert=first_expert, tiling=tiling,
    )  # fmt: skip


def gated_mlp(
    x: PromptCodes,
    gate: Expanded,
    up: Expanded,
    down: Expanded,
    hidden: PromptCodes,
    out: Tensor,
    bad: Tensor,
    tiling: Tiling | WarpTiling = DENSE_TILING,
) -> None:
    """out[t] = down(silu(gate x[t]) * (up x[t])): the shared expert.

    Args:
        x: codes of T rows.
        gate, up, down: one matrix each.
        hidden: room for the codes of T rows between them.
        out: [T, D] float32.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
        tiling: shape of a tile.
    """
    gate_up(x, gate, up, hidden, bad, tiling=tiling)
    prompt_product(hidden.rows(x.num_rows), down, out, tiling)
