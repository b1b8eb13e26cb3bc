"""Words of a program's shared memory, by address: for what its threads tell each other.

Triton has no shared memory of a kernel's own; it is declared in PTX and handed on as an address in
bytes. Nothing here waits: ``tl.debug_barrier`` between one thread's store and another's load.
"""

from __future__ import annotations

import triton
import triton.language as tl

from strata.gpu.kernels import interpreted
from strata.gpu.kernels.arith import INTERPRETED


@triton.constexpr_function
def _declaration(num_words):
    return f"{{ .shared .align 16 .b32 words[{num_words}]; mov.u32 $0, words; }}"


if INTERPRETED:
    shared_words = interpreted.shared_words
    store_shared = interpreted.store_shared
    load_shared = interpreted.load_shared
else:

    @triton.jit
    def shared_words(NUM: tl.constexpr):
        """Address of NUM words of shared memory, their own at each place in the code."""
        return tl.inline_asm_elementwise(
            _declaration(NUM), "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )

    @triton.jit
    def store_shared(at, value):
        """Stores float32 at addresses [threads]; equal addresses must get equal values."""
        tl.inline_asm_elementwise(
            "st.shared.b32 [$1], $2; mov.b32 $0, 0;",
            "=r,r,r",
            [at, value],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def load_shared(at):
        """float32 at addresses."""
        return tl.inline_asm_elementwise(
            "ld.shared.b32 $0, [$1];", "=r,r", [at], dtype=tl.float32, is_pure=False, pack=1
        )
