"""The second half of a hyper-connection's read in one launch: silu, gates, mix, codes.

Does what ``silu_of_quotient``, a product and ``mix`` do one after the other, with the same bits;
rows of the up matrix lie by ``read_order``. Every program makes the activated low rank values (or
their codes) for itself: all write the same bytes to the same place, and read what they wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.float_matrix import FloatMatrix
from strata.gpu.kernels.arith import div, sigmoid, silu
from strata.gpu.kernels.dependent import LAUNCH_AFTER, fetch_ahead, wait_for_inputs
from strata.gpu.kernels.float_product import can_split, float_shape, float_sums, float_words
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.product import matrix_sums, shape_of
from strata.gpu.kernels.quantize import Codes
from strata.gpu.kernels.quantize_tail import store_tail, tail_args
from strata.gpu.kernels.tables import points_of

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.packing import PackedMatrix

# Columns of the mix a program makes: one block of codes, four panels of every stream.
_COLUMNS = 32
_PANELS = tl.constexpr(_COLUMNS // 8)


def read_order(num_streams: int, width: int) -> Tensor:
    """[S * D] int64: which row of the up matrix comes where, by 32 columns, then by stream.

    D must be a multiple of 32.
    """
    rows = torch.arange(num_streams * width).reshape(num_streams, width // _COLUMNS, _COLUMNS)
    return rows.transpose(0, 1).reshape(-1)


def read_streams(
    low: Tensor,
    up: PackedMatrix | FloatMatrix,
    xn: Tensor,
    low_room: Codes | Tensor,
    x: Tensor,
    codes: Codes | None,
    bad: Tensor,
    split: Tensor | None = None,
) -> None:
    """x = mean over the streams of xn * sigmoid(up . silu(low / S)), and its codes.

    Bytes: the up matrix (1.8 MB at 4.5 bits, 6.6 MB as BF16, rank 320), 51 KB a row. Grid: D / 32
    (80), 8 warps; 16 where the matrix is plain.

    Args:
        low: [N, r] float32 products of xn; rows of any stride.
        up: [S * D, r], rows in ``read_order``.
        xn: [N, S * D] float32.
        low_room: scratch for N rows of r values: codes, zero past their end, where ``up`` is
            quantised, else [N, r] float32.
        x: [N, D] float32.
        codes: of x; zero past a row's end.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
        split: [N, D] float32, x again as ``float_product`` takes split rows, or None.
    """
    num_rows, width = x.shape
    streams = xn.shape[1] // width
    *tail, groups = tail_args(codes, bad)
    tile = streams * _PANELS.value
    common = {
        "RANK": up.inner, "RANK_TILE": max(32, triton.next_power_of_2(up.inner)),
        "STREAMS": streams, "D": width, "HAS_CODES": codes is not None, "OUT_GROUPS": groups,
        "N": num_rows, "TILE": tile, **LAUNCH_AFTER,
    }  # fmt: skip
    if isinstance(up, FloatMatrix):
        _read_float_kernel[(width // _COLUMNS,)](
            low, low.stride(0), low_room, up.panels, up.num_panels, xn, x, split, *tail,
            **float_shape(up, num_rows), IS_SPLIT=can_split(up.inner), **common,
            num_warps=min(16, tile),
        )  # fmt: skip
        return
    assert isinstance(low_room, Codes)  # noqa: S101 - said above
    *low_tail, _ = tail_args(low_room, bad)
    slots = min(4, triton.next_power_of_2(low_room.num_groups))
    _read_kernel[(width // _COLUMNS,)](
        low, low.stride(0), *low_tail[:5], up.panels, up.num_panels,
        lattice(up.format_name, x.device), xn, x, split, *tail, bad,
        **shape_of(up.format_name, up.inner), SLOTS=slots, **common,
        num_warps=max(1, tile * slots * 8 // 32),
    )  # fmt: skip


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
    mixed = div(total, float(STREAMS))
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
    low_ptr, low_stride, room_ptr, panels_ptr, num_panels, xn_ptr, x_ptr, split_ptr, codes_ptr,
    scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr, RANK: tl.constexpr,
    RANK_TILE: tl.constexpr, STREAMS: tl.constexpr, D: tl.constexpr, HAS_CODES: tl.constexpr,
    OUT_GROUPS: tl.constexpr, FORMAT: tl.constexpr, SHAPE: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, IS_SPLIT: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    words = float_words(panels_ptr, block * TILE * 8, num_panels, SHAPE, TILE * 8)
    wait_for_inputs()
    offs_r = tl.arange(0, RANK_TILE)
    place = offs_r // 16 * 16 + offs_r % 4 * 4 + offs_r % 16 // 4 if IS_SPLIT else offs_r
    row = block * 0
    while row < N:
        low = tl.load(low_ptr + row * low_stride + offs_r, offs_r < RANK, 0.0)
        tl.store(room_ptr + row * RANK + place, silu(div(low, float(STREAMS))), offs_r < RANK)
        row += 1
    tl.debug_barrier()
    totals = float_sums(
        words, panels_ptr, block * TILE * 8, num_panels, room_ptr, RANK, FORMAT, SHAPE, N,
        TILE * 8, IS_SPLIT,
    )  # fmt: skip
    for n in tl.static_range(N):
        _mix_block(
            tl.reshape(totals[n], (STREAMS, 32)), xn_ptr, x_ptr, split_ptr, codes_ptr, scales_ptr,
            sums_ptr, scaled_ptr, halves_ptr, bad_ptr, n, block, STREAMS, D, HAS_CODES, OUT_GROUPS,
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
            silu(div(low, float(STREAMS))), row, 0, RANK // 32, low_codes_ptr, low_scales_ptr,
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
