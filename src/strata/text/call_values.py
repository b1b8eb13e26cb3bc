"""What the value of one tool parameter may look like in the family's form of a call.

Owns the way from a parameter's JSON schema to a part of a Lark grammar: strings stand as they are,
without quotes, everything else is JSON. It is the reverse of ``tool_values``, by the same types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from llguidance import regex_to_lark

from strata.errors import RequestError
from strata.text.form import Form, json_part
from strata.text.form_limits import MAX_PATTERN_CHARS
from strata.text.tool_form import FUNCTION_END, PARAMETER_END
from strata.text.tool_values import Schema, parameter_schema, resolved, types_of

_ANY: Final = "/(?s:.*)/"
# A tag that may end the value cannot be part of it. Along with other limits that costs too many
# states, so short texts have no end tag at all, and of long ones only the first end counts.
_NOT_AN_END: Final = r"~/(?s:.*)<\/(parameter|function)>(?s:.*)/"
_NO_TAG_ENDS: Final = r"/(?:[^<]|<+[^<\/])*<*/"
_SHORT: Final = 200
_LINE_END: Final = json.dumps(f"\n{PARAMETER_END}\n")
# Keywords of a string that are honoured, and those that ask for nothing.
_HONOURED: Final = frozenset(
    {"type", "enum", "const", "pattern", "minLength", "maxLength", "format", "anyOf", "oneOf"}
)
_SILENT: Final = frozenset(
    {"title", "description", "default", "examples", "example", "nullable", "deprecated"}
    | {"$comment", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"}
)
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_CLASS: Final = re.compile(r"\[\^?\]?[^\]]*\]")
_ANCHOR: Final = re.compile(r"[\^$]")
_DATE: Final = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-][01][0-9]:00)"
_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL}){{0,4}}",
    "email": rf"[A-Za-z0-9_+-]+(?:\.[A-Za-z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL}){{1,4}}",
    "uri": r"[a-z][a-z0-9+.-]{1,20}:\/\/[A-Za-z0-9._~:\/?#@!$&'()*+,;=-]+",
}


def value_part(tool: Schema, name: str, *, is_strict: bool) -> str:
    """What follows the tag of a parameter: its value, the line end and the tag behind it.

    JSON begins with ``%json`` and is a part of a rule; a text is the expression of a lazy terminal.

    Args:
        tool: JSON schema of the tool's arguments.
        name: of the parameter.
        is_strict: what cannot be compiled is refused; else it is left out.

    Raises:
        RequestError: with the keyword that cannot be compiled.
    """
    schema = parameter_schema(tool, name)
    types = types_of(schema, tool)
    if types and "string" not in types:
        return f"{_json_value(schema, tool, types, is_strict=is_strict)} {_LINE_END}"
    if not types and _limits_something(schema) and is_strict:
        raise RequestError("it needs a type.")
    texts = _texts(schema, tool, is_strict=is_strict)
    if "null" in types:
        texts = f'{texts} | "null"'
    return f"({texts}) {_LINE_END}"


def _json_value(schema: Schema, tool: Schema, types: frozenset[str], *, is_strict: bool) -> str:
    whole = {
        **{word: tool[word] for word in ("$defs", "definitions") if word in tool},
        **schema,
    }
    try:
        Form.json_schema(whole, is_lenient=not is_strict)
    except RequestError:
        if is_strict:
            raise
        whole = {"type": sorted(types)}
    return json_part(whole, is_lenient=not is_strict)


def _texts(schema: Schema, tool: Schema, *, is_strict: bool) -> str:
    """A terminal of the strings that a schema allows."""
    try:
        part = _strings(schema, tool, is_strict=is_strict, depth=0)
        Form.lark(f"start: text\ntext[lazy]: ({part}) {_LINE_END}")
    except RequestError:
        if is_strict:
            raise
        return f"{_ANY} & {_NOT_AN_END}"
    return part


def _strings(schema: Schema, tool: Schema, *, is_strict: bool, depth: int) -> str:
    if isinstance(reference := schema.get("$ref"), str) and depth < 8:
        found = resolved(reference, tool)
        if not isinstance(found, Mapping):
            raise RequestError(f"there is no {reference}.")
        return _strings(found, tool, is_strict=is_strict, depth=depth + 1)
    unknown = sorted(set(schema) - _HONOURED - _SILENT)
    if unknown and is_strict:
        raise RequestError(f"{unknown[0]} cannot be compiled for a text.")
    # Texts of a list or a format hold no tags, and are kept as cheap as they are.
    parts = _named(schema) + _formatted(schema, is_strict=is_strict)
    is_free = not parts and "anyOf" not in schema and "oneOf" not in schema
    limits = _long(schema) + _matching(schema)
    for word in ("anyOf", "oneOf"):
        branches = schema.get(word)
        if isinstance(branches, list):
            texts = [
                _strings(branch, tool, is_strict=is_strict, depth=depth + 1)
                for branch in branches
                if isinstance(branch, Mapping) and "string" in types_of(branch, tool)
            ]
            is_free |= not texts
            parts.append(f"({' | '.join(f'({text})' for text in texts)})" if texts else _ANY)
    guard = [_guard(schema)] if is_free else []
    return " & ".join(part for part in (*parts, *limits, *guard) if part) or _ANY


def _guard(schema: Schema) -> str:
    """What keeps end tags out of a text."""
    most = schema.get("maxLength", 0)
    if _is_above(most, _SHORT):
        return ""
    is_limited = most or "pattern" in schema or _is_above(schema.get("minLength", 0), 16)
    return _NO_TAG_ENDS if is_limited else f"{_ANY} & {_NOT_AN_END}"


def _is_above(value: object, bound: int) -> bool:
    return isinstance(value, int) and value > bound


def _named(schema: Schema) -> list[str]:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return []
    texts = [value for value in values if isinstance(value, str)]
    whole = [text for text in texts if PARAMETER_END not in text and FUNCTION_END not in text]
    if not whole:
        raise RequestError("enum allows no text.")
    literals = [json.dumps(text, ensure_ascii=False) if text else '""' for text in whole]
    return [f"({' | '.join(literals)})"]


def _long(schema: Schema) -> list[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    if (least, most) == (0, ""):
        return []
    for value in (least, most):
        if value != "" and (not isinstance(value, int) or value < 0):
            raise RequestError("minLength and maxLength must be whole numbers.")
    return [f"/(?s:.{{{least},{most}}})/"]


def _matching(schema: Schema) -> list[str]:
    """The texts that hold a match of ``pattern`` somewhere."""
    pattern = schema.get("pattern")
    if pattern is None:
        return []
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_CHARS:
        raise RequestError("pattern must be a regular expression of moderate length.")
    parts = [_anchored(branch) for branch in _branches(pattern)]
    return [f"/{regex_to_lark('|'.join(parts), 'dw')}/"]


def _anchored(branch: str) -> str:
    is_begun, is_ended = branch.startswith("^"), branch.endswith("$") and not _is_escaped(branch)
    body = branch[is_begun : len(branch) - is_ended]
    if _ANCHOR.search(_CLASS.sub("", _ESCAPE.sub("", body))):
        raise RequestError("pattern has ^ or $ inside, which cannot be compiled for a text.")
    return f"{'' if is_begun else '(?s:.*)'}(?:{body}){'' if is_ended else '(?s:.*)'}"


def _is_escaped(text: str) -> bool:
    """Whether the last letter stands behind an odd number of backslashes."""
    body = text[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def _branches(pattern: str) -> list[str]:
    """The alternatives of a pattern that stand outside of groups and classes."""
    branches, depth, at, is_class = [""], 0, 0, False
    while at < len(pattern):
        letter = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(letter)
        if letter == "|" and depth == 0 and not is_class:
            branches.append("")
            continue
        branches[-1] += letter
        if is_class:
            is_class = letter != "]"
        elif letter == "[":
            is_class = True
            # A bracket right behind the opening one is a letter of the class.
            for first in ("^]", "]"):
                if pattern.startswith(first, at):
                    branches[-1] += first
                    at += len(first)
                    break
        else:
            depth += (letter == "(") - (letter == ")")
    return branches


def _formatted(schema: Schema, *, is_strict: bool) -> list[str]:
    name = schema.get("format")
    if name is None or (name not in _FORMATS and not is_strict):
        return []
    if name not in _FORMATS:
        raise RequestError(f"format {name} cannot be compiled; there are {', '.join(_FORMATS)}.")
    return [f"/{_FORMATS[str(name)]}/"]


def _limits_something(schema: Schema) -> bool:
    return bool(set(schema) - _SILENT)
