"""The form an answer must have: a JSON schema, a regular expression or a Lark grammar, checked.

Owns the compiler's limits and what is said where it refuses. Knows no tokens: ``token_masks`` turns
a form into the tokens that may come. The compiler is llguidance.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from strata.errors import RequestError
from strata.text.form_limits import MAX_CHARS, check_schema, children, joined, refused

HEADER: Final = '%llguidance {"no_forcing": true}\n'
"""Begins a whole grammar. Text that must come is left to the model token by token: were it cut into
tokens ahead, a mask would depend on what was asked before, and drafts would change the text."""
BODY: Final = "body"
_WHOLE: Final = f"{HEADER}start: @{BODY}"

# White space between the parts of JSON: a line end and any indentation, but not without end.
_JSON_SPACE: Final = r"[ \t]{1,4}|\r?\n[ \t]{0,64}"
_NO_TEXT: Final = "no text can ever have this form"
# What the compiler says in words of its own options.
_WORDS: Final = {
    "NoExtension": _NO_TEXT,
    "NoExtensionBias": _NO_TEXT,
    "oneOf constraints are not supported": "branches of oneOf that overlap cannot be compiled; "
    "anyOf can",
}
_MAX_GBNF_CHARS: Final = 32 * 1024
# Seconds spent on finding where in a refused schema the fault lies.
_LOCATE_S: Final = 1.0


def limits() -> llguidance.LLParserLimits:
    """What one form may cost: about 0.7 s to compile, 20 ms a mask, 50 MB of automata."""
    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=25_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


@dataclass(frozen=True, slots=True)
class Form:
    """A form that compiles.

    ``grammar`` is llguidance's own notation: grammars by name in JSON, the first of which is the
    whole; ``part`` is the one that was asked for.
    """

    grammar: str

    @classmethod
    def of(cls, part: Mapping[str, object]) -> Form:
        """The form of one grammar; nothing is checked yet."""
        whole = {"lark_grammar": _WHOLE}
        return cls(_dumped({"grammars": [whole, {**part, "name": BODY}]}))

    @property
    def part(self) -> dict[str, object]:
        """The grammar named ``BODY``."""
        found: dict[str, object] = json.loads(self.grammar)["grammars"][1]
        return found

    @property
    def is_json(self) -> bool:
        """Whether the whole text is JSON."""
        whole, *parts = json.loads(self.grammar)["grammars"]
        return whole.get("lark_grammar") == _WHOLE and "json_schema" in parts[0]

    @classmethod
    def json_schema(cls, schema: Mapping[str, object], *, is_lenient: bool = False) -> Form:
        """JSON that ``schema`` allows; members come in the order of ``properties``.

        Args:
            schema: of draft 2020-12, as far as it can be compiled.
            is_lenient: what cannot be compiled is left out instead of refused.

        Raises:
            RequestError: with the path of what cannot be compiled, or costs too much.
        """
        check_schema(schema)
        _check_length(_dumped(schema))
        form = _json_form(schema, is_lenient=is_lenient)
        try:
            form.check()
        except RequestError as error:
            reason = _first_line(error)
            raise refused(_place_of(reason, schema, is_lenient=is_lenient), reason) from None
        return form

    @classmethod
    def regex(cls, pattern: str) -> Form:
        """Text that ``pattern`` matches as a whole; Rust's syntax, no look-around.

        Raises:
            RequestError: it does not compile, or costs too much.
        """
        _check_length(pattern)
        return cls.of({"lark_grammar": f"start: /{llguidance.regex_to_lark(pattern, '')}/"}).check()

    @classmethod
    def lark(cls, grammar: str) -> Form:
        """Text of a Lark grammar that begins with the rule ``start``.

        Raises:
            RequestError: it does not compile, or costs too much.
        """
        _check_length(grammar)
        return cls.of({"lark_grammar": grammar}).check()

    @classmethod
    def gbnf(cls, grammar: str) -> Form:
        """Text of a grammar in llama.cpp's notation, which begins with the rule ``root``.

        Raises:
            RequestError: it does not compile, or costs too much.
        """
        if len(grammar) > _MAX_GBNF_CHARS:
            raise RequestError(f"it has more than {_MAX_GBNF_CHARS} characters.")
        try:
            lark = gbnf_to_lark(grammar)
        except RecursionError:
            raise RequestError("it is nested too deeply.") from None
        except Exception as error:  # noqa: BLE001 - that is the class it raises
            raise RequestError(f"{error}.") from None
        return cls.lark(lark)

    @classmethod
    def of_grammar(cls, grammar: str) -> Form:
        """Text of a grammar in either notation; errors as theirs."""
        return cls.gbnf(grammar) if "::=" in grammar else cls.lark(grammar)

    @classmethod
    def one_of(cls, choices: Iterable[str]) -> Form:
        """One of some texts.

        Raises:
            RequestError: there are none.
        """
        texts = [choice for choice in choices if choice]
        if not texts:
            raise RequestError("there is no text to choose.")
        return cls.lark("start: " + " | ".join(_dumped(text) for text in texts))

    def check(self) -> Form:
        """This form, if it compiles within its limits and allows any text at all.

        Raises:
            RequestError: it does not.
        """
        matcher = llguidance.LLMatcher(_bytes(), self.grammar, log_level=0, limits=limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise RequestError(_readable(matcher.get_error()))
        if matcher.is_stopped() and not matcher.is_accepting():
            raise RequestError(f"{_NO_TEXT}.")
        return self


def json_part(schema: Mapping[str, object], *, is_lenient: bool = False) -> str:
    """A JSON schema as a part of a Lark grammar's rule."""
    return f"%json {_dumped(_with_options(schema, is_lenient=is_lenient))}"


