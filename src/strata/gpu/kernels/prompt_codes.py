"""Rows of a prompt as int8 codes, one scale for 32: docs/numerics.md, "Activations".

The same numbers as ``quantize``, laid out for tensor cores: a row's codes are contiguous, and rows
may be read in any order. Owns ``PromptCodes``, the form every product of a prompt reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.gpu.kernels import arith
from strata.gpu.kernels.sizes import cdiv

BLOCK = 32  # values that share a scale


@dataclass(frozen=True, slots=True)
class PromptCodes:
    """Quantised rows; B is the number of blocks of 32.

    Attributes:
        codes: [T, 32 B] int8.
        scales: [T, B] float32, A of each block.
        scaled_sums: [T, B] float32, scale times sum of codes.
        scaled_half_sums: [T, 2 B] float32, the same for 16 values.
    """

    codes: Tensor
    scales: Tensor
    scaled_sums: Tensor
    scaled_half_sums: Tensor

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.codes)

    @property
    def inner(self) -> int:
        """Values in a row."""
        return self.codes.shape[1]

    def rows(self, num_rows: int) -> PromptCodes:
        """The first ``num_rows`` rows; a view."""
        return PromptCodes(
            self.codes[:num_rows],
            self.scales[:num_rows],
            self.scaled_sums[:num_rows],
            self.scaled_half_sums[:num_rows],
        )


def empty_prompt_codes(num_rows: int, inner: int, device: torch.device | str) -> PromptCodes:
    """Room for the codes of ``num_rows`` rows of ``inner`` values; not initialised."""
    blocks = inner // BLOCK

    def floats(columns: int) -> Tensor:
        return torch.empty((num_rows, columns), dtype=torch.float32, device=device)

    codes = torch.empty((num_rows, inner), dtype=torch.int8, device=device)
    return PromptCodes(codes, floats(blocks), floats(blocks), floats(2 * blocks))


@triton.jit
def store_prompt_codes(
    x,
    row,
    is_row,
    first_block,
    codes_ptr,
    scales_ptr,
    scaled_ptr,
    halves_ptr,
    bad_ptr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Quantises x [ROWS, 32 * TILE] as blocks ``first_block`` and on of rows ``row`` [ROWS] int64.

    Blocks at BLOCKS and above, and rows where ``is_row`` is false, are not stored.
    """
    values = tl.reshape(x, (ROWS, TILE, 2, 16))
    is_finite = tl.abs(values) < float("inf")
    is_bad = tl.max(tl.max(is_finite.to(tl.int32) ^ 1, axis=3), axis=2)
    values = tl.where(is_finite, values, 0.0)  # told by the flag; what follows needs numbers
    amax = tl.max(tl.max(tl.abs(values), axis=3), axis=2)
    offs_block = first_block + tl.arange(0, TILE)
    is_stored = is_row[:, None] & (offs_block < BLOCKS)[None, :]
    at = row[:, None] * BLOCKS + offs_block[None, :]
    tl.store(bad_ptr + offs_block[None, :] * 0 + is_bad * 0, is_bad, mask=(is_bad != 0) & is_stored)
    scale = arith.div(amax, 127.0)
    divisor = tl.where(scale == 0, 1.0, scale)
    q = arith.rint(arith.div(values, divisor[:, :, None, None]))
    # A subnormal scale is so coarse that the quotient can pass 127.
    q = tl.minimum(tl.maximum(q, -127.0), 127.0)
    q = tl.where(scale[:, :, None, None] == 0, 0.0, q).to(tl.int32)
    half_sums = tl.sum(q, axis=3)
    tl.store(scales_ptr + at, scale, mask=is_stored)
    sums = tl.sum(half_sums, axis=2).to(tl.float32)
    tl.store(scaled_ptr + at, scale * sums, mask=is_stored)
    halves = at[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    scaled = scale[:, :, None] * half_sums.to(tl.float32)
    tl.store(halves_ptr + halves, scaled, mask=is_stored[:, :, None])
    columns = tl.arange(0, 32 * TILE)
    is_column = first_block * 32 + columns < BLOCKS * 32
    place = row[:, None] * (BLOCKS * 32) + first_block * 32 + columns[None, :]
    flat = tl.reshape(q, (ROWS, 32 * TILE)).to(tl.int8)
    tl.store(codes_ptr + place, flat, mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_rows"])
def _quantize_prompt_kernel(
    x_ptr,
    x_stride,
    num_rows,
    codes_ptr,
    scales_ptr,
    scaled_ptr,
    halves_ptr,
    bad_ptr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    first_block = tl.program_id(1) * TILE
    columns = first_block * 32 + tl.arange(0, 32 * TILE)
    is_row = row < num_rows
    mask = is_row[:, None] & (columns < BLOCKS * 32)[None, :]
    x = tl.load(x_ptr + row[:, None] * x_stride + columns[None, :], mask=mask, other=0.0)
    store_prompt_codes(
        x, row, is_row, first_block, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr,
        BLOCKS, ROWS, TILE,
    )  # fmt: skip


def quantize_prompt(x: Tensor, out: PromptCodes, bad: Tensor) -> None:
    """Codes of ``x``; ``bad`` becomes 1 when a value is NaN or infinite.

    Args:
        x: [T, inner] float32, rows of any stride, inner a multiple of 32.
        out: room for T rows of this inner size.
        bad: [1] int32, only ever set.
    """
    num_rows, inner = x.shape
    rows, tile = 4, 8
    grid = (cdiv(num_rows, rows), cdiv(inner // BLOCK, tile))
    _quantize_prompt_kernel[grid](
        x,
        x.stride(0),
        num_rows,
        out.codes,
        out.scales,
        out.scaled_sums,
        out.scaled_half_sums,
        bad,
        BLOCKS=inner // BLOCK,
        ROWS=rows,
        TILE=tile,
        num_warps=4,
        **arith.LAUNCH,
    )
