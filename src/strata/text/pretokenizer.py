"""How text is cut into pieces before byte pairs are merged, one expression per family.

Owns the expressions and the GPT-2 byte alphabet. Does not know vocabularies or merges.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from tokenizers import Regex, pre_tokenizers

from strata.errors import UnsupportedError

_QWEN2: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

# Marks join a run of letters, and no longer start or extend a run of punctuation.
_QWEN35: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)

PATTERNS: Final[dict[str, str]] = {"qwen2": _QWEN2, "qwen3": _QWEN2, "qwen35": _QWEN35}
"""``tokenizer.ggml.pre`` to the expression whose matches are the pieces."""


def build_pre_tokenizer(pre: str) -> pre_tokenizers.PreTokenizer:
    """Cutter of text into pieces, spelled in the byte alphabet.

    Raises:
        UnsupportedError: no expression is known for ``pre``.
    """
    pattern = PATTERNS.get(pre)
    if pattern is None:
        nearest = get_close_matches(pre, PATTERNS, n=1, cutoff=0.0)[0]
        raise UnsupportedError(
            f"the tokenizer cuts text by the rule {pre!r}, which Strata does not have.\n"
            f"  metadata: tokenizer.ggml.pre; known: {', '.join(sorted(PATTERNS))}\n"
            f"  Try: a model of the family {nearest!r}."
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _byte_alphabet() -> dict[str, int]:
    """Each of the 256 letters of byte-level vocabularies, to the byte it stands for.

    Printable Latin-1 stands for itself; the other 68 bytes, in order, are U+0100 upwards.
    Source: GPT-2's vocabulary (Radford et al. 2019).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + index): byte for index, byte in enumerate(rest)})
    return letters


BYTE_OF_LETTER: Final[dict[str, int]] = _byte_alphabet()

# 0xC0, 0xC1 and 0xF5 upwards never occur in UTF-8, so a vocabulary may do without them.
UTF8_BYTES: Final[frozenset[int]] = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
