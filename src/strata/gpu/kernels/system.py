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

    def is_too_late(pointer, number, end):
        """Waits until ``number`` is at ``pointer``; 1 if it was not at the time ``end``."""
        while (tl.load(pointer) != number) & (nanoseconds() < end):
            pass
        return (tl.load(pointer) != number).to(tl.int32)

    def answer_to(pointer, number, end):
        """Waits until ``number`` is at ``pointer``; the number behind it, -1 if it was too late."""
        late = is_too_late(pointer, number, end)
        return tl.where(late != 0, -1, tl.load(pointer + 1))

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
    def is_too_late(pointer, number, end):
        """Waits until ``number`` is at ``pointer``; 1 in thread 0 if it was not by ``end``.

        Thread 0 alone looks. Whoever needs the result asks for the maximum of all threads, which
        also makes them wait.
        """
        return tl.inline_asm_elementwise(
            """{
            .reg .pred p;
            .reg .u32 found;
            .reg .s64 now;
            mov.u32 $0, 0;
            mov.u32 found, %tid.x;
            setp.ne.u32 p, found, 0;
            @p bra DONE;
            LOOK:
            ld.acquire.sys.global.u32 found, [$1];
            setp.eq.u32 p, found, $2;
            @p bra DONE;
            mov.u64 now, %globaltimer;
            setp.lt.s64 p, now, $3;
            @p bra LOOK;
            mov.u32 $0, 1;
            DONE:
            bar.warp.sync 0xffffffff;
            }""",
            "=&r,l,r,l",
            [pointer, number, end],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def answer_to(pointer, number, end):
        """Waits until ``number`` is at ``pointer``; in thread 0 the number behind it, or -1.

        -1: it was not there by ``end``. Both are read at once, since each look is a turn of the
        link. Other threads have the least integer, so the maximum of all is thread 0's.
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
