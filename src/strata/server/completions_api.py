"""/v1/completions: text continued as it stands, whole or as a stream.

Owns its answer's shapes. Nothing in the text becomes a control token.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strata.server.answers import Said, steps_of, whole_answer
from strata.server.bodies import json_response, read_body, refuse
from strata.server.chat_api import DONE, error_event, finish_reason
from strata.server.faults import bad_request
from strata.server.openai_models import REFUSED_OF_COMPLETIONS, CompletionRequest
from strata.server.openai_words import (
    FINGERPRINT,
    form_wish,
    num_choices,
    options_of,
    text_of_token,
    timings_of,
    usage_of,
    with_seed,
)
from strata.server.sse import data_event, stream_events, unless_gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from strata.server.answers import Job
    from strata.server.protocol import Costs, TokenLogprob
    from strata.server.serving import Serving

# OpenAI's default here, unlike in chats.
DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 64


async def completions(request: Request) -> Response:
    """The route."""
    serving: Serving = request.app.state.serving
    body = await read_body(request, CompletionRequest)
    completion = Completion(serving, body)
    jobs = await completion.jobs()
    if body.stream:
        return await stream_events(completion.events(jobs), error_event)
    return json_response(await unless_gone(request, completion.whole(jobs)))


class Completion:
    """One request and the shapes of its answer."""

    def __init__(self, serving: Serving, body: CompletionRequest) -> None:
        refuse(
            {name: getattr(body, name) for name in REFUSED_OF_COMPLETIONS}, REFUSED_OF_COMPLETIONS
        )
        self._num = num_choices(body)
        if body.best_of not in (None, self._num):
            raise bad_request("best_of must equal n: answers are not ranked.", "best_of")
        if body.echo and body.logprobs is not None:
            raise bad_request("echo has no log-probabilities of the prompt.", "echo")
        self._serving = serving
        self._body = body
        self._prompts = _prompts(body.prompt)
        self._common = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": serving.check_model(body.model),
            "system_fingerprint": FINGERPRINT,
        }

    async def jobs(self) -> list[Job]:
        """A job for each choice of each prompt; errors as ``Serving.text_job``."""
        given = self._body.max_tokens
        options = options_of(
            self._body,
            max_tokens=DEFAULT_MAX_TOKENS if given is None else given,
            logprobs=self._body.logprobs,
        )
        form = form_wish(self._body)
        firsts = [await self._serving.text_job(prompt, options, form) for prompt in self._prompts]
        return [
            replace(job, options=with_seed(dict(job.options), index))
            for job in firsts
            for index in range(self._num)
        ]

    async def whole(self, jobs: list[Job]) -> dict[str, Any]:
        """The answer in one piece."""
        choices: list[dict[str, Any]] = []
        costs: list[Costs] = []
        for index, job in enumerate(jobs):
            answer, ended = await whole_answer(self._serving.engine, job)
            costs.append(ended.costs)
            choices.append(
                {
                    "index": index,
                    "text": self._echo(index) + answer.text,
                    "logprobs": self._logprobs(answer.logprobs, 0)[0],
                    "finish_reason": finish_reason(ended, has_calls=False),
                }
            )
        return {
            **self._common,
            "choices": choices,
            "usage": usage_of(costs, num_prompts=len(self._prompts)),
            "timings": timings_of(costs[-1]),
        }

    async def events(self, jobs: list[Job]) -> AsyncGenerator[bytes, None]:
        """The answer as a stream of events; errors as ``steps_of``."""
        costs: list[Costs] = []
        for index, job in enumerate(jobs):
            offset = 0
            if echo := self._echo(index):
                yield self._chunk(index, echo, None)
            async with steps_of(self._serving.engine, job) as steps:
                async for step in steps:
                    text = "".join(item.text for item in step.pieces if isinstance(item, Said))
                    logprobs, offset = self._logprobs(list(step.logprobs), offset)
                    if text or step.logprobs:
                        yield self._chunk(index, text, logprobs)
                    if step.ended is not None:
                        costs.append(step.ended.costs)
                        reason = finish_reason(step.ended, has_calls=False)
                        yield self._chunk(index, "", None, reason)
        options = self._body.stream_options
        if options is not None and options.include_usage:
            usage = usage_of(costs, num_prompts=len(self._prompts))
            yield data_event({**self._common, "choices": [], "usage": usage})
        yield DONE

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None = None
    ) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return data_event({**self._common, "choices": [choice]})

    def _echo(self, index: int) -> str:
        if not self._body.echo:
            return ""
        prompt = self._prompts[index // self._num]
        return prompt if isinstance(prompt, str) else self._serving.model.text.decode(prompt)

    def _logprobs(
        self, items: Sequence[TokenLogprob], offset: int
    ) -> tuple[dict[str, Any] | None, int]:
        """Log-probabilities in this API's columns, and where the next token begins."""
        if self._body.logprobs is None:
            return None, offset
        model = self._serving.model
        items = [item for item in items if item.token_id not in model.text.end_ids]
        texts = [text_of_token(model, item.token_id) for item in items]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        columns = {
            "tokens": texts,
            "token_logprobs": [item.logprob for item in items],
            "top_logprobs": [
                {text_of_token(model, token_id): logprob for token_id, logprob in item.top}
                for item in items
            ],
            "text_offset": offsets,
        }
        return columns, offset


def _prompts(given: str | list[Any]) -> list[str | list[int]]:
    """Each prompt by itself.

    Raises:
        Fault: 400, there is none, too many, or it is neither text nor ids.
    """
    is_one = isinstance(given, str) or (bool(given) and _is_id(given[0]))
    prompts: list[str | list[int]] = [given] if is_one else list(given)
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        raise bad_request(f"there must be 1 to {MAX_PROMPTS} prompts.", "prompt")
    for prompt in prompts:
        is_ids = isinstance(prompt, list) and all(map(_is_id, prompt))
        if not isinstance(prompt, str) and not is_ids:
            raise bad_request("a prompt is text, or a list of token ids.", "prompt")
    return prompts


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
