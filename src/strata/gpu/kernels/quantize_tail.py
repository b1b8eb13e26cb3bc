"""int8 codes of activations as the last step of a kernel that has them in registers.

Spares the launch that would quantise them. Form and bits of the codes are those of ``quantize``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.quantize import store_codes

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes


def tail_args(codes: Codes | None, bad: Tensor | None) -> tuple[Tensor | int | None, ...]:
    """Arguments of a kernel for ``store_tail``: five pointers, the flag's, and groups in a row.

    What lies past a row's end in ``codes`` stays as it is, so it must be zero from the start.
    ``bad``, [1] int32, becomes 1 when a value is NaN or infinite.
    """
    if codes is None:
        return (None,) * 6 + (0,)
    fields = (codes.codes, codes.scales, codes.sums, codes.scaled_sums, codes.scaled_half_sums)
    return (*fields, bad, codes.num_groups)


@triton.jit
def store_tail(
    x, row, first_block, num_blocks, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
    bad_ptr, GROUPS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Codes of x [32 * BLOCKS] as blocks ``first_block`` and on of a row; the first num_blocks."""
    offs = tl.arange(0, BLOCKS)
    row = tl.cast(row, tl.int64)
    store_codes(
        tl.reshape(x, [BLOCKS, 2, 16]), first_block + offs, offs < num_blocks,
        codes_ptr + row * GROUPS * 256, scales_ptr + row * GROUPS * 8, sums_ptr + row * GROUPS * 8,
        scaled_ptr + row * GROUPS * 8, halves_ptr + row * GROUPS * 16, bad_ptr, GROUPS,
    )  # fmt: skip
