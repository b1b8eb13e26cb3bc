"""The form an answer must have, as clients ask for it, and its way to a grammar.

Owns the names under which each kind of server takes a form: OpenAI's formats, fields of llama.cpp
and vLLM. What compiles is ``strata.text.form``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import msgspec

from strata.errors import RequestError
from strata.server.faults import bad_request
from strata.text.call_form import CallWish, call_form
from strata.text.form import Form

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_CHOICES: Final = 1000


class FormKind(Enum):
    """What a form is written in."""

    JSON_SCHEMA = auto()
    REGEX = auto()
    GRAMMAR = auto()
    CHOICE = auto()


@dataclass(frozen=True, slots=True)
class FormWish:
    """A form as it was sent."""

    kind: FormKind
    source: Any
    field: str  # where it stands in the body


# Fields of a body outside of OpenAI's, and of vLLM's object of the same.
EXTRA_FIELDS: Final = {
    "json_schema": FormKind.JSON_SCHEMA,
    "grammar": FormKind.GRAMMAR,
    "regex": FormKind.REGEX,
    "guided_json": FormKind.JSON_SCHEMA,
    "guided_regex": FormKind.REGEX,
    "guided_grammar": FormKind.GRAMMAR,
    "guided_choice": FormKind.CHOICE,
}
_STRUCTURED: Final = {
    "json": FormKind.JSON_SCHEMA,
    "json_object": FormKind.JSON_SCHEMA,
    "regex": FormKind.REGEX,
    "grammar": FormKind.GRAMMAR,
    "choice": FormKind.CHOICE,
}


def format_wish(
    kind: str, schema: object, field: str, *, schema_field: str = "schema"
) -> FormWish | None:
    """The wish of a format: text, json_object or json_schema.

    Args:
        kind: its type.
        schema: of its JSON, where it brings one.
        field: where the format stands in the body.
        schema_field: where the schema stands in the format.

    Raises:
        Fault: 400, a schema is missing.
    """
    if kind == "text":
        return None
    if kind == "json_schema" and schema is None:
        where = f"{field}.{schema_field}"
        raise bad_request(f"{where} is missing.", where, code="missing_required_parameter")
    if schema is None:
        return FormWish(FormKind.JSON_SCHEMA, {"type": "object"}, field)
    return FormWish(FormKind.JSON_SCHEMA, schema, f"{field}.{schema_field}")


def one_wish(format_wished: FormWish | None, extras: Mapping[str, object]) -> FormWish | None:
    """The one form that is wished for.

    Args:
        format_wished: by a format.
        extras: values of ``EXTRA_FIELDS`` and of structured_outputs; None is no value.

    Raises:
        Fault: 400, there are two.
    """
    found = [] if format_wished is None else [format_wished]
    for name, kind in EXTRA_FIELDS.items():
        if (value := extras.get(name)) is not None:
            found.append(FormWish(kind, value, name))
    structured = extras.get("structured_outputs")
    if isinstance(structured, dict):
        for name, value in structured.items():
            field = f"structured_outputs.{name}"
            if name not in _STRUCTURED:
                raise bad_request(f"unknown field: {field}.", field, code="unknown_parameter")
            if value is not None and value is not False:
                source = {"type": "object"} if name == "json_object" else value
                found.append(FormWish(_STRUCTURED[name], source, field))
    if len(found) > 1:
        names = " and ".join(item.field for item in found)
        raise bad_request(f"an answer has one form, but there are {names}.", found[1].field)
    return found[0] if found else None


def form_of(wish: FormWish) -> Form:
    """The form, compiled. Takes time.

    Raises:
        Fault: 400 that names the field and what in it cannot be compiled.
    """
    source = wish.source
    try:
        match wish.kind:
            case FormKind.JSON_SCHEMA:
                return Form.json_schema(_schema(source))
            case FormKind.REGEX:
                return Form.regex(_text(source))
            case FormKind.GRAMMAR:
                return Form.of_grammar(_text(source))
            case FormKind.CHOICE:
                return Form.one_of(_choices(source))
    except RequestError as error:
        raise bad_request(f"{wish.field}: {error}", wish.field, code="invalid_schema") from None


def form_of_calls(wish: CallWish, body: Form | None) -> Form:
    """The form of an answer with calls, compiled. Takes time.

    Raises:
        Fault: 400 that names the tool and what in its schema cannot be compiled.
    """
    try:
        return call_form(wish, body)
    except RequestError as error:
        raise bad_request(f"tools: {error}", "tools", code="invalid_schema") from None


def _schema(source: object) -> Mapping[str, object]:
    if isinstance(source, str | bytes):
        try:
            source = msgspec.json.decode(source)
        except (msgspec.DecodeError, RecursionError):
            raise RequestError("it is no JSON.") from None
    if source is True:
        return {}
    if not isinstance(source, dict):
        raise RequestError("a schema must be a JSON object.")
    return source


def _text(source: object) -> str:
    if not isinstance(source, str) or not source:
        raise RequestError("it must be a text.")
    return source


def _choices(source: object) -> list[str]:
    if not isinstance(source, list) or not all(isinstance(item, str) for item in source):
        raise RequestError("it must be a list of texts.")
    if len(source) > _MAX_CHOICES:
        raise RequestError(f"there are more than {_MAX_CHOICES} texts.")
    return source
