"""Forms: every text that the masks let through is what was asked for, and bad forms are refused.

Texts are random walks through the masks, checked by ``jsonschema`` and ``re``.
"""

from __future__ import annotations

import contextlib
import re
import resource
import time

import pytest
from tests.form_schemas import SCHEMAS, check
from tests.unit.text.masking import ids_of, vocabulary, walk

from strata.errors import RequestError
from strata.text.form import Form
from strata.text.form_limits import MAX_CHARS, MAX_DEPTH


@pytest.fixture(scope="module")
def tokens():
    return vocabulary()


def test_there_are_enough_schemas():
    assert len(SCHEMAS) >= 40


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_walks_give_what_the_schema_allows(tokens, name):
    form = Form.json_schema(SCHEMAS[name])
    for seed in range(25):
        check(walk(tokens, form, seed).decode("utf-8"), SCHEMAS[name])


@pytest.mark.parametrize(
    "pattern",
    ["[0-9]{3}-[a-f]+", "(?:yes|no)!?", "[あ-ん]{1,4}", "é*日本?", "\\d{2}:\\d{2}", "(?i:abc)\\.x"],
)
def test_regex(tokens, pattern):
    form = Form.regex(pattern)
    for seed in range(10):
        assert re.fullmatch(pattern, walk(tokens, form, seed).decode())


def test_lark_and_choices(tokens):
    sums = Form.lark('start: sum\nsum: NUM | sum "+" NUM\nNUM: /[1-9][0-9]?/')
    texts = {walk(tokens, sums, seed).decode() for seed in range(10)}
    assert all(re.fullmatch(r"[1-9][0-9]?(\+[1-9][0-9]?)*", text) for text in texts)
    choices = ["a", "ab", 'say "x"\\', "日本\n", "🦀"]
    chosen = {walk(tokens, Form.one_of(choices), seed).decode() for seed in range(60)}
    assert chosen == set(choices)


def test_gbnf(tokens):
    form = Form.gbnf('root ::= item ("," item)*\nitem ::= [0-9]+ | "é" "日本"?\n')
    for seed in range(20):
        assert re.fullmatch(r"(\d+|é(日本)?)(,(\d+|é(日本)?))*", walk(tokens, form, seed).decode())


@pytest.mark.parametrize(
    ("schema", "place", "word"),
    [
        ({"properties": {"a": {"items": {"not": {"type": "null"}}}}}, "properties.a.items", "not"),
        ({"anyOf": [{"type": "null"}, {"if": {}}]}, "anyOf[1]", "if"),
        ({"type": "array", "uniqueItems": True}, "", "uniqueItems"),
        ({"properties": {"a": {"contains": {}}}}, "properties.a", "contains"),
        ({"propertyNames": {"maxLength": 3}}, "", "propertyNames"),
        ({"dependentRequired": {"a": ["b"]}}, "", "dependentRequired"),
        ({"$defs": {"x": {"type": "strng"}}, "$ref": "#/$defs/x"}, "$defs.x", "strng"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "properties.a", "none"),
        ({"$ref": "https://example.org/s.json"}, "", "example.org"),
        ({"properties": {"a": {"pattern": "(?=x)"}}}, "", "look-around"),
        ({"properties": {"a": {"type": "string", "pattern": "(a"}}}, "properties.a", "unclosed"),
        ({"type": "string", "format": "iri"}, "", "iri"),
        ({"items": [{"type": "null"}]}, "items", "prefixItems"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "", "oneOf"),
        ({"type": "integer", "minimum": 5, "maximum": 2}, "", "minimum"),
        ({"enum": []}, "", ""),
        ({"enum": "a"}, "", "enum"),
        ({"properties": []}, "", "properties"),
        ({"properties": {"a": 3}}, "properties.a", "number"),
        ({"type": "integer", "multipleOf": 1000003}, "multipleOf", "states"),
        ({"type": "number", "multipleOf": 0}, "multipleOf", "above 0"),
        ({"type": "number", "multipleOf": "x"}, "multipleOf", "number"),
        ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "allOf", "states"),
        ({"type": "object", "minProperties": 1}, "minProperties", "required"),
        ({"$ref": "#"}, "", "no text"),
        ({"const": float("nan")}, "", "JSON"),
        ({"type": "string", "minLength": -1}, "", "minLength"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(schema, place, word):
    with pytest.raises(RequestError) as caught:
        Form.json_schema(schema)
    text = str(caught.value)
    assert word in text
    assert text.startswith(place)
    assert "x-guidance" not in text


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (Form.regex, "(a"),
        (Form.regex, "a(?=b)"),
        (Form.regex, "(" * 5000 + ")" * 5000),
        (Form.regex, "\ud800"),
        (Form.lark, ""),
        (Form.lark, "start: missing"),
        (Form.lark, "root ::= x"),
        (Form.lark, "start: start"),
        (Form.lark, 'start: "a" <|im_start|>'),
        (Form.lark, 'start: %json {"type": "strng"}'),
        (Form.lark, "start: " + "(" * 9000 + '"a"' + ")" * 9000),
        (Form.lark, 'start: A\nA: "x" A'),
        (Form.one_of, []),
        (Form.gbnf, ""),
        (Form.gbnf, "root ::= missing"),
        (Form.gbnf, 'root := "a"'),
        (Form.gbnf, "root ::= " + "(" * 30_000),
        (Form.gbnf, "root ::= " + '"a" ' * 30_000),
    ],
)
def test_bad_grammars_are_refused(make, source):
    with pytest.raises(RequestError):
        make(source)


