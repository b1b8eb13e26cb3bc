"""A vocabulary of bytes and of pieces that cut characters, and random walks through forms."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

from strata.text.token_masks import MaskVocabulary

if TYPE_CHECKING:
    from strata.text.form import Form

PIECES = [
    b'{"', b'":', b'",', b'"}', b'": "', b"}}", b"]}", b"true", b"null", b" the", b"ing", b"00",
    b"\xe6\x97", b"\xa5\xe6", b"\xad\xe3\x81", b"\xc3", b"\xa9 ", b"\xf0\x9f", b"\xa6\x80",
    b"<tool_call>", b"</tool_call>", b"\n<function=", b"</parameter>", b"\n</parameter>\n",
    b"</function>", b"<parameter=", b"</think>", b"</", b">\n\n", b"\n\n", b"k>",
]  # fmt: skip
TOKENS = [bytes([byte]) for byte in range(256)] + PIECES + [b"", b""]
END, OTHER_END = len(TOKENS) - 2, len(TOKENS) - 1
# Rows of padding behind the last token; no multiple of 32.
VOCAB_SIZE = len(TOKENS) + 75


def vocabulary() -> MaskVocabulary:
    return MaskVocabulary(TOKENS, {END, OTHER_END}, VOCAB_SIZE)


def ids_of(words: np.ndarray) -> list[int]:
    """Ids in a mask; none of them is of padding."""
    assert words.dtype == np.uint32
    assert words.shape == (-(-VOCAB_SIZE // 32),)
    ids = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
    assert not ids or ids[-1] < len(TOKENS)
    return ids


_CLOSERS = set(b'"}],:>') | {END} | {TOKENS.index(piece) for piece in (b'"}', b'",', b"]}")}
_CLOSERS |= {
    TOKENS.index(piece) for piece in (b"\n</parameter>\n", b"</function>", b"</tool_call>")
}


def walk(vocabulary: MaskVocabulary, form: Form, seed: int, limit: int = 4000) -> bytes:
    """A random text of a form, to its end; what closes something is taken more often."""
    rng = random.Random(seed)
    masks = vocabulary.compile(form).result()
    tokens: list[int] = []
    while True:
        assert len(tokens) < limit, b"".join(TOKENS[token] for token in tokens)
        ids = ids_of(masks.words_after(tokens))
        closers = [token for token in ids if token in _CLOSERS]
        token = rng.choice(closers if closers and rng.random() < 0.4 else ids)
        if token in (END, OTHER_END):
            return b"".join(TOKENS[token] for token in tokens)
        tokens.append(token)
