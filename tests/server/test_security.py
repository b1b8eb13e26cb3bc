"""Rules at the door, checked without a model: slow, long and foreign requests, and keys."""

from __future__ import annotations

import asyncio
import base64
import hmac
import socket
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from strata.errors import SettingsError
from strata.server import security
from strata.server.app import on_fault
from strata.server.bodies import read_body
from strata.server.connections import BoundedConnection
from strata.server.faults import Fault
from strata.server.limits_api import LimitsRequest
from strata.server.pictures import Pictures, text_for_bytes, text_for_picture
from strata.server.security import MAX_HEAD_BYTES, Guard, Rules, check_bind

POST = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def read(request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


class Hurried(BoundedConnection):
    head_limit_s = 0.3


async def talk(
    rules: Rules, *pieces: bytes | float, protocol: type = Hurried, endpoint: Any = read
) -> bytes:
    """What a server with these rules answers to pieces of bytes, with pauses between them."""
    routes = [Route("/x", endpoint, methods=["GET", "POST"])]
    app = Guard(Starlette(routes=routes, exception_handlers={Fault: on_fault}), rules)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            lifespan="off",
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            async with asyncio.timeout(20):
                for piece in pieces:
                    if isinstance(piece, float):
                        await asyncio.sleep(piece)
                        continue
                    writer.write(piece)
                    await writer.drain()
                return await reader.read(100_000)
        finally:
            writer.close()
            server.should_exit = True
            await serving


def answer(rules: Rules, *pieces: bytes | float) -> tuple[int, bytes]:
    raw = asyncio.run(talk(rules, *pieces))
    return (int(raw.split()[1]), raw) if raw else (0, raw)


def test_a_connection_without_a_request_is_closed():
    assert answer(Rules()) == (0, b"")
    assert answer(Rules(), b"GET /x HT") == (0, b"")
    # The head of a second request on the same connection has its time too.
    whole = b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n"
    status, raw = answer(Rules(), whole, 0.1, b"GET /x HTTP/1.1\r\nhos")
    assert (status, raw.count(b"HTTP/1.1 200")) == (200, 1)


def test_line_ends_before_a_head_have_its_time_too():
    assert answer(Rules(), b"\r\n", 0.1, b"\r\n\r\n") == (0, b"")
    whole = b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n"
    status, raw = answer(Rules(), whole, 0.1, b"\r\n")
    assert (status, raw.count(b"HTTP/1.1 200")) == (200, 1)


def test_an_answer_may_take_longer_than_a_head():
    async def slow(request) -> PlainTextResponse:
        await asyncio.sleep(3 * Hurried.head_limit_s)
        return PlainTextResponse(str(len(await request.body())))

    head = b"connection: close\r\ncontent-length: 3\r\n\r\n"
    for pieces in ([POST + head + b"abc"], [POST + head, 0.1, b"a", 0.1, b"bc"]):
        raw = asyncio.run(talk(Rules(), *pieces, endpoint=slow))
        assert raw.endswith(b"\r\n\r\n3")


def test_what_comes_behind_a_request_does_not_cut_its_answer_off():
    async def slow(request) -> PlainTextResponse:
        await asyncio.sleep(3 * Hurried.head_limit_s)
        return PlainTextResponse(str(len(await request.body())))

    head = b"content-length: 3\r\n\r\nabc"
    for behind in (b"\r\n", b"GET /x HTTP/1.1\r\nhos"):
        raw = asyncio.run(talk(Rules(), POST + head, 0.1, behind, endpoint=slow))
        assert raw.endswith(b"\r\n\r\n3"), behind


def test_leaving_ends_the_answer_that_another_request_waits_behind():
    ends = []

    async def endless(request) -> PlainTextResponse:
        await request.body()
        ends.append((await request.receive())["type"])
        return PlainTextResponse("")

    class Leaving(Hurried):
        def on_message_complete(self) -> None:
            super().on_message_complete()
            if self.pipeline:
                self.loop.call_later(0.1, self.transport.abort)

    whole = b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n"
    asyncio.run(talk(Rules(), whole, 0.1, whole, whole, protocol=Leaving, endpoint=endless))
    assert ends == ["http.disconnect"]


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [POST + OFFER + b"content-length: 3\r\n\r\nabc"],
        [POST + OFFER + b"content-length: 3\r\n\r\n", 0.1, b"a", 0.1, b"bc"],
        [POST + OFFER[:30], 0.1, OFFER[30:] + b"content-length: 3\r\n\r\nab", 0.1, b"c"],
        [POST + OFFER + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
        [POST.replace(b"/x", b"/x?y=%20") + OFFER + b"content-length: 3\r\n\r\nabc"],
    ],
)
def test_another_protocol_that_is_offered_is_not_taken_up(
    caplog: pytest.LogCaptureFixture, pieces: list
):
    """As Java's own client does with the first request to any address: the body is read."""
    last = POST + b"connection: close\r\ncontent-length: 2\r\n\r\nde"
    status, raw = answer(Rules(), *pieces, 0.1, last, 0.3)
    assert status == 200
    assert [part[-1:] for part in raw.split(b"HTTP/1.1 200 OK")[1:]] == [b"3", b"2"]
    assert not caplog.records


