"""One connection: heads come in time and are not too long, HTTP/1.1 is spoken, leaving is told.

Owns what the web server leaves open. It bounds how long a connection may be idle between requests,
but not before the first one, nor within a head that trickles in; nor does its parser bound a head.
A head that offers another protocol costs it the body, and of requests that were sent without
waiting for answers only the last one learns that the client has left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from strata.server.security import MAX_HEAD_BYTES

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

HEAD_LIMIT_S: Final = 30.0
# What is said of another protocol, in a head and in its field ``connection``.
_OFFERS: Final = (b"upgrade", b"http2-settings")


class _Parser:
    """The web server's parser; a head with an offer is parsed again without it."""

    def __init__(self, connection: BoundedConnection) -> None:
        self._connection = connection
        self._parser: Any = connection.parser

    def feed_data(self, data: bytes) -> None:
        """See ``httptools``."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._connection.head_without_offer() + data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self._connection)
            else:
                return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


class BoundedConnection(HttpToolsProtocol):
    """One connection; a head that is not whole in time, or too long, ends it."""

    head_limit_s = HEAD_LIMIT_S
    _head_timer: asyncio.TimerHandle | None = None
    _awaits_head = True
    _num_heads = 0
    _head_bytes = 0
    _earlier: tuple[RequestResponseCycle, ...] = ()  # requests before the newest, unanswered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the time of the first head."""
        super().connection_made(transport)
        self.parser: Any = _Parser(self)
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
        if self._is_offer():
            return  # the parser goes over it again
        cycles = (*self._earlier, self.cycle)
        self._earlier = tuple(one for one in cycles if one and not one.response_complete)
        self._stop()
        self._awaits_head = False
        self._num_heads += 1
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """See the parser: what comes next is another head."""
        if self._is_offer():
            return
        self._awaits_head = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for, and nobody to answer."""
        self._stop()
        for cycle in self._earlier:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        super().connection_lost(exc)

    def head_without_offer(self) -> bytes:
        """The head that was parsed last, as of a client that speaks HTTP/1.1 only."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                words = [word.strip() for word in value.split(b",")]
                value = b", ".join(word for word in words if word.lower() not in _OFFERS)
            if name not in _OFFERS:
                lines.append(b"%s: %s" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _is_offer(self) -> bool:
        """Whether the parser takes what follows for words of another protocol."""
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _start(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_limit_s, self._end_late)

    def _end_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self._start()  # an answer is under way; the next head may be late meanwhile

    def _stop(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
