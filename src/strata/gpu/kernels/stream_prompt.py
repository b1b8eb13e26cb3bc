"""The mix of a hyper-connection's read for the rows of a prompt chunk, and its codes.

The same operations in the same order as ``hyper_connections.mix``; gates lie as the up matrix's
rows do, by ``stream_read.read_order``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div, sigmoid
from strata.gpu.kernels.prompt_codes import store_prompt_codes

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.prompt_codes import PromptCodes

# Rows and blocks of 32 columns of one program.
_ROWS, _BLOCKS = 8, 4


def mix_prompt(
    xn: Tensor, gate: Tensor, num_streams: int, x: Tensor, codes: PromptCodes, bad: Tensor
) -> None:
    """x = mean over the streams of xn * sigmoid(gate), and its codes: what a block reads.

    Bytes a row: 96 KB. Grid: (tiles of 8 rows, tiles of 128 columns).

    Args:
        xn: [N, S * D] float32.
        gate: [N, S * D] float32 products, columns in ``read_order``; D a multiple of 32.
        num_streams: S.
        x: [N, D] float32.
        codes: of x.
        bad: [1] int32, becomes 1 when x is NaN or infinite.
    """
    num_rows, width = x.shape
    blocks = min(_BLOCKS, triton.next_power_of_2(width // 32))
    _mix_prompt_kernel[(triton.cdiv(num_rows, _ROWS), triton.cdiv(width // 32, blocks))](
        xn, gate, x, codes.codes, codes.scales, codes.scaled_sums, codes.scaled_half_sums, bad,
        num_rows, STREAMS=num_streams, D=width, ROWS=_ROWS, BLOCKS=blocks, num_warps=4, **LAUNCH,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows"])
def _mix_prompt_kernel(
    xn_ptr, gate_ptr, x_ptr, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr, num_rows,
    STREAMS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    first_block = tl.program_id(1) * BLOCKS
    column = (first_block * 32 + tl.arange(0, 32 * BLOCKS))[None, :]
    is_row = row < num_rows
    mask = is_row[:, None] & (column < D)
    at = row[:, None] * (STREAMS * D)
    gate_at = at + column // 32 * (32 * STREAMS) + column % 32
    total = tl.zeros([ROWS, 32 * BLOCKS], tl.float32)
    for stream in tl.static_range(STREAMS):
        gate = sigmoid(tl.load(gate_ptr + gate_at + stream * 32, mask, 0.0))
        total += tl.load(xn_ptr + at + stream * D + column, mask, 0.0) * gate
    x = div(total, float(STREAMS))
    tl.store(x_ptr + row[:, None] * D + column, x, mask)
    store_prompt_codes(
        x, row, is_row, first_block, codes_ptr, scales_ptr, scaled_ptr, halves_ptr, bad_ptr,
        D // 32, ROWS, BLOCKS,
    )  # fmt: skip
