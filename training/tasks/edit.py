"""One edit of a text, as the editing task's families of edits make it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """A request, the text it is about (empty if the request holds it), and the answer."""

    request: str
    text: str
    answer: str
