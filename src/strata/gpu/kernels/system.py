"""What a kernel needs to talk to the host while it runs: order of memory, a clock.

Owns the two single instructions and what stands for them in Triton's interpreter.
"""

from __future__ import annotations

import time

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import cuda
from triton.runtime.interpreter import TensorHandle

from strata.gpu.kernels.arith import INTERPRETED

if INTERPRETED:

    def fence():
        """Nothing: the interpreter's reads and writes are in order."""

    def nanoseconds():
        """The host's clock, int64."""
        now = np.array([time.monotonic_ns()], np.int64)
        return tl.core.tensor(TensorHandle(now, tl.int64), tl.int64)

else:

    @triton.jit
    def fence():
        """What every thread has read and written before comes before what it does afterwards.

        For the whole system: the host sees it in this order. Threads wait for each other.
        """
        tl.inline_asm_elementwise(
            "fence.acq_rel.sys; mov.b32 $0, 0;",
            "=r,r",
            [tl.full([1], 0, tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.debug_barrier()

    @triton.jit
    def nanoseconds():
        """The card's clock, int64."""
        return cuda.globaltimer()
