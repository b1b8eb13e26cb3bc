"""What every route works with, and how a job is made from checked wishes.

Owns the translation of common wishes (sampling, length, thinking, tools) that all APIs share under
different names.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from strata.engine.sampling_params import MAX_SEED, SamplingParams
from strata.errors import StrataError
from strata.server.answers import Job
from strata.server.faults import Fault, bad_request, fault_of
from strata.server.form_words import form_of, form_of_calls
from strata.server.model_side import ModelSide, as_frame
from strata.server.pictures import Pictures
from strata.server.protocol import RequiredForm
from strata.text.call_form import CallWish
from strata.text.thoughts import THINK_END

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.engine.request import Message
    from strata.server.engine_process import EngineProcess
    from strata.server.form_words import FormWish
    from strata.server.protocol import Ready, ThinkBound
    from strata.text.tool_values import Schema


@dataclass(frozen=True, slots=True)
class ToolWish:
    """Which tools there are, and which must be called."""

    tools: Sequence[Mapping[str, object]] = ()  # as templates take them
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    must_call: bool = False
    must_call_name: str | None = None
    is_one_call: bool = False
    strict_names: frozenset[str] = frozenset()
    """Tools whose arguments obey their schemas, whether a call is required or not."""


@dataclass(frozen=True, slots=True)
class ChatWish:
    """An answer to a conversation."""

    messages: Sequence[Message]
    options: Mapping[str, Any]
    thinking: bool | None = None  # None: as the template does
    think_budget: int | None = None
    tools: ToolWish = field(default_factory=ToolWish)
    template_values: Mapping[str, Any] = field(default_factory=dict)
    prefill: str = ""
    """The beginning of the answer, which the client wrote."""
    form: FormWish | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """The one model that is served."""

    engine: EngineProcess
    model: ModelSide
    aliases: tuple[str, ...] = ()
    fit_max_tokens: bool = False
    """Answers are shortened to what the context leaves, instead of refused."""
    pictures: Pictures = Pictures.REFUSE

    def check_model(self, name: str | None) -> str:
        """The name the answer carries.

        Raises:
            Fault: 404, another model is asked for.
        """
        if name is None:
            return self.model.name
        if name in (self.model.name, *self.aliases) or "*" in self.aliases:
            return name
        raise Fault(
            404,
            f"there is no model {name!r} here; this is {self.model.name!r}.\n"
            f"  Try: that name, or strata serve --alias {name}",
            code="model_not_found",
            field="model",
        )

    async def chat_job(self, wish: ChatWish) -> Job:
        """The job of a conversation.

        Raises:
            Fault: 400 the template or an option refuses; 503 no engine.
        """
        ready = await self.engine.wait_ready()
        return await asyncio.to_thread(self._chat_job, wish, ready)

    async def text_job(
        self,
        prompt: str | Sequence[int],
        options: Mapping[str, Any],
        form: FormWish | None = None,
    ) -> Job:
        """The job of continuing a text, or ids; errors as ``chat_job``."""
        ready = await self.engine.wait_ready()
        return await asyncio.to_thread(self._text_job, prompt, options, form, ready)

    def chat_ids(self, wish: ChatWish) -> list[int]:
        """Ids of a conversation, up to where the assistant speaks. Takes time.

        Raises:
            Fault: 400, the template refuses.
        """
        values = dict(wish.template_values)
        if wish.thinking is not None:
            values["enable_thinking"] = wish.thinking
        if wish.tools.tools:
            values["tools"] = list(wish.tools.tools)
        try:
            return self.model.chat(wish.messages, values)
        except StrataError as error:
            raise fault_of(error) from None
        except TypeError as error:
            raise bad_request(f"chat_template_kwargs: {error}.", "chat_template_kwargs") from None

    def _chat_job(self, wish: ChatWish, ready: Ready) -> Job:
        if wish.thinking and not self.model.text.has_thinking:
            raise bad_request("this model has no reasoning to turn on.", "reasoning_effort")
        ids = self.chat_ids(wish)
        is_thinking = self.model.opens_thinking(ids)
        tools = wish.tools
        form = self._form(wish, is_thinking=is_thinking)
        if wish.prefill:
            if is_thinking or form is not None:
                raise bad_request(
                    "an answer that was begun takes no reasoning, no form and no required call.\n"
                    "  Try: end the conversation with a user's turn.",
                    "messages",
                )
            ids = ids + self.model.text.encode_more(wish.prefill)
        bound: ThinkBound | None = None
        if is_thinking and wish.think_budget is not None:
            try:
                bound = self.model.think_bound(wish.think_budget)
            except StrataError as error:
                raise fault_of(error) from None
        return Job(
            prompt=as_frame(ids),
            options=self._checked(wish.options, len(ids), ready, form=form),
            is_thinking=is_thinking,
            tools=tools.schemas if tools.tools else None,
            is_one_call=tools.is_one_call,
            think_bound=bound,
            form=form,
        )

    def _form(self, wish: ChatWish, *, is_thinking: bool) -> RequiredForm | None:
        """What the answer must be; None where it may be anything."""
        tools = wish.tools
        body = None if wish.form is None else form_of(wish.form)
        if tools.tools and (tools.must_call or tools.strict_names or body is not None):
            name = tools.must_call_name
            calls = CallWish(
                tools=tools.schemas if name is None else {name: tools.schemas[name]},
                strict_names=tools.strict_names,
                must_call=tools.must_call,
                is_one_call=tools.is_one_call,
            )
            body = form_of_calls(calls, body)
        if body is None:
            return None
        return RequiredForm(body.grammar, THINK_END if is_thinking else "")

    def _text_job(
        self,
        prompt: str | Sequence[int],
        options: Mapping[str, Any],
        form: FormWish | None,
        ready: Ready,
    ) -> Job:
        try:
            ids = self.model.text.encode(prompt) if isinstance(prompt, str) else list(prompt)
        except StrataError as error:
            raise fault_of(error) from None
        if not ids:
            raise bad_request("the prompt is empty.", "prompt")
        outside = next((item for item in ids if not 0 <= item < ready.vocab_size), None)
        if outside is not None:
            raise bad_request(f"token id {outside} is not in the vocabulary.", "prompt")
        required = None if form is None else RequiredForm(form_of(form).grammar)
        checked = self._checked(options, len(ids), ready, form=required)
        return Job(prompt=as_frame(ids), options=checked, form=required)

    def _checked(
        self,
        options: Mapping[str, Any],
        num_prompt: int,
        ready: Ready,
        *,
        form: RequiredForm | None = None,
    ) -> dict[str, Any]:
        """Options without what was not said, with a length; checked before a stream begins."""
        given = {name: value for name, value in options.items() if value is not None}
        if (seed := given.get("seed")) is not None and isinstance(seed, int):
            given["seed"] = seed & MAX_SEED  # negative seeds are seeds too
        try:
            SamplingParams.from_options(given)
        except StrataError as error:
            raise fault_of(error) from None
        if form is not None and given.get("ignore_eos"):
            raise bad_request("an answer of a required form ends with it.", "ignore_eos")
        for token_id, _ in given.get("logit_bias", {}).items():
            if token_id >= ready.vocab_size:
                raise bad_request(f"there is no token {token_id}.", "logit_bias")
        # The last token of an answer is never read back, so it needs no room.
        room = ready.context_len - num_prompt + 1
        wanted = given.get("max_tokens", 1)
        if num_prompt > ready.context_len or (wanted > room and not self.fit_max_tokens):
            raise Fault(
                400,
                f"the prompt has {num_prompt} tokens and {wanted} or more are to follow, but the "
                f"context holds {ready.context_len}.\n  Try: a shorter prompt, fewer tokens, or "
                "strata serve --context N.",
                code="context_length_exceeded",
            )
        given["max_tokens"] = min(given.get("max_tokens", room), room)
        return given
