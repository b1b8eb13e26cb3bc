"""/v1/chat/completions: OpenAI's chat, whole or as a stream.

Owns its answer's shapes. What a field means is in ``openai_models`` and ``chat_words``.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from strata.server.answers import (
    Reasoning,
    Said,
    ToolArguments,
    ToolBegun,
    steps_of,
    whole_answer,
)
from strata.server.bodies import json_response, read_body, refuse
from strata.server.chat_words import reasoning_of, tool_wish, turns_of
from strata.server.faults import Fault, bad_request, openai_error
from strata.server.openai_models import REFUSED_OF_CHAT, ChatRequest
from strata.server.openai_words import (
    FINGERPRINT,
    chat_logprobs,
    either,
    form_wish,
    num_choices,
    options_of,
    timings_of,
    usage_of,
    with_seed,
)
from strata.server.serving import ChatWish, Serving
from strata.server.sse import data_event, stream_events, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.answers import Answer, Job, Piece, Step
    from strata.server.pictures import Pictures
    from strata.server.protocol import Costs, Ended

DONE = b"data: [DONE]\n\n"


async def chat_completions(request: Request) -> Response:
    """The route."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, ChatRequest)
    chat = Chat(serving, body)
    jobs = await chat.jobs()
    if body.stream:
        return await stream_events(chat.events(jobs), error_event)
    return json_response(await unless_gone(request, chat.whole(jobs)))


def error_event(fault: Fault) -> bytes:
    """An error that comes in the middle of a stream."""
    return data_event(openai_error(fault))


def wish_of(body: ChatRequest, pictures: Pictures) -> ChatWish:
    """What a body asks for.

    Raises:
        Fault: 400, a field cannot be honoured.
    """
    refuse({name: getattr(body, name) for name in REFUSED_OF_CHAT}, REFUSED_OF_CHAT)
    if body.top_logprobs is not None and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true.", "top_logprobs")
    options = options_of(
        body,
        max_tokens=either(body, "max_completion_tokens", "max_tokens"),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    thinking, budget = reasoning_of(body)
    return ChatWish(
        messages=turns_of(body.messages, pictures),
        options=options,
        thinking=thinking,
        think_budget=budget,
        tools=tool_wish(body),
        template_values=body.chat_template_kwargs or {},
        form=form_wish(body, body.response_format),
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """What all parts of one answer have in common."""

    answer_id: str
    created_s: int
    model: str


class Chat:
    """One request and the shapes of its answer."""

    def __init__(self, serving: Serving, body: ChatRequest) -> None:
        self._serving = serving
        self._body = body
        name = serving.check_model(body.model)
        self._head = _Head(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), name)
        self._wish = wish_of(body, serving.pictures)
        self._num = num_choices(body)

    async def jobs(self) -> list[Job]:
        """One job a choice; errors as ``Serving.chat_job``."""
        job = await self._serving.chat_job(self._wish)
        jobs = [job]
        for index in range(1, self._num):
            jobs.append(with_job_seed(job, index))
        return jobs

    async def whole(self, jobs: list[Job]) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        costs: list[Costs] = []
        num_reasoning = 0
        for index, job in enumerate(jobs):
            answer, ended = await whole_answer(self._serving.engine, job)
            costs.append(ended.costs)
            num_reasoning += answer.num_reasoning
            choices.append(self._choice(index, answer, ended))
        return {
            **self._common("chat.completion"),
            "choices": choices,
            "usage": usage_of(costs, num_reasoning),
            "timings": timings_of(costs[-1]),
        }

    async def events(self, jobs: list[Job]) -> AsyncGenerator[bytes, None]:
        """The answer as a stream of events; errors as ``steps_of``."""
        costs: list[Costs] = []
        num_reasoning = 0
        for index, job in enumerate(jobs):
            is_first = True
            async with steps_of(self._serving.engine, job) as steps:
                async for step in steps:
                    if step.progress is not None:
                        if self._body.return_progress:
                            yield self._progress_event(step)
                        continue
                    frames = self._frames(index, step)
                    if is_first:
                        frames.insert(0, self._chunk(index, {"role": "assistant", "content": ""}))
                        is_first = False
                    if step.ended is not None:
                        costs.append(step.ended.costs)
                        num_reasoning += step.num_reasoning
                        frames.append(self._last_chunk(index, step, step.ended))
                    if frames:
                        yield b"".join(frames)
        options = self._body.stream_options
        if options is not None and options.include_usage:
            usage = usage_of(costs, num_reasoning)
            yield data_event(
                {**self._common("chat.completion.chunk"), "choices": [], "usage": usage}
            )
        yield DONE

    def _common(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._head.answer_id,
            "object": kind,
            "created": self._head.created_s,
            "model": self._head.model,
            "system_fingerprint": FINGERPRINT,
        }

    def _choice(self, index: int, answer: Answer, ended: Ended) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if answer.text or not answer.calls else None,
            "refusal": None,
            "annotations": [],
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in answer.calls
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": finish_reason(ended, has_calls=bool(answer.calls)),
        }

    def _frames(self, index: int, step: Step) -> list[bytes]:
        """Chunks of one step: one for each piece, the log-probabilities with the first."""
        deltas = [delta for piece in step.pieces if (delta := _delta(piece)) is not None]
        logprobs = self._logprobs(list(step.logprobs)) if step.logprobs else None
        if not deltas and logprobs is not None and logprobs["content"]:
            deltas = [{"content": ""}]  # the text of this token comes later
        return [
            self._chunk(index, delta, logprobs if place == 0 else None)
            for place, delta in enumerate(deltas)
        ]

    def _logprobs(self, items: list[Any]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return {"content": chat_logprobs(self._serving.model, items), "refusal": None}

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return data_event({**self._common("chat.completion.chunk"), "choices": [choice]})

    def _last_chunk(self, index: int, step: Step, ended: Ended) -> bytes:
        reason = finish_reason(ended, has_calls=step.has_calls)
        choice = {"index": index, "delta": {}, "logprobs": None, "finish_reason": reason}
        common = self._common("chat.completion.chunk")
        return data_event({**common, "choices": [choice], "timings": timings_of(ended.costs)})

    def _progress_event(self, step: Step) -> bytes:
        progress = step.progress
        told = (
            None
            if progress is None
            else {
                "total": progress.num_total,
                "processed": progress.num_read,
            }
        )
        common = self._common("chat.completion.chunk")
        return data_event({**common, "choices": [], "prompt_progress": told})


def with_job_seed(job: Job, index: int) -> Job:
    """The job of another choice of the same request."""
    return replace(job, options=with_seed(dict(job.options), index))


def finish_reason(ended: Ended, *, has_calls: bool) -> str:
    """OpenAI's word for why an answer ended."""
    if ended.reason == "length":
        return "length"
    return "tool_calls" if has_calls else "stop"


def _delta(piece: Piece) -> dict[str, Any] | None:
    match piece:
        case Reasoning(text):
            return {"reasoning_content": text}
        case Said(text):
            return {"content": text}
        case ToolBegun(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case ToolArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None
