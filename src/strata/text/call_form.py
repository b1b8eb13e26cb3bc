"""The form of an answer with tool calls: the family's XML form, arguments that obey their schemas.

Owns the grammar of calls and of what may stand around them. It is what ``tool_calls`` reads: a text
of this form gives back calls whose arguments the tools' schemas allow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from strata.errors import RequestError
from strata.text.call_values import value_part
from strata.text.form import BODY, HEADER, Form, json_part
from strata.text.form_limits import check_schema
from strata.text.tool_form import FUNCTION_END, TOOL_CALL, TOOL_CALL_END

if TYPE_CHECKING:
    from strata.text.tool_values import Schema

_NAME: Final = re.compile(r"[^\s<>]{1,128}")
_MAX_TOOLS: Final = 256
# Members of a tool's schema that the form of parameters honours, and those that ask for nothing.
_OF_PARAMETERS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
    | {"title", "description", "$schema", "$id", "$comment", "default", "examples", "strict"}
)
_LOCAL: Final = ("#/$defs/", "#/definitions/")
_PROSE: Final = r"""
TEXT: /(?s:.*)/ & ~NAMED
BEFORE: (/((?s:.*)\n)?/ & ~NAMED) "<tool_call>"
NAMED: /(?s:.*)(<tool_call>|<function=)(?s:.*)/
"""


@dataclass(frozen=True, slots=True)
class CallWish:
    """Which calls an answer may or must have."""

    tools: Mapping[str, Schema]  # JSON schema of the arguments by name
    strict_names: Collection[str] = ()  # whose schemas are compiled whole or refused
    must_call: bool = False
    is_one_call: bool = False


def call_form(wish: CallWish, body: Form | None = None) -> Form:
    """The form of an answer.

    Args:
        wish: its calls.
        body: what it is without a call; None is any prose, which may also stand before a call.

    Raises:
        RequestError: with the tool and the keyword that cannot be compiled.
    """
    if len(wish.tools) > _MAX_TOOLS:
        raise RequestError(f"there are more than {_MAX_TOOLS} tools.")
    rules = []
    for index, (name, schema) in enumerate(wish.tools.items()):
        try:
            rules += _function(index, name, schema, is_strict=name in wish.strict_names)
        except RequestError as error:
            raise RequestError(f"tool {name}: {error}") from None
    functions = " | ".join(f"f{index}" for index in range(len(wish.tools)))
    lines = [
        HEADER + _start(wish, body),
        f"calls: call{'' if wish.is_one_call else ' (GAP call)*'}",
        f'call: "{TOOL_CALL}" inside',
        "GAP: /\\n{1,2}/",
        f'inside: /\\n?/ ({functions}) /\\n?/ "{TOOL_CALL_END}"',
        *rules,
    ]
    grammars: list[dict[str, object]] = [{"lark_grammar": "\n".join(lines)}]
    if body is not None and not wish.must_call:
        grammars.append(body.part)
    return Form(json.dumps({"grammars": grammars})).check()


def _start(wish: CallWish, body: Form | None) -> str:
    if wish.must_call:
        return "start: calls"
    if body is not None:
        return f"start: @{BODY} | calls"
    more = "" if wish.is_one_call else " (GAP call)*"
    return f"start: TEXT | BEFORE inside{more}{_PROSE}"


def _function(index: int, name: str, schema: Schema, *, is_strict: bool) -> list[str]:
    """Rules of one tool."""
    if not _NAME.fullmatch(name):
        raise RequestError("its name cannot be written in a call.")
    check_schema(schema)
    opening = json.dumps(f"<function={name}>\n", ensure_ascii=False)
    if not _has_parameters(schema):
        part = _object(schema, is_strict=is_strict)
        return [f'f{index}: {opening} {part} "\\n{FUNCTION_END}"']
    properties = schema.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    rules, steps = [], []
    for place, parameter in enumerate(names):
        rule = f"f{index}_p{place}"
        try:
            part = value_part(schema, parameter, is_strict=is_strict)
        except RequestError as error:
            raise RequestError(f"parameter {parameter}: {error}") from None
        tag = json.dumps(f"<parameter={parameter}>\n", ensure_ascii=False)
        # A text and the tag behind it are one terminal, so that its end is certain.
        if part.startswith("%json"):
            rules.append(f"{rule}: {tag} {part}")
        else:
            rules += [f"{rule}: {tag} {rule}_v", f"{rule}_v[lazy]: {part}"]
        steps.append(rule if parameter in needed else f"{rule}?")
    return [f'f{index}: {opening} {" ".join(steps)} "{FUNCTION_END}"', *rules]


def _has_parameters(schema: Schema) -> bool:
    """Whether the arguments can be written one by one; else they are one JSON object."""
    properties = schema.get("properties", {})
    if set(schema) - _OF_PARAMETERS or schema.get("type", "object") != "object":
        return False
    if not isinstance(properties, Mapping) or not all(map(_NAME.fullmatch, properties)):
        return False
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(name in properties for name in required):
        return False
    if not properties and isinstance(schema.get("additionalProperties"), Mapping):
        return False
    return all(reference.startswith(_LOCAL) for reference in _references(properties))


def _references(value: object) -> list[str]:
    found: list[str] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if isinstance(reference := item.get("$ref"), str):
                found.append(reference)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return found


def _object(schema: Schema, *, is_strict: bool) -> str:
    try:
        Form.json_schema(schema, is_lenient=not is_strict)
    except RequestError:
        if is_strict:
            raise
        return json_part({"type": "object"})
    return json_part(schema, is_lenient=not is_strict)
