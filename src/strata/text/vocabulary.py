"""The tokenizer's part of a GGUF file's metadata, checked and in plain Python types.

Owns the meaning of the ``tokenizer.ggml.*`` keys. Does not encode text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from strata.errors import CheckpointError, UnsupportedError
from strata.text.pretokenizer import BYTE_OF_LETTER, UTF8_BYTES

_KEY: Final = "tokenizer.ggml."
_SPECIAL: Final = ("bos", "eos", "eot", "padding")


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Every id's text and type, and how pieces merge."""

    pre: str
    tokens: list[str]
    types: list[int]
    mergeable: dict[str, int]  # tokens byte pairs may form; never a control token
    merges: list[tuple[str, str]]  # by rank
    special: dict[str, int | None]
    adds_bos: bool

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Vocabulary:
        """The vocabulary a GGUF file describes.

        Raises:
            CheckpointError: a key is missing or malformed, or the parts disagree.
            UnsupportedError: the tokenizer is not a byte-level BPE.
        """
        model = _text(metadata, "model")
        if model != "gpt2":
            raise UnsupportedError(
                f"the tokenizer is of kind {model!r}; Strata reads byte-level BPE ('gpt2').\n"
                f"  metadata: {_KEY}model\n  Try: a model of the Qwen family."
            )
        tokens = _texts(metadata, "tokens")
        repeated = [text for text, count in Counter(tokens).items() if count > 1]
        if repeated:
            raise _malformed("tokens", f"{len(repeated)} tokens occur twice, first {repeated[0]!r}")
        types = _types(metadata, len(tokens))
        mergeable = {
            text: index
            for index, (text, kind) in enumerate(zip(tokens, types, strict=True))
            if kind != TokenType.CONTROL and text
        }
        missing = [
            byte
            for letter, byte in BYTE_OF_LETTER.items()
            if byte in UTF8_BYTES and letter not in mergeable
        ]
        if missing:
            raise _malformed(
                "tokens",
                f"{len(missing)} of the 243 bytes of UTF-8 have no token, first 0x{missing[0]:02x}",
            )
        return cls(
            pre=_text(metadata, "pre"),
            tokens=tokens,
            types=types,
            mergeable=mergeable,
            merges=_merges(_texts(metadata, "merges"), mergeable),
            special={name: _token_id(metadata, name, len(tokens)) for name in _SPECIAL},
            adds_bos=metadata.get(f"{_KEY}add_bos_token", False) is True,
        )

    def literals(self, kind: TokenType) -> dict[str, int]:
        """Text to id of every token of one type."""
        pairs = zip(self.tokens, self.types, strict=True)
        return {text: index for index, (text, other) in enumerate(pairs) if other == kind and text}


def _malformed(key: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"the tokenizer cannot be built: {problem}.\n"
        f"  metadata: {_KEY}{key}\n"
        "  Try: download the file again, or convert the model again."
    )


def _required(metadata: Mapping[str, object], key: str) -> object:
    value = metadata.get(_KEY + key)
    if value is None:
        raise _malformed(key, "the key is missing")
    return value


def _text(metadata: Mapping[str, object], key: str) -> str:
    value = _required(metadata, key)
    if not isinstance(value, str):
        raise _malformed(key, f"expected a string, found {type(value).__name__}")
    return value


def _texts(metadata: Mapping[str, object], key: str) -> list[str]:
    value = _required(metadata, key)
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise _malformed(key, f"expected an array of strings, found {type(value).__name__}")
    items = list(value)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise _malformed(key, f"expected strings, found {type(item).__name__} at index {index}")
        if not item.isascii() and any("\ud800" <= letter <= "\udfff" for letter in item):
            raise _malformed(key, f"entry {index} is not valid UTF-8")
    if not items and key == "tokens":
        raise _malformed(key, "the vocabulary is empty")
    return items


def _types(metadata: Mapping[str, object], num_tokens: int) -> list[int]:
    value = _required(metadata, "token_type")
    array = np.asarray(value) if isinstance(value, Sequence | np.ndarray) else np.zeros(0, str)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise _malformed("token_type", "expected an array of integers")
    if len(array) != num_tokens:
        raise _malformed("token_type", f"{len(array)} types for {num_tokens} tokens")
    types: list[int] = array.tolist()
    known = {int(kind) for kind in TokenType}
    for index, kind in enumerate(types):
        if kind not in known:
            raise _malformed("token_type", f"unknown type {kind} of token {index}")
    return types


def _merges(lines: list[str], mergeable: Mapping[str, int]) -> list[tuple[str, str]]:
    merges = []
    for rank, line in enumerate(lines):
        # A space inside a token is spelled U+0120, so the one space is the border.
        left, border, right = line.partition(" ")
        if not (left and border and right) or " " in right:
            raise _malformed("merges", f"merge {rank} is not two tokens: {line!r}")
        for part in (left, right, left + right):
            if part not in mergeable:
                raise _malformed("merges", f"merge {rank} ({line!r}) needs {part!r}, not a token")
        merges.append((left, right))
    return merges


def _token_id(metadata: Mapping[str, object], name: str, num_tokens: int) -> int | None:
    key = f"{name}_token_id"
    value = metadata.get(_KEY + key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise _malformed(key, f"expected an integer, found {type(value).__name__}")
    if not 0 <= value < num_tokens:
        raise _malformed(key, f"id {value} is outside the vocabulary of {num_tokens}")
    return int(value)
