"""Cells of a session, copied out and in by pages, and never more of them than must be.

Owns what is known of the pages that lie in the session now: a page that is there already, whoever
used it last, is not copied in again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.engine.conversation_history import Page
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from strata.engine.conversation_history import History
    from strata.engine.session import Session

# Rows of a window that are not kept, and drafts behind them, write over this many cells.
_REACH_TOKENS = 2 * MAX_WINDOW_ROWS


class SessionPages:
    """The pages of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cells = session.cells
        self._there: dict[int, Page] = {}  # by start; as the session has them

    def written(self, start: int, stop: int) -> None:
        """The session computes tokens ``start`` to ``stop``: pages with their cells are gone."""
        stop += _REACH_TOKENS
        gone = [at for at, page in self._there.items() if page.stop > start and at < stop]
        for at in gone:
            del self._there[at]

    def forget(self) -> None:
        """Nothing is known of the session's cells."""
        self._there.clear()

    def save(self, pages: list[Page], num_tokens: int) -> list[Page]:
        """Pages of the live conversation up to ``num_tokens``; ``pages`` are those that exist."""
        known = {page.start: page for page in pages}
        size, position = self._cells.page_tokens, self._session.position
        result: list[Page] = []
        for start in range(0, num_tokens, size):
            page = known.get(start)
            if page is None or (not page.is_whole and page.stop < num_tokens):
                stop = min(start + size, position)
                is_whole = stop == start + size and stop + MAX_WINDOW_ROWS <= position
                page = Page(start, stop, self._cells.save(start, stop), is_whole)
                self._there[start] = page
            result.append(page)
        return result

    def load(self, pages: list[Page], num_tokens: int) -> list[Page]:
        """Puts the first ``num_tokens`` cells of a conversation into the session; their pages."""
        pages = [page for page in pages if page.start < num_tokens]
        for page in pages:
            if self._there.get(page.start) is not page:
                self._there.pop(page.start, None)
                self._cells.load(page.start, page.stop, page.cells)
                self._there[page.start] = page
        return pages

    def fit(self, history: History) -> bool:
        """Whether what came from elsewhere has the sizes of this session's state."""
        size = self._cells.page_tokens
        return (
            all(self._session.fits(item.snapshot) for item in history.checkpoints)
            and all(page.start == at * size for at, page in enumerate(history.pages))
            and all(
                page.stop <= self._session.capacity
                and self._cells.fit(page.start, page.stop, page.cells)
                for page in history.pages
            )
        )
