"""The value of one tool parameter: text of the model to JSON, typed by the tool's schema.

Owns the reading of types from a JSON schema, and what happens to text that does not fit them: it
stays text. Called by ``tool_calls``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

_MAX_DEPTH: Final = 16
_ESCAPED: Final = re.compile(r"\\.", re.DOTALL)

Schema = Mapping[str, object]


def parameter_types(tool: Schema, name: str) -> frozenset[str]:
    """JSON types the parameter ``name`` of a tool may have; empty where the schema does not say.

    Args:
        tool: JSON schema of the tool's arguments.
    """
    return _types(parameter_schema(tool, name), tool, 0)


def parameter_schema(tool: Schema, name: str) -> Schema:
    """The schema of one parameter; an empty one where the tool's does not say."""
    properties = tool.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def types_of(schema: object, root: Schema) -> frozenset[str]:
    """JSON types a schema allows; empty where it does not say.

    Args:
        schema: of a value.
        root: the schema that its references are of.
    """
    return _types(schema, root, 0)


def is_streamed(types: frozenset[str]) -> bool:
    """Whether a value of these types is certainly a string from its first letter on."""
    return "string" in types and "null" not in types


def is_inside_string(text: str) -> bool:
    """Whether ``text``, the beginning of some JSON, ends inside of quotes."""
    return _ESCAPED.sub("", text).count('"') % 2 == 1


def value_of(text: str, types: frozenset[str]) -> str:
    """The JSON of a parameter's text."""
    if "string" in types:
        is_null = "null" in types and text.strip() == "null"
        return "null" if is_null else json.dumps(text, ensure_ascii=False)
    stripped = text.strip()
    if "boolean" in types and stripped in ("True", "False"):
        return stripped.lower()
    if "null" in types and stripped in ("", "None"):
        return "null"
    try:
        value = json.loads(stripped, parse_constant=_refuse)
        if not types and isinstance(value, str):
            # The form writes strings as they are, so quotes belong to it.
            value = text
        is_whole = isinstance(value, float) and value.is_integer()
        if is_whole and "integer" in types and "number" not in types:
            value = int(value)
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _types(schema: object, root: Schema, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(item for item in named if isinstance(item, str))
    if isinstance(schema.get("$ref"), str):
        return _types(resolved(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(values := schema.get("enum"), list):
        return frozenset(map(_type_of, values))
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(word), list):
            found = [_types(branch, root, depth + 1) for branch in branches]
            # A branch that says nothing allows anything.
            return frozenset().union(*found) if all(found) else frozenset()
    if isinstance(branches := schema.get("allOf"), list):
        found = [_types(branch, root, depth + 1) for branch in branches]
        return next((types for types in found if types), frozenset())
    return frozenset()


def resolved(reference: str, root: Schema) -> object:
    """What a reference inside the schema names; None where there is no such place."""
    if not reference.startswith("#"):
        return None
    place: object = root
    for part in reference[1:].split("/")[1:]:
        if not isinstance(place, Mapping):
            return None
        place = place.get(part.replace("~1", "/").replace("~0", "~"))
    return place


def _type_of(value: object) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    return names.get(type(value), "array" if isinstance(value, list) else "object")
