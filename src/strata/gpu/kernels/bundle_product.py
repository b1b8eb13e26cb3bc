"""Products of matrices that share their rows of activations but not their format, in one launch.

A program belongs to one matrix and does what one of ``product`` or ``float_product`` would do, so
the bits are theirs. Plain matrices come first: their sums are chains that take long however small
they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from strata.gpu.float_matrix import FloatMatrix
from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.dependent import LAUNCH_AFTER, wait_for_inputs
from strata.gpu.kernels.float_product import float_shape, float_sums, float_words
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.panels import scratch_words
from strata.gpu.kernels.product import multiply_panels, shape_of, tiling_options
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.weight_layout import MAX_MATRICES
from strata.reference.expert_numerics import SEGMENT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from strata.gpu.kernels.product import Tiling
    from strata.gpu.kernels.quantize import Codes
    from strata.gpu.packing import PackedMatrix

_LETTERS = "abcd"
# Panels of a program in the interpreter, where calls cost the same whatever their width.
_INTERPRETED_PANELS = 32
# Loads a plain matrix keeps in flight: its registers are those of every program beside it.
_MOST_AHEAD = 5
_NO_BLOCKS = {
    "TRAITS": (), "PLANES": (), "NUM_PLANES": 0, "PANEL_BYTES": 0, "GROUPS": 0, "IS_SHORT": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """Arguments of one matrix: at run time, at compile time; its programs."""

    values: tuple[object, ...]
    constants: dict[str, object]
    num_programs: int


def bundle_product(
    matrices: Sequence[tuple[PackedMatrix | FloatMatrix, int]],
    codes: Codes | None,
    x: Tensor,
    out: Tensor,
    *,
    is_split: bool,
    tiling: Tiling | None = None,
) -> None:
    """out[n, column of a matrix + r] = row r of that matrix times x[n]; bits as of one by one.

    Args:
        matrices: 2 to MAX_MATRICES, and the first column of each.
        codes: of x, where a matrix is quantised.
        x: [N, inner] float32, rows of any stride, N from 1 to 8; for plain matrices.
        out: [N, columns] float32, rows of any stride.
        is_split: x is as ``float_product`` takes split rows.
        tiling: of the packed matrices; None chooses, the bits are the same.
    """
    order = sorted(matrices, key=lambda item: not isinstance(item[0], FloatMatrix))
    num_groups = 1 if codes is None else codes.num_groups  # of one: any, where all are plain
    packed = [m for m, _ in matrices if not isinstance(m, FloatMatrix)]
    num_panels = sum(m.num_panels for m in packed)
    formats = tuple(dict.fromkeys(m.format_name for m in packed))
    tile, options = tiling_options(tiling, num_panels, num_groups, len(x), formats)
    del options["TILE"]
    num_warps = options["num_warps"]
    parts = [
        _float_part(matrix, column, len(x), num_warps)
        if isinstance(matrix, FloatMatrix)
        else _packed_part(matrix, column, tile)
        for matrix, column in order
    ]
    parts += [_Part((None, None, 0, 0, 0), _constants("", 1), 0)] * (MAX_MATRICES - len(parts))
    values, constants, end = [], {}, 0
    for letter, part in zip(_LETTERS, parts, strict=True):
        end += part.num_programs
        values += [*part.values, end]
        constants |= {f"{letter}_{name}": value for name, value in part.constants.items()}
    fields = (None,) * 5
    if codes is not None:
        fields = (codes.codes, codes.scales, codes.sums, codes.scaled_sums, codes.scaled_half_sums)
    _bundle_kernel[(end,)](
        *fields, x, x.stride(0), out, out.stride(0), *values, **constants, N=len(x),
        SCRATCH=scratch_words(len(x), tile, num_groups), IS_SPLIT=is_split, **options,
        **LAUNCH_AFTER,
    )  # fmt: skip


def _constants(format_name: str, tile: int, **shape: object) -> dict[str, object]:
    shapes = {**_NO_BLOCKS, "SHAPE": (), **shape}
    is_float = shapes["SHAPE"] != ()
    return {**shapes, "FORMAT": format_name, "TILE": tile, "IS_FLOAT": is_float}


def _float_part(matrix: FloatMatrix, column: int, num_rows: int, num_warps: int) -> _Part:
    values = (matrix.panels, None, matrix.num_panels, matrix.num_rows, column)
    shape = float_shape(matrix, 1, _MOST_AHEAD)
    segments = triton.cdiv(matrix.inner, SEGMENT_COLUMNS)
    tile = max(1, 8 * num_warps // triton.next_power_of_2(segments))
    if INTERPRETED:
        tile = _INTERPRETED_PANELS * 8
    constants = _constants(str(shape.pop("FORMAT")), tile, **shape)
    return _Part(values, constants, triton.cdiv(matrix.num_rows, tile) * num_rows)


def _packed_part(matrix: PackedMatrix, column: int, tile: int) -> _Part:
    grid = lattice(matrix.format_name, matrix.panels.device)
    values = (matrix.panels, grid, matrix.num_panels, matrix.num_rows, column)
    shape = shape_of(matrix.format_name, matrix.inner)
    constants = _constants(str(shape.pop("FORMAT")), tile, **shape)
    return _Part(values, constants, triton.cdiv(matrix.num_panels, tile))


@triton.jit
def _part(
    number, x, scratch, x_ptr, x_stride, out_ptr, out_stride, panels_ptr, grid_ptr, num_panels,
    num_rows, column, FORMAT: tl.constexpr, IS_FLOAT: tl.constexpr, TRAITS: tl.constexpr,
    PLANES: tl.constexpr, NUM_PLANES: tl.constexpr, PANEL_BYTES: tl.constexpr,
    GROUPS: tl.constexpr, IS_SHORT: tl.constexpr, SHAPE: tl.constexpr, N: tl.constexpr,
    TILE: tl.constexpr, IS_SPLIT: tl.constexpr, IS_PAIR: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Program ``number`` of one matrix; TILE is panels, or rows of a plain matrix."""
    if IS_FLOAT:
        programs = (num_rows + TILE - 1) // TILE
        n = number // programs
        first = number % programs * TILE
        words = float_words(panels_ptr, first, num_panels, SHAPE, TILE)
        wait_for_inputs()
        sums = float_sums(
            words, panels_ptr, first, num_panels, x_ptr + n * x_stride, x_stride, FORMAT, SHAPE, 1,
            TILE, IS_SPLIT,
        )  # fmt: skip
        row = first + tl.arange(0, TILE)
        tl.store(out_ptr + n * out_stride + column + row, sums[0], mask=row < num_rows)
    else:
        multiply_panels(
            number * TILE, panels_ptr, num_panels, x, grid_ptr, scratch, out_ptr + column,
            out_stride, num_rows, FORMAT, TRAITS, PLANES, NUM_PLANES, PANEL_BYTES, GROUPS,
            IS_SHORT, N, TILE, IS_PAIR, THREADS,
        )  # fmt: skip


