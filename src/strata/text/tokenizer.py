"""Text to token ids and token ids to bytes, built from a GGUF file's metadata.

Owns vocabulary, merges, literal tokens and the rule of which text may become a control token.
Does not render chats and does not decode streams.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models, normalizers

from strata.errors import RequestError
from strata.text.pretokenizer import BYTE_OF_LETTER, build_pre_tokenizer
from strata.text.vocabulary import TokenType, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Names a turn or a document may end with, whatever id the file calls its end.
_END_LITERALS: Final = ("<|im_end|>", "<|endoftext|>")
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Span:
    """A run of a prompt's text. In a plain run nothing becomes a control token."""

    text: str
    is_plain: bool


class Tokenizer:
    """Byte-level BPE of one model file. Immutable; safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._types = vocabulary.types
        bpe = models.BPE(vocab=vocabulary.mergeable, merges=vocabulary.merges)
        self._bpe = tokenizers.Tokenizer(bpe)
        # The family was trained on composed text; GGUF has no key for it.
        self._bpe.normalizer = normalizers.NFC()
        self._bpe.pre_tokenizer = build_pre_tokenizer(vocabulary.pre)
        self.bos_id: int | None = vocabulary.special["bos"]
        self.pad_id: int | None = vocabulary.special["padding"]
        self.adds_bos: bool = vocabulary.adds_bos
        """Whether the file asks for ``bos_id`` before every prompt; ``encode`` never adds it."""
        self._control = vocabulary.literals(TokenType.CONTROL)
        self._always = vocabulary.literals(TokenType.USER_DEFINED)
        self._literal_ids = {**self._control, **self._always}
        self._any_literal = _longest_first(self._literal_ids)
        self._always_literal = _longest_first(self._always)
        self.eos_id: int | None = vocabulary.special["eos"]
        ends = {vocabulary.special["eos"], vocabulary.special["eot"]}
        ends.update(self._control.get(text) for text in _END_LITERALS)
        self.eos_ids: frozenset[int] = frozenset(end for end in ends if end is not None)
        self.special_ids: frozenset[int] = frozenset(self._control.values())

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """The tokenizer a GGUF file describes.

        Args:
            metadata: values by key; arrays as lists or numpy arrays.

        Raises:
            CheckpointError: a key is missing or malformed, or the parts disagree.
            UnsupportedError: another kind of tokenizer than byte-level BPE, or unknown ``pre``.
        """
        return cls(Vocabulary.from_metadata(metadata))

    @property
    def vocab_size(self) -> int:
        """V: number of ids, padding rows of the vocabulary included."""
        return len(self._tokens)

    @property
    def control_literals(self) -> tuple[str, ...]:
        """Texts of the control tokens, the only ones user text can never produce."""
        return tuple(self._control)

    def token_id(self, literal: str) -> int | None:
        """Id of the control or user-defined token spelled ``literal``, if there is one."""
        return self._literal_ids.get(literal)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Ids of ``text``; control tokens are recognised only with ``parse_special``.

        User-defined tokens are always recognised. At one place the longest literal wins.

        Raises:
            RequestError: the text holds a lone surrogate, so it has no UTF-8 form.
        """
        return self.encode_spans([Span(text, is_plain=not parse_special)])

    def encode_spans(self, spans: Iterable[Span]) -> list[int]:
        """Ids of the spans' joined text; a control token must lie wholly outside plain spans.

        Cutting text into spans changes nothing else: pieces run across their borders.

        Raises:
            RequestError: a text holds a lone surrogate.
        """
        spans = [span for span in spans if span.text]
        text = "".join(span.text for span in spans)
        _check_unicode(text)
        is_mixed = any(not span.is_plain for span in spans)
        literals = self._any_literal if is_mixed else self._always_literal
        if literals is None:
            return self._encode_piece(text)
        plain = np.concatenate(
            [np.zeros(0, bool), *(np.full(len(span.text), span.is_plain) for span in spans)]
        )
        ids: list[int] = []
        done = 0
        at = 0
        while match := literals.search(text, at):
            literal = self._allowed_literal(text, match.start(), plain)
            at = match.start() + max(len(literal), 1)
            if literal:
                ids += self._encode_piece(text[done : match.start()])
                ids.append(self._literal_ids[literal])
                done = at
        return ids + self._encode_piece(text[done:])

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes a token stands for; control tokens give their literal text.

        Raises:
            RequestError: no such id.
        """
        if not 0 <= token_id < len(self._tokens):
            raise RequestError(
                f"token id {token_id} is outside the vocabulary of {len(self._tokens)}.\n"
                "  Try: ids of this model's own tokenizer."
            )
        text = self._tokens[token_id]
        kind = self._types[token_id]
        if kind == TokenType.NORMAL:
            try:
                return bytes([BYTE_OF_LETTER[letter] for letter in text])
            except KeyError:
                # Some converters mark added tokens as normal; those stand for themselves.
                return text.encode("utf-8")
        if kind == TokenType.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes([int(match[1], 16)])
        return text.encode("utf-8")

    def text_bytes(self) -> list[bytes]:
        """Bytes of every token by id; none for those that are no text: control and unused ones."""
        silent = (TokenType.CONTROL, TokenType.UNUSED, TokenType.UNKNOWN)
        return [
            b"" if kind in silent else self.token_bytes(index)
            for index, kind in enumerate(self._types)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids`` as a whole; invalid bytes become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def _allowed_literal(self, text: str, start: int, plain: npt.NDArray[np.bool_]) -> str:
        """Longest literal at ``start`` that may be a token there, or an empty string."""
        found = self._any_literal.match(text, start) if self._any_literal else None
        best = found[0] if found else ""
        if best in self._always or not plain[start : start + len(best)].any():
            return best
        shorter = (
            literal
            for literal in self._literal_ids
            if text.startswith(literal, start)
            and (literal in self._always or not plain[start : start + len(literal)].any())
        )
        return max(shorter, key=len, default="")

    def _encode_piece(self, text: str) -> list[int]:
        return self._bpe.encode(text, add_special_tokens=False).ids if text else []


def _longest_first(literals: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(literals, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: a lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}.\n  Try: send the text as UTF-8."
        ) from None
