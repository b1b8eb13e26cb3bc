"""The arithmetic of one expert, bit for bit, in numpy: clause C1 of docs/numerics.md.

Every native kernel is compared with this module for equal bits. The constants of ``exp`` are
written here and nowhere else in Python; the C++ header repeats the same numbers, and a test
compares the results. Decoding a stored block into integers and scales is ``block_terms``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import StrataError
from strata.reference.block_terms import (
    ACTIVATION_BLOCK,
    BlockTerms,
    block_terms,
    is_float_format,
    widen_floats,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Float32s = NDArray[np.float32]

# exp(x) = 2^n * exp(r) with n = rint(x * log2 e) and |r| <= ln(2) / 2 (a little more by rounding).
# Ten significant bits in LN2_HI make n * LN2_HI exact, so r carries one rounding error only.
EXP_LO = np.float32(-104.0)  # exp underflows to zero below this
EXP_HI = np.float32(88.7)  # largest tenth whose exp is finite in float32
LOG2_E = np.float32(1.44269502)  # 0x3fb8aa3b
LN2_HI = np.float32(0.693359375)  # 0x3f318000
LN2_LO = np.float32(-2.12194442e-4)  # 0xb95e8083
# Coefficients of r^2 .. r^6; minimax over |r| <= 0.3473 for the error relative to exp(r), 3.1e-9
# before rounding to float32. Fitted by iterated weighted least squares.
EXP_C2 = np.float32(0.49999994)  # 0x1.fffffcp-2
EXP_C3 = np.float32(0.1666652)  # 0x1.555490p-3
EXP_C4 = np.float32(0.0416684002)  # 0x1.5558f8p-5
EXP_C5 = np.float32(0.00836885069)  # 0x1.123b02p-7
EXP_C6 = np.float32(0.00138143206)  # 0x1.6a2256p-10

GROUP_BLOCKS = 8  # blocks of 32 summed into one partial sum before it joins the total
SEGMENT_COLUMNS = 320  # columns of plain weights summed into one partial sum
_ONE = np.float32(1.0)


def exp_f32(x: Float32s) -> Float32s:
    """exp(x), at most one unit in the last place off; any shape, float32.

    Single IEEE operations in this order, nothing contracted: clamp, n, r, a Horner chain of
    multiply-then-add, then two exact-power multiplications so that subnormal results round once.
    """
    x = np.minimum(np.maximum(x, EXP_LO), EXP_HI)
    n = np.rint(x * LOG2_E)
    r = (x - n * LN2_HI) - n * LN2_LO
    p = EXP_C6 * r + EXP_C5
    p = p * r + EXP_C4
    p = p * r + EXP_C3
    p = p * r + EXP_C2
    y = (p * (r * r) + r) + _ONE
    half = n.astype(np.int32) >> 1  # floor(n / 2)
    rest = n.astype(np.int32) - half
    scaled: Float32s = (y * _power_of_two(half)) * _power_of_two(rest)
    return scaled


def sigmoid_f32(x: Float32s) -> Float32s:
    """1 / (1 + exp(-x)), float32."""
    y: Float32s = _ONE / (_ONE + exp_f32(-x))
    return y


def silu_f32(x: Float32s) -> Float32s:
    """x / (1 + exp(-x)), float32: one division, not a multiplication by the sigmoid."""
    y: Float32s = x / (_ONE + exp_f32(-x))
    return y


def quantize_activations(x: Float32s, where: str) -> tuple[NDArray[np.int8], Float32s]:
    """Blocks of 32 as int8 codes and float32 scales: d = amax / 127, q = rint(x / d).

    Args:
        x: [N, inner] float32, inner a multiple of 32.
        where: layer and expert, for the message ("layer 3, expert 17").

    Returns:
        codes [N, inner] int8 in -127..127 and scales [N, inner / 32].

    Raises:
        StrataError: a value is NaN or infinite.
    """
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise StrataError(
            f"activations must be finite, found {x[row, column]} at row {row}, value {column}.\n"
            f"  {where}\n"
            "  Try: check the model file (strata inspect); its weights produce no usable number."
        )
    blocks = x.reshape(len(x), -1, ACTIVATION_BLOCK)
    scales = np.abs(blocks).max(axis=-1) / np.float32(127.0)
    divisor = np.where(scales == 0, _ONE, scales)[..., None]
    codes = np.where(scales[..., None] == 0, np.float32(0.0), np.rint(blocks / divisor))
    # A subnormal scale is so coarse that the quotient can pass 127.
    codes = np.clip(codes, -127, 127).astype(np.int8)
    return codes.reshape(x.shape), scales


def product(format_name: str, raw_rows: NDArray[np.uint8], x: Float32s, where: str) -> Float32s:
    """Rows of a stored matrix times activations, in the one documented order.

    Args:
        format_name: a block format's name, "Q4_K".
        raw_rows: [out, row_bytes] as stored in the file.
        x: [N, inner] float32.
        where: layer and expert, for messages.

    Returns:
        [N, out] float32. Row n depends on ``x[n]`` only.
    """
    if is_float_format(format_name):
        return _float_product(widen_floats(format_name, raw_rows), x)
    codes, scales = quantize_activations(x, where)
    return _block_product(block_terms(format_name, raw_rows), codes, scales)


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix as its file holds it: the format's name and [out, row_bytes] uint8."""

    format_name: str
    raw_rows: NDArray[np.uint8]


