"""How the products of a prompt are cut into tiles; a choice of speed, for bits are the same in all.

Owns the two kinds of tiles, which of them can multiply which matrices, and what is launched unless
somebody asks for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from strata.gpu.kernels.arith import INTERPRETED
from strata.gpu.kernels.expand import SINGLE
from strata.gpu.kernels.prompt_codes import BLOCK
from strata.gpu.kernels.prompt_warps import stage_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.gpu.kernels.expand import Expanded
    from strata.gpu.kernels.prompt_codes import PromptCodes

_SHARED_BYTES = 48 << 10  # what a kernel may declare


@dataclass(frozen=True, slots=True)
class Tiling:
    """Shape of a tile; any choice gives the same bits.

    Attributes:
        tokens, subs: rows of a sub-tile, and how many a program has.
        rows: weight rows of each of a program's two tiles.
        step: blocks a round of the loop (1, 2, 4 or 8).
        stages: rounds whose loads are under way.
        warps: of a program.
    """

    tokens: int
    subs: int
    rows: int
    step: int
    stages: int
    warps: int

    @property
    def tile_tokens(self) -> int:
        """Rows of activations of a program."""
        return self.tokens * self.subs


@dataclass(frozen=True, slots=True)
class WarpTiling:
    """Shape of a tile whose threads are placed by hand (``prompt_warps``); gives the same bits.

    Attributes:
        m: sixteens of activation rows of a warp.
        n: blocks of 32 weight rows of a warp; gate and up have half each.
        token_warps, row_warps: warps of a program, one beside the other.
        step: blocks of 32 values that are copied at a time, at most; 1, 2, 4 or 8.
        stages: of shared memory, at least two.
        registers: the most of a thread, or none.
    """

    m: int
    n: int
    token_warps: int
    row_warps: int
    step: int
    stages: int
    registers: int = 0

    @property
    def tile_tokens(self) -> int:
        """Rows of activations of a program."""
        return 16 * self.m * self.token_warps

    @property
    def tile_rows(self) -> int:
        """Weight rows of a program, those of gate and up together."""
        return 32 * self.n * self.row_warps


# The fastest of those tried on an H200 with 8,192 rows, 2026-11-30 (prompt_tilings_on_card.py):
# gate and up of 256 experts 2.48 ms, where ``Tiling(32, 1, 32, 2, 3, 1)`` takes 2.62; down 1.23 and
# 1.34.
EXPERT_TILING = WarpTiling(m=2, n=2, token_warps=1, row_warps=2, step=2, stages=3)
# Q5_K of 2560 x 6144 takes 1.55 ms, 1.86 with that; IQ4_XS of 16384 x 2560 2.93 and 2.92.
DENSE_TILING = WarpTiling(m=2, n=2, token_warps=1, row_warps=1, step=2, stages=3)
if INTERPRETED:
    # Calls cost the same however many threads there are, so a thread has few sums.
    EXPERT_TILING = DENSE_TILING = WarpTiling(
        m=1, n=2, token_warps=2, row_warps=2, step=2, stages=3
    )


def warp_options(
    tiling: WarpTiling, x: PromptCodes, matrices: Sequence[Expanded]
) -> dict[str, int] | None:
    """Options of a launch by warps; None where the matrices are not made for it."""
    first = matrices[0]
    blocks = first.inner // BLOCK
    if (
        any(w.kind != SINGLE or w.num_minima != first.num_minima for w in matrices)
        or first.num_minima > 1
        or first.num_rows % 4 != 0
        or max(x.num_rows, first.num_rows) * first.inner >= 1 << 31
    ):
        return None
    return dict(_options(tiling, len(matrices), first.num_minima, blocks))


@cache
def _options(tiling: WarpTiling, num_matrices: int, num_minima: int, blocks: int) -> dict[str, int]:
    """Kept, for a launch asks thousands of times a prompt."""
    step, tokens, rows = tiling.step, tiling.tile_tokens, tiling.tile_rows
    while blocks % step != 0 or (
        4 * stage_words(tokens, rows, step, tiling.stages, num_minima) > _SHARED_BYTES
    ):
        step //= 2
    options = {
        "MINIMA": num_minima, "M": tiling.m, "N": tiling.n // num_matrices,
        "TOKEN_WARPS": tiling.token_warps, "ROW_WARPS": tiling.row_warps, "STEP": step,
        "STAGES": tiling.stages, "num_warps": tiling.token_warps * tiling.row_warps,
    }  # fmt: skip
    return options | ({"maxnreg": tiling.registers} if tiling.registers else {})


def plain_tiling(tiling: Tiling | WarpTiling) -> Tiling:
    """One for any matrices, of as many rows of activations."""
    if isinstance(tiling, Tiling):
        return tiling
    warps = max(1, tiling.tile_tokens // 32)
    return Tiling(tokens=tiling.tile_tokens, subs=1, rows=32, step=2, stages=3, warps=warps)
