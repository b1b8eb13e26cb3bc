"""A tile of rows of a prompt times weight rows on tensor cores, thread by thread: the inner loop.

The sums, terms and orders are those of ``prompt_tile``, for codes of one plane, and so are bits.
What differs is who places what: here each thread's fragments of the matrix instruction are written
down, so that a program of several warps shares what it copies to shared memory (single warps read
more from the second cache than it gives), and little is issued beside the float operations: four a
block and result, or six with minima.

A warp has 16 M rows of activations and 32 weight rows of each of its blocks. Lane (g, t), with g =
lane // 4 and t = lane % 4, has rows g and g + 8 of each 16, and weight rows 8 t to 8 t + 7 of each
32; the order of the 32 values in a block is free, since their sum is exact.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.async_copy import (
    close_bundle,
    copy_ahead,
    load_rows,
    load_some,
    wait_bundles,
)
from strata.gpu.kernels.warp import multiply_words

_MAGIC = tl.constexpr(12582912.0)
_MAGIC_BITS = tl.constexpr(0x4B400000)


@triton.constexpr_function
def places(tokens, rows, step, minima):
    """Bytes from the beginning of a stage: weights, row factors, weight factors, end."""
    codes, factors = 32 * step, 4 * step * (1 + minima)
    return (
        codes * tokens,
        codes * (tokens + rows),
        codes * (tokens + rows) + factors * tokens,
        (codes + factors) * (tokens + rows),
    )


@triton.constexpr_function
def stage_words(tokens, rows, step, stages, minima):
    """Words of shared memory of a program."""
    return stages * places(tokens, rows, step, minima)[3] // 4


@triton.constexpr_function
def rounds(chunks, threads):
    """Rounds in which the threads copy so many pieces; both are powers of two."""
    return max(1, chunks // threads)


@triton.constexpr_function
def code_place(piece, part, rows):
    """Bytes from a first piece of 16 to another: blocks of ``part`` rows, ``rows`` rows apart."""
    return piece // (2 * part) * rows * 32 + piece % (2 * part) // 2 * 32


@triton.jit
def row_places(
    first, end, order_ptr, thread, BY_ORDER: tl.constexpr, TOP_K: tl.constexpr,
    TOKENS: tl.constexpr, PIECES: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """For each round, the row that a thread copies PIECES pieces of, int32."""
    rows = ()
    for r in tl.static_range(rounds(TOKENS * PIECES, THREADS)):
        place = (r * THREADS + thread) // PIECES % TOKENS
        at = tl.minimum(first + place, end - 1)
        if BY_ORDER:
            at = tl.load(order_ptr + at) // TOP_K
        rows += (at,)
    return rows


@triton.jit
def _copy_rows(
    stage, at, x, code_rows, factor_rows, thread, MINIMA: tl.constexpr, BLOCKS: tl.constexpr,
    STEP: tl.constexpr, TOKENS: tl.constexpr, FACTORS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Codes [STEP, TOKENS, 32], then factors at FACTORS: [1 + MINIMA, TOKENS, STEP]."""
    PIECES: tl.constexpr = 2 * STEP
    # Rounds that are eight rows apart share an address.
    IS_WHOLE: tl.constexpr = THREADS // PIECES % 8 == 0
    part = thread % PIECES
    for r in tl.static_range(rounds(TOKENS * PIECES, THREADS)):
        place = ((0 if IS_WHOLE else r * THREADS) + thread) // PIECES % TOKENS
        # Eight rows that are read at once lie in different banks.
        half = (part ^ place >> 2) % 2
        to = at + part // 2 * (TOKENS * 32) + place * 32 + half * 16
        source = x[0] + (code_rows[r] * (BLOCKS * 32) + part * 16) + stage * (STEP * 32)
        copy_ahead(to, source, 16, r * (THREADS // PIECES) * 32 if IS_WHOLE else 0, 0)
    SIZE: tl.constexpr = min(16, 4 * STEP)
    PARTS: tl.constexpr = 4 * STEP // SIZE
    to = at + thread // PARTS % TOKENS * (4 * STEP) + thread % PARTS * SIZE
    for r in tl.static_range(rounds(TOKENS * PARTS, THREADS)):
        offset = factor_rows[r] * BLOCKS + thread % PARTS * (SIZE // 4)
        for i in tl.static_range(1 + MINIMA):
            copy_ahead(
                to, x[1 + i] + offset + stage * STEP, SIZE,
                FACTORS + (i * TOKENS + r * (THREADS // PARTS)) * (4 * STEP), 0,
            )  # fmt: skip


@triton.jit
def _copy_weights(
    stage, at, weights, first, thread, FIRST: tl.constexpr, MINIMA: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, PART: tl.constexpr, TILE: tl.constexpr,
    CODES: tl.constexpr, FACTORS: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """PART rows from ``first`` on as rows FIRST and on of codes [STEP, TILE, 32] and factors.

    Factors are [1 + MINIMA, STEP, TILE]. Past the last row any stand in.
    """
    codes_ptr, scales_ptr, minima_ptr = weights
    # Else each round has addresses of its own.
    IS_WHOLE: tl.constexpr = ROWS % PART == 0 and THREADS % 64 == 0
    for r in tl.static_range(rounds(2 * STEP * PART, THREADS)):
        piece = ((0 if IS_WHOLE else r * THREADS) + thread) % (2 * STEP * PART)
        block = piece // (2 * PART)
        row = piece % (2 * PART) // 2
        # Eight rows that are read at once, 0, 1, 8, 9, 16 and on, lie in different banks.
        place = row ^ ((row >> 3 & 1) << 1)
        to = at + (block * TILE + place) * 32 + (piece ^ row >> 4) % 2 * 16
        if IS_WHOLE:
            copy_ahead(
                to,
                codes_ptr + ((block * ROWS + first + row) * 32 + piece % 2 * 16)
                + stage * (STEP * ROWS * 32),
                16,
                CODES + FIRST * 32 + code_place(r * THREADS, PART, TILE),
                code_place(r * THREADS, PART, ROWS),
            )  # fmt: skip
        else:
            source = (block * ROWS + tl.minimum(first + row, ROWS - 1)) * 32 + piece % 2 * 16
            copy_ahead(
                to, codes_ptr + source + stage * (STEP * ROWS * 32), 16, CODES + FIRST * 32, 0
            )
    for r in tl.static_range(rounds(STEP * PART // 4, THREADS)):
        piece = (r * THREADS + thread) % (STEP * PART // 4)
        block = piece // (PART // 4)
        row = piece % (PART // 4) * 4
        to = at + (block * TILE + row) * 4
        source = first + row
        if ROWS % PART != 0:
            source = tl.minimum(source, ROWS - 4)
        offset = block * ROWS + source
        for i in tl.static_range(1 + MINIMA):
            factors_ptr = scales_ptr if i == 0 else minima_ptr
            copy_ahead(
                to, factors_ptr + offset + stage * (STEP * ROWS), 16,
                FACTORS + (FIRST + i * STEP * TILE) * 4, 0,
            )  # fmt: skip


@triton.jit
def _copy_stage(
    stage, at, x, code_rows, factor_rows, matrices, first, thread, MINIMA: tl.constexpr,
    NUM: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr, TILE: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    PLACES: tl.constexpr = places(TOKENS, TILE, STEP, MINIMA)
    _copy_rows(
        stage, at, x, code_rows, factor_rows, thread, MINIMA, BLOCKS, STEP, TOKENS, PLACES[1],
        THREADS,
    )  # fmt: skip
    for m in tl.static_range(NUM):
        _copy_weights(
            stage, at, matrices[m], first, thread, m * (TILE // NUM), MINIMA, ROWS, STEP,
            TILE // NUM, TILE, PLACES[0], PLACES[2], THREADS,
        )  # fmt: skip


@triton.jit
def _float(words):
    """Tuple of words as float32."""
    floats = ()
    for i in tl.static_range(len(words)):
        floats += (words[i].to(tl.float32, bitcast=True),)
    return floats


@triton.jit
def _row_fragments(
    at, factors_at, B: tl.constexpr, M: tl.constexpr, MINIMA: tl.constexpr, STEP: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """Of block B of a stage: for each 16 rows four words; for each 8 rows A; and S."""
    words = ()
    scales = ()
    sums = ()
    for i in tl.static_range(M):
        words += (load_rows(at, (B * TOKENS + 16 * i) * 32),)
    for i in tl.static_range(2 * M):
        scales += _float(load_some(factors_at, 1, (8 * i * STEP + B) * 4))
        if MINIMA == 1:
            sums += _float(load_some(factors_at, 1, ((TOKENS + 8 * i) * STEP + B) * 4))
    return words, scales, sums


@triton.jit
def _add_tile(
    partial, c, scales, minima, a, sums, J: tl.constexpr, MINIMA: tl.constexpr,
    IS_FIRST: tl.constexpr,
):  # fmt: skip
    """Four sums plus the terms of a block; with IS_FIRST the terms alone.

    A sum that begins with a term instead of a zero can only have another sign of zero, which no
    addition to a sum of groups keeps.
    """
    added = ()
    for e in tl.static_range(4):
        whole = c[e].to(tl.float32, bitcast=True) - _MAGIC
        term = whole * (scales[2 * J + e % 2] * a[e // 2])
        total = term if IS_FIRST else partial[e] + term
        if MINIMA == 1:
            total = total + minima[2 * J + e % 2] * sums[e // 2]
        added += (total,)
    return added


@triton.jit
def _add_rows(
    partials, fragments, columns_at, scales_at, start, ROW: tl.constexpr, BELOW: tl.constexpr,
    IS_FIRST: tl.constexpr, M: tl.constexpr, MINIMA: tl.constexpr,
):  # fmt: skip
    """``partials`` [M, 4, 4] of 32 weight rows plus a block; its codes are row ROW of a stage's.

    Minima are BELOW bytes from the scales.
    """
    words, a, sums = fragments
    scales = _float(load_some(scales_at, 4, ROW * 4) + load_some(scales_at, 4, ROW * 4 + 16))
    minima = ()
    if MINIMA == 1:
        low = load_some(scales_at, 4, ROW * 4 + BELOW)
        minima = _float(low + load_some(scales_at, 4, ROW * 4 + BELOW + 16))
    columns = ()
    for j in tl.static_range(2):
        four = load_rows(columns_at, ROW * 32 + 128 * j)
        columns += (four[0:2], four[2:4])
    added = ()
    for m in tl.static_range(M):
        for j in tl.static_range(4):
            c = multiply_words(
                words[m][0], words[m][1], words[m][2], words[m][3],
                columns[j][0], columns[j][1], start, start, start, start,
            )  # fmt: skip
            added += _add_tile(
                partials[16 * m + 4 * j : 16 * m + 4 * j + 4], c, scales, minima,
                a[2 * m : 2 * m + 2], sums[2 * m : 2 * m + 2] if MINIMA == 1 else (), j, MINIMA,
                IS_FIRST,
            )  # fmt: skip
    return added


@triton.jit
def _add_block(
    partials, at, factors_at, columns_at, scales_at, start, B: tl.constexpr,
    IS_FIRST: tl.constexpr, M: tl.constexpr, N: tl.constexpr, NUM: tl.constexpr,
    MINIMA: tl.constexpr, STEP: tl.constexpr, TOKENS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """``partials`` [NUM * N, M, 4, 4] plus block B of a stage."""
    fragments = _row_fragments(at, factors_at, B, M, MINIMA, STEP, TOKENS)
    added = ()
    for n in tl.static_range(NUM * N):
        added += _add_rows(
            partials[16 * M * n : 16 * M * (n + 1)], fragments, columns_at, scales_at, start,
            B * TILE + n // N * (TILE // NUM) + n % N * 32, STEP * TILE * 4, IS_FIRST, M, MINIMA,
        )  # fmt: skip
    return added


@triton.jit
def _add_group(totals, first, NUM_STAGES: tl.constexpr, copied, read, PLAN: tl.constexpr):
    """``totals`` plus the sums of a group's stages from ``first`` on."""
    M: tl.constexpr = PLAN[0]
    N: tl.constexpr = PLAN[1]
    NUM: tl.constexpr = PLAN[2]
    MINIMA: tl.constexpr = PLAN[3]
    STEP: tl.constexpr = PLAN[4]
    STAGES: tl.constexpr = PLAN[5]
    TOKENS: tl.constexpr = PLAN[6]
    TILE: tl.constexpr = PLAN[7]
    THREADS: tl.constexpr = PLAN[8]
    BLOCKS: tl.constexpr = PLAN[9]
    ROWS: tl.constexpr = PLAN[10]
    SIZE: tl.constexpr = places(TOKENS, TILE, STEP, MINIMA)[3]
    x, code_rows, factor_rows, matrices, first_row, shared, thread = copied
    at, factors_at, columns_at, scales_at, start = read
    zero = (thread * 0).to(tl.float32)
    partials = ()
    for _ in tl.static_range(NUM * N * M * 16):
        partials += (zero,)
    for s in range(0, NUM_STAGES):
        wait_bundles(thread, STAGES - 2)
        tl.debug_barrier()
        coming = first + s + (STAGES - 1)
        if coming < BLOCKS // STEP:
            _copy_stage(
                coming, shared + (thread * 0 + coming % STAGES * SIZE), x, code_rows, factor_rows,
                matrices, first_row, thread, MINIMA, NUM, BLOCKS, ROWS, STEP, TOKENS, TILE, THREADS,
            )  # fmt: skip
        close_bundle(thread)
        offset = (first + s) % STAGES * SIZE
        for b in tl.static_range(STEP):
            partials = _add_block(
                partials, at + offset, factors_at + offset, columns_at + offset,
                scales_at + offset, start, b, STEP == 8 and b == 0, M, N, NUM, MINIMA, STEP, TOKENS,
                TILE,
            )  # fmt: skip
    summed = ()
    for i in tl.static_range(NUM * N * M * 16):
        summed += (totals[i] + partials[i],)
    return summed


@triton.jit
def warp_sums(
    x, first_token, end, order_ptr, matrices, first_row, shared, thread, BY_ORDER: tl.constexpr,
    TOP_K: tl.constexpr, NUM: tl.constexpr, MINIMA: tl.constexpr, BLOCKS: tl.constexpr,
    ROWS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    TOKEN_WARPS: tl.constexpr, ROW_WARPS: tl.constexpr,
):  # fmt: skip
    """Sums of a thread: [NUM * N, M, 4 (j), 4 (e)] as a flat tuple.

    Sum (n, m, j, e) is that of matrix n // N, row 32 (N w + n % N) + 8 t + 2 j + e % 2 of the tile,
    and activation row 16 (M v + m) + g + 8 (e // 2), for row warp w and token warp v.

    Args:
        x: pointers of codes, scales and scaled sums of ``PromptCodes``.
        first_token, end: positions of the tile; past ``end`` the last stands in.
        order_ptr, BY_ORDER, TOP_K: as of ``grouped_product.positions_of``.
        matrices: for each of NUM of the same shape, pointers of codes, scales, minima.
        first_row: of every matrix, a multiple of 32.
        shared: address of ``stage_words`` words.
        thread: tl.arange of the program's threads.
        BLOCKS: of 32 in a row, a multiple of STEP; ROWS a multiple of 4.
    """
    TOKENS: tl.constexpr = 16 * M * TOKEN_WARPS
    TILE: tl.constexpr = 32 * N * NUM * ROW_WARPS
    THREADS: tl.constexpr = 32 * TOKEN_WARPS * ROW_WARPS
    COUNT: tl.constexpr = BLOCKS // STEP
    PLACES: tl.constexpr = places(TOKENS, TILE, STEP, MINIMA)
    SIZE: tl.constexpr = PLACES[3]
    PARTS: tl.constexpr = 4 * STEP // min(16, 4 * STEP)
    code_rows = row_places(
        first_token, end, order_ptr, thread, BY_ORDER, TOP_K, TOKENS, 2 * STEP, THREADS
    )
    factor_rows = row_places(
        first_token, end, order_ptr, thread, BY_ORDER, TOP_K, TOKENS, PARTS, THREADS
    )
    for s in tl.static_range(STAGES - 1):
        if s < COUNT:
            _copy_stage(
                s, shared + (thread * 0 + s * SIZE), x, code_rows, factor_rows, matrices, first_row,
                thread, MINIMA, NUM, BLOCKS, ROWS, STEP, TOKENS, TILE, THREADS,
            )  # fmt: skip
        close_bundle(thread)
    g = thread % 32 // 4
    t = thread % 4
    token = thread // (32 * ROW_WARPS) * (16 * M) + g
    row = thread // 32 % ROW_WARPS * (32 * N)
    # Eight lanes name the 16 bytes of eight rows, as ``load_rows`` takes them.
    named = thread % 8
    piece = thread % 32 // 8
    x_row = token - g + named + piece % 2 * 8
    at = shared + x_row * 32 + (piece // 2 ^ named >> 2) * 16
    factors_at = shared + PLACES[1] + token * (4 * STEP)
    scales_at = shared + PLACES[2] + row * 4 + t * 32
    w_row = named // 2 * 8 + named % 2 + piece // 2 * 2
    place = w_row ^ ((w_row >> 3 & 1) << 1)
    columns_at = shared + PLACES[0] + (row + place) * 32 + (piece % 2 ^ w_row >> 4) * 16
    start = thread * 0 + _MAGIC_BITS
    zero = (thread * 0).to(tl.float32)
    totals = ()
    for _ in tl.static_range(NUM * N * M * 16):
        totals += (zero,)
    PLAN: tl.constexpr = (M, N, NUM, MINIMA, STEP, STAGES, TOKENS, TILE, THREADS, BLOCKS, ROWS)
    copied = (x, code_rows, factor_rows, matrices, first_row, shared, thread)
    read = (at, factors_at, columns_at, scales_at, start)
    # A loop in a loop: a branch at a group's end becomes a choice for every sum and stage.
    for group in range(0, BLOCKS // 8):
        totals = _add_group(totals, group * (8 // STEP), 8 // STEP, copied, read, PLAN)
    if BLOCKS % 8 != 0:
        totals = _add_group(
            totals, COUNT // (8 // STEP) * (8 // STEP), COUNT % (8 // STEP), copied, read, PLAN
        )
    return totals