def test_a_page_with_a_socket_gets_a_plain_answer(caplog: pytest.LogCaptureFixture):
    offer = b"connection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\n"
    whole = b"GET /x HTTP/1.1\r\nhost: localhost\r\n" + offer
    status, raw = answer(Rules(), whole, 0.1, whole, 0.3)
    assert (status, raw.count(b"HTTP/1.1 200")) == (200, 2)
    assert not caplog.records
    assert answer(Rules(), b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost\r\n\r\n")[0] == 400


@pytest.mark.parametrize("host", [b"[::1", b"a]b", b"", b":80"])
def test_a_host_that_is_none_is_refused(host: bytes, caplog: pytest.LogCaptureFixture):
    assert answer(Rules(), b"GET /x HTTP/1.1\r\nhost: " + host + b"\r\n\r\n")[0] == 400
    assert not caplog.records


def test_leaving_in_the_middle_of_a_body_is_no_fault(caplog: pytest.LogCaptureFixture):
    async def checked(request) -> PlainTextResponse:
        return PlainTextResponse(str(await read_body(request, LimitsRequest)))

    class Leaving(Hurried):
        def on_body(self, body: bytes) -> None:
            super().on_body(body)
            self.loop.call_later(0.1, self.transport.abort)

    piece = POST + b"content-length: 90\r\n\r\n{"
    assert asyncio.run(talk(Rules(), piece, protocol=Leaving, endpoint=checked)) == b""
    assert not caplog.records


def test_a_body_that_trickles_is_refused():
    rules = Rules(max_body_s=0.3)
    assert answer(rules, POST + b"content-length: 9\r\n\r\n123")[0] == 408
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n"
    assert answer(rules, chunked, 0.1, b"1\r\ny\r\n")[0] == 408
    good = answer(Rules(), POST + b"connection: close\r\ncontent-length: 9\r\n\r\n123", b"456789")
    assert good[1].endswith(b"\r\n\r\n9")


@pytest.mark.parametrize(
    ("heads", "status"),
    [
        ([b"x-long: " + b"a" * (MAX_HEAD_BYTES + 1000) + b"\r\n\r\n"], 431),
        ([b"x-%d: %s\r\n" % (i, b"a" * 900) for i in range(100)] + [b"\r\n"], 431),
        ([b"x-long: " + b"a" * MAX_HEAD_BYTES, 0.2, b"a" * 9000], 400),
        ([b"content-length: 5\r\ncontent-length: 6\r\n\r\n"], 400),
        ([b"content-length: -1\r\n\r\n"], 400),
    ],
)
def test_heads_that_are_too_long_or_contradict_themselves(heads: list, status: int):
    pieces = [b"".join(heads)] if status == 431 else heads
    assert answer(Rules(), POST + pieces[0], *pieces[1:])[0] == status


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"authorization: Bearer s3cret", 200),
        (b"authorization: bearer  s3cret ", 200),
        (b"x-api-key: s3cret", 200),
        (b"authorization: Basic s3cret", 401),
        (b"authorization: Bearer s3cre", 401),
        (b"authorization: Bearer s3crets", 401),
        (b"authorization: Bearer \xe9\xff", 401),
        (b"x-api-key: ", 401),
        (b"x-other: s3cret", 401),
    ],
)
def test_keys(monkeypatch: pytest.MonkeyPatch, line: bytes, status: int):
    compared = []

    class Watched:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return hmac.compare_digest(one, other)

    monkeypatch.setattr(security, "hmac", Watched)
    head = b"GET /x HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n" + line + b"\r\n\r\n"
    found, raw = answer(Rules(api_key="s3cret"), head)
    assert found == status
    # Whatever was given, it is compared in constant time, and never told back.
    assert [other for _, other in compared] == [b"s3cret"]
    assert b"s3cret" not in raw


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.lan"])
def test_other_machines_are_let_in_with_a_key_only(host: str):
    with pytest.raises(SettingsError, match="--api-key"):
        check_bind(host, None)
    check_bind(host, "k")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"])
def test_this_machine_needs_none(host: str):
    check_bind(host, None)


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8000/x.png",
        "http://169.254.169.254/latest/meta-data",
        "https://10.0.0.1/a.jpg",
        "http://[::1]/a.png",
    ],
)
def test_no_address_is_ever_asked(monkeypatch: pytest.MonkeyPatch, address: str):
    """Of other machines or of this one: refused, or told of, but never fetched."""

    def connects(*args: object) -> None:
        raise AssertionError(args)

    monkeypatch.setattr(socket.socket, "connect", connects)
    with pytest.raises(Fault, match="no image input"):
        text_for_picture(address, "messages[0]", Pictures.REFUSE)
    text = text_for_picture(address, "messages[0]", Pictures.TELL)
    assert "picture" in text
    assert address not in text


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        "file:///etc/passwd",
        "ftp://host/a.png",
        "data:text/html;base64,QQ==",
        "data:image/png,plain",
        "data:image/png;base64,",
        "data:image/png;base64,%%%",
    ],
)
def test_what_is_no_picture_is_refused_even_where_pictures_are_told_of(address: str | None):
    with pytest.raises(Fault) as caught:
        text_for_picture(address, "messages[0].content[1]", Pictures.TELL)
    assert (caught.value.status, caught.value.field) == (400, "messages[0].content[1]")


def test_bytes_of_a_picture():
    data = base64.b64encode(b"\x89PNG").decode()
    assert text_for_bytes("image/png", data, "x", Pictures.TELL)
    with pytest.raises(Fault):
        text_for_bytes("text/plain", data, "x", Pictures.TELL)
    with pytest.raises(Fault):
        text_for_bytes(None, None, "x", Pictures.TELL)
