"""The delta net over the rows of a prompt chunk, 64 tokens at a time on tensor cores.

Chunks lie at absolute multiples of 64 and rows that are not there count as zeros: so a prompt that
is cut at such multiples has the bits of one that is not. Two launches: what a chunk needs before
its memory is known (all chunks at once), then the walk from chunk to chunk.

Every factor of a product is a pair of halves (22 bits) under a power of two, and a product is three
of theirs: float32's accuracy at twice the speed of three tf32 products.

Reference: ``gated_delta.chunked`` of ``strata.reference``. Source of the method: Yang et al. 2024
(arXiv 2406.06484, 2412.06464).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED, LAUNCH, div, exp, sigmoid, silu
from strata.gpu.kernels.conv_prompt import UNIT
from strata.gpu.kernels.delta_step import softplus
from strata.gpu.kernels.halves import add_pairs, dot_pairs, load_pair, power_scale, split
from strata.gpu.kernels.prompt_codes import store_prompt_codes
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.conv_prompt import MixedRows
    from strata.gpu.kernels.gated_delta import GdnConstants
    from strata.gpu.kernels.prompt_codes import PromptCodes

CHUNK = 64
"""Tokens of a chunk; prompts may be cut at its multiples."""

# Value columns of one program of the walk, its warps, and chunks under way; and parts of the key
# values that products take one after the other, so that nothing is spilled. The fastest tried on an
# H200 with 8,192 rows, 2026-11-30 (mixer_variants_on_card.py): 1.92 ms with what went before the
# walk then, 2.64 in four parts, 2.76 with three chunks under way. A walk with the memory's columns
# as rows of every product, whose threads do not wait for each other, was within 1 %.
WALK_COLUMNS, WALK_WARPS, WALK_STAGES, WALK_PARTS = 32, 4, 2, 2
# Parts, warps and most registers of a thread of what goes before the walk: 1.74 ms in all, 1.92
# with four parts and any registers.
PREPARE: tuple[int, int, int | None] = (8, 4, 128)
# Heads and warps of a program of the gated norm: 0.25 ms, 0.34 with 8 heads of four warps.
NORM_ROWS, NORM_WARPS = 16, 8
_EXACT = tl.constexpr("tf32x3")
_UNIT = tl.constexpr(UNIT)
_PER_UNIT = tl.constexpr(1 / UNIT)


@dataclass(frozen=True, slots=True)
class ScanScratch:
    """Room for the chunks of one call, shared by all layers.

    Attributes:
        lower: [Hv, chunks, CHUNK, CHUNK] float32, used within a launch only.
        inverse: [Hv, chunks, 2, CHUNK, CHUNK] float16 pairs times UNIT, the inverse of
            1 + strictly lower (rate decay k . k).
        within: [Hv, chunks, 2, CHUNK, CHUNK] likewise, decay q . k: what a query reads of its own
            chunk.
        rates: [3, Hv, chunks, CHUNK] float32: rate of learning, decay since the chunk began, decay
            until it ends.
    """

    lower: Tensor
    inverse: Tensor
    within: Tensor
    rates: Tensor


def scan_scratch(num_rows: int, heads: int, device: torch.device | str) -> ScanScratch:
    """Room for up to ``num_rows`` rows at any position: 37 KB a row with 48 heads."""
    chunks = num_rows // CHUNK + 2
    pairs = (heads, chunks, 2, CHUNK, CHUNK)
    return ScanScratch(
        torch.empty((heads, chunks, CHUNK, CHUNK), device=device),
        torch.empty(pairs, dtype=torch.float16, device=device),
        torch.empty(pairs, dtype=torch.float16, device=device),
        torch.empty((3, heads, chunks, CHUNK), device=device),
    )


def delta_scan(
    rows: MixedRows,
    alpha: Tensor,
    beta: Tensor,
    constants: GdnConstants,
    memory: Tensor,
    position: int,
    scratch: ScanScratch,
    out: Tensor,
) -> None:
    """out = what the rows read from the memory, before the gated norm; the memory moves on.

    Operations: 10 MFLOP a row at 48 heads of 128, each three times. Grids: (chunks, heads), then
    (heads, columns / 32): 192 programs that walk the chunks in order.

    Args:
        rows: of ``conv_prompt``.
        alpha: [N, Hv] float32; rows may be those of a wider tensor.
        beta: [N, Hv] float32; likewise.
        constants: of the layer.
        memory: [Hv, Dk, Dv] float32.
        position: tokens before row 0.
        scratch: for at least N rows.
        out: [N, Hv * Dv] float32.
    """
    heads, key_dim, value_dim = memory.shape
    num_rows, key_heads = len(rows.values), rows.keys.shape[2]
    first_row = -(position % CHUNK)
    chunks = cdiv(num_rows - first_row, CHUNK)
    shape = {
        "KEY_HEADS": key_heads, "HEADS": heads, "DK": key_dim,
        "DK_TILE": max(16, next_power_of_2(key_dim)), "C": CHUNK,
        "ROOM": scratch.lower.shape[1],
    }  # fmt: skip
    _prepare_kernel[(chunks, heads)](
        rows.queries, rows.keys, rows.queries.stride(0), alpha, beta, constants.dt_bias,
        constants.ssm_a, scratch.lower, scratch.inverse, scratch.within, scratch.rates,
        alpha.stride(0), beta.stride(0), first_row, num_rows, key_dim**-0.5,
        **shape, PARTS=min(PREPARE[0], shape["DK_TILE"] // 16), num_warps=PREPARE[1],
        maxnreg=PREPARE[2], **LAUNCH,
    )  # fmt: skip
    columns = min(WALK_COLUMNS, max(16, next_power_of_2(value_dim)))
    _walk_kernel[(heads, cdiv(value_dim, columns))](
        rows.queries, rows.keys, rows.queries.stride(0), rows.values, memory, scratch.inverse,
        scratch.within, scratch.rates, out, first_row, num_rows, chunks, key_dim**-0.5, **shape,
        DV=value_dim, COLUMNS=columns, PARTS=min(WALK_PARTS, shape["DK_TILE"] // 16),
        num_warps=WALK_WARPS, num_stages=WALK_STAGES, **LAUNCH,
    )  # fmt: skip


def gated_norm(
    out: Tensor,
    z: Tensor,
    gamma: Tensor,
    eps: float,
    *,
    is_silu_gate: bool,
    codes: PromptCodes | None = None,
    bad: Tensor | None = None,
) -> None:
    """out = rms norm of every head of ``out`` times sigmoid(z), in place or as codes only.

    Bytes a row: 74 KB at 48 heads of 128, as codes 57 KB. Grid: tiles of 16 heads of any rows.

    Args:
        out: [N, Hv * Dv] float32.
        z: [N, Hv * Dv] float32; rows of any stride.
        gamma: [Dv] float32.
        eps: of the norm.
        is_silu_gate: silu in place of sigmoid.
        codes: room for N rows, which then are not written to ``out``; only where Dv is a multiple
            of 32.
        bad: [1] int32, becomes 1 when a value is NaN or infinite; with ``codes``.
    """
    width = len(gamma)
    count = out.numel() // width
    fields: tuple[Tensor | None, ...] = (None, None, None, None)
    if codes is not None:
        fields = (codes.codes, codes.scales, codes.scaled_sums, codes.scaled_half_sums)
    _scan_norm_kernel[(cdiv(count, NORM_ROWS),)](
        out, z, gamma, *fields, bad, count, z.stride(0), eps, HEADS=out.shape[1] // width, DV=width,
        DV_TILE=next_power_of_2(width), ROWS=NORM_ROWS, IS_SILU=is_silu_gate, num_warps=NORM_WARPS,
        **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def _prepare_kernel(
    queries_ptr, keys_ptr, plane, alpha_ptr, beta_ptr, dt_ptr, a_ptr, lower_ptr, inverse_ptr,
    within_ptr, rates_ptr, alpha_stride, beta_stride, first_row, num_rows, scale,
    KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, DK: tl.constexpr, DK_TILE: tl.constexpr,
    C: tl.constexpr, ROOM: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    PART: tl.constexpr = DK_TILE // PARTS
    chunk, head = tl.program_id(0), tl.program_id(1)
    offs = tl.arange(0, C)
    offs_k = tl.arange(0, PART)
    row = first_row + chunk * C + offs
    is_row = (row >= 0) & (row < num_rows)
    alpha = tl.load(alpha_ptr + row * alpha_stride + head, is_row, 0.0)
    log_decay = tl.load(a_ptr + head) * softplus(alpha + tl.load(dt_ptr + head))
    rate = tl.where(is_row, sigmoid(tl.load(beta_ptr + row * beta_stride + head, is_row, 0.0)), 0.0)
    # Differences of sums: a large decay anywhere must not cost the small ones their last bits.
    total = tl.cumsum(tl.where(is_row, log_decay, 0.0).to(tl.float64))
    end = tl.sum(tl.where(offs == C - 1, total, 0.0))
    at_rates = rates_ptr + (head * ROOM + chunk) * C + offs
    tl.store(at_rates, rate)
    tl.store(at_rates + HEADS * ROOM * C, exp(total.to(tl.float32)))
    tl.store(at_rates + 2 * HEADS * ROOM * C, exp((end - total).to(tl.float32)))

    # Some key values at a time: more of them would not fit the registers.
    lower = tl.zeros([C, C], tl.float32)
    within = tl.zeros([C, C], tl.float32)
    for part in tl.static_range(PARTS):
        value = part * PART + offs_k
        is_key = is_row[:, None] & (value < DK)[None, :]
        at = (row[:, None] * KEY_HEADS + head % KEY_HEADS) * DK + value[None, :]
        k_hi, k_lo = load_pair(keys_ptr, plane, at, is_key)
        lower = add_pairs(k_hi, k_lo, tl.trans(k_hi), tl.trans(k_lo), lower)
        q_hi, q_lo = load_pair(queries_ptr, plane, at, is_key)
        within = add_pairs(q_hi, q_lo, tl.trans(k_hi), tl.trans(k_lo), within)
    not_after = offs[:, None] >= offs[None, :]
    exponent = tl.where(not_after, total[:, None] - total[None, :], 0.0).to(tl.float32)
    decay = tl.where(not_after, exp(exponent), 0.0) * (_PER_UNIT * _PER_UNIT)
    base = (head * ROOM + chunk).to(tl.int64) * C * C
    square = offs[:, None] * C + offs[None, :]
    lower = lower * decay * rate[:, None]
    is_before = offs[:, None] > offs[None, :]
    tl.store(lower_ptr + base + square, tl.where(is_before, lower, 0.0))
    high, low = split(within * decay * scale * _UNIT)
    tl.store(within_ptr + 2 * base + square, high)
    tl.store(within_ptr + 2 * base + C * C + square, low)
    tl.debug_barrier()
    _invert_unit_lower(lower_ptr + base, C)
    high, low = split(tl.load(lower_ptr + base + square) * _UNIT)
    tl.store(inverse_ptr + 2 * base + square, high)
    tl.store(inverse_ptr + 2 * base + C * C + square, low)


@triton.jit
def _invert_unit_lower(lower_ptr, C: tl.constexpr):
    """Inverse of 1 + [C, C] strictly lower, in place: blocks of 16, then pairs of blocks."""
    blocks: tl.constexpr = C // 16
    block = tl.arange(0, blocks)[:, None, None] * 16
    rows = tl.arange(0, 16)[None, :, None]
    columns = tl.arange(0, 16)[None, None, :]
    inverse = tl.zeros([blocks, 16, 16], tl.float32)
    for r in range(1, 16):
        # Row r needs the rows above it only.
        at = lower_ptr + (block + r) * C + block
        line = -tl.load(at + columns, columns < r, 0.0)
        weights = -tl.load(at + rows, rows < r, 0.0)
        line += tl.sum(weights * inverse, axis=1)[:, None, :]
        inverse = tl.where(rows == r, line, inverse)
    inverse += tl.where(rows == columns, 1.0, 0.0)
    tl.debug_barrier()
    tl.store(lower_ptr + (block + rows) * C + block + columns, inverse)
    tl.debug_barrier()
    for pair in tl.static_range(C // 32):
        _join_inverses(lower_ptr + pair * 32 * (C + 1), C, 16)
    tl.debug_barrier()
    for pair in tl.static_range(C // 64):
        _join_inverses(lower_ptr + pair * 64 * (C + 1), C, 32)
    tl.debug_barrier()


@triton.jit
def _join_inverses(lower_ptr, C: tl.constexpr, SIZE: tl.constexpr):
    """[[A, 0], [L, B]] becomes the inverse, where A and B hold theirs: L = -B L A."""
    offs = tl.arange(0, SIZE)
    at = lower_ptr + offs[:, None] * C + offs[None, :]
    left = tl.dot(tl.load(at + SIZE * C + SIZE), tl.load(at + SIZE * C), input_precision=_EXACT)
    tl.store(at + SIZE * C, -tl.dot(left, tl.load(at), input_precision=_EXACT))


@triton.jit(do_not_specialize=["first_row", "num_rows", "num_chunks"])
def _walk_kernel(
    queries_ptr, keys_ptr, plane, values_ptr, memory_ptr, inverse_ptr, within_ptr, rates_ptr,
    out_ptr, first_row, num_rows, num_chunks, scale, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    DK: tl.constexpr, DK_TILE: tl.constexpr, C: tl.constexpr, ROOM: tl.constexpr, DV: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    # The memory is PARTS tensors of some key values each: one product's operands then leave room
    # in the registers for the next one's.
    PART: tl.constexpr = DK_TILE // PARTS
    head = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    offs_k = tl.arange(0, PART)
    at_memory = memory_ptr + (head * DK + offs_k[:, None]) * DV + column
    memory = ()
    for part in tl.static_range(PARTS):
        is_memory = (part * PART + offs_k < DK)[:, None] & (column < DV)
        memory = memory + (tl.load(at_memory + part * PART * DV, is_memory, 0.0),)
    at = head % KEY_HEADS * DK
    queries_ptr += at
    keys_ptr += at
    values_ptr += head * DV
    out_ptr += head * DV
    rates_ptr += head * ROOM * C
    base = head.to(tl.int64) * ROOM * 2 * C * C
    if INTERPRETED:
        chunk = 0
        while chunk < num_chunks:
            memory = _walk_chunk(
                memory, queries_ptr, keys_ptr, plane, values_ptr, inverse_ptr + base,
                within_ptr + base, rates_ptr, out_ptr, column, offs_k, chunk, first_row, num_rows,
                scale, KEY_HEADS, HEADS, DK, C, ROOM, DV, PARTS, PART,
            )  # fmt: skip
            chunk += 1
    else:
        for chunk in range(num_chunks):
            memory = _walk_chunk(
                memory, queries_ptr, keys_ptr, plane, values_ptr, inverse_ptr + base,
                within_ptr + base, rates_ptr, out_ptr, column, offs_k, chunk, first_row, num_rows,
                scale, KEY_HEADS, HEADS, DK, C, ROOM, DV, PARTS, PART,
            )  # fmt: skip
    for part in tl.static_range(PARTS):
        is_memory = (part * PART + offs_k < DK)[:, None] & (column < DV)
        tl.store(at_memory + part * PART * DV, memory[part], is_memory)


@triton.jit
def _walk_chunk(
    memory, queries_ptr, keys_ptr, plane, values_ptr, inverse_ptr, within_ptr, rates_ptr, out_ptr,
    column, offs_k, chunk, first_row, num_rows, scale, KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr, DK: tl.constexpr, C: tl.constexpr, ROOM: tl.constexpr, DV: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The memory [Dk, columns] after a chunk; stores what its rows read. Pointers: of the head."""
    offs = tl.arange(0, C)
    row = first_row + chunk * C + offs
    is_row = (row >= 0) & (row < num_rows)
    at = row[:, None] * (KEY_HEADS * DK) + offs_k[None, :]
    square = chunk * (2 * C * C) + offs[:, None] * C + offs[None, :]
    is_value = is_row[:, None] & (column < DV)
    at_value = row[:, None] * (HEADS * DV) + column
    rate = tl.load(rates_ptr + chunk * C + offs)[:, None]
    since = tl.load(rates_ptr + (HEADS * ROOM + chunk) * C + offs)[:, None]
    until = tl.load(rates_ptr + (2 * HEADS * ROOM + chunk) * C + offs)[:, None]
    kept = tl.load(rates_ptr + (HEADS * ROOM + chunk) * C + C - 1)

    largest = tl.max(tl.abs(memory[0]))
    for part in tl.static_range(1, PARTS):
        largest = tl.maximum(largest, tl.max(tl.abs(memory[part])))
    up, down = power_scale(largest)
    down *= _PER_UNIT
    predicted = tl.zeros([C, column.shape[1]], tl.float32)
    read = tl.zeros([C, column.shape[1]], tl.float32)
    keys = ()
    for part in tl.static_range(PARTS):
        is_key = is_row[:, None] & (part * PART + offs_k < DK)[None, :]
        m_hi, m_lo = split(memory[part] * up)
        k_hi, k_lo = load_pair(keys_ptr, plane, at + part * PART, is_key)
        keys = keys + (k_hi, k_lo)
        predicted = add_pairs(k_hi, k_lo, m_hi, m_lo, predicted)
        q_hi, q_lo = load_pair(queries_ptr, plane, at + part * PART, is_key)
        read = add_pairs(q_hi, q_lo, m_hi, m_lo, read)
    v = tl.load(values_ptr + at_value, is_value, 0.0)
    wanted = rate * (v - predicted * (since * down))
    read *= since * (down * scale)

    # A correction is at most the sum of 64 of the wanted: the same power serves both.
    up, down = power_scale(tl.max(tl.abs(wanted)))
    w_hi, w_lo = split(wanted * up)
    down *= _PER_UNIT
    t_hi, t_lo = tl.load(inverse_ptr + square), tl.load(inverse_ptr + C * C + square)
    delta = dot_pairs(t_hi, t_lo, w_hi, w_lo) * _PER_UNIT
    d_hi, d_lo = split(delta)
    p_hi, p_lo = tl.load(within_ptr + square), tl.load(within_ptr + C * C + square)
    read += dot_pairs(p_hi, p_lo, d_hi, d_lo) * down
    tl.store(out_ptr + at_value, read, is_value)
    u_hi, u_lo = split(delta * until)
    new_memory = ()
    for part in tl.static_range(PARTS):
        k_hi, k_lo = keys[2 * part], keys[2 * part + 1]
        learned = dot_pairs(tl.trans(k_hi), tl.trans(k_lo), u_hi, u_lo)
        new_memory = new_memory + (memory[part] * kept + learned * down,)
    return new_memory


@triton.jit
def _scan_norm_kernel(
    out_ptr, z_ptr, gamma_ptr, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr, count,
    z_stride, eps, HEADS: tl.constexpr, DV: tl.constexpr, DV_TILE: tl.constexpr,
    ROWS: tl.constexpr, IS_SILU: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    offs = tl.arange(0, DV_TILE)[None, :]
    mask = (row < count) & (offs < DV)
    x = tl.load(out_ptr + row * DV + offs, mask, 0.0)
    z = tl.load(z_ptr + row // HEADS * z_stride + row % HEADS * DV + offs, mask, 0.0)
    inverse = div(1.0, tl.sqrt_rn(div(tl.sum(x * x, axis=1), DV) + eps))[:, None]
    gate = silu(z) if IS_SILU else sigmoid(z)
    gamma = tl.load(gamma_ptr + offs, offs < DV, 0.0)
    x = x * inverse * gamma * gate
    if codes_ptr is not None:
        # Heads of a row lie end to end, so a head is a row of its own here.
        head = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        store_prompt_codes(
            x, head, head < count, 0, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr,
            DV // 32, ROWS, DV_TILE // 32,
        )  # fmt: skip
    else:
        tl.store(out_ptr + row * DV + offs, x, mask)