_SIZES = [
    "out_stride", "x_stride",
    *(f"{letter}_{name}" for letter in _LETTERS for name in ("panels", "rows", "column", "end")),
]  # fmt: skip


@triton.jit(do_not_specialize=_SIZES)
def _bundle_kernel(
    codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr, x_ptr, x_stride, out_ptr, out_stride,
    a_ptr, a_grid_ptr, a_panels, a_rows, a_column, a_end,
    b_ptr, b_grid_ptr, b_panels, b_rows, b_column, b_end,
    c_ptr, c_grid_ptr, c_panels, c_rows, c_column, c_end,
    d_ptr, d_grid_ptr, d_panels, d_rows, d_column, d_end,  # noqa: ARG001 - the last one ends all
    a_FORMAT: tl.constexpr, a_IS_FLOAT: tl.constexpr, a_TRAITS: tl.constexpr,
    a_PLANES: tl.constexpr, a_NUM_PLANES: tl.constexpr, a_PANEL_BYTES: tl.constexpr,
    a_GROUPS: tl.constexpr, a_IS_SHORT: tl.constexpr, a_SHAPE: tl.constexpr,
    a_TILE: tl.constexpr,
    b_FORMAT: tl.constexpr, b_IS_FLOAT: tl.constexpr, b_TRAITS: tl.constexpr,
    b_PLANES: tl.constexpr, b_NUM_PLANES: tl.constexpr, b_PANEL_BYTES: tl.constexpr,
    b_GROUPS: tl.constexpr, b_IS_SHORT: tl.constexpr, b_SHAPE: tl.constexpr,
    b_TILE: tl.constexpr,
    c_FORMAT: tl.constexpr, c_IS_FLOAT: tl.constexpr, c_TRAITS: tl.constexpr,
    c_PLANES: tl.constexpr, c_NUM_PLANES: tl.constexpr, c_PANEL_BYTES: tl.constexpr,
    c_GROUPS: tl.constexpr, c_IS_SHORT: tl.constexpr, c_SHAPE: tl.constexpr,
    c_TILE: tl.constexpr,
    d_FORMAT: tl.constexpr, d_IS_FLOAT: tl.constexpr, d_TRAITS: tl.constexpr,
    d_PLANES: tl.constexpr, d_NUM_PLANES: tl.constexpr, d_PANEL_BYTES: tl.constexpr,
    d_GROUPS: tl.constexpr, d_IS_SHORT: tl.constexpr, d_SHAPE: tl.constexpr,
    d_TILE: tl.constexpr,
    N: tl.constexpr, SCRATCH: tl.constexpr, IS_PAIR: tl.constexpr, THREADS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    x = (codes_ptr, scales_ptr, sums_ptr, scaled_ptr, halves_ptr)
    scratch = shared_words(SCRATCH)
    if number < a_end:
        _part(
            number, x, scratch, x_ptr, x_stride, out_ptr, out_stride, a_ptr, a_grid_ptr,
            a_panels, a_rows, a_column, a_FORMAT, a_IS_FLOAT, a_TRAITS, a_PLANES,
            a_NUM_PLANES, a_PANEL_BYTES, a_GROUPS, a_IS_SHORT, a_SHAPE, N, a_TILE, IS_SPLIT,
            IS_PAIR, THREADS,
        )  # fmt: skip
    elif number < b_end:
        _part(
            number - a_end, x, scratch, x_ptr, x_stride, out_ptr, out_stride, b_ptr, b_grid_ptr,
            b_panels, b_rows, b_column, b_FORMAT, b_IS_FLOAT, b_TRAITS, b_PLANES,
            b_NUM_PLANES, b_PANEL_BYTES, b_GROUPS, b_IS_SHORT, b_SHAPE, N, b_TILE, IS_SPLIT,
            IS_PAIR, THREADS,
        )  # fmt: skip
    elif c_FORMAT != "":
        if number < c_end:
            _part(
                number - b_end, x, scratch, x_ptr, x_stride, out_ptr, out_stride, c_ptr, c_grid_ptr,
                c_panels, c_rows, c_column, c_FORMAT, c_IS_FLOAT, c_TRAITS, c_PLANES,
                c_NUM_PLANES, c_PANEL_BYTES, c_GROUPS, c_IS_SHORT, c_SHAPE, N, c_TILE, IS_SPLIT,
                IS_PAIR, THREADS,
            )  # fmt: skip
        elif d_FORMAT != "":
            _part(
                number - c_end, x, scratch, x_ptr, x_stride, out_ptr, out_stride, d_ptr, d_grid_ptr,
                d_panels, d_rows, d_column, d_FORMAT, d_IS_FLOAT, d_TRAITS, d_PLANES,
                d_NUM_PLANES, d_PANEL_BYTES, d_GROUPS, d_IS_SHORT, d_SHAPE, N, d_TILE, IS_SPLIT,
                IS_PAIR, THREADS,
            )  # fmt: skip
