"""Connections that bring no request are closed after a while.

Owns the time a request's head may take. The web server bounds how long a connection may be idle
between requests, but not before the first one, nor within a head that trickles in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_LIMIT_S: Final = 30.0


class TimedConnection(H11Protocol):
    """One connection; a head that is not whole in time ends it."""

    head_limit_s = HEAD_LIMIT_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time of the first head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_limit_s, transport.close)

    def data_received(self, data: bytes) -> None:
        """Stops it when the head is whole, and starts it with the next head's first byte."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_limit_s, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._stop()
        super().connection_lost(exc)

    def _stop(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
