"""/v1/messages and /v1/messages/count_tokens: Anthropic's API, whole or as a stream.

Owns its answer's shapes. What a field means is in ``anthropic_models`` and ``messages_words``.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any, Final

from strata.server.answers import (
    Reasoning,
    Said,
    ToolArguments,
    ToolBegun,
    ToolEnded,
    steps_of,
    whole_answer,
)
from strata.server.anthropic_models import CountRequest, MessagesRequest
from strata.server.bodies import json_response, read_body
from strata.server.faults import Fault, anthropic_error
from strata.server.messages_words import wish_of
from strata.server.sse import data_event, stream_events, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.answers import Answer, Job, Piece, Step
    from strata.server.protocol import Costs, Ended
    from strata.server.serving import Serving

_PING: Final = data_event({"type": "ping"}, "ping")


async def messages(request: Request) -> Response:
    """The route of answers."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, MessagesRequest)
    message = Message(serving, body)
    job = await message.job()
    if body.stream:
        return await stream_events(message.events(job), error_event, keep_alive=_PING)
    return json_response(await unless_gone(request, message.whole(job)))


async def count_tokens(request: Request) -> Response:
    """The route that only counts."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, CountRequest)
    serving.check_model(body.model)
    has_thinking = serving.model.text.has_thinking
    wish = wish_of(body, has_thinking=has_thinking, pictures=serving.pictures)
    ids = await asyncio.to_thread(serving.chat_ids, wish)
    return json_response({"input_tokens": len(ids)})


def error_event(fault: Fault) -> bytes:
    """An error that comes in the middle of a stream."""
    return data_event(anthropic_error(fault), "error")


class Message:
    """One request and the shapes of its answer."""

    def __init__(self, serving: Serving, body: MessagesRequest) -> None:
        self._serving = serving
        self._id = f"msg_{uuid.uuid4().hex[:24]}"
        self._model = serving.check_model(body.model)
        has_thinking = serving.model.text.has_thinking
        self._wish = wish_of(body, has_thinking=has_thinking, pictures=serving.pictures)

    async def job(self) -> Job:
        """The job; errors as ``Serving.chat_job``."""
        return await self._serving.chat_job(self._wish)

    async def whole(self, job: Job) -> dict[str, Any]:
        """The answer in one piece."""
        answer, ended = await whole_answer(self._serving.engine, job)
        reason, stop = _stop(ended, has_calls=bool(answer.calls))
        usage = _usage(ended.costs, answer.num_reasoning)
        message = self._message(_blocks(answer), usage)
        return {**message, "stop_reason": reason, "stop_sequence": stop}

    async def events(self, job: Job) -> AsyncGenerator[bytes, None]:
        """The answer as a stream of events; errors as ``steps_of``."""
        blocks = _Blocks()
        has_begun = False
        async with steps_of(self._serving.engine, job) as steps:
            async for step in steps:
                if step.progress is not None:
                    continue
                frames = []
                if not has_begun:
                    usage = _usage_begun(len(job.prompt) // 4)
                    frames.append(_event("message_start", message=self._message([], usage)))
                    has_begun = True
                for piece in step.pieces:
                    frames += blocks.add(piece)
                if step.ended is not None:
                    frames += blocks.end()
                    frames += _last_events(step, step.ended)
                if frames:
                    yield b"".join(frames)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage,
        }


class _Blocks:
    """Pieces to events of blocks: one is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None

    def add(self, piece: Piece) -> Iterator[bytes]:
        match piece:
            case Reasoning(text):
                yield from self._into("thinking", {"thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case Said(text):
                yield from self._into("text", {"text": "", "citations": None})
                yield self._delta({"type": "text_delta", "text": text})
            case ToolBegun(_, call_id, name):
                yield from self.end()
                yield from self._into("tool_use", _call_head(call_id, name))
            case ToolArguments(_, text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolEnded():
                yield from self.end()

    def end(self) -> Iterator[bytes]:
        """The end of the open block, if there is one."""
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        self._open = None
        yield _event("content_block_stop", index=self._index)

    def _into(self, kind: str, head: dict[str, Any]) -> Iterator[bytes]:
        if self._open == kind:
            return
        yield from self.end()
        self._open = kind
        self._index += 1
        block = {"type": kind, **head}
        yield _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _last_events(step: Step, ended: Ended) -> list[bytes]:
    reason, stop = _stop(ended, has_calls=step.has_calls)
    delta = {
        "stop_reason": reason,
        "stop_sequence": stop,
        "stop_details": None,
        "container": None,
    }
    usage = _usage(ended.costs, step.num_reasoning)
    return [_event("message_delta", delta=delta, usage=usage), _event("message_stop")]


def _event(kind: str, **rest: object) -> bytes:
    return data_event({"type": kind, **rest}, kind)


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text, "citations": None})
    for call in answer.calls:
        head = _call_head(call.call_id, call.name)
        blocks.append({"type": "tool_use", **head, "input": _object(call.arguments)})
    return blocks


def _object(arguments: str) -> dict[str, Any]:
    """Arguments as an object; an answer that was cut short in them has none that are whole."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _call_head(call_id: str, name: str) -> dict[str, Any]:
    """A call without its arguments."""
    own_id = f"toolu_{call_id.removeprefix('call_')}"
    return {"id": own_id, "name": name, "input": {}, "caller": {"type": "direct"}}


def _stop(ended: Ended, *, has_calls: bool) -> tuple[str, str | None]:
    """Anthropic's words for why an answer ended: the reason, and the stop text that was met."""
    if ended.reason == "length":
        return "max_tokens", None
    if ended.stop_text is not None:
        return "stop_sequence", ended.stop_text
    return ("tool_use" if has_calls else "end_turn"), None


def _usage(costs: Costs, num_reasoning: int) -> dict[str, Any]:
    begun = _usage_begun(costs.prompt_tokens - costs.reused_tokens)
    return {
        **begun,
        "cache_read_input_tokens": costs.reused_tokens,
        "output_tokens": costs.generated_tokens,
        "output_tokens_details": {"thinking_tokens": num_reasoning},
    }


def _usage_begun(num_input: int) -> dict[str, Any]:
    return {
        "input_tokens": num_input,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 0},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }
