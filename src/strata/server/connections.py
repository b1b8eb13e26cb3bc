"""What may come before a request: a head in time, and no longer than it may be.

Owns both bounds. The web server bounds how long a connection may be idle between requests, but not
before the first one, nor within a head that trickles in; nor does its parser bound a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strata.server.security import MAX_HEAD_BYTES

if TYPE_CHECKING:
    import asyncio

HEAD_LIMIT_S: Final = 30.0


class BoundedConnection(HttpToolsProtocol):
    """One connection; a head that is not whole in time, or too long, ends it."""

    head_limit_s = HEAD_LIMIT_S
    _head_timer: asyncio.TimerHandle | None = None
    _awaits_head = True
    _num_heads = 0
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time of the first head."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Counts bytes of a head, and starts its time with the first of them."""
        num_heads, awaited = self._num_heads, self._awaits_head
        super().data_received(data)
        if awaited and self._num_heads == num_heads and not self.transport.is_closing():
            self._head_bytes += len(data)
            self._start()
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response(f"The head is longer than {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """See the parser: the first byte of a head."""
        super().on_message_begin()
        self._start()

    def on_headers_complete(self) -> None:
        """See the parser: a head is whole."""
        self._stop()
        self._awaits_head = False
        self._num_heads += 1
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """See the parser: what comes next is another head."""
        self._awaits_head = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        self._stop()
        super().connection_lost(exc)

    def _start(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_limit_s, self.transport.close)

    def _stop(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
