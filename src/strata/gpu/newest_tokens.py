"""The token ids before the next one, from which rows of the n-gram table are hashed. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.reference.ngram_memory import ngram_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.model_spec import NgramSpec

    Tokens = NDArray[np.int32]
    Rows = NDArray[np.int64]


class NewestTokens:
    """As many as an n-gram looks back on; none where the model has no n-gram memory."""

    def __init__(self, ngram: NgramSpec | None) -> None:
        self._ngram = ngram
        self.reset()

    def reset(self) -> None:
        """Before the first token."""
        ngram = self._ngram
        self.ids = (
            np.zeros(0, np.int64)
            if ngram is None
            else np.full(ngram.ngram_size - 1, ngram.eos_id, np.int64)
        )

    def push(self, tokens: Tokens) -> None:
        """``tokens`` have been committed."""
        self.ids = np.concatenate([self.ids, tokens])[len(tokens) :]

    def rows(self, tokens: Tokens, after: Tokens | None = None) -> Rows | None:
        """Rows [N, heads] of the n-gram table for ``tokens``, which follow ``after``."""
        if self._ngram is None:
            return None
        history = self.ids
        if after is not None:
            history = np.concatenate([history, after])[len(after) :]
        return ngram_rows(self._ngram, tokens.astype(np.int64), history)
