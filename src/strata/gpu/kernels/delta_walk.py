"""The delta net's walk from chunk to chunk, with the memory's columns as rows of every product.

What one product leaves is then the left side of the next and stays in the registers of its warp;
columns share nothing, and no thread waits for another but for what is loaded. ``delta_scan`` has
the launch, and the walk that this one is measured against.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.conv_prompt import UNIT
from strata.gpu.kernels.halves import add_pairs, dot_pairs, load_pair, power_scale, split

_PER_UNIT = tl.constexpr(1 / UNIT)


@triton.jit(do_not_specialize=["first_row", "num_rows", "num_chunks"])
def _turned_walk_kernel(
    queries_ptr, keys_ptr, plane, values_ptr, memory_ptr, inverse_ptr, within_ptr, rates_ptr,
    out_ptr, first_row, num_rows, num_chunks, scale, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    DK: tl.constexpr, DK_TILE: tl.constexpr, C: tl.constexpr, ROOM: tl.constexpr, DV: tl.constexpr,
    COLUMNS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    # The memory is PARTS tensors of some key values each: one product's operands then leave room
    # in the registers for the next one's.
    PART: tl.constexpr = DK_TILE // PARTS
    head = tl.program_id(0)
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[:, None]
    offs_k = tl.arange(0, PART)
    at_memory = memory_ptr + (head * DK + offs_k[None, :]) * DV + column
    memory = ()
    for part in tl.static_range(PARTS):
        is_memory = (part * PART + offs_k < DK)[None, :] & (column < DV)
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
        is_memory = (part * PART + offs_k < DK)[None, :] & (column < DV)
        tl.store(at_memory + part * PART * DV, memory[part], is_memory)


@triton.jit
def _walk_chunk(
    memory, queries_ptr, keys_ptr, plane, values_ptr, inverse_ptr, within_ptr, rates_ptr, out_ptr,
    column, offs_k, chunk, first_row, num_rows, scale, KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr, DK: tl.constexpr, C: tl.constexpr, ROOM: tl.constexpr, DV: tl.constexpr,
    PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The memory [columns, Dk] after a chunk; stores what its rows read. Pointers: of the head."""
    offs = tl.arange(0, C)
    row = first_row + chunk * C + offs
    is_row = (row >= 0) & (row < num_rows)
    at = row[:, None] * (KEY_HEADS * DK) + offs_k[None, :]
    square = chunk * (2 * C * C) + offs[:, None] * C + offs[None, :]
    is_value = is_row[None, :] & (column < DV)
    at_value = row[None, :] * (HEADS * DV) + column
    rate = tl.load(rates_ptr + chunk * C + offs)[None, :]
    since = tl.load(rates_ptr + (HEADS * ROOM + chunk) * C + offs)[None, :]
    until = tl.load(rates_ptr + (2 * HEADS * ROOM + chunk) * C + offs)[None, :]
    kept = tl.load(rates_ptr + (HEADS * ROOM + chunk) * C + C - 1)

    largest = tl.max(tl.abs(memory[0]), axis=1)
    for part in tl.static_range(1, PARTS):
        largest = tl.maximum(largest, tl.max(tl.abs(memory[part]), axis=1))
    up, down = power_scale(largest[:, None])
    down *= _PER_UNIT
    predicted = tl.zeros([column.shape[0], C], tl.float32)
    read = tl.zeros([column.shape[0], C], tl.float32)
    for part in tl.static_range(PARTS):
        is_key = is_row[:, None] & (part * PART + offs_k < DK)[None, :]
        m_hi, m_lo = split(memory[part] * up)
        k_hi, k_lo = load_pair(keys_ptr, plane, at + part * PART, is_key)
        predicted = add_pairs(m_hi, m_lo, tl.trans(k_hi), tl.trans(k_lo), predicted)
        q_hi, q_lo = load_pair(queries_ptr, plane, at + part * PART, is_key)
        read = add_pairs(m_hi, m_lo, tl.trans(q_hi), tl.trans(q_lo), read)
    v = tl.load(values_ptr + at_value, is_value, 0.0)
    wanted = rate * (v - predicted * (since * down))
    read *= since * (down * scale)

    # A correction is at most the sum of 64 of the wanted: the same power serves both.
    up, down = power_scale(tl.max(tl.abs(wanted), axis=1)[:, None])
    w_hi, w_lo = split(wanted * up)
    down *= _PER_UNIT
    t_hi, t_lo = tl.load(inverse_ptr + square), tl.load(inverse_ptr + C * C + square)
    delta = dot_pairs(w_hi, w_lo, tl.trans(t_hi), tl.trans(t_lo)) * _PER_UNIT
    d_hi, d_lo = split(delta)
    p_hi, p_lo = tl.load(within_ptr + square), tl.load(within_ptr + C * C + square)
    read += dot_pairs(d_hi, d_lo, tl.trans(p_hi), tl.trans(p_lo)) * down
    tl.store(out_ptr + at_value, read, is_value)
    u_hi, u_lo = split(delta * until)
    new_memory = ()
    for part in tl.static_range(PARTS):
        # Loaded again: their other form would take half of the registers until now.
        is_key = is_row[:, None] & (part * PART + offs_k < DK)[None, :]
        k_hi, k_lo = load_pair(keys_ptr, plane, at + part * PART, is_key)
        learned = dot_pairs(u_hi, u_lo, k_hi, k_lo)
        new_memory = new_memory + (memory[part] * kept + learned * down,)
    return new_memory