@functools.cache
def _bytes() -> llguidance.LLTokenizer:
    """A vocabulary of single bytes: what it cannot write, no vocabulary can."""
    return llguidance.LLTokenizer("byte")


def _options(*, is_lenient: bool) -> dict[str, object]:
    return {"whitespace_pattern": _JSON_SPACE, "lenient": is_lenient, "coerce_one_of": is_lenient}


def _with_options(schema: Mapping[str, object], *, is_lenient: bool) -> dict[str, object]:
    return {**schema, "x-guidance": _options(is_lenient=is_lenient)}


def _json_form(schema: Mapping[str, object], *, is_lenient: bool) -> Form:
    return Form.of({"json_schema": _with_options(schema, is_lenient=is_lenient)})


def _place_of(reason: str, schema: object, *, is_lenient: bool) -> str:
    """The path of the innermost schema that is refused for the same reason."""
    end_s = time.monotonic() + _LOCATE_S
    definitions = {
        word: schema[word]
        for word in ("$defs", "definitions")
        if isinstance(schema, Mapping) and word in schema
    }
    path = ""
    while True:
        for step, child in children(schema):
            if time.monotonic() > end_s:
                return path
            if not isinstance(child, Mapping):
                continue
            if _reason({**definitions, **child}, is_lenient=is_lenient) == reason:
                path, schema = joined(path, step), child
                break
        else:
            return path


def _reason(schema: Mapping[str, object], *, is_lenient: bool) -> str | None:
    """Why a schema is refused; None if it is not."""
    try:
        _json_form(schema, is_lenient=is_lenient).check()
    except RequestError as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].removesuffix(".")


def _dumped(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        raise RequestError("this is not JSON, or it is nested too deeply.") from None


def _check_length(text: str) -> None:
    if len(text) > MAX_CHARS:
        raise RequestError(f"it has {len(text)} characters, more than {MAX_CHARS}.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError("it holds a lone surrogate, so it is no Unicode text.") from None


def _readable(error: str) -> str:
    """The compiler's words, without its source lines and pointers."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    found = next((line for line in lines if line.startswith("error:")), None)
    text = found if found is not None else (lines[0] if lines else "it does not compile")
    text = re.sub(r"^(?:error|Parser Error): *", "", text).replace("<non-verbose/>", "")
    text = re.sub(r"^Unimplemented keys: \[(.*)\]$", r"\1 cannot be compiled", text)
    if found is not None:
        text = f"the pattern cannot be compiled: {text}"
    text = _WORDS.get(text.strip().split(".")[0], text.strip().rstrip(".;")[:300])
    return f"{text[:1].lower() + text[1:]}."
