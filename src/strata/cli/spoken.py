"""An answer as it streams: what is said on standard output, reasoning on standard error."""

from __future__ import annotations

import sys
from typing import TextIO

from strata.text.thoughts import ThoughtSplitter


class Spoken:
    """Shows and keeps both parts of one answer.

    Args:
        is_thinking: the prompt opened the thinking, so the answer begins inside it.
        is_silent: keep, but show nothing.
    """

    def __init__(self, *, is_thinking: bool, is_silent: bool = False) -> None:
        self._splitter = ThoughtSplitter(is_thinking=is_thinking)
        self._is_silent = is_silent
        self.reasoning = ""
        self.text = ""

    def add(self, text: str) -> None:
        """The next piece of the answer."""
        thought, said = self._splitter.feed(text)
        self._think(thought)
        if said and not self.text and self.reasoning:
            self._show(sys.stderr, "\n")
        self.text += said
        self._show(sys.stdout, said)

    def end(self) -> None:
        """No more pieces come."""
        self._think(self._splitter.finish())
        if self.reasoning and not self.text:
            self._show(sys.stderr, "\n")

    def _think(self, thought: str) -> None:
        self.reasoning += thought
        self._show(sys.stderr, thought)

    def _show(self, stream: TextIO, text: str) -> None:
        if text and not self._is_silent:
            stream.write(text)
            stream.flush()
