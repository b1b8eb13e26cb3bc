"""Tool calls in an answer as it streams: the family's XML form to names and JSON arguments.

    <tool_call>
    <function=NAME>
    <parameter=P>
    VALUE
    </parameter>
    </function>
    </tool_call>

Owns what belongs to a call and what is prose. Pure: text in, pieces out, the same pieces however
the text is cut. The form has no escapes, so a tag ends something only where the form could go on
behind it: an end tag inside a value stays part of the value. Values are typed by ``tool_values``.
"""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from strata.text.tool_form import (
    BARE,
    CALL,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    PARAMETER_END,
    PARAMETER_OPEN,
    TOOL_CALL,
    TOOL_CALL_END,
    may_be,
    may_be_named,
    may_begin_call,
    places,
)
from strata.text.tool_pieces import Arguments, CallBegun, CallEnded, Piece, Prose, joined
from strata.text.tool_values import (
    Schema,
    is_inside_string,
    is_streamed,
    parameter_types,
    value_of,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

__all__ = ["Arguments", "CallBegun", "CallEnded", "Piece", "Prose", "ToolCallParser"]

_QUOTES: Final = "`'\""


class _Place(Enum):
    PROSE = auto()
    BODY = auto()  # between the parameters
    VALUE = auto()
    OBJECT = auto()  # arguments written as one JSON object
    BEHIND = auto()  # after </function>


class _Verdict(Enum):
    END = auto()
    NOT = auto()
    OPEN = auto()  # what follows will tell


class ToolCallParser:
    """Parts one answer.

    Args:
        tools: JSON schema of the arguments by tool name.
    """

    def __init__(self, tools: Mapping[str, Schema]) -> None:
        self._tools = tools
        self._place = _Place.PROSE
        self._held = ""  # text not decided yet
        self._is_final = False
        self._pieces: list[Piece] = []
        self._space = ""  # white space that is prose only if more prose follows
        self._last = "\n"  # last letter of the prose so far
        self._is_line_blank = True
        self._has_calls = False
        self._is_behind_call = False  # nothing was said since
        self._is_bare = False
        self._is_untouched = True  # nothing of the function's body was read
        self._schema: Schema = {}
        self._seen: set[str] = set()
        self._types: frozenset[str] = frozenset()
        self._is_json = False  # tags inside the value's quotes belong to it
        self._value: list[str] = []
        self._is_at_start = False

    def feed(self, text: str) -> list[Piece]:
        """What ``text`` makes certain."""
        self._held += text
        return self._run()

    def finish(self, *, is_cut: bool) -> list[Piece]:
        """What was held back. An answer that is not cut short has its open call closed.

        Args:
            is_cut: the answer ended for its length, so an open call lacks something.
        """
        self._is_final = True
        pieces = self._run()
        if self._place is _Place.VALUE and self._is_json and not is_cut:
            # What looked like JSON is none, so its quotes hold nothing together.
            self._held = "".join(self._value) + self._held
            self._value, self._is_json = [], False
            pieces += self._run()
        if self._place in (_Place.BODY, _Place.OBJECT, _Place.VALUE) and not is_cut:
            if self._place is _Place.VALUE:
                self._end_value(self._held)
            elif self._place is _Place.OBJECT:
                self._end_object(self._held)
            self._end_call()
        elif self._place is _Place.VALUE:
            self._take_value(self._held)
        elif self._place is _Place.PROSE:
            self._say(self._held)
            if self._space and not self._has_calls:
                self._pieces.append(Prose(self._space))
        self._held = ""
        return pieces + self._taken()

    def _run(self) -> list[Piece]:
        steps = {
            _Place.PROSE: self._prose,
            _Place.BODY: self._body,
            _Place.VALUE: self._in_value,
            _Place.OBJECT: self._in_object,
            _Place.BEHIND: self._behind,
        }
        while steps[self._place]():
            pass
        return self._taken()

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return list(joined(pieces))

    def _prose(self) -> bool:
        """Looks for a call; whether one begins."""
        done = refused = 0
        for at in places(self._held, "<"):
            if at < refused:
                continue
            match = CALL.match(self._held, at) or BARE.match(self._held, at)
            if match is None:
                if not self._is_final and may_begin_call(self._held[at:]):
                    self._say(self._held[done:at])
                    self._held = self._held[at:]
                    return False
                continue
            # Prose before it decides whether it is one, so that is said first.
            self._say(self._held[done:at])
            done = at
            if self._is_call(match):
                self._held = self._held[match.end() :]
                self._begin_call(match[match.lastindex or 1], is_bare=match.re is BARE)
                return True
            refused = match.end()
        self._say(self._held[done:])
        self._held = ""
        return False

    def _is_call(self, match: re.Match[str]) -> bool:
        is_known = match[match.lastindex or 1] in self._tools
        if match.re is BARE:
            return is_known and self._is_line_blank
        return self._is_line_blank or (is_known and self._last not in _QUOTES)

    def _begin_call(self, name: str, *, is_bare: bool) -> None:
        self._pieces.append(CallBegun(name))
        self._space = ""
        self._has_calls = self._is_behind_call = True
        self._is_bare, self._is_untouched = is_bare, True
        self._schema = self._tools.get(name, {})
        self._seen = set()
        self._place = _Place.BODY

    def _end_call(self) -> None:
        self._pieces += [Arguments("}" if self._seen else "{}"), CallEnded()]
        self._place = _Place.BEHIND
        self._is_line_blank, self._last = True, "\n"

    def _body(self) -> bool:
        """Looks for a parameter or the end of the function."""
        self._held = self._held.lstrip()
        if match := PARAMETER.match(self._held):
            self._held = self._held[match.end() :]
            self._begin_value(match[1])
            return True
        if self._held.startswith(FUNCTION_END):
            self._held = self._held[len(FUNCTION_END) :]
            self._end_call()
            return True
        if self._held.startswith(TOOL_CALL_END):
            self._end_call()
            return True
        if self._held.startswith("{") and self._is_untouched:
            self._place = _Place.OBJECT
            return True
        ends = (FUNCTION_END, TOOL_CALL_END)
        if not self._held or (not self._is_final and may_be(self._held, *ends)):
            return False
        if not self._is_final and may_be_named(self._held, PARAMETER_OPEN):
            return False
        # Not of this form: passed over up to the next tag.
        self._is_untouched = False
        found = self._held.find("<", 1)
        self._held = self._held[found:] if found >= 0 else ""
        return True

    def _begin_value(self, name: str) -> None:
        self._types = parameter_types(self._schema, name)
        self._is_json = bool(self._types) and "string" not in self._types
        key = json.dumps(name, ensure_ascii=False)
        quote = '"' if is_streamed(self._types) else ""
        self._pieces.append(Arguments(f"{', ' if self._seen else '{'}{key}: {quote}"))
        self._seen.add(name)
        self._is_untouched = False
        self._value = []
        self._is_at_start = True
        self._place = _Place.VALUE

    def _in_value(self) -> bool:
        """Takes text of the value; whether its end was found."""
        for at in places(self._held, "<"):
            verdict, used = self._ends_value(self._held[at:])
            if verdict is not _Verdict.NOT and self._is_json:
                before = "".join(self._value) + self._held[:at]
                if is_inside_string(before):
                    continue
            if verdict is _Verdict.END:
                rest = self._held[at + used :]
                self._end_value(self._held[:at])
                self._held = rest
                self._place = _Place.BODY
                return True
            if verdict is _Verdict.OPEN:
                self._take_up_to(at)
                return False
        self._take_up_to(len(self._held))
        return False

    def _take_up_to(self, at: int) -> None:
        # A line end right before the end tag belongs to the form.
        at -= self._held[:at].endswith("\n")
        self._take_value(self._held[:at])
        self._held = self._held[at:]

    def _ends_value(self, text: str) -> tuple[_Verdict, int]:
        """Whether the tag that ``text`` begins with ends the value, and how much of it is the tag.

        It does where the form can go on behind it.
        """
        if text.startswith(PARAMETER_END):
            verdict = self._follows_value(text[len(PARAMETER_END) :].lstrip())
            return self._settled(verdict, if_last=_Verdict.END), len(PARAMETER_END)
        if text.startswith(FUNCTION_END):
            # The parameter's own end tag was forgotten, if nothing follows the call's.
            rest = text[len(FUNCTION_END) :].strip()
            verdict = _Verdict.OPEN if may_be(rest, TOOL_CALL_END) else _Verdict.NOT
            return self._settled(verdict, if_last=_Verdict.END), 0
        if may_be(text, PARAMETER_END, FUNCTION_END):
            return self._settled(_Verdict.OPEN, if_last=_Verdict.NOT), 0
        return _Verdict.NOT, 0

    def _settled(self, verdict: _Verdict, *, if_last: _Verdict) -> _Verdict:
        return if_last if verdict is _Verdict.OPEN and self._is_final else verdict

    def _follows_value(self, text: str) -> _Verdict:
        """Whether ``text``, behind an end tag and white space, shows that it was the end."""
        if match := PARAMETER.match(text):
            return _Verdict.NOT if match[1] in self._seen else _Verdict.END
        if text.startswith(TOOL_CALL_END):
            return _Verdict.END
        if text.startswith(FUNCTION_END):
            rest = text[len(FUNCTION_END) :].lstrip()
            if self._is_bare or rest.startswith((TOOL_CALL_END, TOOL_CALL, FUNCTION)):
                return _Verdict.END
            is_open = may_be(rest, TOOL_CALL_END, TOOL_CALL, FUNCTION)
            return _Verdict.OPEN if is_open else _Verdict.NOT
        is_open = may_be(text, FUNCTION_END, TOOL_CALL_END)
        is_open = is_open or may_be_named(text, PARAMETER_OPEN)
        return _Verdict.OPEN if is_open else _Verdict.NOT

    def _take_value(self, text: str) -> None:
        if not text:
            return
        if self._is_at_start:
            text = text.removeprefix("\n")
            self._is_at_start = False
        if not is_streamed(self._types):
            self._value.append(text)
        elif text:
            self._pieces.append(Arguments(json.dumps(text, ensure_ascii=False)[1:-1]))

    def _end_value(self, text: str) -> None:
        self._held = ""
        if self._is_at_start and text == "\n":
            text = ""
        self._take_value(text.removesuffix("\n"))
        is_open = is_streamed(self._types)
        end = '"' if is_open else value_of("".join(self._value), self._types)
        self._pieces.append(Arguments(end))

    def _in_object(self) -> bool:
        """Arguments that are written as JSON, up to the end of the function."""
        end = self._held.find(FUNCTION_END)
        while end >= 0 and is_inside_string(self._held[:end]):
            end = self._held.find(FUNCTION_END, end + 1)
        if end < 0:
            return False
        text, self._held = self._held[:end], self._held[end + len(FUNCTION_END) :]
        self._end_object(text)
        self._end_call()
        return True

    def _end_object(self, text: str) -> None:
        """Takes the object's members, if it is one."""
        try:
            value, _ = json.JSONDecoder().raw_decode(text.lstrip())
        except (ValueError, RecursionError):
            return
        for name, item in value.items() if isinstance(value, dict) else ():
            key = json.dumps(name, ensure_ascii=False)
            member = json.dumps(item, ensure_ascii=False)
            self._pieces.append(Arguments(f"{', ' if self._seen else '{'}{key}: {member}"))
            self._seen.add(name)

    def _behind(self) -> bool:
        """After a function: the call's end tag, or another function of the same call."""
        text = self._held.lstrip()
        if not self._is_bare:
            if text.startswith(TOOL_CALL_END):
                self._held = text[len(TOOL_CALL_END) :]
                self._place = _Place.PROSE
                return True
            if match := BARE.match(text):
                self._held = text[match.end() :]
                self._begin_call(match[1], is_bare=False)
                return True
            is_open = may_be(text, TOOL_CALL_END) or may_be_named(text, FUNCTION)
            if is_open and not self._is_final:
                return False
        self._place = _Place.PROSE
        return True

    def _say(self, text: str) -> None:
        """Prose, with the white space at its end held back."""
        if not text:
            return
        line = text.rpartition("\n")[2]
        self._is_line_blank = not line.strip() and ("\n" in text or self._is_line_blank)
        self._last = text[-1]
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            # Between a call and the prose behind it nothing has to be kept.
            self._pieces.append(Prose(said.lstrip() if self._is_behind_call else said))
            self._is_behind_call = False
