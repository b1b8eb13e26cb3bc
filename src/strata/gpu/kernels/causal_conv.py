"""Causal depthwise convolution over a window whose past lies in a ring, for use inside kernels.

The raw input of position p is in row p % RING of the ring; rows of the window are read where the
product left them. Before the first token there are zeros. Reference: ``gated_delta.causal_conv``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import silu

MAX_WINDOW_ROWS = 8


def ring_rows(kernel: int, dilation: int = 1) -> int:
    """Rows of a ring that holds a full window and all it looks back on; a power of two."""
    return int(triton.next_power_of_2(MAX_WINDOW_ROWS + (kernel - 1) * dilation))


@triton.jit
def conv_silu(
    rows_ptr, ring_ptr, weight_ptr, channel, mask, row, position, num_channels,
    DILATION: tl.constexpr, KERNEL: tl.constexpr, RING: tl.constexpr, ROW_STRIDE: tl.constexpr = 0,
):  # fmt: skip
    """silu(sum over taps of weight[tap, channel] * input[row - (KERNEL - 1 - tap) * DILATION]).

    Args:
        rows_ptr: [N, num_channels], inputs of the window.
        ring_ptr: [RING, num_channels], inputs of the positions before; not of the window's own.
        weight_ptr: [KERNEL, num_channels]; the last tap is the current token.
        channel: channels wanted; broadcast with ``row`` to the shape of ``mask``.
        mask: which values exist.
        row: numbers of rows in the window.
        position: int64 position of the window's row 0.
        num_channels: width of a row.
        ROW_STRIDE: from one row of the window to the next; 0 is ``num_channels``.
    """
    stride = ROW_STRIDE if ROW_STRIDE != 0 else num_channels
    y = tl.zeros(mask.shape, tl.float32)
    for tap in tl.static_range(KERNEL):
        source = row - (KERNEL - 1 - tap) * DILATION
        before = position + source
        # One of the two is zero everywhere; which one leaves no trace in the bits.
        own = tl.load(rows_ptr + source * stride + channel, mask & (source >= 0), 0.0)
        slot = (before & (RING - 1)).to(tl.int32)
        is_past = (source < 0) & (before >= 0)
        past = tl.load(ring_ptr + slot * num_channels + channel, mask & is_past, 0.0)
        weight = tl.load(weight_ptr + tap * num_channels + channel, mask, 0.0)
        y += weight * (own + past)
    return silu(y)


@triton.jit
def keep_raw(
    rows_ptr, ring_ptr, channel, mask, row, position, num_channels, RING: tl.constexpr,
    ROW_STRIDE: tl.constexpr = 0,
):  # fmt: skip
    """Puts the rows' inputs into the ring; arguments as of ``conv_silu``."""
    slot = ((position + row) & (RING - 1)).to(tl.int32)
    stride = ROW_STRIDE if ROW_STRIDE != 0 else num_channels
    x = tl.load(rows_ptr + row * stride + channel, mask, 0.0)
    tl.store(ring_ptr + slot * num_channels + channel, x, mask)


@triton.jit
def weights_of(weight_ptr, channel, mask, num_channels, KERNEL: tl.constexpr):
    """The taps of ``channel``, a tensor each, the current token's last."""
    taps = ()
    for tap in tl.static_range(KERNEL):
        taps = taps + (tl.load(weight_ptr + tap * num_channels + channel, mask, 0.0),)
    return taps


@triton.jit
def keep_row(ring_ptr, channel, mask, row, position, num_channels, x, RING: tl.constexpr):
    """Puts a row's input into the ring."""
    slot = ((position + row) & (RING - 1)).to(tl.int32)
    tl.store(ring_ptr + slot * num_channels + channel, x, mask)
