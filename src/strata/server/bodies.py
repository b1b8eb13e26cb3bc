"""Bodies of requests to checked structs, and structs to bodies of answers.

Owns what is said when a body is not what it should be: always the name of the field. Which fields
there are is each API's own.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import msgspec.inspect
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from strata.engine.sampling_params import SamplingParams
from strata.errors import SettingsError
from strata.server.faults import Fault, bad_request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

Body = TypeVar("Body", bound=msgspec.Struct)

_WHERE: Final = re.compile(r" - at `(?:key in )?\$?\.?([^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `([^`]+)`")
_MISSING: Final = re.compile(r"Object missing required field `([^`]+)`")
_NO_CHOICE: Final = re.compile(r"Invalid enum value (.+)$", re.DOTALL)
# Clients with a form field for JSON send the text of it.
_TEXT_OF_JSON: Final = ("messages", "tools", "input")


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The body as ``kind``.

    Raises:
        Fault: 400, it is no JSON, or a field is unknown, missing or malformed; 413 too long; 499
            the client has left.
    """
    raw = await bytes_of_body(request)
    try:
        plain = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}.") from None
    if not isinstance(plain, dict):
        raise bad_request("the body must be a JSON object.")
    return as_struct(_with_decoded_texts(plain), kind)


async def bytes_of_body(request: Request) -> bytes:
    """The body as it came.

    Raises:
        Fault: 413 too long; 499 the client has left before its end.
    """
    try:
        return await request.body()
    except ClientDisconnect:
        raise Fault(499, "the client has left.") from None


def as_struct(plain: object, kind: type[Body], where: str = "") -> Body:
    """A plain value as ``kind``.

    Args:
        plain: of JSON's types.
        kind: the struct.
        where: its place in the body.

    Raises:
        Fault: 400 that names the field.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise _malformed(str(error), kind, where) from None
    except RecursionError:
        raise bad_request("the body is nested too deeply.") from None


def refuse(fields: Mapping[str, object], reasons: Mapping[str, str]) -> None:
    """Raises Fault 400 for the first of ``reasons``' fields that has a value.

    Args:
        fields: value by name; None is no value.
        reasons: what to say by name.
    """
    for name, reason in reasons.items():
        if fields.get(name) is not None:
            raise bad_request(f"{name} is not supported: {reason}", name, code="unsupported")


def json_response(
    body: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """``body`` as JSON."""
    return Response(
        msgspec.json.encode(body), status, dict(headers or {}), media_type="application/json"
    )


def _with_decoded_texts(plain: dict[str, Any]) -> dict[str, Any]:
    for name in _TEXT_OF_JSON:
        text = plain.get(name)
        if isinstance(text, str) and text.lstrip().startswith("["):
            try:
                plain[name] = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                continue  # it may be a plain prompt; the struct decides
    return plain


def _malformed(text: str, kind: type[msgspec.Struct], place: str) -> Fault:
    where = _WHERE.search(text)
    path = ".".join(part for part in (place, where[1] if where else "") if part)
    text = text[: where.start()] if where else text
    if unknown := _UNKNOWN.match(text):
        name = unknown[1]
        field = f"{path}.{name}" if path else name
        known = kind.__struct_fields__ if path == place else ()
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f" Did you mean {near[0]}?" if near else ""
        return bad_request(f"unknown field: {field}.{hint}", field, code="unknown_parameter")
    if missing := _MISSING.match(text):
        field = f"{path}.{missing[1]}" if path else missing[1]
        return bad_request(f"{field} is missing.", field, code="missing_required_parameter")
    if wrong := _NO_CHOICE.match(text):
        choices = _choices(kind, path) if not place else []
        instead = f"; it may be {', '.join(choices)}" if choices else ""
        given = {"True": "true", "False": "false"}.get(wrong[1], wrong[1])
        return bad_request(f"{path} cannot be {given}{instead}.", path, code="invalid_type")
    text = text[:1].lower() + text[1:]
    return bad_request(f"{path or 'the body'}: {text}.", path or None, code="invalid_type")


def _choices(kind: type[msgspec.Struct], name: str) -> list[str]:
    """What a field at the top of a body may be, as JSON; nothing where it is not a choice."""
    info = msgspec.inspect.type_info(kind)
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    values: list[object] = []
    for kinds in (field.type for field in fields if field.encode_name == name):
        for one in kinds.types if isinstance(kinds, msgspec.inspect.UnionType) else (kinds,):
            if isinstance(one, msgspec.inspect.LiteralType):
                values += one.values
            elif isinstance(one, msgspec.inspect.EnumType):
                values += list(one.cls)
    return [msgspec.json.encode(value).decode() for value in values]


def checked_sampling(
    options: dict[str, Any], names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The same options of ``SamplingParams``, none of which the engine would refuse.

    Args:
        options: what was not said is None.
        names: what the body calls an option, where it is called otherwise.

    Raises:
        Fault: 400, a value is impossible; about the field the client sent.
    """
    # Seeds may be any integer here.
    said = {name: value for name, value in options.items() if not (value is None or name == "seed")}
    try:
        SamplingParams.from_options(said)
    except SettingsError as error:
        option = str(error).partition(" ")[0]
        field = (names or {}).get(option, option)
        text = re.sub(rf"(?<!\w){re.escape(option)}(?=[ =])", field, str(error))
        raise bad_request(text, field) from None
    return options
