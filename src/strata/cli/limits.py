"""``strata limits``: tells a running server how much of the graphics card it may take."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from strata.errors import EngineStopped, RequestError, SettingsError
from strata.settings import api_key_of_environment
from strata.units import format_bytes

# Slots that come back are filled before the answer.
_WAIT_S = 90.0
_AT_START = "what was planned at the start"


def command(
    vram: Annotated[
        str | None,
        typer.Option(
            help="Most VRAM from now on, in MiB or as 10G; start for what was "
            "planned when the model was loaded. Without it the limit is shown."
        ),
    ] = None,
    server: Annotated[str, typer.Option(help="Address of strata serve.")] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None, typer.Option(help="Its key. STRATA_API_KEY does the same.")
    ] = None,
) -> None:
    """Change what a running server takes of the card; answers under way go on."""
    key = api_key if api_key is not None else api_key_of_environment()
    body = None if vram is None else {"vram": None if vram == "start" else vram}
    told = _ask(server, key, body)
    num_bytes = told["vram_bytes"]
    limit = _AT_START if num_bytes is None else format_bytes(num_bytes)
    later = "" if told.get("done", True) else ", from the next token on"
    typer.echo(f"the card's limit is {limit}{later}.")


def _ask(server: str, key: str | None, body: dict[str, Any] | None) -> dict[str, Any]:
    """The answer of /v1/limits.

    Raises:
        SettingsError: the address is none, or the server refuses what is asked.
        EngineStopped: nobody answers there.
    """
    if urlsplit(server).scheme not in ("http", "https"):
        raise SettingsError(
            f"--server must be an address, not {server!r}.\n  Try: http://127.0.0.1:8000"
        )
    headers = {"content-type": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.rstrip('/')}/v1/limits", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S) as response:
            told = json.loads(response.read())
    except urllib.error.HTTPError as error:
        raise RequestError(_said(error)) from None
    except (OSError, HTTPException, ValueError) as error:
        cause = getattr(error, "reason", None) or error
        reason = getattr(cause, "strerror", None) or cause
        raise EngineStopped(
            f"no strata serve answers at {server}: {reason}.\n"
            "  Try: strata serve MODEL, or --server http://HOST:PORT of one that runs"
        ) from None
    if not isinstance(told, dict) or "vram_bytes" not in told:
        raise EngineStopped(f"{server} is no strata serve.\n  Try: --server http://HOST:PORT")
    return told


def _said(error: urllib.error.HTTPError) -> str:
    """What a server says when it refuses."""
    with error:
        try:
            return str(json.loads(error.read())["error"]["message"])
        except (ValueError, KeyError, TypeError, OSError):
            return f"the server refuses: {error.code} {error.reason}.\n  Try: its log"
