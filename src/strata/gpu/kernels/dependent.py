"""Launches that begin while the one before still runs: programmatic dependent launch.

A kernel of a decode window is short, so what lies between two of them counts. Here a launch may be
set up, and fetch its weights into the second level cache, before the one before has ended. Nothing
that an earlier launch wrote may be used, and nothing may be written, before ``wait_for_inputs``;
every kernel launched with ``LAUNCH_AFTER`` calls it, in all its programs. So a launch ends only
after all before it in its branch have, and the order of reads and writes is that of plain launches.
What to fetch may be guessed from what is there: a wrong guess costs time and changes nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from strata.gpu.kernels.arith import INTERPRETED, LAUNCH

# Bytes that one instruction brings into the second level cache.
_LINE_BYTES = tl.constexpr(128)


def _is_possible() -> bool:
    """Cards before Hopper have no such instructions; without a card, code is made for Hopper."""
    if INTERPRETED:
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (9, 0)


IS_DEPENDENT = tl.constexpr(_is_possible())
"""Whether kernels hold the instructions."""

LAUNCH_AFTER: dict[str, bool] = LAUNCH | ({"launch_pdl": True} if IS_DEPENDENT else {})
"""Options of a launch whose kernel calls ``wait_for_inputs``. Setting ``launch_pdl`` to false makes
plain launches of the same kernels, with the same bits."""


if IS_DEPENDENT:

    @triton.jit
    def wait_for_inputs():
        """Waits until all launches before this one have ended, then lets the next one begin."""
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()

    @triton.jit
    def fetch_ahead(panels_ptr, first, num_panels, PANEL_BYTES: tl.constexpr, TILE: tl.constexpr):
        """Asks for TILE panels from ``first`` on, or what there is of them, to have them nearby."""
        COUNT: tl.constexpr = (TILE * PANEL_BYTES + _LINE_BYTES - 1) // _LINE_BYTES
        num_bytes = tl.minimum(num_panels - first, TILE) * PANEL_BYTES
        offs = tl.arange(0, triton.next_power_of_2(COUNT)) * _LINE_BYTES
        start = panels_ptr + first.to(tl.int64) * PANEL_BYTES
        # Past the end the last line is asked for again.
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
            "=r,l",
            [start + tl.minimum(offs, num_bytes - 16)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

else:

    @triton.jit
    def wait_for_inputs():
        """Nothing: a launch begins when the one before has ended."""
        return

    @triton.jit
    def fetch_ahead(  # noqa: D103 - see above
        panels_ptr,  # noqa: ARG001
        first,  # noqa: ARG001
        num_panels,  # noqa: ARG001
        PANEL_BYTES: tl.constexpr,  # noqa: ARG001
        TILE: tl.constexpr,  # noqa: ARG001
    ):
        return
