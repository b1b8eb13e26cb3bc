"""A tile of rows of a prompt times two tiles of weight rows, on the tensor cores: the inner loop.

Sums, terms and their order are those of docs/numerics.md, "C1", so a result has the bits of the
decode kernels. A block of 32 is one matrix instruction that starts from 1.5 * 2^23 as bits: its
integer sum then is a float after one exact subtraction. What bounds the loop are the float
operations: four for each block and result (take the bias away, W * A, times, plus), so 1,024
multiply-adds a clock and multiprocessor at best, a quarter of what the matrix unit could do.

``SUBS`` sub-tiles of ``TOKENS`` rows share the weights they load. 32 rows a sub-tile make Triton
choose the instruction that leaves its bias in place (one register for all), 64 the warp-group form,
which moves a bias in for every result (a fifth operation).

Compiled for sm_90 (benchmarks/gpu/compiled_prompt.py): 6.3 instructions a thread for a block and
result with 64 rows by 128 weight rows and four warps, 255 registers, nothing spilled to speak of,
two programs a multiprocessor: 650 multiply-adds a clock if every slot issues, 63 % of what the
float operations allow and 16 % of the int8 peak. Minima take 9.2, two planes 7.8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import expand

_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)
_SINGLE = tl.constexpr(expand.SINGLE)
_WIDE, _SPLIT = tl.constexpr(expand.WIDE), tl.constexpr(expand.SPLIT)


@triton.jit
def _load_weights(
    weights,
    block,
    row,
    live,
    KIND: tl.constexpr,
    MINIMA: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
):
    """(planes [32, tile], scales [tile], minima [tile]) of a block, each a tuple."""
    codes_ptr, scales_ptr, minima_ptr = weights
    k = tl.arange(0, 32)
    planes = ()
    for p in tl.static_range(1 if KIND == _SINGLE else 2):
        at = (p * BLOCKS + block) * ROWS + row
        if BLOCKS % STEP == 0:
            planes += (tl.load(codes_ptr + at[None, :] * 32 + k[:, None]),)
        else:
            planes += (tl.load(codes_ptr + at[None, :] * 32 + k[:, None], mask=live, other=0),)
    scales = ()
    for t in tl.static_range(2 if KIND == _SPLIT else 1):
        at = (t * BLOCKS + block) * ROWS + row
        scales += (_load_factor(scales_ptr + at, live, BLOCKS, STEP),)
    minima = ()
    for t in tl.static_range(MINIMA):
        at = (t * BLOCKS + block) * ROWS + row
        minima += (_load_factor(minima_ptr + at, live, BLOCKS, STEP),)
    return planes, scales, minima


@triton.jit
def _load_factor(at, live, BLOCKS: tl.constexpr, STEP: tl.constexpr):
    """Floats of a block; zero when it lies past the end of a row."""
    if BLOCKS % STEP == 0:
        return tl.load(at)
    return tl.load(at, mask=live, other=0.0)


@triton.jit
def _load_rows(
    x,
    block,
    token,
    live,
    SUMS: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEP: tl.constexpr,
):
    """(codes [tile, 32], A [tile], S or its two halves) of a block; ``token`` is int64."""
    codes_ptr, scales_ptr, scaled_ptr, halves_ptr = x
    at = token * BLOCKS + block
    k = tl.arange(0, 32)
    if BLOCKS % STEP == 0:
        codes = tl.load(codes_ptr + at[:, None] * 32 + k[None, :])
    else:
        codes = tl.load(codes_ptr + at[:, None] * 32 + k[None, :], mask=live, other=0)
    sums = ()
    if SUMS == 1:
        sums += (_load_factor(scaled_ptr + at, live, BLOCKS, STEP),)
    elif SUMS == 2:
        sums += (_load_factor(halves_ptr + 2 * at, live, BLOCKS, STEP),)
        sums += (_load_factor(halves_ptr + 2 * at + 1, live, BLOCKS, STEP),)
    return codes, _load_factor(scales_ptr + at, live, BLOCKS, STEP), sums


@triton.jit
def _integer_sum(codes, plane, TOKENS: tl.constexpr, TILE: tl.constexpr):
    """1.5 * 2^23 plus the integer sum of a block, float32, exact."""
    start = tl.full((TOKENS, TILE), _MAGIC_BITS, tl.int32)
    total = tl.dot(codes, plane, acc=start, out_dtype=tl.int32)
    return total.to(tl.float32, bitcast=True)


@triton.jit
def _add_block(
    total,
    rows,
    weights,
    KIND: tl.constexpr,
    MINIMA: tl.constexpr,
    TOKENS: tl.constexpr,
    TILE: tl.constexpr,
):
    """``total`` [TOKENS, TILE] plus the terms of one block, in their order."""
    codes, a, sums = rows
    planes, scales, minima = weights
    a = a[:, None]
    first = _integer_sum(codes, planes[0], TOKENS, TILE)
    if KIND == _WIDE:
        # 256 high + low in two exact operations: 257 * 1.5 * 2^23 is a float, so is the rest.
        high = tl.fma(first, 256.0, -257.0 * _MAGIC)
        whole = high + _integer_sum(codes, planes[1], TOKENS, TILE)
        total += whole * (scales[0][None, :] * a)
    else:
        total += (first - _MAGIC) * (scales[0][None, :] * a)
    if KIND == _SPLIT:
        second = _integer_sum(codes, planes[1], TOKENS, TILE)
        total += (second - _MAGIC) * (scales[1][None, :] * a)
    for t in tl.static_range(MINIMA):
        total += minima[t][None, :] * sums[t][:, None]
    return total


@triton.jit
def tile_sums(
    x,
    token,
    weights0,
    row0,
    weights1,
    row1,
    KINDS: tl.constexpr,
    MINIMA: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    TOKENS: tl.constexpr,
    SUBS: tl.constexpr,
    TILE: tl.constexpr,
):
    """2 * SUBS tensors [TOKENS, TILE]: sub-tiles of rows times tile 0, then times tile 1.

    Args:
        x: pointers of codes, scales, sums and half sums of ``PromptCodes``.
        token: SUBS tensors [TOKENS] int64, the row of ``x`` of each row of the tile.
        weights0, weights1: pointers of one matrix of ``Expanded``: codes, scales, minima.
        row0, row1: [TILE] int32, weight rows, below ROWS.
        KINDS, MINIMA: those of both matrices; SUMS is the larger count of minima.
        BLOCKS: blocks of 32 in a row.
        STEP: blocks a round of the loop, a divisor of 8.
    """
    zero = tl.zeros((TOKENS, TILE), tl.float32)
    totals = ()
    for _ in tl.static_range(2 * SUBS):
        totals += (zero,)
    partials = totals
    for step in tl.range(0, (BLOCKS + STEP - 1) // STEP, num_stages=STAGES):
        for i in tl.static_range(STEP):
            block = step * STEP + i
            live = block < BLOCKS
            rows = ()
            for s in tl.static_range(SUBS):
                rows += (_load_rows(x, block, token[s], live, SUMS, BLOCKS, STEP),)
            w0 = _load_weights(
                weights0, block, row0, live, KINDS[0], MINIMA[0], BLOCKS, ROWS[0], STEP
            )
            w1 = _load_weights(
                weights1, block, row1, live, KINDS[1], MINIMA[1], BLOCKS, ROWS[1], STEP
            )
            added = ()
            for s in tl.static_range(SUBS):
                added += (_add_block(partials[s], rows[s], w0, KINDS[0], MINIMA[0], TOKENS, TILE),)
            for s in tl.static_range(SUBS):
                partial = partials[SUBS + s]
                added += (_add_block(partial, rows[s], w1, KINDS[1], MINIMA[1], TOKENS, TILE),)
            partials = added
        if (step * STEP) % 8 == 8 - STEP:
            summed = ()
            zeros = ()
            for j in tl.static_range(2 * SUBS):
                summed += (totals[j] + partials[j],)
                zeros += (zero,)
            totals = summed
            partials = zeros
    if BLOCKS % 8 != 0:
        last = ()
        for j in tl.static_range(2 * SUBS):
            last += (totals[j] + partials[j],)
        totals = last
    return totals