def expert_mlp(
    x: Float32s, gate: StoredMatrix, up: StoredMatrix, down: StoredMatrix, where: str
) -> Float32s:
    """down(silu(gate x) * (up x)) of one expert; [N, D] to [N, D] float32."""
    gated = silu_f32(product(gate.format_name, gate.raw_rows, x, where))
    h = gated * product(up.format_name, up.raw_rows, x, where)
    return product(down.format_name, down.raw_rows, h, where)


def combine(
    outputs: Sequence[Float32s],
    topk_weights: Float32s,
    shared_output: Float32s,
    shared_gate: Float32s,
) -> Float32s:
    """One token's experts in routing order, rank 0 first, then the shared expert.

    Args:
        outputs: K arrays [D], rank order.
        topk_weights: [K] float32.
        shared_output: [D] float32.
        shared_gate: scalar float32 array, before its sigmoid.

    Returns:
        [D] float32; every weight multiplies, then adds.
    """
    total = topk_weights[0] * outputs[0]
    for weight, output in zip(topk_weights[1:], outputs[1:], strict=True):
        total = total + weight * output
    combined: Float32s = total + sigmoid_f32(shared_gate) * shared_output
    return combined


def _power_of_two(n: NDArray[np.int32]) -> Float32s:
    """2^n as float32, -126 <= n <= 127, made from the exponent bits."""
    power: Float32s = ((n + np.int32(127)) << np.int32(23)).view(np.float32)
    return power


def _block_product(
    terms: BlockTerms, codes: NDArray[np.int8], activation_scales: Float32s
) -> Float32s:
    """Sums of the terms of every block: [N, out] from codes [N, inner], scales [N, inner / 32]."""
    per_block = _terms_of_blocks(terms, codes, activation_scales)
    total = np.zeros(per_block.shape[:2], np.float32)
    num_blocks = per_block.shape[2]
    for first in range(0, num_blocks, GROUP_BLOCKS):
        partial = np.zeros_like(total)
        for block in range(first, min(first + GROUP_BLOCKS, num_blocks)):
            for term in range(per_block.shape[3]):
                partial = partial + per_block[:, :, block, term]
        total = total + partial
    return total


def _terms_of_blocks(
    terms: BlockTerms, codes: NDArray[np.int8], activation_scales: Float32s
) -> Float32s:
    """[N, out, blocks, terms per block] float32: products first, then minima, ascending."""
    num_rows, inner = codes.shape
    num_out, num_blocks = len(terms.codes), inner // ACTIVATION_BLOCK
    halves = np.einsum(
        "nbhi,obhi->nobh",
        codes.reshape(num_rows, num_blocks, 2, 16).astype(np.int32),
        terms.codes.reshape(num_out, num_blocks, 2, 16).astype(np.int32),
    )
    if terms.sub_scales is not None:
        halves = halves * terms.sub_scales.reshape(num_out, num_blocks, 2)
    scales = terms.scales.reshape(num_out, num_blocks, -1)
    sums = halves if scales.shape[2] == 2 else halves.sum(axis=-1, keepdims=True, dtype=np.int32)
    a = activation_scales[:, None, :, None]
    products: Float32s = sums.astype(np.float32) * (scales[None] * a)
    if terms.min_scales is None:
        return products
    minima = terms.min_scales.reshape(num_out, num_blocks, -1)
    code_sums = codes.reshape(num_rows, num_blocks, minima.shape[2], -1).sum(-1, dtype=np.int32)
    s = activation_scales[..., None] * code_sums.astype(np.float32)
    return np.concatenate([products, minima[None] * s[:, None]], axis=-1)


def _float_product(weights: Float32s, x: Float32s) -> Float32s:
    """Segments of columns, ascending; [N, out].

    In each, four running sums over inner index modulo 4, then (p0 + p1) + (p2 + p3).
    """
    total = np.zeros((len(x), len(weights)), np.float32)
    for first in range(0, weights.shape[1], SEGMENT_COLUMNS):
        end = min(first + SEGMENT_COLUMNS, weights.shape[1])
        p = np.zeros((len(x), len(weights), 4), np.float32)
        for k in range(first, end, 4):
            lanes = weights[None, :, k : min(k + 4, end)] * x[:, None, k : min(k + 4, end)]
            p[..., : lanes.shape[2]] += lanes
        total += (p[..., 0] + p[..., 1]) + (p[..., 2] + p[..., 3])
    return total
