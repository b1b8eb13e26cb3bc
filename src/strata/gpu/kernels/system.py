"""What a kernel needs to talk to the host while it runs: order of memory, a clock, a wait.

Owns the few instructions and what stands for them in Triton's interpreter.
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

    def answer_to(pointer, number, end):
        """Waits until ``number`` is at ``pointer``; the number behind it, -1 if it was too late."""
        while (tl.load(pointer) != number) & (nanoseconds() < end):
            pass
        return tl.where(tl.load(pointer) == number, tl.load(pointer + 1), -1)

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

    @triton.jit
    def answer_to(pointer, number, end):
        """Waits until ``number`` is at ``pointer``; in thread 0 the number behind it, or -1.

        -1: it was not there by ``end``. Both are read at once, since each look is a turn of the
        link, and by one thread: looks of thousands keep the answer from coming through. The others
        have the least integer; whoever needs the result asks for the maximum of all threads, which
        also makes them wait.
        """
        return tl.inline_asm_elementwise(
            """{
            .reg .pred p;
            .reg .u32 found;
            .reg .s64 now, both;
            mov.s32 $0, -2147483648;
            mov.u32 found, %tid.x;
            setp.ne.u32 p, found, 0;
            @p bra DONE;
            LOOK:
            ld.acquire.sys.global.b64 both, [$1];
            mov.b64 {found, $0}, both;
            setp.eq.u32 p, found, $2;
            @p bra DONE;
            mov.u64 now, %globaltimer;
            setp.lt.s64 p, now, $3;
            @p bra LOOK;
            mov.s32 $0, -1;
            DONE:
            bar.warp.sync 0xffffffff;
            }""",
            "=&r,l,r,l",
            [pointer, number, end],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
