"""What a JSON schema may cost before it is compiled, and where in it a fault lies.

Owns the limits that the compiler of grammars does not have itself. The walk is iterative, so a
schema of any depth is refused and never overflows a stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Final

from strata.errors import RequestError

MAX_CHARS: Final = 256 * 1024
"""Longest schema, pattern or grammar, in characters."""
MAX_DEPTH: Final = 48
MAX_PROPERTIES: Final = 1000
MAX_PATTERN_CHARS: Final = 4096
# Multiples become an automaton with this many states.
_MAX_MULTIPLE: Final = 20_000

# Keywords whose value is a schema, a list of schemas, or schemas by name.
_ONE: Final = ("items", "additionalProperties")
_MANY: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions")


def children(schema: object) -> Iterator[tuple[str, object]]:
    """The schemas right inside one, each with its path from there."""
    if not isinstance(schema, Mapping):
        return
    for word in _ONE:
        if word in schema:
            yield word, schema[word]
    for word in _MANY:
        branches = schema.get(word)
        if isinstance(branches, list):
            for index, branch in enumerate(branches):
                yield f"{word}[{index}]", branch
    for word in _NAMED:
        named = schema.get(word)
        if isinstance(named, Mapping):
            for name, branch in named.items():
                yield f"{word}.{name}", branch


def check_schema(schema: object) -> None:
    """Refuses what would cost too much, or would be let through although it says more.

    Raises:
        RequestError: with the path of what is refused.
    """
    waiting: list[tuple[str, object, int]] = [("", schema, 0)]
    multiples: list[Decimal] = []
    while waiting:
        path, item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise refused(path[:200], f"it is nested deeper than {MAX_DEPTH} levels")
        if not isinstance(item, Mapping | bool):
            raise refused(path, f"a schema is an object or a boolean, not {_kind(item)}")
        if isinstance(item, Mapping):
            _check_one(path, item)
            if "multipleOf" in item:
                multiples.append(_multiple(path, item["multipleOf"]))
                _check_multiples(path, multiples)
        waiting += [(joined(path, step), child, depth + 1) for step, child in children(item)]


def refused(path: str, reason: str) -> RequestError:
    """The error of a schema, which says where in it."""
    return RequestError(f"{path + ': ' if path else ''}{reason}.")


def joined(path: str, step: str) -> str:
    """The path of ``step`` inside ``path``."""
    return f"{path}.{step}" if path else step


def _check_one(path: str, schema: Mapping[str, object]) -> None:
    if isinstance(schema.get("items"), list):
        where = joined(path, "items")
        raise refused(where, "a list of schemas is not supported here; it is called prefixItems")
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
        where = joined(path, "properties")
        raise refused(where, f"there are {len(properties)}, more than {MAX_PROPERTIES}")
    named = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(named if isinstance(named, Mapping) else ())]
    for pattern in patterns:
        if isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARS:
            where = joined(path, "pattern")
            raise refused(where, f"it is longer than {MAX_PATTERN_CHARS} characters")
    _check_min_properties(path, schema)


def _check_min_properties(path: str, schema: Mapping[str, object]) -> None:
    """Names that the schema does not list may come twice, and would be counted twice."""
    least, required = schema.get("minProperties", 0), schema.get("required")
    if isinstance(least, int) and least > (len(required) if isinstance(required, list) else 0):
        where = joined(path, "minProperties")
        raise refused(where, "it is supported only up to the number of required properties")


def _multiple(path: str, value: object) -> Decimal:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(float(str(value))) or float(str(value)) <= 0:
        raise refused(joined(path, "multipleOf"), "it must be a number above 0")
    return Decimal(str(value))


def _check_multiples(path: str, multiples: list[Decimal]) -> None:
    """Several may apply to one number, so all of a schema are bounded together."""
    places = max(max(-int(item.as_tuple().exponent), 0) for item in multiples)
    shared = math.lcm(*(int(item.scaleb(places)) for item in multiples)) if places < 12 else 0
    if not 0 < shared <= _MAX_MULTIPLE:
        raise refused(
            joined(path, "multipleOf"),
            f"the multiples of this schema have more than {_MAX_MULTIPLE} states together",
        )


def _kind(value: object) -> str:
    kinds = {str: "text", int: "a number", float: "a number", type(None): "null", list: "a list"}
    return kinds.get(type(value), type(value).__name__)
