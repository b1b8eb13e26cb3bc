"""Routes that make no answer: health, models, text to tokens and back.

Owns their shapes.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from strata.errors import StrataError
from strata.server.bodies import bytes_of_body, json_response, read_body
from strata.server.chat_words import turns_of, wish_of_tools
from strata.server.engine_state import State
from strata.server.faults import bad_request, fault_of
from strata.server.openai_models import DetokenizeRequest, LoadRequest, TokenizeRequest
from strata.server.openai_words import text_of_token
from strata.server.serving import ChatWish

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.serving import Serving


async def health(request: Request) -> Response:
    """200 when requests are answered; 503 with what is being done while they are not."""
    engine = _serving(request).engine
    if engine.state is State.READY and engine.silent_s is None:
        return json_response({"status": "ok"})
    num_done, num_total = engine.loaded
    body: dict[str, Any] = {"loaded_bytes": num_done, "total_bytes": num_total}
    if engine.state is State.READY:
        body = {"status": "not_answering", "silent_s": engine.silent_s, **body}
    else:
        body = {"status": str(engine.state), **body}
    if engine.last_death:
        body["why"] = f"the engine's process ended: {engine.last_death}."
    return json_response(body, 503, {"retry-after": "5"})


async def load(request: Request) -> Response:
    """Loads the model again; answers at once, and /health tells when it is ready."""
    serving = await _serving_named(request)
    serving.engine.load()
    return json_response({"state": str(serving.engine.state)}, 202)


async def unload(request: Request) -> Response:
    """Gives the model's memory back."""
    serving = await _serving_named(request)
    await serving.engine.unload()
    return json_response({"state": str(serving.engine.state)})


async def models(request: Request) -> Response:
    """The one model, and its other names."""
    serving = _serving(request)
    names = [serving.model.name, *(name for name in serving.aliases if name != "*")]
    told = [_model(serving, name) for name in names]
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return json_response({"object": "list", "data": told, **page})


async def model(request: Request) -> Response:
    """One model by name."""
    serving = _serving(request)
    return json_response(_model(serving, serving.check_model(request.path_params["name"])))


async def tokenize(request: Request) -> Response:
    """Ids of a text as it stands, or of a conversation as it would be answered."""
    serving = _serving(request)
    body = await read_body(request, TokenizeRequest)
    serving.check_model(body.model)
    text = body.content if body.content is not None else body.prompt
    if (text is None) == (body.messages is None):
        raise bad_request("give content, or messages.", "content")
    if body.messages is not None:
        wish = ChatWish(
            turns_of(body.messages, serving.pictures), {}, tools=wish_of_tools(body.tools or [])
        )
        ids = await asyncio.to_thread(serving.chat_ids, wish)
    else:
        try:
            ids = await asyncio.to_thread(serving.model.text.encode, text or "")
        except StrataError as error:
            raise fault_of(error) from None
    tokens: list[Any] = list(ids)
    if body.with_pieces:
        tokens = [{"id": item, "piece": text_of_token(serving.model, item)} for item in ids]
    return json_response({"tokens": tokens, "count": len(ids)})


async def detokenize(request: Request) -> Response:
    """Text of ids."""
    serving = _serving(request)
    body = await read_body(request, DetokenizeRequest)
    serving.check_model(body.model)
    try:
        text = serving.model.text.decode(body.tokens)
    except StrataError as error:
        raise fault_of(error) from None
    return json_response({"content": text})


async def _serving_named(request: Request) -> Serving:
    """The server, of a request that may name its model or have no body at all."""
    serving = _serving(request)
    if await bytes_of_body(request):
        serving.check_model((await read_body(request, LoadRequest)).model)
    return serving


def _serving(request: Request) -> Serving:
    serving: Serving = request.app.state.serving
    return serving


def _model(serving: Serving, name: str) -> dict[str, Any]:
    """A model in OpenAI's words and in Anthropic's: both have the same path."""
    ready = serving.engine.ready
    context_len = None if ready is None else ready.context_len
    created_s = serving.model.created_s
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "strata",
        "context_length": context_len,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created_s, UTC).isoformat(timespec="seconds"),
        "max_input_tokens": context_len,
        "max_tokens": context_len,
        "capabilities": None,
    }
