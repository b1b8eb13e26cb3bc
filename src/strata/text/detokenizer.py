"""Token ids to streamed text, and the search for stop strings in it.

Owns what is undecided: bytes that may still become a character, letters that may still become a
stop string. Does not know vocabularies; bytes of a token come from a function it is given.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from strata.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


class Detokenizer:
    """Incremental text of one stream of ids, at a cost per id that does not grow.

    After any ``push`` the texts returned so far, joined, are the longest prefix of the final text
    that no later id can change. Invalid bytes are U+FFFD exactly as ``bytes.decode`` of the whole.
    """

    def __init__(
        self, token_bytes: Callable[[int], bytes], skip_ids: Collection[int] = frozenset()
    ) -> None:
        """``skip_ids`` are passed over as if they had no bytes, such as control tokens."""
        self._token_bytes = token_bytes
        self._skip_ids = frozenset(skip_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that became certain with this id; often empty inside a character."""
        if token_id in self._skip_ids:
            return ""
        text = self._decoder.decode(self._token_bytes(token_id))
        kept = self._decoder.getstate()[0]
        # Python keeps the start of an encoded surrogate, though no byte can make it valid.
        if len(kept) > 1 and kept[0] == 0xED and kept[1] >= 0xA0:
            text += self._decoder.decode(b"", final=True)
        return text

    def flush(self) -> str:
        """Text of the bytes still undecided, as the stream ends here. Ready for a new stream."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class StopMatcher:
    """Cuts a stream of text at the first stop string to be completed.

    Of stop strings completed by the same letter the longest counts. The result does not depend on
    how the text is split into pushes. Text that may be the start of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` may be empty; then everything passes at once."""
        if any(not stop for stop in stops):
            raise SettingsError("a stop string is empty.\n  Try: leave it out.")
        # One that holds another before its last letter is never the first to be completed.
        self._stops = tuple(
            stop for stop in stops if not any(other in stop[:-1] for other in stops)
        )
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None
        """The stop string found, once there is one; later pushes give no text."""

    def push(self, text: str) -> str:
        """Text that is certainly before any stop string."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self._stops]
        complete = min((item for item in found if item[0] + item[1] >= 0), default=None)
        if complete:
            end, minus_length, self.matched = complete
            self._held = ""
            return text[: end + minus_length]
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Text held back, as the stream ends here; empty once a stop string was found."""
        text, self._held = self._held, ""
        return text

    def _held_length(self, text: str) -> int:
        """Length of the longest end of ``text`` that starts a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
