"""Routes about responses that make none: kept ones, lengths of inputs, shorter conversations.

Owns the shapes of those answers.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from strata.server.answers import whole_answer
from strata.server.bodies import json_response, read_body
from strata.server.faults import bad_request
from strata.server.responses_api import usage_of
from strata.server.responses_compaction import SUMMARY_TOKENS, compacted, listed, with_wish
from strata.server.responses_models import (
    CompactRequest,
    InputTokensRequest,
    ResponsesRequest,
)
from strata.server.responses_words import items_of, plain_items, turns_of, wish_of
from strata.server.serving import ChatWish
from strata.server.sse import unless_gone

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.responses_store import ResponseStore
    from strata.server.serving import Serving
    from strata.server.structs import Json

_MOST_LISTED: Final = 100


async def kept_response(request: Request) -> Response:
    """The route that gives a kept response again."""
    _refuse_queries(request)
    return json_response(_store(request).get(_id_of(request)).response)


async def remove_response(request: Request) -> Response:
    """The route that forgets one."""
    response_id = _id_of(request)
    _store(request).remove(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(request: Request) -> Response:
    """The route that ends a response in the background, of which there are none here."""
    _store(request).get(_id_of(request))
    raise bad_request("only responses made in the background can be cancelled.", "background")


async def input_items(request: Request) -> Response:
    """The route that lists what a response answered."""
    _refuse_queries(request, "limit", "order", "after")
    query = request.query_params
    limit, order = query.get("limit", "20"), query.get("order", "desc")
    if not (re.fullmatch("[0-9]{1,4}", limit) and 1 <= int(limit) <= _MOST_LISTED):
        raise bad_request(f"limit must be 1 to {_MOST_LISTED}.", "limit")
    if order not in ("asc", "desc"):
        raise bad_request("order must be asc or desc.", "order")
    kept = _store(request).get(_id_of(request))
    items = kept.input_items if order == "asc" else kept.input_items[::-1]
    if (after := query.get("after")) is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise bad_request(f"there is no item {after!r} in this list.", "after")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    return json_response(
        {
            "object": "list",
            "data": page,
            "has_more": len(page) < len(items),
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
        }
    )


async def input_tokens(request: Request) -> Response:
    """The route that counts what a response would read."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, InputTokensRequest)
    serving.check_model(body.model)
    known = {name: getattr(body, name) for name in body.__struct_fields__}
    asked = ResponsesRequest(**{**known, "model": body.model or serving.model.name})
    plain = _plain_items(request, asked.input, asked.previous_response_id)
    wish = wish_of(asked, items_of(plain), serving.pictures)
    ids = await asyncio.to_thread(serving.chat_ids, wish)
    return json_response({"object": "response.input_tokens", "input_tokens": len(ids)})


async def compact(request: Request) -> Response:
    """The route that makes a conversation shorter."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, CompactRequest)
    serving.check_model(body.model)
    plain = _plain_items(request, body.input, body.previous_response_id)
    turns = turns_of(body.instructions, items_of(plain), serving.pictures)
    has_thinking = serving.model.text.has_thinking
    job = await serving.chat_job(
        ChatWish(
            messages=with_wish(turns),
            options={"max_tokens": SUMMARY_TOKENS, "temperature": 0},
            thinking=False if has_thinking else None,
        )
    )
    answer, ended = await unless_gone(request, whole_answer(serving.engine, job))
    made: dict[str, Any] = {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": listed(compacted(plain, answer.text.strip())),
        "usage": usage_of(ended, 0),
    }
    return json_response(made)


def _plain_items(
    request: Request, given: str | list[Json] | None, before: str | None
) -> list[Json]:
    plain = plain_items(given)
    if before is None:
        return plain
    return [*_store(request).before(before).items, *plain]


def _store(request: Request) -> ResponseStore:
    store: ResponseStore = request.app.state.responses
    return store


def _id_of(request: Request) -> str:
    response_id: str = request.path_params["response_id"]
    return response_id


def _refuse_queries(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise bad_request(f"{name} is not supported here.", name)
