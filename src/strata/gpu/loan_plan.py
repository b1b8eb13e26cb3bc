"""How many slots a prompt borrows, and how long its chunks are then. Numbers only.

A longer chunk needs more slots, whose experts are then missing; but what is missing is brought once
for every chunk, so fewer chunks take fewer bytes.
docs/decisions/0014-prompts-with-tiers.md has the rule and its figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from strata.gpu.prompt_layout import MIN_CHUNK, prompt_shapes
from strata.gpu.shapes import ALIGNMENT
from strata.tiers.resident_plan import MIN_SLOTS_LEFT, lent_slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.gpu.model_layout import ModelLayout
    from strata.model_spec import ModelSpec

LADDER = (8192, 6144, 4096, 3072, 2048, 1024, 512, MIN_CHUNK)
"""Rows of a chunk that are tried, the most first."""

_ROWS_STEP = 256
# Where most experts are not page-locked, refilling slots goes through a small buffer.
LEAST_PERCENT, MOST_PERCENT = 85, 90
"""Percent of the slots that may be lent in any case, and where most experts are page-locked."""

_LOCKED_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class LoanRules:
    """What a model's prompts may borrow.

    Attributes:
        wished_chunk: rows of a chunk asked for, or None.
        slots_left: to the cache, at least.
    """

    wished_chunk: int | None = None
    slots_left: int = MIN_SLOTS_LEFT


class Loan(NamedTuple):
    """Rows of a prompt's chunks, and the slots whose memory they take."""

    chunk: int
    num_slots: int


def lend_percent(locked_bytes: int, expert_bytes: int) -> int:
    """Percent of the slots that may be lent."""
    return MOST_PERCENT if locked_bytes >= _LOCKED_SHARE * expert_bytes else LEAST_PERCENT


def chunks_to_try(num_rows: int, wished: int | None) -> list[int]:
    """Rows of a chunk, the most first: no more than a prompt has, rounded up to 256.

    Args:
        num_rows: of the prompt.
        wished: rows of a chunk asked for, which are halved until they fit; None for the ladder.
    """
    ladder = list(LADDER)
    if wished is not None:
        ladder = [wished]
        while ladder[-1] >= 2 * MIN_CHUNK:
            ladder.append(ladder[-1] // 2 // 64 * 64)
    most = -(-max(1, num_rows) // _ROWS_STEP) * _ROWS_STEP
    return list(dict.fromkeys(min(chunk, most) for chunk in ladder))


def best_loan(
    num_rows: int,
    rules: LoanRules,
    slots_needed: Callable[[int], int],
    *,
    num_slots: int,
    num_pairs: int,
    percent: int,
) -> Loan | None:
    """What a prompt borrows, or None where too few slots would be left.

    Of a ladder, what takes the fewest bytes over the link; of a wish, the longest that fits.

    Args:
        num_rows: of the prompt.
        rules: of the model.
        slots_needed: slots whose memory a chunk of so many rows takes.
        num_slots: there are.
        num_pairs: experts of all layers.
        percent: of the slots, at most.
    """
    best, fewest = None, 0
    for chunk in chunks_to_try(num_rows, rules.wished_chunk):
        num = lent_slots(num_slots, slots_needed(chunk), percent, rules.slots_left)
        if not num:
            continue
        if rules.wished_chunk is not None:
            return Loan(chunk, num)
        # Of each chunk what is in no slot; afterwards what was lent comes back.
        brought = -(-num_rows // chunk) * (num_pairs - num_slots + num) + num
        if best is None or brought < fewest:
            best, fewest = Loan(chunk, num), brought
    return best


def slots_for(
    spec: ModelSpec, layout: ModelLayout, capacity: int, chunk: int, stream_bytes: int
) -> int:
    """Slots whose memory a chunk of so many rows takes, with the room of experts on their way."""
    blob = layout.layers[0].experts.blob_bytes
    num_bytes = prompt_shapes(spec, layout, capacity, chunk).num_bytes + stream_bytes + ALIGNMENT
    return -(-num_bytes // blob)
