"""Packed weights as plain int8 codes and float32 factors: what the products of a prompt read.

A chunk of thousands of rows uses every weight hundreds of times, so a layer's matrices are taken
apart once into a scratch tensor, and one product kernel serves all formats. Owns the layout
(``Expanded``) and the folding of integer scales per 16 weights into the codes, so that the integer
sum of a block (docs/numerics.md, "Terms of a weight row") is one sum over 32, or two of them:

    SINGLE  code times integer scale fits a byte (all formats without such a scale; Q2_K; Q3_K with
            both signs turned, since 32 * 4 does not fit and -32 * 4 does)
    WIDE    it does not: v = 256 high + low, two planes (Q6_K, IQ2_XS, IQ2_S, IQ1_M)
    SPLIT   two float scales a block (NVFP4): a plane for each 16 weights, zero elsewhere
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from strata.gpu.kernels import arith
from strata.gpu.kernels.arith import INTERPRETED, signed_byte
from strata.gpu.kernels.group import load_group
from strata.gpu.kernels.lattices import lattice
from strata.gpu.kernels.product import shape_of
from strata.gpu.kernels.sizes import cdiv
from strata.gpu.kernels.unpack import block_codes, block_scales, traits
from strata.gpu.packing import PANEL_ROWS

if TYPE_CHECKING:
    from strata.gpu.expert_slots import ExpertSlots
    from strata.gpu.packing import PackedMatrix

SINGLE, WIDE, SPLIT = 0, 1, 2
_SINGLE, _WIDE, _SPLIT = tl.constexpr(SINGLE), tl.constexpr(WIDE), tl.constexpr(SPLIT)
# Calls of an interpreted program cost the same whatever its width.
_INTERPRETED_PANELS = 64
_FOLDS = {"Q2_K": 1, "Q3_K": -1}  # sign of codes whose integer scale is folded into one plane


@dataclass(frozen=True, slots=True)
class Expanded:
    """M matrices of R rows and B blocks of 32 weights a row.

    Attributes:
        kind: SINGLE, WIDE or SPLIT.
        codes: [M, planes, B, R, 32] int8; planes is 1 (SINGLE) or 2.
        scales: [M, terms, B, R] float32, W; terms is 1, in SPLIT 2.
        minima: [M, minima, B, R] float32, Wm; minima is 0, 1 or 2 (one for each 16 weights).
        factors: [M] float32, multiplies a matrix's finished products; one but for NVFP4.
    """

    kind: int
    codes: Tensor
    scales: Tensor
    minima: Tensor
    factors: Tensor

    @property
    def num_matrices(self) -> int:
        """M."""
        return len(self.codes)

    @property
    def num_rows(self) -> int:
        """R, of one matrix."""
        return self.codes.shape[3]

    @property
    def inner(self) -> int:
        """Weights in a row."""
        return 32 * self.codes.shape[2]

    @property
    def num_minima(self) -> int:
        """Minima of a block."""
        return self.minima.shape[1]


def kind_of(format_name: str) -> int:
    """SINGLE, WIDE or SPLIT."""
    _, num_scales, has_sub, _, _ = traits(format_name)
    if num_scales == 2:
        return SPLIT
    return WIDE if has_sub and format_name not in _FOLDS else SINGLE


def _shapes(
    format_name: str, num_matrices: int, num_rows: int, inner: int
) -> tuple[tuple[int, ...], ...]:
    """Shapes of codes, scales, minima and factors."""
    kind, blocks = kind_of(format_name), inner // 32
    planes, terms = (1 if kind == SINGLE else 2), (2 if kind == SPLIT else 1)
    tail = (blocks, num_rows)
    return (
        (num_matrices, planes, *tail, 32),
        (num_matrices, terms, *tail),
        (num_matrices, traits(format_name)[3], *tail),
        (num_matrices,),
    )


def expanded_bytes(format_name: str, num_matrices: int, num_rows: int, inner: int) -> int:
    """Bytes of scratch that ``expanded_in`` needs."""
    codes, *floats = _shapes(format_name, num_matrices, num_rows, inner)
    return math.prod(codes) + 4 * sum(math.prod(shape) for shape in floats)


def expanded_in(
    scratch: Tensor, format_name: str, num_matrices: int, num_rows: int, inner: int
) -> Expanded:
    """An ``Expanded`` whose fields lie in ``scratch``, flat uint8 and 16-byte aligned."""
    parts, start = [], 0
    dtypes = (torch.int8, torch.float32, torch.float32, torch.float32)
    shapes = _shapes(format_name, num_matrices, num_rows, inner)
    for shape, dtype in zip(shapes, dtypes, strict=True):
        size = math.prod(shape) * dtype.itemsize
        parts.append(scratch[start : start + size].view(dtype).view(shape))
        start += size
    return Expanded(kind_of(format_name), *parts)


@triton.jit
def settled(words, SHIFT: tl.constexpr, OFFSET: tl.constexpr):
    """Words of four codes without the factor 2^SHIFT, plus OFFSET (0 or -1, for codes 0..127)."""
    if SHIFT > 0:
        sign: tl.constexpr = (128 >> SHIFT) * 0x01010101
        low: tl.constexpr = (255 >> SHIFT) * 0x01010101
        words = (words >> SHIFT) & low
        # Copies a byte's sign bit to all bits above it; the product stays inside the byte.
        words = words | ((words & sign) * ((2 << SHIFT) - 2))
    if OFFSET == -1:
        words = (words + 0x7F7F7F7F) ^ -0x7F7F7F80
    return words


@triton.jit
def _scaled(words, scale):
    """(high, low) words of 256 high + low = scale times each signed code of ``words``."""
    high = words & 0
    low = words & 0
    for i in tl.static_range(4):
        value = signed_byte(words, i) * scale
        low = low | ((value & 255) << (8 * i))
        high = high | ((((value + 128) >> 8) & 255) << (8 * i))
    return high, low


@triton.jit
def _planes_of_block(codes, subs, TRAITS: tl.constexpr, KIND: tl.constexpr, FOLD: tl.constexpr):
    """One or two tuples of eight words: the planes of a block."""
    first = ()
    second = ()
    for i in tl.static_range(8):
        word = settled(codes[i], TRAITS[0], TRAITS[4])
        if KIND == _SPLIT:
            first += (word if i < 4 else word & 0,)
            second += (word & 0 if i < 4 else word,)
        elif TRAITS[2] == 1:
            scale = subs[i // 4] * FOLD
            high, low = _scaled(word, scale)
            if KIND == _WIDE:
                first += (high,)
                second += (low,)
            else:
                first += (low,)
        else:
            first += (word,)
    return (first, second)


@triton.jit
def _joined(words):
    """[threads, 2, 2, 2] of eight words, in order."""
    even = tl.join(tl.join(words[0], words[4]), tl.join(words[2], words[6]))
    odd = tl.join(tl.join(words[1], words[5]), tl.join(words[3], words[7]))
    return tl.join(even, odd)


@triton.jit
def _store_words(at, words, mask, THREADS: tl.constexpr):
    """Eight words of each thread to int32 pointers ``at``."""
    # Two dimensions, so that a warp's stores of 16 bytes lie side by side.
    flat = tl.reshape(_joined(words), (THREADS, 8))
    tl.store(at[:, None] + tl.arange(0, 8)[None, :], flat, mask=mask[:, None])


@triton.jit(do_not_specialize=["num_panels"])
def _expand_kernel(
    panels_ptr,
    matrix_bytes,
    slots_ptr,
    factors_in_ptr,
    counts_ptr,
    num_panels,
    grid_ptr,
    codes_ptr,
    scales_ptr,
    minima_ptr,
    factors_ptr,
    FORMAT: tl.constexpr,
    TRAITS: tl.constexpr,
    PLANES: tl.constexpr,
    NUM_PLANES: tl.constexpr,
    PANEL_BYTES: tl.constexpr,
    IS_SHORT: tl.constexpr,
    KIND: tl.constexpr,
    MINIMA: tl.constexpr,
    FOLD: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    TILE: tl.constexpr,
):
    thread = tl.arange(0, TILE * 8)
    row_in_panel = thread % 8
    panel = tl.program_id(0) * TILE + thread // 8
    group = tl.program_id(1)
    panels_each: tl.constexpr = (ROWS + 7) // 8
    is_panel = panel < num_panels
    panel = tl.minimum(panel, num_panels - 1)
    matrix = (panel // panels_each).to(tl.int64)
    row = panel % panels_each * 8 + row_in_panel
    mask = is_panel & (row < ROWS)
    if counts_ptr is not None:
        mask = mask & (tl.load(counts_ptr + matrix) > 0)
    source = matrix
    factor = (thread * 0).to(tl.float32) + 1.0
    if HAS_SLOTS:
        slot = tl.load(slots_ptr + matrix)
        mask = mask & (slot >= 0)
        source = tl.maximum(slot, 0).to(tl.int64)
    # There may be no slot at all, and so nothing that could be read in vain.
    if tl.max(mask.to(tl.int32), axis=0) == 0:
        return
    if HAS_SLOTS:
        factor = tl.load(factors_in_ptr + source * 3)
    tl.store(factors_ptr + matrix, factor, mask=mask & (row == 0) & (group == 0))
    base = panels_ptr + source * matrix_bytes + (panel % panels_each).to(tl.int64) * PANEL_BYTES
    words = load_group(base, row_in_panel, group + thread * 0, PLANES, NUM_PLANES, IS_SHORT)
    num_code_planes: tl.constexpr = 1 if KIND == _SINGLE else 2
    num_terms: tl.constexpr = 2 if KIND == _SPLIT else 1
    first = (matrix * num_code_planes * BLOCKS + group * 8) * ROWS + row
    codes_at = codes_ptr + first * 8
    scales_at = scales_ptr + (matrix * num_terms * BLOCKS + group * 8) * ROWS + row
    minima_at = minima_ptr + (matrix * MINIMA * BLOCKS + group * 8) * ROWS + row
    for b in tl.static_range(8):
        is_stored = mask & (group * 8 + b < BLOCKS)
        codes = block_codes(FORMAT, words, b, grid_ptr)
        scales, subs, minima = block_scales(FORMAT, words, b)
        planes = _planes_of_block(codes, subs, TRAITS, KIND, FOLD)
        for p in tl.static_range(num_code_planes):
            at = codes_at + (p * BLOCKS + b) * ROWS * 8
            _store_words(at, planes[p], is_stored, TILE * 8)
        for t in tl.static_range(num_terms):
            tl.store(scales_at + (t * BLOCKS + b) * ROWS, scales[t] * FOLD, mask=is_stored)
        for t in tl.static_range(MINIMA):
            tl.store(minima_at + (t * BLOCKS + b) * ROWS, minima[t], mask=is_stored)


def expand(weights: PackedMatrix, out: Expanded) -> None:
    """Codes and factors of packed matrices laid end to end.

    Args:
        weights: panels of matrices of ``out.num_rows`` rows each, every one in panels of its own.
        out: as many matrices of the same inner size, of ``kind_of`` the format.
    """
    stride = -(-out.num_rows // PANEL_ROWS) * weights.panels.shape[1]
    _launch(weights.format_name, weights.panels, stride, None, None, None, out)


def expand_slots(
    slots: ExpertSlots,
    role: int,
    out: Expanded,
    first_expert: int = 0,
    counts: Tensor | None = None,
) -> None:
    """Codes and factors of experts in slots; the place of one that is in none stays as it is.

    Args:
        slots: of a layer.
        role: 0 gate, 1 up, 2 down.
        out: matrices of experts ``first_expert`` and on, of the role's shape.
        first_expert: the expert of matrix 0.
        counts: [E] int32; the place of an expert that has none stays as it is.
    """
    layout = slots.layout
    start = layout.offset_of(role)
    _launch(
        layout.formats[role], slots.blobs.view(-1)[start:], layout.blob_bytes,
        slots.slot_of[first_expert:], slots.scales.view(-1)[role:],
        None if counts is None else counts[first_expert:], out,
    )  # fmt: skip


def _launch(
    format_name: str,
    source: Tensor,
    matrix_bytes: int,
    slot_of: Tensor | None,
    factors: Tensor | None,
    counts: Tensor | None,
    out: Expanded,
) -> None:
    num_panels = out.num_matrices * -(-out.num_rows // PANEL_ROWS)
    groups, shape = _shape_of(format_name, out.inner, out.num_rows)
    # A warp: words change threads by shuffles, and stores are 16 bytes side by side.
    tile = _INTERPRETED_PANELS if INTERPRETED else 4
    _expand_kernel[(cdiv(num_panels, tile), groups)](
        source, matrix_bytes, slot_of, factors, counts, num_panels,
        lattice(format_name, source.device),
        out.codes.view(torch.int32), out.scales, out.minima, out.factors,
        **shape, HAS_SLOTS=slot_of is not None, TILE=tile, num_warps=1, **arith.LAUNCH,
    )  # fmt: skip


@cache
def _shape_of(format_name: str, inner: int, num_rows: int) -> tuple[int, dict[str, object]]:
    """Groups of a row, and the compile-time arguments that a format and a shape decide."""
    shape = shape_of(format_name, inner)
    groups = shape.pop("GROUPS")
    assert isinstance(groups, int)  # noqa: S101 - for the type
    return groups, shape | {
        "KIND": kind_of(format_name), "MINIMA": traits(format_name)[3],
        "FOLD": _FOLDS.get(format_name, 1), "BLOCKS": inner // 32, "ROWS": num_rows,
    }  # fmt: skip
