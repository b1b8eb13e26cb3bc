"""Global to shared memory without a register in between, and several words of it at once.

Copies run behind the arithmetic: a thread asks for some, closes a bundle of them, and later waits
until no more than so many of its bundles are under way. What other threads asked for is there after
a ``tl.debug_barrier`` behind their wait. Addresses are those of ``shared_words``; every tensor has
one element a thread. The interpreter copies at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import interpreted
from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.shared_words import store_shared


@triton.constexpr_function
def _copy_text(num_bytes, to, source):
    # The first level cache keeps nothing of 16 bytes: other programs read other things.
    level = "cg" if num_bytes == 16 else "ca"
    places = f"[$1 + {to}], [$2 + {source}]"
    return f"cp.async.{level}.shared.global {places}, {num_bytes}; mov.b32 $0, 0;"


@triton.constexpr_function
def _load_text(num, offset):
    if num == 1:
        return f"ld.shared.b32 $0, [$1 + {offset}];"
    names = ", ".join(f"${i}" for i in range(num))
    return f"ld.shared.v{num}.b32 {{{names}}}, [${num} + {offset}];"


@triton.constexpr_function
def _rows_text(offset):
    return f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{$0, $1, $2, $3}}, [$4 + {offset}];"


@triton.constexpr_function
def _wait_text(pending):
    return f"cp.async.wait_group {pending}; mov.b32 $0, 0;"


@triton.jit
def copy_ahead(at, ptr, BYTES: tl.constexpr, TO: tl.constexpr, SOURCE: tl.constexpr):
    """BYTES (4, 8 or 16) SOURCE bytes from a pointer to address ``at + TO``, aligned to BYTES."""
    if INTERPRETED:
        source = ptr.to(tl.pointer_type(tl.float32), bitcast=True)
        for i in tl.static_range(BYTES // 4):
            store_shared(at + TO + 4 * i, tl.load(source + (SOURCE // 4 + i)))
    else:
        tl.inline_asm_elementwise(
            _copy_text(BYTES, TO, SOURCE),
            "=r,r,l",
            [at, ptr],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


if INTERPRETED:
    load_some = interpreted.load_some
    load_rows = interpreted.load_rows

    @triton.jit
    def close_bundle(thread):  # noqa: ARG001
        """Nothing: what was asked for is there."""
        return

    @triton.jit
    def wait_bundles(thread, PENDING: tl.constexpr):  # noqa: ARG001
        """Nothing: what was asked for is there."""
        return

else:

    @triton.jit
    def close_bundle(thread):
        """What was asked for since the last one is a bundle; it may be empty."""
        tl.inline_asm_elementwise(
            "cp.async.commit_group; mov.b32 $0, 0;",
            "=r,r",
            [thread],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def wait_bundles(thread, PENDING: tl.constexpr):
        """Until all but the last PENDING bundles are there."""
        tl.inline_asm_elementwise(
            _wait_text(PENDING), "=r,r", [thread], dtype=tl.int32, is_pure=False, pack=1
        )

    @triton.jit
    def load_some(at, NUM: tl.constexpr, OFFSET: tl.constexpr):
        """A tuple of NUM (1, 2 or 4) int32 words at addresses ``at + OFFSET``."""
        if NUM == 4:
            return tl.inline_asm_elementwise(
                _load_text(NUM, OFFSET),
                "=r,=r,=r,=r,r",
                [at],
                dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
                is_pure=False,
                pack=1,
            )
        elif NUM == 2:
            return tl.inline_asm_elementwise(
                _load_text(NUM, OFFSET),
                "=r,=r,r",
                [at],
                dtype=(tl.int32, tl.int32),
                is_pure=False,
                pack=1,
            )
        else:
            return (
                tl.inline_asm_elementwise(
                    _load_text(NUM, OFFSET), "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1
                ),
            )

    @triton.jit
    def load_rows(at, OFFSET: tl.constexpr):
        """Four int32 words: word lane % 4 of the 16 bytes that lanes lane // 4 + 8 i are at.

        Lanes of the same warp; i from 0 to 3 for the four.
        """
        return tl.inline_asm_elementwise(
            _rows_text(OFFSET),
            "=r,=r,=r,=r,r",
            [at],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )


@triton.jit
def store_four(ptr, words, is_live):
    """Four float32 to a pointer aligned to 16 bytes, where ``is_live`` (int32) is not zero."""
    if INTERPRETED:
        for i in tl.static_range(4):
            tl.store(ptr + i, words[i], mask=is_live != 0)
    else:
        # The operands of one instruction must be of a kind.
        bits = ()
        for i in tl.static_range(4):
            bits += (words[i].to(tl.int32, bitcast=True),)
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $6, 0; @p st.global.v4.b32 [$1], {$2, $3, $4, $5}; "
            "mov.b32 $0, 0; }",
            "=r,l,r,r,r,r,r",
            [ptr, bits[0], bits[1], bits[2], bits[3], is_live],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
