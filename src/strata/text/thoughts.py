"""Where the reasoning of an answer ends: ``</think>`` parts it from what is said.

The opening mark belongs to the prompt, so an answer that thinks begins inside. Owns no decoding.
"""

from __future__ import annotations

from typing import Final

THINK_END: Final = "</think>"


class ThoughtSplitter:
    """Parts streamed text; nothing is shown before it is certain where it belongs.

    Args:
        is_thinking: whether the prompt opened the thinking.
    """

    def __init__(self, *, is_thinking: bool) -> None:
        self._is_inside = is_thinking
        self._is_at_start = False
        self._held = ""

    @property
    def is_inside(self) -> bool:
        """Whether the reasoning has not ended yet."""
        return self._is_inside

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that ``text`` adds; the mark and line ends behind it in neither."""
        thought = ""
        if self._is_inside:
            before, mark, text = (self._held + text).partition(THINK_END)
            if not mark:
                kept = _possible_beginning(before)
                thought, self._held = before[: len(before) - kept], before[len(before) - kept :]
                return thought, ""
            thought, self._held = before, ""
            self._is_inside, self._is_at_start = False, True
        if self._is_at_start:
            text = text.lstrip("\n")
            self._is_at_start = not text
        return thought, text

    def finish(self) -> str:
        """Reasoning still held back when the text ended inside it."""
        held, self._held = self._held, ""
        return held


def _possible_beginning(text: str) -> int:
    """Characters at the end of ``text`` that may begin the mark."""
    longest = min(len(text), len(THINK_END) - 1)
    return next((n for n in range(longest, 0, -1) if THINK_END.startswith(text[-n:])), 0)
