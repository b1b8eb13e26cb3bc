"""The n-gram memory for the rows of a prompt chunk: as in a decode window, bit for bit.

Rows are taken some at a time, as many as the scratch holds; each time the newest inputs of the
dilated convolution move into the ring, where the next rows, or decoding, find them.

Reference: ``strata.reference.ngram_memory``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH
from strata.gpu.kernels.causal_conv import conv_silu
from strata.gpu.kernels.conv_prompt import keep_newest
from strata.gpu.kernels.ngram_memory import _ngram_gate_kernel
from strata.gpu.kernels.sizes import cdiv, next_power_of_2

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.ngram_memory import NgramConstants

_COLUMNS, _ROWS = 128, 16


def add_memory_prompt(
    streams: Tensor,
    key: Tensor,
    value: Tensor,
    constants: NgramConstants,
    ring: Tensor,
    position: int,
    eps: float,
    gated: Tensor,
    conv_inputs: Tensor,
) -> None:
    """streams += gate * value + silu(dilated convolution of norm(gate * value)).

    Bytes a row: 0.4 MB. Grid: (streams, rows), then (tiles of 16 rows, tiles of 128 columns), both
    for as many rows as the scratch has. Once a chunk.

    Args:
        streams: [N, S, D] float32.
        key: [N, S * D] float32 products; rows of any stride.
        value: [N, D] float32 products; likewise.
        constants: of the block.
        ring: [R, S * D] float32, R of ``ring_rows(kernel, dilation)``.
        position: tokens before row 0.
        eps: of the norms.
        gated: [M, S * D] float32 scratch, any M.
        conv_inputs: [M, S * D] float32 scratch.
    """
    num_rows, num_streams, width = streams.shape
    channels = num_streams * width
    for first in range(0, num_rows, len(gated)):
        rows = min(len(gated), num_rows - first)
        part = streams[first : first + rows]
        _ngram_gate_kernel[(num_streams, rows)](
            part, key[first:], value[first:], constants.key_gamma, constants.query_gamma,
            constants.conv_gamma, gated, conv_inputs, key.stride(0), value.stride(0), eps,
            width**-0.5, STREAMS=num_streams, D=width, D_TILE=next_power_of_2(width),
            num_warps=8, **LAUNCH,
        )  # fmt: skip
        _ngram_prompt_kernel[(cdiv(rows, _ROWS), cdiv(channels, _COLUMNS))](
            part, gated, conv_inputs, constants.conv, ring, position + first, rows,
            CHANNELS=channels, COLUMNS=_COLUMNS, ROWS=_ROWS, KERNEL=constants.conv.shape[0],
            DILATION=constants.dilation, RING=len(ring), num_warps=4, **LAUNCH,
        )  # fmt: skip
        keep_newest(conv_inputs[:rows], ring, position + first, len(ring))


@triton.jit(do_not_specialize=["position", "num_rows"])
def _ngram_prompt_kernel(
    streams_ptr, gated_ptr, inputs_ptr, weight_ptr, ring_ptr, position, num_rows,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, KERNEL: tl.constexpr,
    DILATION: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    channel = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    mask = (row < num_rows) & (channel < CHANNELS)
    past = tl.cast(position, tl.int64)
    local = conv_silu(
        inputs_ptr, ring_ptr, weight_ptr, channel, mask, row, past, CHANNELS, DILATION, KERNEL, RING
    )
    at = row.to(tl.int64) * CHANNELS + channel
    update = tl.load(gated_ptr + at, mask, 0.0) + local
    tl.store(streams_ptr + at, tl.load(streams_ptr + at, mask, 0.0) + update, mask)
