"""Where a form begins: behind the reasoning, wherever tokens cut the mark that ends it.

The yardstick is the text: what a reader of the whole answer takes for reasoning and for the answer
(``ThoughtSplitter``), against what the masks let through.
"""

from __future__ import annotations

import random
from concurrent.futures import Future

import numpy as np
import pytest
from tests.unit.text.masking import END, OTHER_END, TOKENS, ids_of, vocabulary

from strata.engine.form_allow import FormAllow
from strata.errors import RequestError
from strata.server.think_budget import ThinkBudget
from strata.text.form import Form
from strata.text.thoughts import THINK_END, ThoughtSplitter

PROMPT = [1, 2, 3]
FORM = Form.one_of(["yes", "no", "日本"])
ANSWERS = ("yes", "no", "日本")
# Letters of the mark, so that it is often begun and left.
LIKELY = [TOKENS.index(raw) for raw in (b"<", b"</", b"/", b"t", b"h", b"i", b"n", b"k", b">")]
LIKELY += [TOKENS.index(raw) for raw in (b"</think>", b">\n\n", b"k>", b"\n", b"\n\n", b"\xe6\x97")]


def text_of(tokens: list[int]) -> bytes:
    return b"".join(TOKENS[token] for token in tokens)


def allow_of(tokens, mark: str = THINK_END, bound=None) -> FormAllow:
    return FormAllow(tokens.compile(FORM), tokens, len(PROMPT), mark, bound)


@pytest.fixture(scope="module")
def tokens():
    return vocabulary()


@pytest.mark.parametrize("seed", range(60))
def test_the_answer_behind_the_reasoning_has_the_form(tokens, seed):
    allow = allow_of(tokens)
    rng = random.Random(seed)
    answer: list[int] = []
    while len(answer) < 2000:
        ids = ids_of(allow([*PROMPT, *answer]))
        likely = [token for token in LIKELY if token in ids]
        token = rng.choice(likely if likely and rng.random() < 0.97 else ids)
        if token in (END, OTHER_END):
            break
        answer.append(token)
    else:
        pytest.fail("no end")
    # Reasoning may hold bytes that are no text.
    text = text_of(answer).decode(errors="replace")
    splitter = ThoughtSplitter(is_thinking=True)
    thought, said = splitter.feed(text)
    assert not splitter.is_inside
    assert said in ANSWERS
    assert THINK_END not in thought


def test_reasoning_may_be_anything_but_the_end(tokens):
    ids = ids_of(allow_of(tokens)(PROMPT))
    assert set(ids) == {index for index, raw in enumerate(TOKENS) if raw}


def test_without_reasoning_the_form_begins_at_once(tokens):
    ids = ids_of(allow_of(tokens, "")(PROMPT))
    assert {TOKENS[index][:1] for index in ids} == {b"y", b"n", b"\xe6"}


def test_drafts_may_be_taken_back_across_the_mark(tokens):
    rng = random.Random(5)
    plain, drafted = allow_of(tokens), allow_of(tokens)
    answer = [*b"a<b</th", TOKENS.index(b"</think>"), TOKENS.index(b"\n\n"), *b"yes"]
    for num in range(len(answer) + 1):
        told = [*PROMPT, *answer[:num]]
        ahead = list(told)
        for _ in range(rng.randrange(6)):
            ids = ids_of(drafted(ahead))
            if not ids or END in ids:
                break
            likely = [token for token in LIKELY if token in ids]
            ahead.append(rng.choice(likely or ids))
        np.testing.assert_array_equal(drafted(told), plain(told))


def test_nothing_is_asked_behind_the_end(tokens):
    assert allow_of(tokens)([*PROMPT, *b"</think>yes", END]) is None
    assert allow_of(tokens, "")([*PROMPT, *b"yes", END]) is None


def test_a_budget_holds_only_while_there_is_reasoning(tokens):
    mark = TOKENS.index(b"</think>")
    ends = (ord("\n"), mark, TOKENS.index(b"\n\n"))
    budget = ThinkBudget(len(PROMPT), 4, ends, mark, tokens.vocab_size)
    allow = allow_of(tokens, bound=budget)
    told = [*PROMPT, *b"abcd"]
    for forced in ends:
        assert np.flatnonzero(allow(told)).tolist() == [forced]
        told.append(forced)
    assert END not in ids_of(allow(told))
    told += b"yes"
    assert ids_of(allow(told)) == [END, OTHER_END]
    # Reasoning that was ended in letters: the budget must not break into the form.
    short = [*PROMPT, *b"</think>ye"]
    assert ids_of(allow_of(tokens, bound=budget)(short)) == [ord("s")]


def test_a_form_that_does_not_compile_is_an_error_of_the_request(tokens):
    failed: Future = Future()
    failed.set_exception(RequestError("no"))
    with pytest.raises(RequestError):
        FormAllow(failed, tokens, len(PROMPT))(PROMPT)
