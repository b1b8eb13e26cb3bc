"""The least of an HTTP client: one request a connection, its answer whole or line by line."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Response:
    """An answer whose head has been read."""

    def __init__(self, status: int, is_chunked: bool, reader: asyncio.StreamReader) -> None:  # noqa: FBT001
        self.status = status
        self._is_chunked = is_chunked
        self._reader = reader

    async def body(self) -> bytes:
        return b"".join([piece async for piece in self._pieces()])

    async def lines(self) -> AsyncIterator[str]:
        """The lines as they come."""
        rest = b""
        async for piece in self._pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode()

    async def _pieces(self) -> AsyncIterator[bytes]:
        if not self._is_chunked:
            yield await self._reader.read()
            return
        while size := int(await self._reader.readline(), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readline()


def head_of(path: str, num_bytes: int) -> bytes:
    """The head of a request with a JSON body."""
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {num_bytes}\r\n\r\n"
    ).encode()


@asynccontextmanager
async def connected(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection; leaving the context cuts it off."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def post(address: str, path: str, body: bytes) -> AsyncIterator[Response]:
    """The answer to one request; leaving the context before its end leaves the answer.

    Raises:
        EOFError: the server closed the connection without an answer.
    """
    async with connected(address) as (reader, writer):
        writer.write(head_of(path, len(body)) + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        is_chunked = "\r\ntransfer-encoding: chunked" in head
        yield Response(int(head.split()[1]), is_chunked, reader)
