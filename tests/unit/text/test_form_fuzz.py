"""Random schemas: what compiles is followed, as an answer and as arguments of a call.

A schema may be refused, since random ones contradict themselves; most are not.
"""

from __future__ import annotations

import json

import pytest
from tests.form_schemas import check
from tests.random_schemas import Schemas
from tests.unit.text.masking import vocabulary, walk

from strata.errors import RequestError
from strata.text.call_form import CallWish, call_form
from strata.text.form import Form
from strata.text.tool_calls import Arguments, ToolCallParser

# Walks that go on for longer end nowhere soon: a text or a number of any length.
LIMIT = 2500


@pytest.fixture(scope="module")
def tokens():
    return vocabulary()


@pytest.mark.parametrize("group", range(10))
def test_random_schemas_are_followed(tokens, group):
    num_followed = 0
    for seed in range(20):
        schema = Schemas(100 * group + seed).whole()
        try:
            form = Form.json_schema(schema)
        except RequestError:
            continue
        for walked in range(3):
            check(walk(tokens, form, walked, LIMIT).decode(), schema)
        num_followed += 1
    assert num_followed >= 10


@pytest.mark.parametrize("group", range(10))
@pytest.mark.parametrize("is_strict", [True, False])
def test_arguments_of_random_schemas_are_followed(tokens, group, is_strict):
    num_followed = 0
    for seed in range(12):
        made = Schemas(5000 + 100 * group + seed)
        members = {name: made.any(1) for name in ("a", "b", "é")}
        schema = {"type": "object", "properties": members, "required": ["a"]}
        schema |= {"additionalProperties": False, "$defs": made.definitions}
        wish = CallWish({"f": schema}, ["f"] if is_strict else [], must_call=True, is_one_call=True)
        try:
            form = call_form(wish)
        except RequestError:
            assert is_strict
            continue
        for walked in range(3):
            text = walk(tokens, form, walked, LIMIT).decode()
            parser = ToolCallParser({"f": schema})
            pieces = parser.feed(text) + parser.finish(is_cut=False)
            told = "".join(piece.text for piece in pieces if isinstance(piece, Arguments))
            if is_strict:
                check(told, schema)
            else:
                assert set(json.loads(told)) <= set(members)
        num_followed += 1
    assert num_followed >= 5
