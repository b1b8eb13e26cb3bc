"""The web application: which path leads to which route, and what an error looks like there.

Owns the table of routes. Starting and ending are ``serve``'s.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from strata.server import (
    chat_api,
    completions_api,
    limits_api,
    llama_api,
    messages_api,
    monitor_api,
    page_files,
    plain_api,
    responses_api,
    responses_kept_api,
)
from strata.server.bodies import json_response
from strata.server.faults import Fault, anthropic_error, openai_error
from strata.server.responses_store import ResponseStore
from strata.server.security import Guard

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from strata.server.monitor import Monitor
    from strata.server.security import Rules
    from strata.server.serving import Serving

_LOGGER: Final = logging.getLogger("strata.server")

ROUTES: Final = (
    *(("GET", f"{root}/health", plain_api.health) for root in ("", "/v1", "/api")),
    *(("POST", f"{root}/load", plain_api.load) for root in ("", "/v1", "/v1/models")),
    *(("POST", f"{root}/unload", plain_api.unload) for root in ("", "/v1", "/v1/models")),
    ("GET", "/v1/limits", limits_api.limits),
    ("POST", "/v1/limits", limits_api.set_limits),
    *(("GET", f"{root}/models", plain_api.models) for root in ("", "/v1")),
    ("GET", "/v1/models/{name:path}", plain_api.model),
    ("GET", "/", page_files.page),
    ("GET", "/page/{name:path}", page_files.page),
    *(("GET", f"{root}/status", monitor_api.status) for root in ("", "/v1")),
    ("GET", "/v1/monitor", monitor_api.monitor),
    ("GET", "/v1/about", monitor_api.about),
    ("GET", "/metrics", monitor_api.metrics),
    ("GET", "/props", llama_api.props),
    ("GET", "/slots", llama_api.slots),
    ("POST", "/tokenize", plain_api.tokenize),
    ("POST", "/detokenize", plain_api.detokenize),
    *(("POST", f"{root}/chat/completions", chat_api.chat_completions) for root in ("", "/v1")),
    *(("POST", f"{root}/completions", completions_api.completions) for root in ("", "/v1")),
    ("POST", "/v1/responses", responses_api.responses),
    ("POST", "/v1/responses/compact", responses_kept_api.compact),
    ("POST", "/v1/responses/input_tokens", responses_kept_api.input_tokens),
    ("GET", "/v1/responses/{response_id}", responses_kept_api.kept_response),
    ("DELETE", "/v1/responses/{response_id}", responses_kept_api.remove_response),
    ("GET", "/v1/responses/{response_id}/input_items", responses_kept_api.input_items),
    ("POST", "/v1/responses/{response_id}/cancel", responses_kept_api.cancel_response),
    ("POST", "/v1/messages", messages_api.messages),
    ("POST", "/v1/messages/count_tokens", messages_api.count_tokens),
)


def build_app(serving: Serving, rules: Rules, monitor: Monitor) -> ASGIApp:
    """The application, behind its guard."""
    app = Starlette(
        routes=[Route(path, route, methods=[method]) for method, path, route in ROUTES],
        exception_handlers={
            Fault: on_fault,
            HTTPException: _on_http_error,
            Exception: _on_bug,
        },
    )
    app.state.serving = serving
    app.state.responses = ResponseStore()
    app.state.monitor = monitor
    app.state.page_files = page_files.load()
    return Guard(app, rules)


def on_fault(request: Request, error: Exception) -> Response:
    """The answer to what went wrong, in the words of the path's API."""
    fault = error if isinstance(error, Fault) else Fault(500, str(error))
    is_anthropic = request.url.path.startswith("/v1/messages")
    body = anthropic_error(fault) if is_anthropic else openai_error(fault)
    return json_response(body, fault.status, fault.headers)


def _on_http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = f"{request.method} {request.url.path}"
    texts = {404: f"there is no {what} here.", 405: f"{what} is not possible; another method is."}
    return on_fault(request, Fault(status, texts.get(status, f"{what} failed.")))


def _on_bug(request: Request, error: Exception) -> Response:
    # The text of a bug may hold anything, a prompt too, so only the log has it.
    _LOGGER.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return on_fault(request, Fault(500, "the server made a mistake; its log says more."))
