"""Who may ask, and how much: key, Host, Origin, type and size of a body.

Owns the checks before any route is reached, and the headers for browsers of other origins. Plain
ASGI, so that streams and disconnects pass through untouched.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders

from strata.errors import SettingsError
from strata.server.bodies import json_response
from strata.server.callers import CALLER, caller_of
from strata.server.faults import Fault, anthropic_error, openai_error

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Whether the server lives is no secret, and the page is what asks for the key.
_OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/api/health", "/"})
_OPEN_FOLDER: Final = "/page/"
MAX_HEAD_BYTES: Final = 64 * 1024
_DRAINED_BODIES: Final = 4
_DRAIN_S: Final = 5.0
_ALLOWED_HEADERS: Final = "authorization, content-type, x-api-key, anthropic-version"


@dataclass(frozen=True, slots=True)
class Rules:
    """What is allowed."""

    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    """Names a request may call this server by, besides localhost and addresses."""
    origins: tuple[str, ...] = ()
    """Origins of other web pages that may ask; ``*`` for any."""
    max_body_bytes: int = 32 * 1024 * 1024
    max_body_s: float = 60.0
    """How long a body may take to arrive."""


def check_bind(host: str, api_key: str | None) -> None:
    """Refuses to be reachable from elsewhere without a key.

    Raises:
        SettingsError: so it would be, or the key is empty.
    """
    if api_key == "":
        raise SettingsError("the API key is empty.\n  Try: a long random text.")
    if api_key is None and not is_loopback(host):
        raise SettingsError(
            f"--host {host} lets other machines in, and there is no key.\n"
            "  Try: --api-key KEY, or leave --host out."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses what the rules do not allow; everything else reaches ``app``."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._key = None if rules.api_key is None else rules.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        is_known_origin = origin is not None and self._is_known(origin)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                marked = MutableHeaders(scope=message)
                marked["x-content-type-options"] = "nosniff"
                if is_known_origin and origin is not None:
                    marked["access-control-allow-origin"] = origin
                    marked["vary"] = "origin"
            await send(message)

        try:
            _check_head(scope)
            self._check_caller(scope, headers)
            if scope["method"] == "OPTIONS" and is_known_origin:
                await _preflight(scope, receive, send_marked)
                return
            self._check_key(scope["path"], headers)
            self._check_body(scope["method"], headers)
            address, _ = scope.get("client") or (None, 0)
            CALLER.set(caller_of(address, headers.get("user-agent")))
            await self._app(scope, self._bounded(receive), send_marked)
        except Fault as fault:
            is_anthropic = scope["path"].startswith("/v1/messages")
            body = anthropic_error(fault) if is_anthropic else openai_error(fault)
            response = json_response(body, fault.status, fault.headers)
            await self._drain(receive)
            await response(scope, receive, send_marked)

    def _check_caller(self, scope: Scope, headers: Headers) -> None:
        """Host and Origin: no page of another site reaches this server by a name of its own."""
        host = headers.get("host", "")
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            name = ""
        if not name:
            raise Fault(400, f"the header host is {host!r}; it must name this server.")
        if not (_is_address_or_local(name) or name in self._rules.hosts):
            raise Fault(403, f"host {name!r} is not allowed.\n  Try: --allow-host {name}")
        origin = headers.get("origin")
        if origin is None or self._is_known(origin):
            return
        own = f"{scope.get('scheme', 'http')}://{host}".lower()
        if origin.lower() != own:
            raise Fault(403, f"origin {origin!r} is not allowed.\n  Try: --cors-origin {origin}")

    def _is_known(self, origin: str) -> bool:
        return "*" in self._rules.origins or origin in self._rules.origins

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._key is None or path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        given = bearer.strip() if kind.lower() == "bearer" else headers.get("x-api-key", "")
        # compare_digest takes as long for a near miss as for a far one.
        if not hmac.compare_digest(given.encode(), self._key):
            raise Fault(401, "the API key is missing or wrong.", code="invalid_api_key")

    def _check_body(self, method: str, headers: Headers) -> None:
        if method != "POST":
            return
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._rules.max_body_bytes:
            raise self._too_long()
        if length == "0" and "transfer-encoding" not in headers:
            return  # some routes need no body; the others say what is missing
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Fault(415, f"content-type must be application/json, not {kind!r}.")
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise Fault(415, f"content-encoding {encoding!r} is not read.\n  Try: a plain body.")

    def _bounded(self, receive: Receive) -> Receive:
        """Counts what comes in, for bodies that do not say their length, and how long it takes."""
        num_left = self._rules.max_body_bytes
        is_whole = False
        end_s = asyncio.get_running_loop().time() + self._rules.max_body_s

        async def count() -> Message:
            nonlocal num_left, is_whole
            try:
                # Behind the body only the client's leaving is waited for.
                async with asyncio.timeout_at(None if is_whole else end_s):
                    message = await receive()
            except TimeoutError:
                text = f"the body took longer than {self._rules.max_body_s:g} s."
                raise Fault(408, text) from None
            is_whole = not message.get("more_body", False)
            num_left -= len(message.get("body", b""))
            if num_left < 0:
                raise self._too_long()
            return message

        return count

    async def _drain(self, receive: Receive) -> None:
        """Reads what the client is sending still: many look for the answer only after that."""
        num_left = _DRAINED_BODIES * self._rules.max_body_bytes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while num_left > 0:
                    message = await receive()
                    num_left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _too_long(self) -> Fault:
        return Fault(413, f"the body is longer than {self._rules.max_body_bytes} bytes.")


def _check_head(scope: Scope) -> None:
    """The web server bounds heads that come in pieces, not those that come at once."""
    num_bytes = len(scope.get("raw_path", b"")) + len(scope.get("query_string", b""))
    num_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
    if num_bytes > MAX_HEAD_BYTES:
        raise Fault(431, f"the headers are longer than {MAX_HEAD_BYTES} bytes.")


def _is_address_or_local(name: str) -> bool:
    """A rebound name is always a name: an address in Host cannot have been rebound."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _preflight(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": _ALLOWED_HEADERS,
        "access-control-max-age": "600",
    }
    await json_response({}, 200, headers)(scope, receive, send)
