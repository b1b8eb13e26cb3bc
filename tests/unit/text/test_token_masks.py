"""Masks of forms against a list of all texts that the form allows.

The yardstick is a small finite language: a token may come where what was written and the token are
the beginning of one of its texts; the answer may end where it is one of them.
"""

from __future__ import annotations

import random

import pytest
from tests.unit.text.masking import END, OTHER_END, TOKENS, VOCAB_SIZE, ids_of, vocabulary

from strata.errors import RequestError
from strata.text.form import Form
from strata.text.token_masks import MaskVocabulary

TEXTS = ["é", "é 日本", "日", "日本の", "日本ら", "🦀🦀", "true", "truest", "the", "100", "10", "1"]
RAW = [text.encode() for text in TEXTS]


def allowed_after(written: bytes) -> list[int]:
    ids = [
        index
        for index, raw in enumerate(TOKENS)
        if raw and any(text.startswith(written + raw) for text in RAW)
    ]
    return ids + ([END, OTHER_END] if written in RAW else [])


def text_of(tokens: list[int]) -> bytes:
    return b"".join(TOKENS[token] for token in tokens)


def walks(seed: int):
    """Every token list on a random way through the language."""
    rng = random.Random(seed)
    tokens: list[int] = []
    while True:
        yield tokens
        token = rng.choice(allowed_after(text_of(tokens)))
        if token in (END, OTHER_END):
            return
        tokens = [*tokens, token]


def test_a_token_may_come_where_a_text_goes_on_with_it():
    masks = vocabulary().compile(Form.one_of(TEXTS)).result()
    num_split = 0
    for seed in range(150):
        for tokens in walks(seed):
            ids = ids_of(masks.words_after(tokens))
            assert ids == sorted(allowed_after(text_of(tokens)))
            num_split += text_of(tokens).decode(errors="ignore").encode() != text_of(tokens)
    # Many of these places are in the middle of a character.
    assert num_split > 100


def test_a_place_may_be_left_and_come_back_to():
    """A window's drafts go ahead, and most of them are taken back."""
    rng = random.Random(3)
    for seed in range(80):
        masks = vocabulary().compile(Form.one_of(TEXTS)).result()
        for tokens in walks(seed):
            ahead = list(tokens)
            for _ in range(rng.randrange(4)):
                ids = [token for token in allowed_after(text_of(ahead)) if token < END]
                if not ids:
                    break
                ahead.append(rng.choice(ids))
                assert ids_of(masks.words_after(ahead)) == sorted(allowed_after(text_of(ahead)))
            assert ids_of(masks.words_after(tokens)) == sorted(allowed_after(text_of(tokens)))


def test_a_token_that_does_not_fit_is_an_error():
    masks = vocabulary().compile(Form.one_of(TEXTS)).result()
    with pytest.raises(RequestError, match="form"):
        masks.words_after([ord("x")])


def test_tokens_without_text_never_come():
    masks = vocabulary().compile(Form.regex("(?s:.*)")).result()
    ids = ids_of(masks.words_after([]))
    silent = {index for index, raw in enumerate(TOKENS) if not raw} - {END, OTHER_END}
    assert not silent.intersection(ids)
    assert {END, OTHER_END} <= set(ids)


def test_a_vocabulary_without_an_end_has_no_forms():
    with pytest.raises(RequestError, match="ends an answer"):
        MaskVocabulary(TOKENS, (), VOCAB_SIZE)
