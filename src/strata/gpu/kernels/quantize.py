"""Rows of activations as int8 codes, one scale for 32: docs/numerics.md, "Activations".

Owns ``Codes``, the form every decode product reads. Codes lie so that the threads of a warp, which
hold neighbouring groups of 256, find their 16 bytes side by side. A row's values past its end are
zero, scales too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.gpu.kernels import arith
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs

BLOCKS = 8  # blocks of 32 in a group


@dataclass(frozen=True, slots=True)
class Codes:
    """Quantised rows; G is the number of groups of 256, the last perhaps not full.

    Attributes:
        codes: [N, 16, G, 16] int8; value 256 g + 16 h + i of a row is at [h, g, i].
        scales: [N, G, 8] float32, A of each block of 32.
        sums: [N, G, 8] int32, sums of the codes.
        scaled_sums: [N, G, 8] float32, scale times sum.
        scaled_half_sums: [N, G, 16] float32, the same for 16 values.
    """

    codes: Tensor
    scales: Tensor
    sums: Tensor
    scaled_sums: Tensor
    scaled_half_sums: Tensor

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.codes)

    @property
    def num_groups(self) -> int:
        """G."""
        return self.codes.shape[2]

    def rows(self, num_rows: int) -> Codes:
        """The first ``num_rows`` rows; a view."""
        return Codes(
            self.codes[:num_rows],
            self.scales[:num_rows],
            self.sums[:num_rows],
            self.scaled_sums[:num_rows],
            self.scaled_half_sums[:num_rows],
        )


def empty_codes(num_rows: int, inner: int, device: torch.device | str) -> Codes:
    """Room for the codes of ``num_rows`` rows of ``inner`` values; not initialised."""
    groups = -(-inner // 256)

    def room(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    return Codes(
        codes=room(num_rows, 16, groups, 16, dtype=torch.int8),
        scales=room(num_rows, groups, BLOCKS, dtype=torch.float32),
        sums=room(num_rows, groups, BLOCKS, dtype=torch.int32),
        scaled_sums=room(num_rows, groups, BLOCKS, dtype=torch.float32),
        scaled_half_sums=room(num_rows, groups, 2 * BLOCKS, dtype=torch.float32),
    )


@triton.jit
def store_codes(
    x,
    offs_block,
    is_row,
    codes_ptr,
    scales_ptr,
    sums_ptr,
    scaled_ptr,
    halves_ptr,
    bad_ptr,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr = 1,
):
    """Quantises blocks x [BLOCK, 2, 16] and stores all fields; pointers are those of the row.

    With ROWS above one they are those of the first row, and block numbers go on from row to row,
    8 * GROUPS each.

    offs_block [BLOCK]: number of each block in its row; is_row [BLOCK]: whether to store it (below
    8 * GROUPS). Values past a row's end must come as zero.
    """
    amax = tl.max(tl.max(tl.abs(x), axis=2), axis=1)
    is_bad = tl.max(tl.max((tl.abs(x) < float("inf")).to(tl.int32) ^ 1, axis=2), axis=1)
    tl.store(bad_ptr + offs_block * 0, is_bad, mask=(is_bad != 0) & is_row)
    scale = arith.div(amax, 127.0)
    divisor = tl.where(scale == 0, 1.0, scale)
    q = arith.rint(arith.div(x, divisor[:, None, None]))
    # A subnormal scale is so coarse that the quotient can pass 127.
    q = tl.minimum(tl.maximum(q, -127.0), 127.0)
    # A NaN, which the flag tells of, has no integer.
    is_zero = (scale == 0) | (is_bad != 0)
    q = tl.where(is_zero[:, None, None], 0.0, q).to(tl.int32)
    half_sums = tl.sum(q, axis=2)
    sums = tl.sum(half_sums, axis=1)
    halves = tl.arange(0, 2)
    values = tl.arange(0, 16)
    block = offs_block[:, None, None]
    place = ((block % 8 * 2 + halves[None, :, None]) * GROUPS + block // 8) * 16
    if ROWS > 1:
        place += block // (8 * GROUPS) * (15 * 16 * GROUPS)
    tl.store(codes_ptr + place + values[None, None, :], q.to(tl.int8), mask=is_row[:, None, None])
    tl.store(scales_ptr + offs_block, scale, mask=is_row)
    tl.store(sums_ptr + offs_block, sums, mask=is_row)
    tl.store(scaled_ptr + offs_block, scale * sums.to(tl.float32), mask=is_row)
    offs_half = offs_block[:, None] * 2 + halves[None, :]
    scaled = scale[:, None] * half_sums.to(tl.float32)
    tl.store(halves_ptr + offs_half, scaled, mask=is_row[:, None])


@triton.jit
def _quantize_kernel(
    x_ptr,
    x_stride,
    codes_ptr,
    scales_ptr,
    sums_ptr,
    scaled_ptr,
    halves_ptr,
    bad_ptr,
    INNER: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    wait_for_inputs()
    n = tl.program_id(0).to(tl.int64)
    offs_block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    halves = tl.arange(0, 2)
    values = tl.arange(0, 16)
    offs = offs_block[:, None, None] * 32 + halves[None, :, None] * 16 + values[None, None, :]
    x = tl.load(x_ptr + n * x_stride + offs, mask=offs < INNER, other=0.0)
    store_codes(
        x,
        offs_block,
        offs_block < GROUPS * 8,
        codes_ptr + n * GROUPS * 256,
        scales_ptr + n * GROUPS * 8,
        sums_ptr + n * GROUPS * 8,
        scaled_ptr + n * GROUPS * 8,
        halves_ptr + n * GROUPS * 16,
        bad_ptr,
        GROUPS,
    )


def quantize(x: Tensor, out: Codes, bad: Tensor) -> None:
    """Codes of ``x``; ``bad`` becomes 1 when a value is NaN or infinite.

    Args:
        x: [N, inner] float32, rows of any stride, inner a multiple of 32.
        out: room for N rows of this inner size.
        bad: [1] int32, only ever set.
    """
    num_rows, inner = x.shape
    block = 16
    grid = (num_rows, triton.cdiv(out.num_groups * BLOCKS, block))
    _quantize_kernel[grid](
        x,
        x.stride(0),
        out.codes,
        out.scales,
        out.sums,
        out.scaled_sums,
        out.scaled_half_sums,
        bad,
        INNER=inner,
        GROUPS=out.num_groups,
        BLOCK=block,
        num_warps=2,
        **LAUNCH_AFTER,
    )
