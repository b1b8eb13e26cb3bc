"""int8 codes of activations as the last step of a kernel that has them in registers.

Spares the launch that would quantise them. Bits are those of docs/numerics.md, "Activations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import triton
import triton.language as tl

from strata.gpu.kernels.arith import div, rint

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST = tl.constexpr(3.4028234663852886e38)


class RowCodes(NamedTuple):
    """Quantised rows in blocks of 32.

    Attributes:
        codes: [N, inner] int8.
        scales: [N, inner / 32] float32.
        sums: [N, inner / 32] int32, sum of a block's codes.
        flag: [1] int32, set to 1 where a NaN or an infinity was met; else left.
    """

    codes: Tensor | None
    scales: Tensor | None
    sums: Tensor | None
    flag: Tensor | None


NO_CODES = RowCodes(None, None, None, None)


@triton.jit
def store_codes(x, first_block, num_blocks, codes_ptr, scales_ptr, sums_ptr, flag_ptr):
    """Codes of x [blocks, 32] as blocks ``first_block`` and on; only ``num_blocks`` of them exist."""
    offs = tl.arange(0, x.shape[0])
    is_block = offs < num_blocks
    magnitude = tl.abs(x)
    is_finite = tl.min((magnitude <= _LARGEST).to(tl.int32), axis=1)
    amax = tl.max(magnitude, axis=1)
    d = div(amax, 127.0)
    safe = tl.where(d == 0.0, 1.0, d)
    q = tl.where(d[:, None] == 0.0, 0.0, div(x, safe[:, None] + tl.zeros_like(x)))
    # Also keeps a NaN, which the flag tells of, from an undefined conversion.
    q = tl.where(is_finite[:, None] == 1, q, 0.0)
    q = rint(tl.minimum(tl.maximum(q, -127.0), 127.0)).to(tl.int32)
    at = (first_block + offs[:, None]) * 32 + tl.arange(0, 32)[None, :]
    tl.store(codes_ptr + at, q.to(tl.int8), mask=is_block[:, None])
    tl.store(scales_ptr + first_block + offs, d, mask=is_block)
    tl.store(sums_ptr + first_block + offs, tl.sum(q, axis=1), mask=is_block)
    tl.store(flag_ptr + offs * 0, 1, mask=is_block & (is_finite == 0))
