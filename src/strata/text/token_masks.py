"""Which tokens may come next where an answer must have a form.

Owns the vocabulary as the compiler of grammars needs it, and one answer's place in its form. Knows
no logits. Tokens are taken byte by byte, so characters may be split over them.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import llguidance
import numpy as np

from strata.errors import RequestError
from strata.session_rules import MAX_WINDOW_ROWS
from strata.text.digit_bound import DIGITS, Place
from strata.text.form import limits

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from strata.text.form import Form

    Words = NDArray[np.uint32]

# Line ends that may stand between the end of reasoning and the form.
MAX_LINE_ENDS: Final = 2
_DIGITS: Final = tuple(bytes([digit]) for digit in DIGITS)


class MaskVocabulary:
    """Bytes of every token, and a thread that compiles.

    Args:
        token_bytes: by id; nothing for ids that are no text.
        end_ids: tokens that end an answer.
        vocab_size: V, the padding rows included.

    Raises:
        RequestError: nothing ends an answer.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], end_ids: Collection[int], vocab_size: int
    ) -> None:
        if not end_ids:
            raise RequestError(
                "this model has no token that ends an answer, so no form can be required.\n"
                "  Try: without a form."
            )
        # llguidance's masks are as long as its list of tokens.
        padding = (b"",) * (vocab_size - len(token_bytes))
        self.token_bytes = (*token_bytes, *padding)
        self.end_ids = frozenset(end_ids)
        self.vocab_size = vocab_size
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._before_mark: dict[tuple[bytes, int], Words] = {}
        self._by_letter: dict[bytes, list[tuple[int, bytes]]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="strata-forms")

    @property
    def num_words(self) -> int:
        """32-bit words of a mask."""
        return -(-self.vocab_size // 32)

    def compile(self, form: Form) -> Future[FormMasks]:
        """The masks of a form, made on another thread.

        The result raises RequestError where the form does not compile.
        """
        return self._thread.submit(self._compile, form)

    def prepare(self) -> None:
        """Makes now what the first form would make: seconds for a large vocabulary."""
        self._thread.submit(self._prepared).result()

    def words_of(self, ids: Collection[int]) -> Words:
        """A mask of some tokens: [ceil(V / 32)] uint32, lowest bit first."""
        allowed = np.zeros(32 * self.num_words, np.bool_)
        allowed[list(ids)] = True
        packed: Words = np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)
        return packed

    @functools.cached_property
    def line_ends(self) -> dict[int, int]:
        """Tokens of line ends alone, and how many they are."""
        wanted = {b"\n" * count: count for count in range(1, MAX_LINE_ENDS + 1)}
        return {index: wanted[raw] for index, raw in enumerate(self.token_bytes) if raw in wanted}

    @functools.cached_property
    def without_digits(self) -> Words:
        """Tokens that do not begin with a digit."""
        begun = (index for index, raw in enumerate(self.token_bytes) if raw[:1] in _DIGITS)
        return ~self.words_of(set(begun))

    def words_before(self, mark: bytes, num_begun: int) -> Words:
        """What may come while ``mark`` is awaited, of which ``num_begun`` bytes have come.

        Everything but the end tokens, and tokens that go on behind the mark with more than line
        ends. The mark must not begin anew inside itself.
        """
        if (mark, num_begun) not in self._before_mark:
            rest = mark[num_begun:]
            past = {
                index
                for index, raw in self._holding(mark[-1:])
                if (raw.startswith(rest) or mark in raw) and _is_past(raw, rest, mark)
            }
            self._before_mark[mark, num_begun] = ~self.words_of(self._silent_ids | past)
        return self._before_mark[mark, num_begun]

    @functools.cached_property
    def _silent_ids(self) -> set[int]:
        """Ids without text, those that end an answer, and those that only fill the last word."""
        silent = {index for index, raw in enumerate(self.token_bytes) if not raw}
        return silent.union(self.end_ids, range(self.vocab_size, 32 * self.num_words))

    def _holding(self, letter: bytes) -> list[tuple[int, bytes]]:
        """Tokens with a letter in them."""
        if letter not in self._by_letter:
            found = [item for item in enumerate(self.token_bytes) if letter in item[1]]
            self._by_letter[letter] = found
        return self._by_letter[letter]

    def _compile(self, form: Form) -> FormMasks:
        return FormMasks(self._prepared(), form, self)

    def _prepared(self) -> llguidance.LLTokenizer:
        if self._tokenizer is None:
            # The stub of llguidance wants its own class, but reads any object of these attributes.
            wanted: Any = _Wanted(self.token_bytes, min(self.end_ids))
            self._tokenizer = llguidance.LLTokenizer(
                wanted,
                n_vocab=self.vocab_size,
                eos_token=sorted(self.end_ids),
                slices=llguidance.LLTokenizer.json_slices(),
            )
        return self._tokenizer


