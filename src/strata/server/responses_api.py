"""/v1/responses: OpenAI's Responses, whole or as a stream, stateless or going on from a kept one.

Owns the response object. Items are built by ``responses_events``; what a field means is in
``responses_models`` and ``responses_words``.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from strata.server.answers import steps_of
from strata.server.bodies import json_response, read_body
from strata.server.openai_words import chat_logprobs
from strata.server.responses_events import OutputItems
from strata.server.responses_models import NamespaceTool, ResponsesRequest
from strata.server.responses_words import (
    functions_of,
    items_of,
    plain_items,
    wants_logprobs,
    wish_of,
)
from strata.server.sse import data_event, stream_events, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response as HttpResponse

    from strata.server.answers import Job
    from strata.server.faults import Fault
    from strata.server.protocol import Ended
    from strata.server.responses_models import AnyTool, TextConfig
    from strata.server.responses_store import ResponseStore
    from strata.server.serving import Serving


async def responses(request: Request) -> HttpResponse:
    """The route that answers."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, ResponsesRequest)
    response = Response(serving, request.app.state.responses, body)
    job = await response.job()
    if body.stream:
        return await stream_events(response.frames(job), response.failed_event)
    return json_response(await unless_gone(request, response.whole(job)))


class Response:
    """One request and the response object that answers it."""

    def __init__(self, serving: Serving, store: ResponseStore, body: ResponsesRequest) -> None:
        self._serving = serving
        self._store = store
        self._body = body
        self._model = serving.check_model(body.model)
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created_s = int(time.time())
        self._num_sent = 0
        plain = plain_items(body.input)
        if body.previous_response_id is not None:
            before = store.before(body.previous_response_id)
            plain = [*before.items, *plain]
        self._items = plain
        self._wish = wish_of(body, items_of(plain), serving.pictures)
        functions = functions_of(body.tools)
        self._output = OutputItems(
            lambda items: chat_logprobs(serving.model, list(items)) if wants_logprobs(body) else [],
            {name: (space, tool.name) for name, (space, tool) in functions.items() if space},
        )

    async def job(self) -> Job:
        """The job; errors as ``Serving.chat_job``."""
        return await self._serving.chat_job(self._wish)

    async def whole(self, job: Job) -> dict[str, Any]:
        """The response in one piece."""
        last: dict[str, Any] = {}
        async for events in self._events(job):
            last = events[-1]
        response: dict[str, Any] = last["response"]
        return response

    async def frames(self, job: Job) -> AsyncGenerator[bytes, None]:
        """The response as a stream of events; errors as ``steps_of``."""
        # Closing the frames has to close the answer too, at once.
        async with contextlib.aclosing(self._events(job)) as steps:
            async for events in steps:
                yield b"".join(map(self._frame, events))

    def failed_event(self, fault: Fault) -> bytes:
        """An error that comes in the middle of a stream."""
        error = {"code": fault.code or "server_error", "message": fault.text}
        response = {**self._response("failed"), "error": error}
        return self._frame({"type": "error", "param": None, **error}) + self._frame(
            {"type": "response.failed", "response": response}
        )

    def _frame(self, event: dict[str, Any]) -> bytes:
        numbered = {**event, "sequence_number": self._num_sent}
        self._num_sent += 1
        return data_event(numbered, event["type"])

    async def _events(self, job: Job) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Events of each step that brings any."""
        has_begun = False
        async with steps_of(self._serving.engine, job) as steps:
            async for step in steps:
                events: list[dict[str, Any]] = []
                if not has_begun:
                    for kind in ("created", "in_progress"):
                        response = self._response("in_progress")
                        events.append({"type": f"response.{kind}", "response": response})
                    has_begun = True
                events += self._output.add(step)
                if step.ended is not None:
                    events += self._last_events(step.ended, step.num_reasoning)
                if events:
                    yield events

    def _last_events(self, ended: Ended, num_reasoning: int) -> list[dict[str, Any]]:
        status = "incomplete" if ended.reason == "length" else "completed"
        events = list(self._output.end(status))
        response = self._response(status)
        response["output"] = self._output.items
        response["usage"] = usage_of(ended, num_reasoning)
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        if self._body.store is not False:
            self._store.add(response, self._items, self._output.items)
        return [*events, {"type": f"response.{status}", "response": response}]

    def _response(self, status: str) -> dict[str, Any]:
        """The response object without what it says; the request's own fields come back."""
        body = self._body
        reasoning = body.reasoning
        options = self._wish.options
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created_s,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": None if reasoning is None else reasoning.effort,
                "summary": None if reasoning is None else reasoning.summary,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": _told_format(body.text)},
            "tool_choice": "auto" if body.tool_choice is None else _plain(body.tool_choice),
            "tools": [_told(tool) for tool in body.tools or []],
            "top_logprobs": options.get("logprobs") or 0,
            "top_p": 0.95 if body.top_p is None else body.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
            **({} if body.user is None else {"user": body.user}),
        }


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value)


def _told_format(text: TextConfig | None) -> dict[str, Any]:
    """A format as it is told back."""
    if text is None or text.format is None:
        return {"type": "text"}
    plain: dict[str, Any] = msgspec.to_builtins(text.format)
    if text.format.type != "json_schema":
        return {"type": text.format.type}
    # Whatever was asked for: it is always followed.
    told = {"type": "json_schema", "name": plain["name"] or "", "schema": plain["schema"]}
    return {**told, "description": plain["description"], "strict": plain["strict"] is not False}


def _told(tool: AnyTool) -> dict[str, Any]:
    """A tool as it is told back; what was not said is not there, but for what always is."""
    plain: dict[str, Any] = msgspec.to_builtins(tool)
    if isinstance(tool, NamespaceTool):
        inside = [_told(function) for function in tool.tools]
        return {**plain, "description": tool.description or "", "tools": inside}
    always = ("type", "name", "description", "parameters", "strict")
    told = {name: value for name, value in plain.items() if value is not None or name in always}
    return {**told, "strict": bool(plain["strict"])}


def usage_of(ended: Ended, num_reasoning: int) -> dict[str, Any]:
    """The usage of one answer."""
    costs = ended.costs
    return {
        "input_tokens": costs.prompt_tokens,
        "input_tokens_details": {"cached_tokens": costs.reused_tokens, "cache_write_tokens": 0},
        "output_tokens": costs.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": costs.prompt_tokens + costs.generated_tokens,
    }
