"""The n-gram memory's use in a decode window: gates, norms and dilated convolution.

Owns everything behind the products of key and value; table rows are gathered elsewhere. Inputs of
the convolution lie in a ring by position, so a row that is not kept is written over.

Reference: ``strata.reference.ngram_memory``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import div, sigmoid
from strata.gpu.kernels.causal_conv import conv_silu, keep_raw
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs

if TYPE_CHECKING:
    from torch import Tensor

# Columns of one program of the convolution.
_COLUMNS = 512
# Keeps the square root of a vanishing gate away from zero.
_MIN_GATE = tl.constexpr(1e-6)


@dataclass(frozen=True, slots=True)
class NgramConstants:
    """Small weights of the block; float32, S streams of width D.

    Attributes:
        key_gamma, query_gamma, conv_gamma: [S * D].
        conv: [kernel, S * D]; the last tap is the current token.
        dilation: distance of the taps in tokens.
    """

    key_gamma: Tensor
    query_gamma: Tensor
    conv_gamma: Tensor
    conv: Tensor
    dilation: int


def add_memory(
    streams: Tensor,
    key: Tensor,
    value: Tensor,
    constants: NgramConstants,
    ring: Tensor,
    position: Tensor,
    eps: float,
    gated: Tensor,
    conv_inputs: Tensor,
) -> None:
    """streams += gate * value + silu(dilated convolution of norm(gate * value)).

    gate = sigmoid(sign(s) sqrt(max(|s|, 1e-6))), s = norm(query) . norm(key) / sqrt(D) per stream.

    Bytes a row: 0.4 MB, in the second level cache. Grid: (streams, N), then (20, N). Once a token.

    Args:
        streams: [N, S, D] float32.
        key: [N, S * D] float32 products; rows of any stride.
        value: [N, D] float32 products; likewise.
        constants: of the block.
        ring: [R, S * D] float32, R of ``ring_rows(kernel, dilation)``.
        position: [1] int64, tokens before row 0.
        eps: of the norms.
        gated: [N, S * D] float32 scratch.
        conv_inputs: [N, S * D] float32 scratch.
    """
    num_rows, num_streams, width = streams.shape
    _ngram_gate_kernel[(num_streams, num_rows)](
        streams, key, value, constants.key_gamma, constants.query_gamma, constants.conv_gamma,
        gated, conv_inputs, key.stride(0), value.stride(0), eps, width**-0.5,
        STREAMS=num_streams, D=width, D_TILE=triton.next_power_of_2(width), num_warps=8,
        **LAUNCH_AFTER,
    )  # fmt: skip
    channels = num_streams * width
    _ngram_conv_kernel[(triton.cdiv(channels, _COLUMNS), num_rows)](
        streams, gated, conv_inputs, constants.conv, ring, position, CHANNELS=channels,
        COLUMNS=_COLUMNS, KERNEL=constants.conv.shape[0], DILATION=constants.dilation,
        RING=ring.shape[0], num_warps=4, **LAUNCH_AFTER,
    )  # fmt: skip


@triton.jit
def _normed(x, gamma_ptr, offs, eps, D: tl.constexpr):
    inverse = div(1.0, tl.sqrt_rn(div(tl.sum(x * x, axis=0), D) + eps))
    return x * inverse * tl.load(gamma_ptr + offs, offs < D, 0.0)


@triton.jit
def _ngram_gate_kernel(
    streams_ptr, key_ptr, value_ptr, key_gamma_ptr, query_gamma_ptr, conv_gamma_ptr, gated_ptr,
    inputs_ptr, key_stride, value_stride, eps, scale, STREAMS: tl.constexpr, D: tl.constexpr,
    D_TILE: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    stream = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    offs = tl.arange(0, D_TILE)
    mask = offs < D
    at = (row * STREAMS + stream) * D + offs
    key = tl.load(key_ptr + row * key_stride + stream * D + offs, mask, 0.0)
    key = _normed(key, key_gamma_ptr + stream * D, offs, eps, D)
    query = tl.load(streams_ptr + at, mask, 0.0)
    query = _normed(query, query_gamma_ptr + stream * D, offs, eps, D)
    s = tl.sum(key * query, axis=0) * scale
    root = tl.sqrt_rn(tl.maximum(tl.abs(s), _MIN_GATE))
    gate = sigmoid(tl.where(s < 0.0, -root, tl.where(s == 0.0, 0.0, root)))
    gated = tl.load(value_ptr + row * value_stride + offs, mask, 0.0) * gate
    tl.store(gated_ptr + at, gated, mask)
    tl.store(inputs_ptr + at, _normed(gated, conv_gamma_ptr + stream * D, offs, eps, D), mask)


@triton.jit
def _ngram_conv_kernel(
    streams_ptr, gated_ptr, inputs_ptr, weight_ptr, ring_ptr, position_ptr,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, KERNEL: tl.constexpr, DILATION: tl.constexpr,
    RING: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = channel < CHANNELS
    position = tl.load(position_ptr)
    local = conv_silu(
        inputs_ptr, ring_ptr, weight_ptr, channel, mask, row, position, CHANNELS, DILATION, KERNEL,
        RING,
    )  # fmt: skip
    keep_raw(inputs_ptr, ring_ptr, channel, mask, row, position, CHANNELS, RING)
    at = row * CHANNELS + channel
    update = tl.load(gated_ptr + at, mask, 0.0) + local
    tl.store(streams_ptr + at, tl.load(streams_ptr + at, mask, 0.0) + update, mask)
