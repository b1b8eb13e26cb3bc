"""An end to thinking: after so many tokens of reasoning the closing mark is forced.

Owns the masks and nothing else; an ``Allow`` of ``engine.picks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.engine.sampler import Mask


class ThinkBudget:
    """Any token while the thinking is within its budget or has ended by itself, else the end's.

    Args:
        num_prompt: tokens of the prompt, which ends inside the thinking.
        budget: tokens of reasoning allowed.
        end_ids: the tokens that close the thinking, ``mark_id`` among them.
        mark_id: the token that a thinking which ends by itself ends with.
        vocab_size: V.
    """

    def __init__(
        self, num_prompt: int, budget: int, end_ids: Sequence[int], mark_id: int, vocab_size: int
    ) -> None:
        self._start = num_prompt
        self._stop = num_prompt + budget
        self._end_ids = tuple(end_ids)
        self._mark_id = mark_id
        self._vocab_size = vocab_size

    def __call__(self, tokens: Sequence[int]) -> Mask | None:
        """[V] bool of the one token that has to come next, or None for any."""
        place = len(tokens) - self._stop
        if not 0 <= place < len(self._end_ids):
            return None
        if self._mark_id in tokens[self._start : self._stop]:
            return None
        mask = np.zeros(self._vocab_size, np.bool_)
        mask[self._end_ids[place]] = True
        return mask
