"""An ``Allow`` that holds an answer to its form, which begins where the reasoning ends.

Owns where the form begins. While there is reasoning everything may come but the end of the answer,
and the mark that ends it is met exactly: no token may begin with the rest of the mark and go on
with something else than line ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.text.token_masks import MAX_LINE_ENDS, num_settled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from strata.engine.picks import Allow
    from strata.engine.sampler import Mask
    from strata.text.token_masks import FormMasks, MaskVocabulary, Words


@dataclass(frozen=True, slots=True)
class _Thinking:
    """Inside the reasoning; ``tail`` is as much of its end as may begin the mark."""

    tail: bytes


@dataclass(frozen=True, slots=True)
class _Gap:
    """Behind the mark, after so many line ends."""

    num_line_ends: int


@dataclass(frozen=True, slots=True)
class _Inside:
    """In the form, which began with this token of the answer."""

    first: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """Behind the end of the answer."""


_State = _Thinking | _Gap | _Inside | _Ended


class FormAllow:
    """Which tokens may come next.

    Args:
        masks: of the form; asked for when the form begins, so it compiles beside the prompt.
        vocabulary: bytes of the tokens.
        num_prompt: tokens of the prompt.
        mark: the text that ends the reasoning, if the prompt ends inside one.
        bound: another ``Allow`` for the reasoning.
    """

    def __init__(
        self,
        masks: Future[FormMasks],
        vocabulary: MaskVocabulary,
        num_prompt: int,
        mark: str = "",
        bound: Allow | None = None,
    ) -> None:
        self._masks = masks
        self._vocabulary = vocabulary
        self._num_prompt = num_prompt
        self._mark = mark.encode()
        self._bound = bound
        self._seen: list[int] = []
        # Behind each seen token; the first one is where the answer begins.
        self._states: list[_State] = [_Thinking(b"") if mark else _Inside(0)]
        self._line_ends = vocabulary.line_ends if mark else {}

    def __call__(self, tokens: Sequence[int]) -> Mask | None:
        """Words of allowed tokens behind ``tokens``, which are prompt and answer so far.

        Raises:
            RequestError: the form does not compile, or has become too complex.
        """
        self._go_to(tokens[self._num_prompt :])
        state = self._states[-1]
        if isinstance(state, _Ended):
            return None
        if isinstance(state, _Inside):
            return self._masks.result().words_after(self._seen[state.first :])
        forced = None if self._bound is None else self._bound(tokens)
        if forced is not None:
            return forced
        if isinstance(state, _Thinking):
            return self._vocabulary.words_before(self._mark, len(state.tail))
        more = MAX_LINE_ENDS - state.num_line_ends
        ids = [index for index, count in self._line_ends.items() if count <= more]
        words: Words = self._masks.result().words_after(()) | self._vocabulary.words_of(ids)
        return words

    def _go_to(self, answer: Sequence[int]) -> None:
        """Makes the states those of ``answer``; only its last tokens may have changed."""
        shared = num_settled(self._seen, answer)
        del self._seen[shared:]
        del self._states[shared + 1 :]
        for token in answer[shared:]:
            self._states.append(self._after(self._states[-1], int(token)))
            self._seen.append(int(token))

    def _after(self, state: _State, token: int) -> _State:
        if token in self._vocabulary.end_ids:
            return _Ended()
        match state:
            case _Thinking(tail):
                text = tail + self._vocabulary.token_bytes[token]
                before, found, behind = text.partition(self._mark)
                return _Gap(len(behind)) if found else _Thinking(_beginning(before, self._mark))
            case _Gap(num_line_ends) if token in self._line_ends:
                return _Gap(num_line_ends + self._line_ends[token])
            case _Gap():
                return _Inside(len(self._seen))
            case _:
                return state


def _beginning(text: bytes, mark: bytes) -> bytes:
    """The end of ``text`` that may begin the mark."""
    longest = min(len(text), len(mark) - 1)
    num = next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)
    return text[len(text) - num :]
