"""The step kernel of a delta net's window: convolution, norms, decays, and the memory row by row.

Every thread's part is written down (``kernels.warp``), for two reasons. What does not depend on the
memory is done for all rows side by side, one warp a row of q or of k, and handed on in shared
memory; done row by row, it took longer than the memory's own steps. And each sum has one written
order, whatever the number of rows: a lane's values ascending, then lanes by halves.

A warp has some columns of the memory, and of them lane i the key values i, i + 32 and so on. So a
row needs no other warp once the barrier is behind it. ``gated_delta`` has the launch and the state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED, div, exp, quotient, sigmoid, silu
from strata.gpu.kernels.async_copy import store_four
from strata.gpu.kernels.causal_conv import MAX_WINDOW_ROWS, keep_row, weights_of
from strata.gpu.kernels.dependent import fetch_ahead, wait_for_inputs
from strata.gpu.kernels.shared_words import load_shared, shared_words, store_shared
from strata.gpu.kernels.warp import from_lane
from strata.reference.norms import L2_EPS, SOFTPLUS_LINEAR_ABOVE

STEP_RING = 2 * MAX_WINDOW_ROWS
"""Rows of a window beside the pending rows of the one before."""

_STEP_RING, _MAX_ROWS = tl.constexpr(STEP_RING), tl.constexpr(MAX_WINDOW_ROWS)
_L2_EPS = tl.constexpr(L2_EPS)
_SOFTPLUS_LINEAR_ABOVE = tl.constexpr(SOFTPLUS_LINEAR_ABOVE)


@triton.jit
def log_from_one(u):
    """log(u) of normal u >= 1: u = 2^n m, m in 0.7 .. 1.42, log m = 2 artanh((m - 1) / (m + 1))."""
    bits = u.to(tl.int32, bitcast=True)
    m = ((bits & 0x007FFFFF) + 0x3F800000).to(tl.float32, bitcast=True)
    n = ((bits >> 23) - 127).to(tl.float32)
    is_high = m > 1.41421356
    m = tl.where(is_high, m * 0.5, m)
    n = tl.where(is_high, n + 1.0, n)
    s = quotient(m - 1.0, m + 1.0)
    t = s * s
    p = 0.11111111 * t + 0.14285715
    p = p * t + 0.2
    p = p * t + 0.33333334
    return n * 0.693359375 + (n * -2.12194442e-4 + 2.0 * (s + (s * t) * p))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), x above 20. With u = 1 + e rounded, e / (u - 1) takes the rounding out."""
    e = exp(x)
    u = e + 1.0
    d = u - 1.0
    y = tl.where(d > 5.9604645e-8, log_from_one(u) * quotient(e, tl.maximum(d, 5.9604645e-8)), e)
    return tl.where(x > _SOFTPLUS_LINEAR_ABOVE, x, y)


@triton.jit
def _over_lanes(x, lane):
    """Sum of the 32 lanes of a warp, the same bits in all of them."""
    for half in tl.static_range(5):
        x = x + from_lane(x, lane ^ (16 >> half))
    return x


@triton.jit
def _dots(memory, k, lane, COLUMNS: tl.constexpr):
    """For each of a warp's columns, the sum over key values of memory times k."""
    sums = ()
    for c in tl.static_range(COLUMNS):
        total = memory[c] * k[0]
        for i in tl.static_range(1, len(k)):
            total += memory[i * COLUMNS + c] * k[i]
        sums += (_over_lanes(total, lane),)
    return sums


@triton.jit
def _deltas(memory, k, v, decay, rate, lane, COLUMNS: tl.constexpr):
    """What a row teaches, by column: rate * (v - decay S^T k)."""
    found = _dots(memory, k, lane, COLUMNS)
    deltas = ()
    for c in tl.static_range(COLUMNS):
        deltas += (rate * (v[c] - decay * found[c]),)
    return deltas


@triton.jit
def _taught(memory, k, deltas, decay, COLUMNS: tl.constexpr):
    """decay S + k delta^T."""
    after = ()
    for i in tl.static_range(len(k)):
        for c in tl.static_range(COLUMNS):
            after += (memory[i * COLUMNS + c] * decay + k[i] * deltas[c],)
    return after


