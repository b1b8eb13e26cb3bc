"""Answers with tool calls of a required form, read back by the parser of calls.

Texts are random walks through the masks; what the parser makes of them is checked by
``jsonschema``.
"""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from tests.form_schemas import PERSON, TEXT, TREE, check, closed
from tests.unit.text.masking import vocabulary, walk

from strata.errors import RequestError
from strata.text.call_form import CallWish, call_form
from strata.text.form import Form
from strata.text.tool_calls import Arguments, CallBegun, CallEnded, Prose, ToolCallParser

WEATHER = closed(
    {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 20},
        "unit": {"enum": ["C", "F"]},
        "note": {"type": ["string", "null"], "maxLength": 5},
    },
    ["city", "days"],
)
TEXTS = closed(
    {
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$|^x{3}$"},
        "part": {"type": "string", "pattern": "ab|c", "maxLength": 30},
        "when": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "id": {"type": "string", "format": "uuid"},
        "ip": {"type": "string", "format": "ipv4"},
        "mail": {"type": "string", "format": "email"},
        "short": {"type": "string", "minLength": 2, "maxLength": 4},
        "long": {"type": "string", "minLength": 1, "maxLength": 1000},
        "not_empty": {"type": "string", "minLength": 1},
        "kind": {"const": "日本"},
        "some": {"anyOf": [{"enum": ["a", "b"]}, {"type": "string", "pattern": "^z+$"}]},
        "none": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
        "same": {"$ref": "#/$defs/t"},
        "mixed": {"enum": ["x", 1, None]},
    },
    **{"$defs": {"t": {"type": "string", "enum": ['q"', "</x>", "two\nlines", " "]}}},
)
VALUES = closed(
    {
        "flag": {"type": "boolean"},
        "nothing": {"type": "null"},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "either": {"type": ["integer", "boolean"]},
        "list": {"type": "array", "items": TEXT, "maxItems": 3},
        "who": {"$ref": "#/$defs/person"},
        "free": {},
    },
    **{"$defs": {"person": PERSON}},
)
TOOLS = {
    "weather": WEATHER,
    "texts": TEXTS,
    "values": VALUES,
    "no_arguments": closed({}),
    "nothing_said": {},
    "any_names": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "maxProperties": 3,
    },
    "choice": {"anyOf": [closed({"a": TEXT}), closed({"b": {"type": "integer"}})]},
    "tree": TREE,
    "naïve.tool-2": closed({"größe": {"type": "integer"}, "two words": TEXT}),
}


@pytest.fixture(scope="module")
def tokens():
    return vocabulary()


def read(text: str, tools: dict, step: int = 7) -> tuple[str, list[tuple[str, object]]]:
    """What is said, and the calls with their arguments; every call is whole."""
    parser = ToolCallParser(tools)
    pieces = [
        piece for at in range(0, len(text), step) for piece in parser.feed(text[at : at + step])
    ]
    pieces += parser.finish(is_cut=False)
    said, calls, arguments, is_open = "", [], "", False
    for piece in pieces:
        match piece:
            case Prose(more):
                said += more
            case CallBegun(name):
                assert not is_open
                calls.append(name)
                arguments, is_open = "", True
            case Arguments(more):
                arguments += more
            case CallEnded():
                calls[-1] = (calls[-1], json.loads(arguments))
                is_open = False
    assert not is_open
    return said, calls


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("name", TOOLS)
def test_a_required_call_obeys_its_schema(tokens, name, is_strict):
    tools = {name: TOOLS[name]}
    strict_names = [name] if is_strict and name != "nothing_said" else []
    form = call_form(CallWish(tools, strict_names, must_call=True, is_one_call=True))
    for seed in range(25):
        text = walk(tokens, form, seed).decode("utf-8")
        said, calls = read(text, tools)
        assert said == "", text
        [(called, arguments)] = calls
        assert called == name
        check(json.dumps(arguments), TOOLS[name])


def test_several_calls_of_several_tools(tokens):
    form = call_form(CallWish(TOOLS, must_call=True))
    seen, most = set(), 0
    for seed in range(60):
        said, calls = read(walk(tokens, form, seed).decode("utf-8"), TOOLS)
        assert said == ""
        for name, arguments in calls:
            check(json.dumps(arguments), TOOLS[name])
            seen.add(name)
        most = max(most, len(calls))
    assert seen == set(TOOLS)
    assert most > 1


