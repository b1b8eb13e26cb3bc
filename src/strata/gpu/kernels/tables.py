"""Lattice tables in a program's shared memory, where threads look their points up.

Triton has no shared memory of a kernel's own; a table is declared in PTX, and handed on as its
address, which ``look_up`` of a point takes as well as a pointer to the table in global memory.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.words import load_words

_CACHED = tl.constexpr("ld.global")


@triton.jit
def _declared(WORDS: tl.constexpr):
    """Address of WORDS words of shared memory."""
    if WORDS == 256:
        return _address("{ .shared .align 16 .b32 points[256]; mov.u32 $0, points; }")
    elif WORDS == 512:
        return _address("{ .shared .align 16 .b32 points[512]; mov.u32 $0, points; }")
    elif WORDS == 1024:
        return _address("{ .shared .align 16 .b32 points[1024]; mov.u32 $0, points; }")
    elif WORDS == 2048:
        return _address("{ .shared .align 16 .b32 points[2048]; mov.u32 $0, points; }")
    else:
        tl.static_assert(WORDS == 4096)
        return _address("{ .shared .align 16 .b32 points[4096]; mov.u32 $0, points; }")


@triton.jit
def _address(ASM: tl.constexpr):
    return tl.inline_asm_elementwise(ASM, "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _copied(grid_ptr, WORDS: tl.constexpr):
    """Address of a copy of a table in shared memory."""
    table = _declared(WORDS)
    offs = tl.arange(0, WORDS // 4) * 4
    at = grid_ptr + offs
    words = load_words(at, 4, _CACHED)
    tl.inline_asm_elementwise(
        "st.shared.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0;",
        "=r,r,r,r,r,r",
        [table + offs * 4, words[0], words[1], words[2], words[3]],
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
def points_of(grid_ptr, FORMAT: tl.constexpr):
    """The table of a format, ``lattice``, where lookups are fast; other formats have none."""
    if INTERPRETED:
        return grid_ptr
    elif FORMAT == "IQ3_XXS":
        return _copied(grid_ptr, 256)
    elif FORMAT == "IQ3_S" or FORMAT == "IQ2_XXS":
        return _copied(grid_ptr, 512)
    elif FORMAT == "IQ2_XS":
        return _copied(grid_ptr, 1024)
    elif FORMAT == "IQ2_S":
        return _copied(grid_ptr, 2048)
    elif FORMAT == "IQ1_S" or FORMAT == "IQ1_M":
        return _copied(grid_ptr, 4096)
    else:
        return grid_ptr


@triton.jit
def point_at(table, offset, NUM: tl.constexpr):
    """NUM (1 or 2) words at a byte offset of a table, in shared or in global memory."""
    IS_GLOBAL: tl.constexpr = table.dtype.is_ptr()
    if IS_GLOBAL:
        at = table.to(tl.pointer_type(tl.uint8), bitcast=True) + offset
        return load_words(at, NUM, _CACHED)
    elif NUM == 2:
        return tl.inline_asm_elementwise(
            "ld.shared.v2.b32 {$0, $1}, [$2];",
            "=r,=r,r",
            [table + offset],
            dtype=(tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
    else:
        return (
            tl.inline_asm_elementwise(
                "ld.shared.b32 $0, [$1];",
                "=r,r",
                [table + offset],
                dtype=tl.int32,
                is_pure=True,
                pack=1,
            ),
        )
