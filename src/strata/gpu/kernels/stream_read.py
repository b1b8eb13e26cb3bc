"""The second half of a hyper-connection's read in one launch: silu, gates, mix, codes.

Does what ``silu_of_quotient``, ``product`` and ``mix`` do one after the other, with the same bits;
the up matrix must be quantised and its rows laid by ``read_order``. Every program quantises the low
rank values for itself: all write the same bytes to the same place, and read what they wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, sigmoid, silu
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.product import matrix_sums, shape_of
from strata.gpu.kernels.quantize_tail import store_tail, tail_args

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes
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
    up: PackedMatrix,
    xn: Tensor,
    low_codes: Codes,
    x: Tensor,
    codes: Codes,
    bad: Tensor,
) -> None:
    """x = mean over the streams of xn * sigmoid(up . silu(low / S)), and its codes.

    Bytes: the up matrix (1.8 MB at 4.5 bits, rank 320), 51 KB a row. Grid: D / 32 (80), 8 warps.

    Args:
        low: [N, r] float32 products of xn; rows of any stride.
        up: [S * D, r], rows in ``read_order``.
        xn: [N, S * D] float32.
        low_codes: scratch for the codes of N rows of r values, zero past their end.
        x: [N, D] float32.
        codes: of x; zero past a row's end.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
    """
    num_rows, width = x.shape
    streams = xn.shape[1] // width
    *low_tail, _ = tail_args(low_codes, bad)
    *tail, groups = tail_args(codes, bad)
    slots = min(4, triton.next_power_of_2(low_codes.num_groups))
    tile = streams * _PANELS.value
    _read_kernel[(width // _COLUMNS,)](
        low, low.stride(0), *low_tail[:5], up.panels, up.num_panels,
        lattice(up.format_name, x.device), xn, x, *tail, RANK=up.inner,
        RANK_TILE=max(32, triton.next_power_of_2(up.inner)), STREAMS=streams, D=width,
        OUT_GROUPS=groups, **shape_of(up.format_name, up.inner), N=num_rows, SLOTS=slots,
        TILE=tile, num_warps=max(1, tile * slots * 8 // 32), **LAUNCH,
    )  # fmt: skip


@triton.jit
def _read_kernel(
    low_ptr, low_stride, low_codes_ptr, low_scales_ptr, low_sums_ptr, low_scaled_ptr,
    low_halves_ptr, panels_ptr, num_panels, grid_ptr, xn_ptr, x_ptr, codes_ptr, scales_ptr,
    sums_ptr, scaled_ptr, halves_ptr, bad_ptr, RANK: tl.constexpr, RANK_TILE: tl.constexpr,
    STREAMS: tl.constexpr, D: tl.constexpr, OUT_GROUPS: tl.constexpr, FORMAT: tl.constexpr,
    TRAITS: tl.constexpr, PLANES: tl.constexpr, NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr, GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, N: tl.constexpr,
    SLOTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    offs_r = tl.arange(0, RANK_TILE)
    row = block * 0
    while row < N:
        low = tl.load(low_ptr + row * low_stride + offs_r, offs_r < RANK, 0.0)
        store_tail(
            silu(div(low, float(STREAMS))), row, 0, RANK // 32, low_codes_ptr, low_scales_ptr,
            low_sums_ptr, low_scaled_ptr, low_halves_ptr, bad_ptr, GROUPS, RANK_TILE // 32,
        )  # fmt: skip
        row += 1
    tl.debug_barrier()
    low_x = (low_codes_ptr, low_scales_ptr, low_sums_ptr, low_scaled_ptr, low_halves_ptr)
    totals = matrix_sums(
        panels_ptr, block * TILE, num_panels, low_x, grid_ptr, FORMAT, TRAITS, PLANES, NUM_PLANES,
        PANEL_BYTES, GROUPS, IS_SHORT, N, SLOTS, TILE,
    )  # fmt: skip
    # [stream, panel, slot, row of the panel]; every slot holds the same.
    stream = tl.arange(0, STREAMS)[:, None, None, None]
    panel = tl.arange(0, _PANELS)[None, :, None, None]
    slot = tl.arange(0, SLOTS)[None, None, :, None]
    column = block * 32 + panel * 8 + slot * 0 + tl.arange(0, 8)[None, None, None, :]
    for n in tl.static_range(N):
        gate = sigmoid(tl.reshape(totals[n], (STREAMS, _PANELS, SLOTS, 8)))
        gated = tl.load(xn_ptr + (n * STREAMS + stream) * D + column) * gate
        total = tl.zeros((_PANELS, SLOTS, 8), tl.float32)
        for s in tl.static_range(STREAMS):
            total += tl.sum(tl.where(stream == s, gated, 0.0), axis=0)
        first = tl.arange(0, SLOTS)[None, :, None] == 0
        mixed = div(tl.sum(tl.where(first, total, 0.0), axis=1), float(STREAMS))
        mixed = tl.reshape(mixed, [32])
        tl.store(x_ptr + n * D + block * 32 + tl.arange(0, 32), mixed)
        store_tail(
            mixed, n, block, 1, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr,
            OUT_GROUPS, 1,
        )  # fmt: skip