def test_prose_or_strict_calls(tokens):
    tools = {"weather": WEATHER, "values": VALUES}
    form = call_form(CallWish(tools, ["weather", "values"]))
    counts = [0, 0, 0]
    for seed in range(60):
        text = walk(tokens, form, seed).decode("utf-8")
        said, calls = read(text, tools)
        for name, arguments in calls:
            check(json.dumps(arguments), tools[name])
        if not calls:
            assert text.startswith(said)
            assert "<function=" not in said
        counts[bool(calls) + (bool(calls) and bool(said))] += 1
    assert counts[0] > 0
    assert counts[1] + counts[2] > 0


def test_a_form_or_calls(tokens):
    tools = {"weather": WEATHER}
    form = call_form(CallWish(tools), Form.json_schema(PERSON))
    num_calls = 0
    for seed in range(40):
        text = walk(tokens, form, seed).decode("utf-8")
        said, calls = read(text, tools)
        num_calls += len(calls)
        if calls:
            assert said == ""
            check(json.dumps(calls[0][1]), WEATHER)
        else:
            check(said, PERSON)
    assert num_calls > 0


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "parameter a uniqueItems"),
        ({"properties": {"a": {"type": "array", "items": {"not": {}}}}}, "parameter a items not"),
        ({"properties": {"a": {"type": "string", "format": "iri"}}}, "parameter a iri"),
        ({"properties": {"a": {"type": "string", "pattern": "(?!x)"}}}, "parameter a look-around"),
        ({"properties": {"a": {"type": "string", "not": {"const": ""}}}}, "parameter a not"),
        ({"properties": {"a": {"type": "string", "pattern": "(^|x)a"}}}, "parameter a inside"),
        ({"properties": {"a": {"type": "string", "minLength": "x"}}}, "parameter a minLength"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "parameter a"),
        ({"properties": {"a": {"minLength": 2}}}, "parameter a type"),
        ({"anyOf": [{"type": "object", "propertyNames": {}}]}, "anyOf[0] propertyNames"),
        ({"properties": {"a": {"type": "string", "enum": [1]}}}, "parameter a"),
    ],
)
def test_strict_tools_are_refused_by_name_and_others_are_followed_as_far_as_they_go(
    tokens, schema, words
):
    with pytest.raises(RequestError) as caught:
        call_form(CallWish({"f": schema}, ["f"], must_call=True))
    assert all(word in str(caught.value) for word in ["tool f", *words.split()])
    form = call_form(CallWish({"f": schema}, must_call=True, is_one_call=True))
    for seed in range(5):
        [(name, arguments)] = read(walk(tokens, form, seed).decode("utf-8"), {"f": schema})[1]
        assert name == "f"
        assert isinstance(arguments, dict)


def test_names_that_cannot_be_written():
    with pytest.raises(RequestError, match="name"):
        call_form(CallWish({"a b": {}}, must_call=True))


@pytest.mark.parametrize(
    "pattern",
    [
        "^a",
        "a$",
        "^a$",
        "a",
        "^a|b$",
        "[|]x",
        "[]|]y",
        "[^]|]z",
        "a\\$",
        "\\^a",
        "a\\\\$",
        "x|",
    ],
)
def test_patterns_of_texts_are_searched_for_as_schemas_say(tokens, pattern):
    tools = {"f": closed({"a": {"type": "string", "pattern": pattern, "maxLength": 6}})}
    form = call_form(CallWish(tools, ["f"], must_call=True, is_one_call=True))
    for seed in range(12):
        [(_, arguments)] = read(walk(tokens, form, seed).decode("utf-8"), tools)[1]
        assert re.search(
            pattern.replace("$", r"\Z") if pattern[-2:] != "\\$" else pattern, arguments["a"]
        )
        jsonschema.validate(arguments, tools["f"])


@pytest.mark.parametrize(
    "arguments",
    [
        {"list": ["</parameter>\n</function>\n</tool_call>", "x"]},
        {"list": ["</parameter>\n<parameter=flag>"], "flag": True},
        {"list": ['\\"</parameter></function></tool_call>']},
    ],
)
def test_tags_inside_of_json_do_not_end_it(arguments):
    """What the form of JSON lets through must be read back as it was."""
    body = "".join(
        f"<parameter={name}>\n{json.dumps(value)}\n</parameter>\n"
        for name, value in arguments.items()
    )
    text = f"<tool_call>\n<function=values>\n{body}</function>\n</tool_call>"
    for step in (1, 3, 1000):
        assert read(text, TOOLS, step) == ("", [("values", arguments)])


def test_tags_inside_of_an_object_do_not_end_it():
    value = {"a": 'x</function>\n</tool_call>"', "b": {"c": "</function>"}}
    text = f"<tool_call>\n<function=any_names>\n{json.dumps(value)}\n</function>\n</tool_call>"
    for step in (1, 5, 1000):
        assert read(text, TOOLS, step) == ("", [("any_names", value)])
