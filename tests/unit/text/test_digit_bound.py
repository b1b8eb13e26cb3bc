"""Digits of JSON numbers end, whatever a model would like; checked with json."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.text.masking import END, OTHER_END, TOKENS, ids_of, vocabulary

from strata.text.digit_bound import MAX_DIGITS, Place
from strata.text.form import Form

JSON = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def greedy_for_digits(form: Form, seed: int = 0) -> str:
    """A text that takes digits while it may, and else anything; drafts go ahead and back."""
    rng = random.Random(seed)
    masks = vocabulary().compile(form).result()
    tokens: list[int] = []
    while True:
        assert len(tokens) < 2000
        ids = ids_of(masks.words_after(tokens))
        digits = [token for token in ids if TOKENS[token][:1].isdigit()]
        if digits and rng.random() < 0.3:
            masks.words_after([*tokens, digits[0]])  # a draft that is not kept
            assert ids_of(masks.words_after(tokens)) == ids
        token = rng.choice(digits or ids)
        if token in (END, OTHER_END):
            return b"".join(TOKENS[token] for token in tokens).decode()
        tokens.append(token)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": ["number", "null"], "minimum": 0},
        {
            "type": "object",
            "properties": {"a": {"type": "number"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    ],
)
def test_numbers_end(schema: dict[str, object]):
    for seed in range(5):
        text = greedy_for_digits(Form.json_schema(schema), seed)
        json.loads(text)
        assert max(map(len, re.findall("[0-9]+", text)), default=0) <= MAX_DIGITS + 8


def test_strings_and_constants_may_be_as_long_as_they_are():
    text = greedy_for_digits(Form.json_schema({"type": "string", "pattern": "^[0-9]{300}$"}))
    assert len(json.loads(text)) == 300
    number = int("7" * 90)
    text = greedy_for_digits(Form.json_schema({"const": number}))
    assert (len(text), float(text)) == (
        90,
        pytest.approx(float(number)),
    )  # the compiler reads doubles


def test_a_multiple_goes_on_until_it_is_one():
    text = greedy_for_digits(Form.json_schema({"type": "integer", "multipleOf": 7}))
    assert int(text) % 7 == 0


def test_other_forms_know_no_numbers():
    assert len(greedy_for_digits(Form.regex("[0-9]{200}"))) == 200


@given(JSON, st.data())
def test_a_place_is_that_of_the_text_before_it(value: object, data: st.DataObject):
    """However the text is cut; strings are what json's own scanner says they are."""
    raw = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode(errors="replace")
    at = data.draw(st.integers(0, len(raw)))
    place = Place().after(raw[:at]).after(b"")
    assert place == Place().after(raw[: at // 2]).after(raw[at // 2 : at])
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", raw[:at], flags=re.DOTALL)
    assert place.is_string == (b'"' in outside)
    if not place.is_string:
        digits = re.search(rb"[0-9]*$", outside if raw[at - 1 : at] != b'"' else b"")
        assert place.num_digits == len(digits[0])
