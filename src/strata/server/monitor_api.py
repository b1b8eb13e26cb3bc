"""Routes that tell how the server is doing: /v1/status, /v1/monitor, /v1/about, /metrics.

Owns their queries. The figures are ``monitor``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import Response

from strata.server.bodies import json_response
from strata.server.faults import bad_request
from strata.server.metrics import CONTENT_TYPE
from strata.server.model_card import card_of
from strata.server.monitor import SHOWN_REQUESTS
from strata.server.monitor_metrics import scrape

if TYPE_CHECKING:
    from starlette.requests import Request

    from strata.server.monitor import Monitor


async def status(request: Request) -> Response:
    """What the engine is doing."""
    return json_response(await _monitor(request).brief())


async def monitor(request: Request) -> Response:
    """Everything the page shows; ``?requests=all`` for all that are kept."""
    wanted = request.query_params.get("requests", str(SHOWN_REQUESTS))
    if wanted != "all" and not (wanted.isdecimal() and len(wanted) < 9):
        raise bad_request("requests must be a number, or all.", "requests")
    most = None if wanted == "all" else int(wanted)
    return json_response(await _monitor(request).whole(most))


async def about(request: Request) -> Response:
    """Facts of the model, the server and the machine."""
    return json_response(card_of(request.app.state.serving, _monitor(request).facts))


async def metrics(request: Request) -> Response:
    """The figures as Prometheus reads them."""
    text = await scrape(_monitor(request))
    # Not media_type: that adds a second charset.
    return Response(text.encode(), headers={"content-type": CONTENT_TYPE})


def _monitor(request: Request) -> Monitor:
    found: Monitor = request.app.state.monitor
    return found
