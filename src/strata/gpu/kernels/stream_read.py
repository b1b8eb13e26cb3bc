"""The second half of a hyper-connection's read in one launch: silu, gates, mix, codes.

Does what ``silu_of_quotient``, a product and ``mix`` do one after the other, with the same bits;
rows of the up matrix lie by ``read_order``. Where that is quantised, every program makes the codes
of the low rank values for itself: all write the same bytes to the same place, and read what they
wrote. For a plain one the product before leaves the values activated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import over, sigmoid, silu
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.float_product import (
    can_split,
    dealt,
    float_shape,
    float_words,
    no_bits_after,
    segment_sums,
)
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.product import matrix_sums, shape_of
from strata.gpu.kernels.quantize import Codes, store_codes
from strata.gpu.kernels.quantize_tail import store_tail, tail_args
from strata.gpu.kernels.shared_words import load_shared, shared_words, store_shared
from strata.gpu.kernels.tables import points_of
from strata.gpu.kernels.warp import from_lane

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.float_matrix import FloatMatrix
    from strata.gpu.packing import PackedMatrix

# Columns of the mix a program makes: one block of codes, four panels of every stream.
_COLUMNS = 32
_PANELS = tl.constexpr(_COLUMNS // 8)
# Streams of a thread of a plain matrix.
_SHARE = 2
_IS_TOUCHED = True


def read_order(num_streams: int, width: int) -> Tensor:
    """[S * D] int64: which row of the up matrix comes where, by 32 columns, then by stream.

    D must be a multiple of 32.
    """
    rows = torch.arange(num_streams * width).reshape(num_streams, width // _COLUMNS, _COLUMNS)
    return rows.transpose(0, 1).reshape(-1)


def read_streams(
    low: Tensor,
    up: PackedMatrix,
    xn: Tensor,
    low_room: Codes,
    x: Tensor,
    codes: Codes | None,
    bad: Tensor,
    split: Tensor | None = None,
) -> None:
    """x = mean over the streams of xn * sigmoid(up . silu(low / S)), and its codes.

    Bytes: the up matrix (1.8 MB at 4.5 bits, rank 320), 51 KB a row. Grid: D / 32 (80), 8 warps.

    Args:
        low: [N, r] float32 products of xn; rows of any stride.
        up: [S * D, r], rows in ``read_order``.
        xn: [N, S * D] float32.
        low_room: scratch for N rows of r values, zero past their end.
        x: [N, D] float32.
        codes: of x; zero past a row's end.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
        split: [N, D] float32, x again as ``float_product`` takes split rows, or None.
    """
    args, constants = _common(xn, x, codes, bad, split)
    *low_tail, _ = tail_args(low_room, bad)
    slots = min(4, triton.next_power_of_2(low_room.num_groups))
    _read_kernel[(x.shape[1] // _COLUMNS,)](
        low, low.stride(0), *low_tail[:5], up.panels, up.num_panels,
        lattice(up.format_name, x.device), *args, bad, **shape_of(up.format_name, up.inner),
        RANK=up.inner, RANK_TILE=max(32, triton.next_power_of_2(up.inner)), SLOTS=slots,
        **constants, num_warps=max(1, constants["TILE"] * slots * 8 // 32), **LAUNCH_AFTER,
    )  # fmt: skip


def read_activated(
    low: Tensor,
    up: FloatMatrix,
    xn: Tensor,
    x: Tensor,
    codes: Codes | None,
    bad: Tensor,
    split: Tensor | None = None,
    *,
    share: int = _SHARE,
    is_touched: bool = _IS_TOUCHED,
) -> None:
    """The same of a plain matrix and ``low`` after its silu.

    Bytes: the up matrix (6.6 MB as BF16, rank 320), 51 KB a row. Grid: D / 32 (80), 8 warps.

    Args:
        low: [N, r] float32, silu of the products of xn over S; as ``float_product`` makes it.
        up: [S * D, r], rows in ``read_order``.
        xn: as of ``read_streams``, like what follows.
        x: see there.
        codes: see there.
        bad: see there.
        split: see there.
        share: streams of a thread, which divides their number; for timings.
        is_touched: every program brings all of ``low`` into its first level cache; likewise.
    """
    args, constants = _common(xn, x, codes, bad, split)
    streams = constants["STREAMS"]
    share = share if streams % share == 0 else 1
    _read_float_kernel[(x.shape[1] // _COLUMNS,)](
        low, up.panels, up.num_panels, *args,
        **float_shape(up, len(x), share=share, across=streams // share),
        IS_SPLIT=can_split(up.inner), IS_TOUCHED=is_touched, **constants,
        num_warps=min(16, constants["TILE"] // share), **LAUNCH_AFTER,
    )  # fmt: skip


def _common(
    xn: Tensor, x: Tensor, codes: Codes | None, bad: Tensor, split: Tensor | None
) -> tuple[tuple[object, ...], dict[str, int]]:
    """Arguments of both kernels from xn to the flag, and constants."""
    num_rows, width = x.shape
    streams = xn.shape[1] // width
    *tail, groups = tail_args(codes, bad)
    constants = {
        "STREAMS": streams, "D": width, "HAS_CODES": codes is not None, "OUT_GROUPS": groups,
        "N": num_rows, "TILE": streams * _PANELS.value,
    }  # fmt: skip
    return (xn, x, split, *tail), constants


@triton.jit
def _mix_block(
    gate, xn_ptr, x_ptr, split_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
    bad_ptr, n, block, STREAMS: tl.constexpr, D: tl.constexpr, HAS_CODES: tl.constexpr,
    OUT_GROUPS: tl.constexpr,
):  # fmt: skip
    """Mixes 32 columns of row n by the products ``gate`` [STREAMS, 32]."""
    stream = tl.arange(0, STREAMS)[:, None]
    column = block * 32 + tl.arange(0, 32)[None, :]
    gated = tl.load(xn_ptr + (n * STREAMS + stream) * D + column) * sigmoid(gate)
    total = tl.zeros((32,), tl.float32)
    for s in tl.static_range(STREAMS):
        total += tl.sum(tl.where(stream == s, gated, 0.0), axis=0)
    mixed = over(total, STREAMS)
    tl.store(x_ptr + n * D + block * 32 + tl.arange(0, 32), mixed)
    if split_ptr is not None:
        column = block * 32 + tl.arange(0, 32)
        place = column // 16 * 16 + column % 4 * 4 + column % 16 // 4
        tl.store(split_ptr + n * D + place, mixed)
    if HAS_CODES:
        store_tail(
            mixed, n, block, 1, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr,
            OUT_GROUPS, 1,
        )  # fmt: skip


@triton.jit
def _read_float_kernel(
    low_ptr, panels_ptr, num_panels, xn_ptr, x_ptr, split_ptr, codes_ptr, scales_ptr, sums_ptr,
    scaled_ptr, halves_ptr, bad_ptr, STREAMS: tl.constexpr, D: tl.constexpr,
    HAS_CODES: tl.constexpr, OUT_GROUPS: tl.constexpr, FORMAT: tl.constexpr, SHAPE: tl.constexpr,
    N: tl.constexpr, TILE: tl.constexpr, IS_SPLIT: tl.constexpr, IS_TOUCHED: tl.constexpr,
):  # fmt: skip
    SHARE: tl.constexpr = SHAPE[7]
    ACROSS: tl.constexpr = SHAPE[8]
    # Four rows of x at a time, one for each of the four threads that have a sum.
    FOURS: tl.constexpr = (N + 3) // 4
    block = tl.program_id(0)
    words = float_words(panels_ptr, block * TILE * 8, num_panels, SHAPE, TILE * 8)
    wait_for_inputs()
    thread = tl.arange(0, TILE * 32 // SHARE)
    column = block * 32 + thread // (4 * ACROSS)
    own = thread // 4 % ACROSS
    if IS_TOUCHED:
        # A word of every line; what is loaded again and again is nearby then.
        touched = tl.load(low_ptr + tl.minimum(thread * 32, N * SHAPE[0] - 1))
    xn = ()
    for four in tl.static_range(FOURS):
        n = tl.minimum(four * 4 + thread % 4, N - 1)
        for share in tl.static_range(SHARE):
            xn = xn + (tl.load(xn_ptr + (n * STREAMS + share * ACROSS + own) * D + column),)
    sums = segment_sums(
        words, panels_ptr, block * TILE * 8, num_panels, low_ptr, SHAPE[0], FORMAT, SHAPE, N,
        TILE * 8, IS_SPLIT,
    )  # fmt: skip
    room = shared_words(FOURS * 128)
    for four in tl.static_range(FOURS):
        gated = ()
        for share in tl.static_range(SHARE):
            of_rows = ()
            for n in tl.static_range(4 * four, min(N, 4 * four + 4)):
                of_rows = of_rows + (sums[n * SHARE + share],)
            gated = gated + (xn[four * SHARE + share] * sigmoid(dealt(of_rows)[0]),)
        total = tl.zeros((TILE * 32 // SHARE,), tl.float32)
        for stream in tl.static_range(STREAMS):
            part = gated[stream // ACROSS]
            if ACROSS > 1:
                lane = thread % 32 // (4 * ACROSS) * (4 * ACROSS) + thread % 4
                part = from_lane(part, lane + 4 * (stream % ACROSS))
            total += part
        mixed = over(total, STREAMS)
        if IS_TOUCHED:
            bits = mixed.to(tl.int32, bitcast=True) | no_bits_after((touched,))
            mixed = bits.to(tl.float32, bitcast=True)
        row = 4 * four + thread % 4
        is_one = (own == 0) & (row < N)
        tl.store(x_ptr + row * D + column, mixed, mask=is_one)
        if split_ptr is not None:
            place = column // 16 * 16 + column % 4 * 4 + column % 16 // 4
            tl.store(split_ptr + row * D + place, mixed, mask=is_one)
        if HAS_CODES:
            places = thread % 4 * 32 + thread // (4 * ACROSS)
            store_shared(room + (four * 128 + places) * 4, mixed)
    if HAS_CODES:
        tl.debug_barrier()
        row = tl.arange(0, triton.next_power_of_2(N))
        places = row[:, None, None] * 32 + tl.arange(0, 2)[None, :, None] * 16
        x = load_shared(room + (places + tl.arange(0, 16)[None, None, :]) * 4)
        store_codes(
            x, row * (OUT_GROUPS * 8) + block, row < N, codes_ptr, scales_ptr, sums_ptr, scaled_ptr,
            halves_ptr, bad_ptr, OUT_GROUPS, N,
        )  # fmt: skip


@triton.jit
def _read_kernel(
    low_ptr, low_stride, low_codes_ptr, low_scales_ptr, low_sums_ptr, low_scaled_ptr,
    low_halves_ptr, panels_ptr, num_panels, grid_ptr, xn_ptr, x_ptr, split_ptr, codes_ptr,
    scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr, low_bad_ptr, RANK: tl.constexpr,
    RANK_TILE: tl.constexpr, STREAMS: tl.constexpr, D: tl.constexpr, HAS_CODES: tl.constexpr,
    OUT_GROUPS: tl.constexpr, FORMAT: tl.constexpr, TRAITS: tl.constexpr, PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr,
    IS_SHORT: tl.constexpr, N: tl.constexpr, SLOTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    fetch_ahead(panels_ptr, block * TILE, num_panels, PANEL_BYTES, TILE)
    table = points_of(grid_ptr, FORMAT, TRAITS)
    wait_for_inputs()
    offs_r = tl.arange(0, RANK_TILE)
    row = block * 0
    while row < N:
        low = tl.load(low_ptr + row * low_stride + offs_r, offs_r < RANK, 0.0)
        store_tail(
            silu(over(low, STREAMS)), row, 0, RANK // 32, low_codes_ptr, low_scales_ptr,
            low_sums_ptr, low_scaled_ptr, low_halves_ptr, low_bad_ptr, GROUPS, RANK_TILE // 32,
        )  # fmt: skip
        row += 1
    tl.debug_barrier()
    low_x = (low_codes_ptr, low_scales_ptr, low_sums_ptr, low_scaled_ptr, low_halves_ptr)
    totals = matrix_sums(
        panels_ptr, block * TILE, num_panels, low_x, table, FORMAT, TRAITS, PLANES, NUM_PLANES,
        PANEL_BYTES, GROUPS, IS_SHORT, N, SLOTS, TILE,
    )  # fmt: skip
    first = tl.arange(0, SLOTS)[None, :, None] == 0
    for n in tl.static_range(N):
        # Every slot holds the same: one of them and zeros are an exact sum.
        gate = tl.sum(tl.where(first, totals[n], 0.0), axis=1)
        _mix_block(
            tl.reshape(gate, (STREAMS, 32)), xn_ptr, x_ptr, split_ptr, codes_ptr, scales_ptr,
            sums_ptr, scaled_ptr, halves_ptr, bad_ptr, n, block, STREAMS, D, HAS_CODES, OUT_GROUPS,
        )  # fmt: skip
