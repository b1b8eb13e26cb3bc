"""What the threads of a warp do together on words: pass values on, multiply on tensor cores.

A tensor has one element a thread, element i of a program being lane i % 32 of warp i // 32: the
layout that Triton gives to ``tl.arange`` of as many elements as the program has threads. It gives
another one to what is reshaped later on, so results of these must be used as they are.
benchmarks/gpu/compiled.py looks at what Triton made of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import interpreted
from strata.gpu.kernels.arith import INTERPRETED

if INTERPRETED:
    from_lane = interpreted.from_lane
    multiply_words = interpreted.multiply_words
else:

    @triton.jit
    def from_lane(x, lane):
        """``x`` float32 of lane number ``lane`` of the thread's own warp."""
        return tl.inline_asm_elementwise(
            "shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;",
            "=r,r,r",
            [x, lane],
            dtype=tl.float32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def multiply_words(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3):
        """Four int32: ``mma.sync`` of 16 rows, 32 signed bytes, 8 columns, added to c.

        With g = lane // 4 and t = lane % 4: a0 has bytes 4 t .. 4 t + 3 of row g, a1 those of row
        g + 8, a2 and a3 the same 16 bytes on; b0 has bytes 4 t .. 4 t + 3 of column g, b1 16 bytes
        on; c0, c1 are row g, columns 2 t and 2 t + 1; c2, c3 row g + 8.
        """
        return tl.inline_asm_elementwise(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, "
            "{$8, $9}, {$10, $11, $12, $13};",
            "=r,=r,=r,=r,r,r,r,r,r,r,r,r,r,r",
            [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )


@triton.jit
def load_four_where(ptr, is_live):
    """Four int32 words at a byte pointer aligned to 16, zero where ``is_live`` (int32) is zero."""
    if INTERPRETED:
        words = ()
        at = ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        for i in tl.static_range(4):
            words = words + (tl.load(at + i, mask=is_live != 0, other=0),)
        return words
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; "
            "mov.b32 $3, 0; @p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; }",
            "=&r,=&r,=&r,=&r,l,r",
            [ptr, is_live],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
