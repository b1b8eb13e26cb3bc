"""Rows of an embedding by token ids that lie on the device: drafts feed on one another.

Values are those of ``formats.block_decode`` up to a rounding of each. The table is packed as every
matrix is, so a tied head serves as it lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.float_matrix import FloatMatrix
from strata.gpu.kernels.arith import LAUNCH, signed_byte
from strata.gpu.kernels.expand import settled
from strata.gpu.kernels.float_product import weight_value
from strata.gpu.kernels.group import load_group
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.product import shape_of
from strata.gpu.kernels.unpack import block_codes, block_scales
from strata.gpu.weight_layout import FLOAT_FORMATS

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.packing import PackedMatrix


def embed(table: PackedMatrix | FloatMatrix, ids: Tensor, out: Tensor) -> None:
    """out[n] = row ids[n] of the table; an id that is none is taken as 0.

    Bytes a row: one stored row (1.4 KB at 4.5 bits) read, 10 KB written. Grid: (rows), one warp.

    Args:
        table: [V, D].
        ids: [N] int32.
        out: [N, D] float32.
    """
    num_rows, width = out.shape
    if isinstance(table, FloatMatrix):
        size = FLOAT_FORMATS[table.format_name]
        _embed_float_kernel[(num_rows, triton.cdiv(width, 1024))](
            table.panels, table.panels.shape[1], ids, out, FORMAT=table.format_name, D=width,
            VALUES=16 // size, TILE=1024, num_warps=4, **LAUNCH,
        )  # fmt: skip
        return
    shape = shape_of(table.format_name, table.inner)
    groups = shape.pop("GROUPS")
    _embed_kernel[(num_rows,)](
        table.panels, ids, lattice(table.format_name, out.device), out, **shape, D=width,
        GROUPS=groups, TILE=max(8, triton.next_power_of_2(-(-width // 256))), num_warps=1, **LAUNCH,
    )  # fmt: skip


@triton.jit
def _embed_float_kernel(
    panels_ptr, panel_bytes, ids_ptr, out_ptr, FORMAT: tl.constexpr, D: tl.constexpr,
    VALUES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.maximum(tl.load(ids_ptr + row), 0)
    k = tl.program_id(1) * TILE + tl.arange(0, TILE)
    # A load holds VALUES weights of one of four sums: k = 4 (load * VALUES + place) + sum.
    load, place, part = k // (4 * VALUES), k // 4 % VALUES, k % 4
    at = ((load * 8 + token % 8) * 4 + part) * VALUES + place
    base = panels_ptr + (token // 8).to(tl.int64) * panel_bytes
    per_word: tl.constexpr = VALUES // 4
    word = tl.load(base.to(tl.pointer_type(tl.int32)) + at // per_word, k < D, 0)
    x = weight_value(word, 0, FORMAT)
    if per_word == 2:
        x = tl.where(at % 2 == 0, x, weight_value(word, 1, FORMAT))
    tl.store(out_ptr + row * D + k, x, k < D)


@triton.jit
def _embed_kernel(
    panels_ptr, ids_ptr, grid_ptr, out_ptr, FORMAT: tl.constexpr, TRAITS: tl.constexpr,
    PLANES: tl.constexpr, NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr,
    IS_SHORT: tl.constexpr, D: tl.constexpr, GROUPS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.maximum(tl.load(ids_ptr + row), 0)
    group = tl.arange(0, TILE)
    clipped = tl.minimum(group, GROUPS - 1)
    base = panels_ptr + (token // 8).to(tl.int64) * PANEL_BYTES
    words = load_group(base, token % 8 + clipped * 0, clipped, PLANES, NUM_PLANES, IS_SHORT)
    for b in tl.static_range(8):
        codes = block_codes(FORMAT, words, b, grid_ptr)
        scales, subs, minima = block_scales(FORMAT, words, b)
        for i in tl.static_range(8):
            word = settled(codes[i], TRAITS[0], TRAITS[4])
            scale = scales[i // 4 if TRAITS[1] == 2 else 0]
            if TRAITS[2] == 1:
                scale = scale * subs[i // 4].to(tl.float32)
            for j in tl.static_range(4):
                x = signed_byte(word, j).to(tl.float32) * scale
                if TRAITS[3] > 0:
                    x += minima[i // 4 if TRAITS[3] == 2 else 0]
                k = group * 256 + b * 32 + i * 4 + j
                tl.store(out_ptr + row * D + k, x, k < D)
