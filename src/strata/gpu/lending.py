"""Memory of slots as a prompt's: its buffers, and the room of experts on their way to it.

Owns what is lent and for how long. While it is, the experts of those slots are missing, which is
right for windows too; afterwards ``expert_cache`` brings back who is meant to be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.gpu.arena import Arena
from strata.gpu.loan_plan import Loan, LoanRules, best_loan, lend_percent, slots_for
from strata.gpu.shapes import ALIGNMENT

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.expert_cache import ExpertCache
    from strata.gpu.expert_stream import ExpertStream
    from strata.gpu.model_layout import ModelLayout
    from strata.gpu.prompt_layout import PromptShapes
    from strata.model_spec import ModelSpec


class LentArena(Arena):
    """Memory that belongs to something else: zeroed, and handed out in pieces.

    Args:
        memory: [bytes] uint8, at a multiple of 256.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory.zero_()
        self._used = 0


class Lender:
    """Lends the last slots of one pool, to one prompt at a time.

    Args:
        cache: whose slots they are; all layers share one pool.
        spec: geometry.
        layout: of the model.
        rules: see there.
    """

    def __init__(
        self, cache: ExpertCache, spec: ModelSpec, layout: ModelLayout, rules: LoanRules
    ) -> None:
        self._cache, self._spec, self._layout, self._rules = cache, spec, layout, rules
        stream = cache.layers[0].ahead
        assert stream is not None  # noqa: S101 - every cache has it
        self._stream: ExpertStream = stream
        homes = [tier.home for tier in cache.layers]
        num_bytes = sum(home.blob_bytes * len(home.scales) for home in homes)
        self._percent = lend_percent(cache.locked_bytes, num_bytes)
        self._needed: dict[tuple[int, int], int] = {}

    def offer(self, capacity: int, num_rows: int) -> Loan | None:
        """What a prompt of ``num_rows`` may borrow; None: nothing can be lent now.

        Slots stay open for it until ``take_back`` or ``decline``.

        Args:
            capacity: tokens of its conversation.
            num_rows: of the prompt.
        """
        if self._cache.is_lending:
            return None
        spec = self._spec
        loan = best_loan(
            num_rows,
            self._rules,
            lambda chunk: self._slots_needed(capacity, chunk),
            num_slots=self._cache.limit.num_open,
            num_pairs=spec.num_layers * spec.num_experts,
            percent=self._percent,
        )
        self._cache.is_lending = loan is not None
        return loan

    def decline(self) -> None:
        """What was offered is not wanted."""
        self._cache.is_lending = False

    def lend(self, shapes: PromptShapes, loan: Loan) -> Arena:
        """Memory for these buffers until ``take_back``; what ``offer`` gave."""
        room = self._cache.lend(loan.num_slots)
        # The room of the stream lies at the end, which stays where it is from loan to loan.
        first = (len(room) - self._stream.num_bytes) // ALIGNMENT * ALIGNMENT
        self._stream.lay(room[first : first + self._stream.num_bytes])
        assert shapes.num_bytes <= first  # noqa: S101 - the loan was made for them
        return LentArena(room[: shapes.num_bytes])

    def take_back(self) -> None:
        """Slots are slots again, once what has been launched is done; experts set out for them."""
        self._cache.is_lending = False
        self._stream.lay(None)
        self._cache.take_back()

    def _slots_needed(self, capacity: int, chunk: int) -> int:
        key = capacity, chunk
        if key not in self._needed:
            self._needed[key] = slots_for(
                self._spec, self._layout, capacity, chunk, self._stream.num_bytes
            )
        return self._needed[key]