class FormMasks:
    """One answer's place in its form, moved on and back by the tokens it is asked about."""

    def __init__(
        self, tokenizer: llguidance.LLTokenizer, form: Form, vocabulary: MaskVocabulary
    ) -> None:
        self._matcher = llguidance.LLMatcher(tokenizer, form.grammar, log_level=0, limits=limits())
        self._vocabulary = vocabulary
        self._taken: list[int] = []
        # Behind each taken token; the first one is where the form begins.
        self._places = [Place()] if form.is_json else []
        self._check()

    def words_after(self, tokens: Sequence[int]) -> Words:
        """Which tokens may follow ``tokens``: [ceil(V / 32)] uint32, lowest bit first.

        Args:
            tokens: of the form so far, each of them allowed where it stands. Only the last eight
                may differ from those of earlier calls.

        Raises:
            RequestError: a token is not allowed there, or the form has become too complex.
        """
        self._go_to(tokens)
        words = np.frombuffer(self._matcher.compute_bitmask(), "<u4")[: self._vocabulary.num_words]
        self._check()
        if self._places and self._places[-1].is_full:
            shorter = words & self._vocabulary.without_digits
            words = shorter if shorter.any() else words  # some numbers are long, if one must be so
        return words.astype(np.uint32, copy=False)

    def _go_to(self, tokens: Sequence[int]) -> None:
        shared = num_settled(self._taken, tokens)
        if len(self._taken) > shared:
            self._matcher.rollback(len(self._taken) - shared)
            del self._taken[shared:]
            del self._places[shared + 1 :]
        for token in tokens[shared:]:
            if not self._matcher.consume_token(int(token)):
                self._check()
                raise RequestError(f"token {token} does not fit the required form.")
            self._taken.append(int(token))
            if self._places:
                more = self._vocabulary.token_bytes[int(token)]
                self._places.append(self._places[-1].after(more))

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().splitlines()[0]
            raise RequestError(
                f"the required form cannot be followed: {reason}.\n"
                "  Try: a simpler form, with less that can be at one place."
            )


def num_settled(known: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens both begin with; of ``known`` only a window's last may have changed."""
    shared = min(len(tokens), len(known))
    for place in range(max(0, min(shared, len(known) - MAX_WINDOW_ROWS)), shared):
        if tokens[place] != known[place]:
            return place
    return shared


class _Wanted:
    """What llguidance reads of a vocabulary."""

    bos_token_id = None
    is_tokenizer_wrapper = True

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens = list(tokens)
        self.eos_token_id = eos_token_id
        self.special_token_ids: list[int] = []

    def __call__(self, text: str) -> list[int]:
        """Ids of a text that is forced; forms force none (``form.HEADER``)."""
        raise AssertionError(text)


def _is_past(raw: bytes, rest: bytes, mark: bytes) -> bool:
    """Whether a token that holds the end of the mark goes on behind it with more than line ends."""
    behind = raw[len(rest) :] if raw.startswith(rest) else raw.partition(mark)[2]
    return behind.strip(b"\n") != b"" or len(behind) > MAX_LINE_ENDS
