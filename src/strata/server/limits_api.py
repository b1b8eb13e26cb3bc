"""/v1/limits: how much of the graphics card the model may take, while it runs.

Owns the body's shape. What a limit does is ``Engine.set_vram_limit``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from strata.errors import SettingsError
from strata.server.bodies import json_response, read_body
from strata.server.faults import bad_request
from strata.server.structs import Struct
from strata.settings import wish_of
from strata.units import MiB
from strata.wishes import parse

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.serving import Serving


class LimitsRequest(Struct):
    """Body of POST /v1/limits: one of the two; null is what was planned at the start."""

    vram: str | int | msgspec.UnsetType | None = msgspec.UNSET
    """As ``--vram-limit``: MiB, or a size such as 10G."""
    vram_bytes: int | msgspec.UnsetType | None = msgspec.UNSET


async def limits(request: Request) -> Response:
    """The limit that holds."""
    return json_response(_told(request.app.state.serving))


async def set_limits(request: Request) -> Response:
    """Sets it; 202 while a request is under way, whose next window does it."""
    serving: Serving = request.app.state.serving
    mib = _mib_of(await read_body(request, LimitsRequest))
    is_done = await serving.engine.set_vram_limit(mib)
    return json_response({**_told(serving), "done": is_done}, 200 if is_done else 202)


def _told(serving: Serving) -> dict[str, Any]:
    mib = serving.engine.questions.vram_mib
    return {"vram_bytes": None if mib is None else mib * MiB}


def _mib_of(body: LimitsRequest) -> int | None:
    """The limit that is wanted, in MiB.

    Raises:
        Fault: 400, none or two are given, or it is no size.
    """
    given = [body.vram, body.vram_bytes]
    if given.count(msgspec.UNSET) != 1:
        raise bad_request("give vram (MiB, or a size such as 10G) or vram_bytes.", "vram")
    if isinstance(body.vram_bytes, int):
        mib, field = body.vram_bytes // MiB, "vram_bytes"
    elif isinstance(body.vram, int | str):
        mib, field = _parsed(body.vram), "vram"
    else:
        return None
    wish = wish_of("vram_limit")
    if not (wish.minimum or 0) <= mib <= (wish.maximum or mib):
        raise bad_request(f"{field} is no size of a card's memory: {mib} MiB.", field)
    return mib


def _parsed(value: str | int) -> int:
    try:
        mib = parse("vram", wish_of("vram_limit"), value)
    except SettingsError as error:
        raise bad_request(str(error), "vram") from None
    return mib if isinstance(mib, int) else 0
