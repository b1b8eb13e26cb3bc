"""The tags of the family's tool calls, and whether a text may become one of them.

Owns the spelling. What a tag means at its place is decided in ``tool_calls``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME: Final = r"([^\s<>]{1,128})\s*>"
CALL: Final = re.compile(r"(<tool_call>)\s*<function=" + _NAME)
BARE: Final = re.compile(r"<function=" + _NAME)
PARAMETER: Final = re.compile(r"<parameter=" + _NAME)
_NAME_BEGUN: Final = re.compile(r"[^\s<>]{0,128}\s*")
TOOL_CALL: Final = "<tool_call>"
FUNCTION: Final = "<function="
PARAMETER_OPEN: Final = "<parameter="
PARAMETER_END: Final = "</parameter>"
FUNCTION_END: Final = "</function>"
TOOL_CALL_END: Final = "</tool_call>"


def places(text: str, letter: str) -> Iterable[int]:
    """Where ``letter`` is in ``text``."""
    at = text.find(letter)
    while at >= 0:
        yield at
        at = text.find(letter, at + 1)


def may_be(text: str, *wholes: str) -> bool:
    """Whether ``text`` is the beginning of one of ``wholes``, or one of them."""
    return any(whole.startswith(text) for whole in wholes)


def may_be_named(text: str, opening: str) -> bool:
    """Whether ``text`` may become a tag that begins with ``opening`` and a name."""
    if not text.startswith(opening):
        return opening.startswith(text)
    return _NAME_BEGUN.fullmatch(text, len(opening)) is not None


def may_begin_call(text: str) -> bool:
    """Whether ``text``, which is no whole opening of a call, may become one."""
    if text.startswith(TOOL_CALL):
        return may_be_named(text[len(TOOL_CALL) :].lstrip(), FUNCTION)
    return may_be(text, TOOL_CALL) or may_be_named(text, FUNCTION)