def nested(num: int, opening: str, closing: str) -> dict:
    schema: dict = {"type": "null"}
    for _ in range(num):
        schema = {opening: [schema]} if closing else {opening: schema}
    return schema


HOSTILE = {
    "deep items": nested(20_000, "items", ""),
    "deep anyOf": nested(20_000, "anyOf", "]"),
    "just deep enough": nested(MAX_DEPTH, "items", ""),
    "doubling references": {
        "$ref": "#/$defs/a0",
        "$defs": {
            **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)},
            "a40": {"type": "string"},
        },
    },
    "product of choices": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{n}": {"const": m}}, "required": ["p1"]} for m in "abcd"]}
            for n in range(14)
        ]
    },
    "many members": {"properties": {f"p{n}": {"type": "string"} for n in range(900)}},
    "more members": {"properties": {f"p{n}": {} for n in range(5000)}},
    "large enum": {"enum": [f"value {n}" for n in range(12_000)]},
    "powers": {"type": "string", "pattern": "((((a{0,99}){0,99}){0,99}){0,99}){0,99}"},
    "states double": {"type": "string", "pattern": "(a|b)*a(a|b){60}$"},
    "long pattern": {"type": "string", "pattern": "a|" * 100_000},
    "multiples": {"type": "integer", "multipleOf": 999_983},
    "fine multiples": {"type": "number", "multipleOf": 1e-300},
    "large number": {"type": "integer", "minimum": 10**400},
    "long": {"enum": ["x" * (MAX_CHARS + 1)]},
}


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_cost_little(name):
    start_s, before_mib = time.process_time(), peak_mib()
    with contextlib.suppress(RequestError):
        Form.json_schema(HOSTILE[name])
    assert time.process_time() - start_s < 3.0
    assert peak_mib() - before_mib < 200


@pytest.mark.parametrize(
    "grammar",
    [
        'start: (a{1,1000}){1,1000}\na: ("a"|"b"){1,1000}',
        'start: a\na: a a | "a" | a a a',
        "start: A\nA: /(?:.*a.{90})/ & /(?:.*b.{80}c)/",
        "start: A\nA: ~/(?s:.*)(a|b)(a|b){40}c(?s:.*)/",
    ],
)
def test_hostile_grammars_cost_little_at_every_token(tokens, grammar):
    start_s, before_mib = time.process_time(), peak_mib()
    taken: list[int] = []
    with contextlib.suppress(RequestError):
        masks = tokens.compile(Form.lark(grammar)).result()
        for step in range(60):
            ids = ids_of(masks.words_after(taken))
            taken.append(next((token for token in b"ba"[step % 2 :] if token in ids), ids[0]))
    assert time.process_time() - start_s < 3.0
    assert peak_mib() - before_mib < 200


def test_a_form_that_becomes_too_complex_says_so(tokens):
    form = Form.lark('start: (a{1,1000}){1,1000}\na: ("a"|"b"){1,1000}')
    masks = tokens.compile(form).result()

    def go_on() -> None:
        for num in range(200):
            masks.words_after(list(b"a" * num))

    with pytest.raises(RequestError, match="required form cannot be followed"):
        go_on()