@triton.jit
def _load_columns(ptr, is_live, COLUMNS: tl.constexpr):
    """float32 of neighbouring columns from a pointer on, zero where not live.

    Four at once, and then aligned to 16 bytes.
    """
    values = ()
    if COLUMNS == 4 and not INTERPRETED:
        words = tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $5, 0; @p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; "
            "@!p mov.b32 $0, 0; @!p mov.b32 $1, 0; @!p mov.b32 $2, 0; @!p mov.b32 $3, 0; }",
            "=r,=r,=r,=r,l,r",
            [ptr, is_live.to(tl.int32)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
        for c in tl.static_range(4):
            values += (words[c].to(tl.float32, bitcast=True),)
    else:
        for c in tl.static_range(COLUMNS):
            values += (tl.load(ptr + c, is_live, 0.0),)
    return values


@triton.jit
def _load_memory(at, lane, is_v, DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr,
                 COLUMNS: tl.constexpr):  # fmt: skip
    """A warp's columns [PER, COLUMNS] from ``at``, key value 0."""
    memory = ()
    for i in tl.static_range(PER):
        key = lane + 32 * i
        memory += _load_columns(at + key * DV, is_v & (key < DK), COLUMNS)
    return memory


@triton.jit
def _store_memory(at, memory, lane, is_v, DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr,
                  COLUMNS: tl.constexpr):  # fmt: skip
    for i in tl.static_range(PER):
        key = lane + 32 * i
        is_live = is_v & (key < DK)
        if COLUMNS == 4 and not INTERPRETED:
            store_four(at + key * DV, memory[4 * i : 4 * i + 4], is_live.to(tl.int32))
        else:
            for c in tl.static_range(COLUMNS):
                tl.store(at + key * DV + c, memory[i * COLUMNS + c], is_live)


@triton.jit
def _pending_row(
    row, head, position, keys_ptr, values_ptr, rates_ptr, column, lane, is_v, HEADS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """(k, v, decay, rate) of a row of the window before; any past the last one."""
    slot = ((position + tl.minimum(row, -1)) & (_STEP_RING - 1)).to(tl.int32) * HEADS + head
    k, v = (), ()
    for i in tl.static_range(PER):
        key = lane + 32 * i
        k += (tl.load(keys_ptr + slot * DK + key, key < DK, 0.0),)
    for c in tl.static_range(COLUMNS):
        v += (tl.load(values_ptr + slot * DV + column + c, is_v, 0.0),)
    return k, v, tl.load(rates_ptr + 2 * slot), tl.load(rates_ptr + 2 * slot + 1)


@triton.jit
def _with_pending(
    memory, row, head, position, keys_ptr, values_ptr, rates_ptr, column, lane, is_v,
    HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """The memory after the rows from ``row``, which is negative, to the last before the window."""
    k, v, decay, rate = _pending_row(
        row, head, position, keys_ptr, values_ptr, rates_ptr, column, lane, is_v, HEADS, DK, DV,
        PER, COLUMNS,
    )  # fmt: skip
    while row < 0:
        # The row after is asked for before this one is stepped in.
        k_then, v_then, decay_then, rate_then = _pending_row(
            row + 1, head, position, keys_ptr, values_ptr, rates_ptr, column, lane, is_v, HEADS,
            DK, DV, PER, COLUMNS,
        )  # fmt: skip
        deltas = _deltas(memory, k, v, decay, rate, lane, COLUMNS)
        memory = _taught(memory, k, deltas, decay, COLUMNS)
        k, v, decay, rate = k_then, v_then, decay_then, rate_then
        row += 1
    return memory


@triton.jit
def _raw_and_mixed(
    qkv_ptr, ring_ptr, taps, channel, mask, row, position, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, RING: tl.constexpr, QKV: tl.constexpr,
):  # fmt: skip
    """A row's own input of a channel, and the convolution there: the bits of ``conv_silu``."""
    y = (channel * 0).to(tl.float32)
    own = tl.load(qkv_ptr + row * QKV + channel, mask, 0.0)
    for tap in tl.static_range(KERNEL - 1):
        source = row - (KERNEL - 1 - tap)
        before = position + source
        slot = (before & (RING - 1)).to(tl.int32)
        at_past = ring_ptr + slot * CHANNELS + channel
        at = tl.where(source < 0, at_past, qkv_ptr + source * QKV + channel)
        y += taps[tap] * tl.load(at, mask & (before >= 0), 0.0)
    y += taps[KERNEL - 1] * own
    return own, silu(y)


@triton.jit
def _share_keys(
    task, num_rows, head, is_first, position, taps, lane, shared, qkv_ptr, ring_ptr, keys_ptr,
    scale, KERNEL: tl.constexpr, RING: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr, QKV: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """q of row task // 2 (task even) or k to shared memory, normed; and what is kept of it."""
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * DK + HEADS * DV
    row, part = task // 2, task % 2
    raw, mixed = (), ()
    for i in tl.static_range(PER):
        key = lane + 32 * i
        channel = part * (KEY_HEADS * DK) + head % KEY_HEADS * DK + key
        own, y = _raw_and_mixed(
            qkv_ptr, ring_ptr, taps[i], channel, (key < DK) & (row < num_rows), row, position,
            CHANNELS, KERNEL, RING, QKV,
        )  # fmt: skip
        raw += (own,)
        mixed += (y,)
    total = mixed[0] * mixed[0]  # type: ignore[misc]
    for i in tl.static_range(1, PER):
        total += mixed[i] * mixed[i]
    inverse = div(1.0, tl.sqrt_rn(_over_lanes(total, lane) + _L2_EPS))
    slot = ((position + row) & (_STEP_RING - 1)).to(tl.int32) * HEADS + head
    # Rows that are not there all have the room behind the last.
    at = shared + (tl.minimum(row, _MAX_ROWS) * ROOM + part * (32 * PER) + lane) * 4
    for i in tl.static_range(PER):
        key = lane + 32 * i
        is_key = (key < DK) & (row < num_rows) & is_first
        x = mixed[i] * inverse
        x = tl.where(part == 0, x * scale, x)
        store_shared(at + 128 * i, x)
        tl.store(keys_ptr + slot * DK + key, x, is_key & (part == 1))
        # A key head's raw channels have several readers and one keeper.
        channel = part * (KEY_HEADS * DK) + head % KEY_HEADS * DK + key
        keep_row(
            ring_ptr, channel, is_key & (head < KEY_HEADS), row, position, CHANNELS, raw[i], RING
        )


@triton.jit
def _share_values(
    thread, num_rows, head, first, position, taps, rates, shared, qkv_ptr, ring_ptr, values_ptr,
    rates_ptr, KERNEL: tl.constexpr, RING: tl.constexpr, KEY_HEADS: tl.constexpr,
    HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, TILE: tl.constexpr,
    QKV: tl.constexpr, VALUES: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """v of the program's columns, decay and rate of all rows to shared memory and their rings.

    Thread i has column i % TILE of row i // TILE, and the rates of row i % 8.
    """
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * DK + HEADS * DV
    row, column = thread // TILE, first + thread % TILE
    is_v = (row < num_rows) & (column < DV)
    channel = 2 * KEY_HEADS * DK + head * DV + column
    own, v = _raw_and_mixed(
        qkv_ptr, ring_ptr, taps, channel, is_v, row, position, CHANNELS, KERNEL, RING, QKV
    )
    keep_row(ring_ptr, channel, is_v, row, position, CHANNELS, own, RING)
    slot = ((position + row) & (_STEP_RING - 1)).to(tl.int32) * HEADS + head
    tl.store(values_ptr + slot * DV + column, v, is_v)
    store_shared(shared + (tl.minimum(row, _MAX_ROWS) * ROOM + VALUES + thread % TILE) * 4, v)
    decay, rate = rates
    row = thread % _MAX_ROWS
    at = shared + (row * ROOM + VALUES + TILE) * 4
    store_shared(at, decay)
    store_shared(at + 4, rate)
    is_noted = (thread < num_rows) & (first == 0)
    slot = ((position + row) & (_STEP_RING - 1)).to(tl.int32) * HEADS + head
    tl.store(rates_ptr + 2 * slot, decay, is_noted)
    tl.store(rates_ptr + 2 * slot + 1, rate, is_noted)


@triton.jit
def _shared_row(at, lane, warp, PER: tl.constexpr, COLUMNS: tl.constexpr, TILE: tl.constexpr,
                VALUES: tl.constexpr):  # fmt: skip
    """(q, k, v, decay, rate) of a row whose room in shared memory begins at ``at``."""
    q, k, v = (), (), ()
    for i in tl.static_range(PER):
        q += (load_shared(at + (lane + 32 * i) * 4),)
        k += (load_shared(at + (lane + 32 * (PER + i)) * 4),)
    for c in tl.static_range(COLUMNS):
        v += (load_shared(at + (VALUES + warp * COLUMNS + c) * 4),)
    decay = load_shared(at + (VALUES + TILE) * 4)
    return q, k, v, decay, load_shared(at + (VALUES + TILE + 1) * 4)


@triton.jit(do_not_specialize=["num_rows"])
def _step_kernel(
    qkv_ptr, alpha_ptr, beta_ptr, conv_ptr, dt_ptr, a_ptr, memory_ptr, ring_ptr, keys_ptr,
    values_ptr, rates_ptr, position_ptr, num_pending_ptr, out_ptr, num_rows, scale,
    KERNEL: tl.constexpr, RING: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, PER: tl.constexpr, COLUMNS: tl.constexpr,
    WARPS: tl.constexpr, QKV: tl.constexpr, ALPHA: tl.constexpr, BETA: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = COLUMNS * WARPS
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * DK + HEADS * DV
    VALUES: tl.constexpr = 64 * PER  # words of a row before its values: q and k
    ROOM: tl.constexpr = VALUES + TILE + 2
    head = tl.program_id(0)
    first = tl.program_id(1) * TILE
    thread = tl.arange(0, 32 * WARPS)
    lane, warp = thread % 32, thread // 32
    memory_bytes = memory_ptr.to(tl.pointer_type(tl.uint8), bitcast=True)
    if first == 0:
        fetch_ahead(memory_bytes, head, HEADS, DK * DV * 4, 1)
    # Warps are an even number, so a warp has q or k whatever the row.
    at_part = warp % 2 * (KEY_HEADS * DK) + head % KEY_HEADS * DK
    taps = ()
    for i in tl.static_range(PER):
        key = lane + 32 * i
        taps += (weights_of(conv_ptr, at_part + key, key < DK, CHANNELS, KERNEL),)
    v_channel = first + thread % TILE
    v_taps = weights_of(
        conv_ptr, 2 * KEY_HEADS * DK + head * DV + v_channel, v_channel < DV, CHANNELS, KERNEL
    )
    shared = shared_words((_MAX_ROWS + 1) * ROOM) + thread * 0
    wait_for_inputs()
    position, num_pending = tl.load(position_ptr), tl.load(num_pending_ptr)
    column = first + warp * COLUMNS
    is_v = column < DV
    at_memory = memory_ptr + head * (DK * DV) + column
    memory = _load_memory(at_memory, lane, is_v, DK, DV, PER, COLUMNS)
    row = thread % _MAX_ROWS
    alpha = tl.load(alpha_ptr + row * ALPHA + head, row < num_rows, 0.0)
    beta = tl.load(beta_ptr + row * BETA + head, row < num_rows, 0.0)
    decays = exp(tl.load(a_ptr + head) * softplus(alpha + tl.load(dt_ptr + head)))
    _share_values(
        thread, num_rows, head, first, position, v_taps, (decays, sigmoid(beta)), shared, qkv_ptr,
        ring_ptr, values_ptr, rates_ptr, KERNEL, RING, KEY_HEADS, HEADS, DK, DV, TILE, QKV, VALUES,
        ROOM,
    )  # fmt: skip
    task = 0
    while task < 2 * num_rows:
        _share_keys(
            task + warp, num_rows, head, first == 0, position, taps, lane, shared, qkv_ptr,
            ring_ptr, keys_ptr, scale, KERNEL, RING, KEY_HEADS, HEADS, DK, DV, PER, QKV, ROOM,
        )  # fmt: skip
        task += WARPS
    memory = _with_pending(
        memory, -num_pending, head, position, keys_ptr, values_ptr, rates_ptr, column, lane, is_v,
        HEADS, DK, DV, PER, COLUMNS,
    )  # fmt: skip
    if num_pending > 0:
        _store_memory(at_memory, memory, lane, is_v, DK, DV, PER, COLUMNS)
    tl.debug_barrier()
    row = 0
    while row < num_rows:
        q, k, v, decay, rate = _shared_row(
            shared + row * (4 * ROOM), lane, warp, PER, COLUMNS, TILE, VALUES
        )
        # q . (decay S + k delta) = decay (q . S) + (q . k) delta: both sums read the old memory.
        read = _dots(memory, q, lane, COLUMNS)
        deltas = _deltas(memory, k, v, decay, rate, lane, COLUMNS)
        both = _dots(q, k, lane, 1)[0]
        out_at = out_ptr + (row * HEADS + head) * DV + column
        for c in tl.static_range(COLUMNS):
            o = decay * read[c] + both * deltas[c]
            tl.store(out_at + c, o, is_v & (lane == c))
        memory = _taught(memory, k, deltas, decay, COLUMNS)
        row += 1
