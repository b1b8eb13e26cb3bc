"""Which tokens follow a window's rows: picked here from logits, or by the device that has them.

Owns the choice between the two. Both give the same tokens (docs/numerics.md says how far that is
promised); the device spares the way of all logits to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from strata.engine.sampler import Sampled, allowed_tokens, nothing_allowed, sample

if TYPE_CHECKING:
    from strata.engine.conversation import Conversation
    from strata.engine.sampler import Mask
    from strata.engine.sampling_params import SamplingParams
    from strata.engine.session import Logits, Picker, Tokens, Words

# All tokens so far -> which may come next ([V] bool or packed 32-bit words), or None for any.
Allow = Callable[[Sequence[int]], "Mask | None"]


class Picks(Protocol):
    """Picks the tokens of one request."""

    def after(self, logits: Logits, tokens: Sequence[int], /) -> Sampled:
        """The token behind ``tokens``, whose logits [V] these are."""

    def of_window(
        self, conversation: Conversation, window: Tokens, tokens: Sequence[int], /
    ) -> list[Sampled]:
        """Runs a window of 1..8 rows: what is picked behind its rows, up to the first wrong draft.

        Args:
            conversation: holds all of ``tokens`` but the last. The window stays open.
            window: the last of ``tokens``, and drafts.
            tokens: prompt and answer so far.
        """

    def interrupted(self) -> None:
        """Another request has used the session meanwhile."""


def picks_of(sampling: SamplingParams, allow: Allow | None, picker: Picker | None) -> Picks:
    """How a request's tokens are picked.

    Args:
        sampling: its options.
        allow: which tokens may come next; None for any.
        picker: the device's, if it has one. Log-probabilities and biases need the logits here.
    """
    if picker is None or sampling.logprobs is not None or sampling.logit_bias:
        return HostPicks(sampling, allow)
    return DevicePicks(sampling, allow, picker)


class HostPicks:
    """Picks from logits by ``engine.sampler``."""

    def __init__(self, sampling: SamplingParams, allow: Allow | None) -> None:
        self._sampling = sampling
        self._allow = allow

    def after(self, logits: Logits, tokens: Sequence[int]) -> Sampled:
        """See ``Picks``."""
        mask = None if self._allow is None else self._allow(tokens)
        return sample(logits, self._sampling, tokens, len(tokens), mask)

    def interrupted(self) -> None:
        """Nothing of it is in the session."""

    def of_window(
        self, conversation: Conversation, window: Tokens, tokens: Sequence[int]
    ) -> list[Sampled]:
        """See ``Picks``."""
        logits = conversation.decode(window)
        history = list(tokens)
        picked: list[Sampled] = []
        for row in range(len(window)):
            token = self.after(logits[row], history)
            picked.append(token)
            history.append(token.id)
            if row + 1 == len(window) or window[row + 1] != token.id:
                break
        return picked


class DevicePicks(HostPicks):
    """Lets the device pick behind windows. What follows the prompt is picked here, once."""

    def __init__(self, sampling: SamplingParams, allow: Allow | None, picker: Picker) -> None:
        super().__init__(sampling, allow)
        self._picker = picker
        self._is_begun = False

    def of_window(
        self, _conversation: Conversation, window: Tokens, tokens: Sequence[int]
    ) -> list[Sampled]:
        """See ``Picks``."""
        if not self._is_begun:
            self._picker.begin(self._sampling, tokens[:-1])
            self._is_begun = True
        ids = self._picker.decode(window, self._masks(window, tokens))
        picked: list[Sampled] = []
        for row, token in enumerate(ids):
            if token < 0:
                raise nothing_allowed(len(tokens) + row)
            picked.append(Sampled(token, None))
            if row + 1 == len(window) or window[row + 1] != token:
                break
        return picked

    def interrupted(self) -> None:
        """The device picks by another request's options now."""
        self._is_begun = False

    def _masks(self, window: Tokens, tokens: Sequence[int]) -> list[Words | None] | None:
        """For each row the words of allowed tokens; None where any may come.

        Behind a draft that is not allowed nothing is asked: its row is never reached.
        """
        if self._allow is None:
            return None
        vocab_size = self._picker.vocab_size
        masks: list[Words | None] = [None] * len(window)
        history = list(tokens)
        for row in range(len(window)):
            mask = self._allow(history)
            words = None if mask is None else _packed(mask, vocab_size)
            masks[row] = words
            if row + 1 == len(window):
                break
            draft = int(window[row + 1])
            if words is not None and not int(words[draft >> 5]) >> (draft & 31) & 1:
                break
            history.append(draft)
        return masks if any(words is not None for words in masks) else None


def _packed(mask: Mask, vocab_size: int) -> Words:
    """ceil(V / 32) words, lowest bit first."""
    num_words = -(-vocab_size // 32)
    if mask.dtype == np.uint32 and mask.shape == (num_words,):
        return mask.view(np.uint32)
    padded = np.zeros(num_words * 4, np.uint8)
    packed = np.packbits(allowed_tokens(mask, vocab_size), bitorder="little")
    padded[: len(packed)] = packed
    return padded.view("<u4").astype(np.uint32, copy=False)
