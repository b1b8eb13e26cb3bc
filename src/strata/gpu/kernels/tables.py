"""Lattice tables in a program's shared memory, where threads look their points up.

Triton has no shared memory of a kernel's own; a table is declared in PTX, and handed on as its
address, which ``look_up`` of a point takes as well as a pointer to the table in global memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.shared_words import shared_words
from strata.gpu.kernels.words import load_words

_CACHED = tl.constexpr("ld.global")


@triton.jit
def _copied(grid_ptr, NUM: tl.constexpr, COPIES: tl.constexpr):
    """Address of a table of NUM words in shared memory, COPIES times.

    Copies of a word lie side by side, so lanes that read different copies meet in fewer banks.
    """
    table = shared_words(NUM * COPIES)
    # A thread stores four words at a time.
    offs = tl.arange(0, NUM * COPIES // 4)
    if COPIES == 1:
        words = load_words(grid_ptr + offs * 4, 4, _CACHED)
    elif COPIES == 2:
        pair = load_words(grid_ptr + offs * 2, 2, _CACHED)
        words = (pair[0], pair[0], pair[1], pair[1])
    else:
        point = load_words(grid_ptr + offs * 4 // COPIES, 1, _CACHED)
        words = (point[0], point[0], point[0], point[0])
    tl.inline_asm_elementwise(
        "st.shared.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;",
        "=r,r,r,r,r,r",
        [table + offs * 16, words[0], words[1], words[2], words[3]],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()
    # Taken anew behind the barrier: what is looked up by it cannot move ahead of that.
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [table], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def points_of(grid_ptr, FORMAT: tl.constexpr, TRAITS: tl.constexpr):
    """The table of a format, ``lattice``, where lookups are fast; other formats have none."""
    if INTERPRETED:
        return grid_ptr
    elif FORMAT == "IQ3_XXS":
        return _copied(grid_ptr, 256, TRAITS[5])
    elif FORMAT == "IQ3_S":
        return _copied(grid_ptr, 512, TRAITS[5])
    elif FORMAT == "IQ2_XXS":
        return _copied(grid_ptr, 512, 1)
    elif FORMAT == "IQ2_XS":
        return _copied(grid_ptr, 1024, 1)
    elif FORMAT == "IQ2_S":
        return _copied(grid_ptr, 2048, 1)
    elif FORMAT == "IQ1_S" or FORMAT == "IQ1_M":
        return _copied(grid_ptr, 4096, 1)
    else:
        return grid_ptr


@triton.jit
def copy_of(table, thread, TRAITS: tl.constexpr):
    """The copy of ``points_of`` that each thread reads."""
    IS_GLOBAL: tl.constexpr = table.dtype.is_ptr()
    if IS_GLOBAL or TRAITS[5] == 1:
        return table
    else:
        return table + thread % TRAITS[5] * 4


@triton.jit
def point_at(table, offset, NUM: tl.constexpr):
    """NUM (1 or 2) words at a byte offset of a table, in shared or in global memory.

    In shared memory the offset is from the address of all of it, ``offset_of`` included.
    """
    IS_GLOBAL: tl.constexpr = table.dtype.is_ptr()
    if IS_GLOBAL:
        at = table.to(tl.pointer_type(tl.uint8), bitcast=True) + offset
        return load_words(at, NUM, _CACHED)
    elif NUM == 2:
        return tl.inline_asm_elementwise(
            "ld.shared.v2.b32 {$0, $1}, [$2];",
            "=r,=r,r",
            [offset],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        return (
            tl.inline_asm_elementwise(
                "ld.shared.b32 $0, [$1];",
                "=r,r",
                [offset],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            ),
        )


@triton.jit
def offset_of(table, word):
    """What offsets of a table begin with: its address in shared memory, or zeros as ``word``."""
    IS_GLOBAL: tl.constexpr = table.dtype.is_ptr()
    if IS_GLOBAL:
        return word & 0
    else:
        return (word & 0) + table
