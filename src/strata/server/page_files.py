"""The web page: its files, and the headers that bound what it may do.

Owns the list of files, read once; a path that is not in it does not exist. The page is plain HTML,
CSS and JavaScript and talks to the same routes as every other client.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from strata.server.faults import Fault

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from starlette.requests import Request

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere, no script or style inside the page, no frame around it; and no text ever
# becomes HTML: with this Trusted Types rule the browser throws where a script tries.
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), usb=(), payment=()",
    # Asked for again every time, and not sent again while it is the same.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file."""

    body: bytes
    media_type: str
    etag: str


def load() -> dict[str, PageFile]:
    """Every file of the page by its path inside the folder."""
    found: dict[str, PageFile] = {}
    _collect(resources.files("strata.server") / "page", "", found)
    return found


async def page(request: Request) -> Response:
    """The page, or one of its files."""
    files: dict[str, PageFile] = request.app.state.page_files
    name = request.path_params.get("name", "index.html")
    file = files.get(name)
    if file is None:
        raise Fault(404, f"the page has no file {name!r}.")
    headers = {**_HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers={**headers, "content-type": file.media_type})


def _collect(folder: Traversable, prefix: str, found: dict[str, PageFile]) -> None:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            _collect(entry, f"{name}/", found)
            continue
        kind = _TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            found[name] = PageFile(body, kind, f'"{hashlib.sha256(body).hexdigest()[:24]}"')
