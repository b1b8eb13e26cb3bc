"""JSON schemas that answers are held to, and the validator they are checked with.

The validator is ``jsonschema``, which shares no code with what makes the masks.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema

TEXT = {"type": "string", "maxLength": 12}
PERSON = {
    "type": "object",
    "properties": {"name": TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def closed(properties: dict[str, Any], required: list[str] | None = None, **rest: Any) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **rest,
    }


TREE = {
    "$defs": {
        "node": closed(
            {
                "value": {"type": "integer", "minimum": -9, "maximum": 9},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            ["value"],
        )
    },
    "$ref": "#/$defs/node",
}
LIST = {
    "type": "object",
    "properties": {
        "head": {"type": "boolean"},
        "tail": {"anyOf": [{"$ref": "#"}, {"const": None}]},
    },
    "required": ["head", "tail"],
    "additionalProperties": False,
}
EXPRESSION = {
    "$defs": {
        "expr": {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 99},
                {"$ref": "#/$defs/sum"},
            ]
        },
        "sum": closed({"op": {"enum": ["+", "-"]}, "args": {"$ref": "#/$defs/pair"}}),
        "pair": {
            "type": "array",
            "prefixItems": [{"$ref": "#/$defs/expr"}, {"$ref": "#/$defs/expr"}],
            "items": False,
            "minItems": 2,
        },
    },
    "$ref": "#/$defs/expr",
}

SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": PERSON,
    "nested": closed({"who": PERSON, "where": closed({"city": TEXT, "at": closed({"n": TEXT})})}),
    "deep": {
        "$defs": {"p": PERSON},
        **closed({"a": closed({"b": closed({"c": {"$ref": "#/$defs/p"}})})}),
    },
    "optional members": closed({"a": TEXT, "b": {"type": "null"}, "c": {"type": "boolean"}}, ["b"]),
    "empty object": closed({}),
    "any object": {"type": "object"},
    "any value": {},
    "enum": {"enum": ["red", "green", "blue"]},
    "enum of many types": {"enum": ["a", 1, 2.5, None, True, [1, "x"], {"k": []}]},
    "const": closed({"kind": {"const": "circle"}, "r": {"type": "number", "minimum": 0}}),
    "unicode enum": {"enum": ["日本語", "Ελλάδα", "🦀🚀", "é", "naïve café"]},
    "unicode names": closed({"名前": TEXT, "größe": {"type": "boolean"}, "🦀": TEXT}),
    "unicode pattern": {"type": "string", "pattern": "^[あ-んア-ン]{2,6}$"},
    "quotes in names": closed({'say "hi"\\': {"type": "boolean"}, "a\nb": {"type": "null"}}),
    "escapes in enum": {"enum": ['"', "\\", "\n", "\t\u0001", "</x>"]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    "pattern somewhere": {"type": "string", "pattern": "ab+a", "maxLength": 20},
    "pattern of choices": {"type": "string", "pattern": "^(?:cat|dog|bird)s?$"},
    "two patterns": {"allOf": [{"type": "string", "pattern": "^a.{0,4}$"}, {"pattern": "z$"}]},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5},
    "free text": closed({"text": {"type": "string"}}),
    "integer bounds": {"type": "integer", "minimum": -17, "maximum": 123},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 12},
    "number bounds": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 3.5},
    "negative numbers": {"type": "number", "maximum": -0.5, "minimum": -1000},
    "multiples": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "several types": {"type": ["string", "null", "boolean"], "maxLength": 6},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "array of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer", "maximum": 9}, "maxItems": 3},
        "maxItems": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, TEXT, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "tuple with more": {
        "type": "array",
        "prefixItems": [{"const": "head"}],
        "items": {"type": "null"},
        "minItems": 2,
        "maxItems": 4,
    },
    "anyOf": {"anyOf": [PERSON, {"type": "integer"}, {"type": "array", "maxItems": 0}]},
    "anyOf of shapes": {
        "anyOf": [
            closed({"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}}),
            closed({"kind": {"const": "square"}, "side": {"type": "number", "minimum": 0}}),
        ]
    },
    "oneOf apart": {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}]},
    "allOf": {
        "allOf": [
            {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ],
    },
    "additional integers": {
        "type": "object",
        "properties": {"id": TEXT},
        "required": ["id"],
        "additionalProperties": {"type": "integer"},
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}, "^y_": TEXT},
        "additionalProperties": False,
        "maxProperties": 3,
    },
    "few members": {"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 2},
    "as many as required": {
        "type": "object",
        "properties": {"a": TEXT},
        "required": ["a"],
        "minProperties": 1,
        "maxProperties": 3,
    },
    "nullable by anyOf": closed({"a": {"anyOf": [TEXT, {"type": "null"}]}}),
    "tree": TREE,
    "linked list": LIST,
    "expression": EXPRESSION,
    "definitions": {"definitions": {"t": TEXT}, **closed({"t": {"$ref": "#/definitions/t"}})},
    "reference to a member": closed(
        {"a": {"type": "integer", "maximum": 5}, "b": {"$ref": "#/properties/a"}}
    ),
    "date": {"type": "string", "format": "date"},
    "time and uuid": closed(
        {
            "at": {"type": "string", "format": "date-time"},
            "id": {"format": "uuid", "type": "string"},
        },
    ),
    "addresses": closed(
        {
            "ip": {"type": "string", "format": "ipv4"},
            "mail": {"type": "string", "format": "email", "maxLength": 30},
        }
    ),
    "false member": {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "no": False},
        "required": ["yes"],
        "additionalProperties": False,
    },
    "annotations": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.org/x",
        "title": "T",
        "description": "d",
        "default": {},
        "examples": [{}],
        "$comment": "c",
        **closed({"a": {"type": "integer", "title": "A", "readOnly": True}}),
    },
}


def check(text: str, schema: Any) -> Any:
    """The value in ``text``, which is one JSON value that the schema allows, formats included."""
    value = json.loads(text, parse_constant=_refuse)
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema)
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)
    return value


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")
