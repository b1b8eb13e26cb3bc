"""One answer between the APIs and the engine: what is asked for, and the pieces that come back.

Owns how an answer's text is read: reasoning parted from what is said, tool calls from prose. Knows
no API's field names and no HTTP.
"""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from strata.server import protocol
from strata.server.callers import CALLER
from strata.text.thoughts import ThoughtSplitter
from strata.text.tool_calls import Arguments, CallBegun, CallEnded, Prose, ToolCallParser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from strata.server.engine_process import EngineProcess, Messages
    from strata.text.tool_calls import Piece as CallPiece
    from strata.text.tool_values import Schema


@dataclass(frozen=True, slots=True)
class Job:
    """One answer that is wanted."""

    prompt: bytes  # token ids as they cross to the engine's process
    options: Mapping[str, Any]  # of SamplingParams
    is_thinking: bool = False  # the prompt opened the reasoning
    tools: Mapping[str, Schema] | None = None  # schema of arguments by name; None: no calls
    is_one_call: bool = False  # the answer ends with its first call
    think_bound: protocol.ThinkBound | None = None
    form: protocol.RequiredForm | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's thinking."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolBegun:
    """Call number ``index`` of the answer."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of that call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """That call's arguments are whole."""

    index: int


Piece = Reasoning | Said | ToolBegun | ToolArguments | ToolEnded


@dataclass(frozen=True, slots=True)
class Step:
    """What one message of the engine brought.

    ``logprobs`` are of tokens that were not reasoning. The last step has ``ended``.
    """

    pieces: list[Piece] = field(default_factory=list)
    logprobs: tuple[protocol.TokenLogprob, ...] = ()
    progress: protocol.Progress | None = None
    ended: protocol.Ended | None = None
    has_calls: bool = False
    num_reasoning: int = 0  # tokens of reasoning; with the last step


class AnswerReader:
    """Text of one answer to pieces, and nothing shown before it is certain what it is."""

    def __init__(self, job: Job) -> None:
        self._splitter = ThoughtSplitter(is_thinking=job.is_thinking)
        self._has_said = not job.is_thinking
        self._parser = None if job.tools is None else ToolCallParser(job.tools)
        self._num_begun = 0
        self.num_reasoning = 0
        """Tokens of the thinking so far."""
        self.num_ended = 0
        """Calls that are whole."""

    @property
    def has_calls(self) -> bool:
        """Whether the answer holds a call so far."""
        return self._num_begun > 0

    def read(self, tokens: protocol.Tokens) -> Step:
        """What one message adds."""
        was_inside = self._splitter.is_inside
        thought, said = self._splitter.feed(tokens.text)
        # The line ends behind the mark belong to the reasoning; text still held back does not.
        is_break = bool(tokens.text) and not said and not self._has_said
        is_reasoning = (was_inside or is_break) and not said
        self._has_said |= bool(said)
        self.num_reasoning += len(tokens.token_ids) if is_reasoning else 0
        pieces: list[Piece] = [Reasoning(thought)] if thought else []
        pieces += self._said(said)
        logprobs = () if is_reasoning else tokens.logprobs
        return Step(pieces, logprobs, has_calls=self.has_calls)

    def finish(self, ended: protocol.Ended) -> Step:
        """What was held back, and the end."""
        held = self._splitter.finish()
        pieces: list[Piece] = [Reasoning(held)] if held else []
        pieces += self._said("")
        if self._parser is not None:
            is_cut = ended.reason == "length"
            pieces += self._calls(self._parser.finish(is_cut=is_cut))
        return Step(pieces, ended=ended, has_calls=self.has_calls, num_reasoning=self.num_reasoning)

    def _said(self, text: str) -> list[Piece]:
        if self._parser is None:
            return [Said(text)] if text else []
        return self._calls(self._parser.feed(text))

    def _calls(self, found: list[CallPiece]) -> list[Piece]:
        pieces: list[Piece] = []
        for item in found:
            match item:
                case Prose(text):
                    pieces.append(Said(text))
                case CallBegun(name):
                    pieces.append(ToolBegun(self._num_begun, f"call_{uuid.uuid4().hex[:24]}", name))
                    self._num_begun += 1
                case Arguments(text):
                    pieces.append(ToolArguments(self._num_begun - 1, text))
                case CallEnded():
                    pieces.append(ToolEnded(self._num_begun - 1))
                    self.num_ended += 1
        return pieces


@asynccontextmanager
async def steps_of(engine: EngineProcess, job: Job) -> AsyncIterator[AsyncIterator[Step]]:
    """The steps of one answer; leaving the context before its end cancels it.

    Raises:
        Fault: as ``EngineProcess.answer``.
    """

    def submit(request_id: int) -> protocol.Submit:
        return protocol.Submit(
            request_id, job.prompt, dict(job.options), job.think_bound, job.form, CALLER.get()
        )

    async with engine.answer(submit) as messages:
        yield _steps(messages, job)


async def _steps(messages: Messages, job: Job) -> AsyncIterator[Step]:
    reader = AnswerReader(job)
    is_enough = False
    async for message in messages:
        match message:
            case protocol.Progress():
                yield Step(progress=message)
            case protocol.Ended() if is_enough:
                # It was cancelled here, for it had said all that was wanted.
                ended = msgspec.structs.replace(message, reason="stop")
                yield Step(ended=ended, has_calls=True, num_reasoning=reader.num_reasoning)
            case protocol.Ended():
                yield reader.finish(message)
            case protocol.Tokens() if not is_enough:
                step = reader.read(message)
                yield _first_call_only(step) if job.is_one_call else step
                is_enough = job.is_one_call and reader.num_ended > 0
                if is_enough:
                    messages.cancel()


def _first_call_only(step: Step) -> Step:
    """Without what one message said behind the end of the first call."""
    ends = [index for index, piece in enumerate(step.pieces) if isinstance(piece, ToolEnded)]
    return replace(step, pieces=step.pieces[: ends[0] + 1]) if ends else step


@dataclass(slots=True)
class ToolCall:
    """One whole call."""

    call_id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """A whole answer, folded from its steps."""

    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[protocol.TokenLogprob] = field(default_factory=list)
    ended: protocol.Ended | None = None
    num_reasoning: int = 0

    def add(self, step: Step) -> None:
        """The next step."""
        self.logprobs += step.logprobs
        self.ended = step.ended or self.ended
        self.num_reasoning = step.num_reasoning or self.num_reasoning
        for piece in step.pieces:
            match piece:
                case Reasoning(text):
                    self.reasoning += text
                case Said(text):
                    self.text += text
                case ToolBegun(_, call_id, name):
                    self.calls.append(ToolCall(call_id, name))
                case ToolArguments(index, text):
                    self.calls[index].arguments += text
                case ToolEnded():
                    pass


async def whole_answer(engine: EngineProcess, job: Job) -> tuple[Answer, protocol.Ended]:
    """The answer, once it is whole; errors as ``steps_of``."""
    answer = Answer()
    async with steps_of(engine, job) as steps:
        async for step in steps:
            answer.add(step)
    assert answer.ended is not None, answer  # noqa: S101 - the last step has it
    return answer, answer.ended
