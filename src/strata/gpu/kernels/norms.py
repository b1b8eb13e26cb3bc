"""Norms over whole rows, and rows put into streams: the ends of the network and the draft layer.

Norms inside a layer belong to the operation they feed (``hyper_connections``, ``qsa_append``,
``gated_delta``). Reference: ``strata.reference.norms``, ``strata.reference.draft_layer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.kernels.arith import LAUNCH, div
from strata.gpu.kernels.quantize_tail import store_tail, tail_args

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.kernels.quantize import Codes

# Columns of one program that copies rows.
_COLUMNS = 1024


def rms_norm(
    x: Tensor,
    gamma: Tensor,
    eps: float,
    out: Tensor,
    codes: Codes | None = None,
    bad: Tensor | None = None,
) -> None:
    """out = x / sqrt(mean(x^2) + eps) * gamma of every row, and its codes.

    Bytes a row: 82 KB at width 10,240. Grid: (N), 8 warps.

    Args:
        x: [N, width] float32.
        gamma: [width] float32.
        eps: of the norm.
        out: [N, width] float32.
        codes: of ``out``; only where the width is a multiple of 32.
        bad: [1] int32, becomes 1 when a value is NaN or infinite.
    """
    num_rows, width = x.shape
    *tail, groups = tail_args(codes, bad)
    _norm_kernel[(num_rows,)](
        x, gamma, out, *tail, eps, WIDTH=width, TILE=max(32, triton.next_power_of_2(width)),
        HAS_CODES=codes is not None, GROUPS=groups, num_warps=8, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _norm_kernel(
    x_ptr, gamma_ptr, out_ptr, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, bad_ptr,
    eps, WIDTH: tl.constexpr, TILE: tl.constexpr, HAS_CODES: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, TILE)
    mask = offs < WIDTH
    x = tl.load(x_ptr + row * WIDTH + offs, mask, 0.0)
    inverse = div(1.0, tl.sqrt_rn(div(tl.sum(x * x, axis=0), WIDTH) + eps))
    x = x * inverse * tl.load(gamma_ptr + offs, mask, 0.0)
    tl.store(out_ptr + row * WIDTH + offs, x, mask)
    if HAS_CODES:
        store_tail(
            x, row, 0, WIDTH // 32, codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr,
            bad_ptr, GROUPS, TILE // 32,
        )  # fmt: skip


def spread(rows: Tensor, streams: Tensor, added: Tensor | None = None) -> None:
    """streams[n, s] = rows[n] (+ added[n, s]): a token's embedding into all streams.

    Bytes a row: 51 KB. Grid: (3, N).

    Args:
        rows: [N, D] float32.
        streams: [N, S, D] float32.
        added: [N, S, D] float32; may be ``streams``. The draft layer's part of each stream.
    """
    num_rows, num_streams, width = streams.shape
    _spread_kernel[(triton.cdiv(width, _COLUMNS), num_rows)](
        rows, streams, added, STREAMS=num_streams, D=width, COLUMNS=_COLUMNS, num_warps=4,
        **LAUNCH,
    )  # fmt: skip


@triton.jit
def _spread_kernel(
    rows_ptr, streams_ptr, added_ptr, STREAMS: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    offs = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = offs < D
    x = tl.load(rows_ptr + row * D + offs, mask, 0.0)
    for stream in tl.static_range(STREAMS):
        at = (row * STREAMS + stream) * D + offs
        y = x
        if added_ptr is not None:
            y = x + tl.load(added_ptr + at, mask, 0.0)
        tl.store(streams_ptr + at, y, mask)
