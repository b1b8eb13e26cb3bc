"""The delta net's convolution for the rows of a prompt chunk: conv, silu, l2 norm of q and k.

Same operations in the same order as in a decode window. Owns the rows' inputs to ``delta_scan`` and
the newest raw inputs in the ring, where decoding looks for them.

Reference: ``gated_delta.causal_conv`` of ``strata.reference``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, silu
from strata.gpu.kernels.causal_conv import conv_silu
from strata.gpu.kernels.halves import split
from strata.gpu.kernels.sizes import cdiv, next_power_of_2
from strata.reference.norms import L2_EPS

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.gated_delta import GdnConstants, GdnMemory

# Rows and warps of one program; neighbours read three rows of each other again. The fastest tried
# on an H200 with 8,192 rows, 2026-11-30 (mixer_variants_on_card.py): 0.41 ms, 0.44 with four warps.
TILE_ROWS, TILE_WARPS = 32, 8
_KEEP_COLUMNS = 1024
_L2_EPS = tl.constexpr(L2_EPS)

UNIT = 256.0
"""What a value of at most one is multiplied with before it is split into halves."""

_UNIT = tl.constexpr(UNIT)


@dataclass(frozen=True, slots=True)
class MixedRows:
    """Rows after the convolution.

    Attributes:
        queries: [2, N, Hk, Dk] float16, high and low part of UNIT times a vector of length one.
        keys: [2, N, Hk, Dk] float16, likewise.
        values: [N, Hv, Dv] float32.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor

    def rows(self, num_rows: int) -> MixedRows:
        """The first ``num_rows`` rows; a view."""
        return MixedRows(
            self.queries[:, :num_rows], self.keys[:, :num_rows], self.values[:num_rows]
        )


def empty_rows(
    num_rows: int, key_heads: int, memory_shape: torch.Size, device: torch.device | str
) -> MixedRows:
    """Room for rows of a layer with memory [Hv, Dk, Dv]; not initialised."""
    heads, key_dim, value_dim = memory_shape
    pairs = (2, num_rows, key_heads, key_dim)
    return MixedRows(
        torch.empty(pairs, dtype=torch.float16, device=device),
        torch.empty(pairs, dtype=torch.float16, device=device),
        torch.empty((num_rows, heads, value_dim), device=device),
    )


def conv_prompt(
    qkv: Tensor, constants: GdnConstants, state: GdnMemory, position: int, out: MixedRows
) -> None:
    """out = silu(conv(qkv)), its q and k of length one; the ring moves on.

    Bytes: 41 KB a row read and as many written. Grid: (tiles of 32 rows, heads of q, k and v).

    Args:
        qkv: [N, channels] float32 projections, q | k | v; rows of any stride.
        constants: of the layer.
        state: of the layer, no rows pending; its ring is read and then advanced.
        position: tokens before row 0.
        out: N rows.
    """
    heads, key_dim, value_dim = state.memory.shape
    kernel, channels = constants.conv.shape
    num_rows, ring = len(qkv), len(state.ring)
    key_heads = out.keys.shape[2]
    _conv_prompt_kernel[(cdiv(num_rows, TILE_ROWS), 2 * key_heads + heads)](
        qkv, state.ring, constants.conv, out.queries, out.keys, out.values,
        out.queries.stride(0), num_rows, position,
        KERNEL=kernel, RING=ring, KEY_HEADS=key_heads, CHANNELS=channels, DK=key_dim,
        STRIDE=qkv.stride(0), DV=value_dim, ROWS=TILE_ROWS,
        TILE=next_power_of_2(max(key_dim, value_dim)),
        num_warps=TILE_WARPS, **LAUNCH,
    )  # fmt: skip
    keep_newest(qkv, state.ring, position, ring)


def keep_newest(rows: Tensor, ring: Tensor, position: int, count: int) -> None:
    """Puts the last ``count`` rows into the ring, that of position p at p % R; fewer if N is less.

    A launch of its own, since the rows that a convolution reads lie where these go.

    Args:
        rows: [N, width] float32; may be rows of a wider tensor.
        ring: [R, width] float32, R a power of two.
        position: tokens before row 0.
        count: at most R.
    """
    num_rows, width = rows.shape
    kept = min(count, num_rows)
    _keep_kernel[(cdiv(width, _KEEP_COLUMNS), kept)](
        rows, ring, num_rows - kept, position, width, rows.stride(0), RING=len(ring),
        TILE=_KEEP_COLUMNS, num_warps=4, **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "position"])
def _conv_prompt_kernel(
    qkv_ptr, ring_ptr, conv_ptr, queries_ptr, keys_ptr, values_ptr, plane, num_rows, position,
    KERNEL: tl.constexpr, RING: tl.constexpr, KEY_HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    STRIDE: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    offs = tl.arange(0, TILE)[None, :]
    is_normed = head < 2 * KEY_HEADS
    width = tl.where(is_normed, DK, DV)
    first = tl.where(is_normed, head * DK, 2 * KEY_HEADS * DK + (head - 2 * KEY_HEADS) * DV)
    mask = (row < num_rows) & (offs < width)
    if tl.program_id(0) * ROWS >= KERNEL - 1:
        x = _conv_own(
            qkv_ptr, conv_ptr, first + offs, offs < width, mask, row, CHANNELS, KERNEL, STRIDE
        )
    else:
        x = conv_silu(
            qkv_ptr, ring_ptr, conv_ptr, first + offs, mask, row, tl.cast(position, tl.int64),
            CHANNELS, 1, KERNEL, RING, STRIDE,
        )  # fmt: skip
    if is_normed:
        x = x * div(1.0, tl.sqrt_rn(tl.sum(x * x, axis=1) + _L2_EPS))[:, None]
        high, low = split(x * _UNIT)
        at = (row * KEY_HEADS + head % KEY_HEADS) * DK + offs
        if head < KEY_HEADS:
            tl.store(queries_ptr + at, high, mask)
            tl.store(queries_ptr + plane + at, low, mask)
        else:
            tl.store(keys_ptr + at, high, mask)
            tl.store(keys_ptr + plane + at, low, mask)
    else:
        keys: tl.constexpr = 2 * KEY_HEADS * DK
        tl.store(values_ptr + row * (CHANNELS - keys) + first - keys + offs, x, mask)


@triton.jit
def _conv_own(
    rows_ptr, weight_ptr, channel, is_channel, mask, row, CHANNELS: tl.constexpr,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """``conv_silu`` of rows that look back on none but rows of the chunk; the same bits."""
    y = tl.zeros(mask.shape, tl.float32)
    at = rows_ptr + row * STRIDE + channel
    for tap in tl.static_range(KERNEL):
        weight = tl.load(weight_ptr + tap * CHANNELS + channel, is_channel, 0.0)
        y += weight * tl.load(at - (KERNEL - 1 - tap) * STRIDE, mask, 0.0)
    return silu(y)


@triton.jit(do_not_specialize=["first", "position"])
def _keep_kernel(
    rows_ptr, ring_ptr, first, position, width, stride, RING: tl.constexpr, TILE: tl.constexpr
):
    offs = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = first + tl.program_id(1)
    slot = (position + row) & (RING - 1)
    x = tl.load(rows_ptr + tl.cast(row, tl.int64) * stride + offs, offs < width, 0.0)
    tl.store(ring_ptr + slot * width + offs, x, offs < width)
