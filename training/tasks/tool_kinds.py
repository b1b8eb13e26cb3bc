"""What a tool is to the generators: its parameters, how it is asked for, what it returns.

Owns the types and the schema form. The tools themselves are in ``training.tasks.tool_catalogue``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

    from training.tasks.example import Message, Tool

Value = Any
Draw = Callable[["random.Random"], Value]

_FAILURES = (
    "no connection",
    "not found",
    "access denied",
    "the service is down",
    "time limit reached",
)
_DONE: tuple[Value, ...] = ({"status": "ok"}, {"success": True}, "ok", "done", {"result": "done"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        names: it may go by; the first is the one in templates.
        kind: JSON type.
        description: in the schema.
        draw: makes a value.
        options: the only values there are, if limited.
        extra: for an optional parameter, what the request says when it is given (" on {}").
    """

    names: tuple[str, ...]
    kind: str
    description: str
    draw: Draw
    options: tuple[str, ...] = ()
    extra: str = ""

    def schema(self) -> dict[str, Any]:
        """Its entry in the tool's schema."""
        schema: dict[str, Any] = {"type": self.kind, "description": self.description}
        if self.options:
            schema["enum"] = list(self.options)
        return schema


@dataclass(frozen=True, slots=True)
class ToolKind:
    """One tool.

    Attributes:
        names: it may go by.
        description: in the schema.
        parameters: in the order of the schema.
        requests: what the user says; ``{name}`` is a parameter. Those that end with a full stop
            are commands.
        answer: what the assistant says after the result; parameters and result fields.
        fields: of the result; without any, the tool does something and only says so.
        compute: gives the result's fields from the arguments, where they follow from them.
        group: tools of one group could be taken for each other and are never offered together.
    """

    names: tuple[str, ...]
    description: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]
    answer: str
    fields: Mapping[str, Draw] = field(default_factory=dict)
    compute: Callable[[Mapping[str, Value]], Mapping[str, Value]] | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned, what is said then, and what of it must be said."""

    text: str
    answer: str
    values: tuple[str, ...]


def _said(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Offer:
    """A tool as one conversation offers it: with the names chosen for it."""

    def __init__(self, rng: random.Random, kind: ToolKind) -> None:
        """Chooses the names; the usual one in half of all cases."""
        self.kind = kind
        self.name = kind.names[0] if rng.random() < 0.5 else rng.choice(kind.names)
        self.names = {
            parameter.names[0]: parameter.names[0]
            if rng.random() < 0.6
            else rng.choice(parameter.names)
            for parameter in kind.parameters
        }
        if len(set(self.names.values())) < len(self.names):
            self.names = {name: name for name in self.names}

    def schema(self) -> Tool:
        """OpenAI form."""
        parameters = self.kind.parameters
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.kind.description,
                "parameters": {
                    "type": "object",
                    "properties": {self.names[p.names[0]]: p.schema() for p in parameters},
                    "required": [self.names[p.names[0]] for p in parameters if not p.extra],
                },
            },
        }

    def draw(self, rng: random.Random) -> dict[str, Value]:
        """Values of the parameters by their usual names; optional ones are often left out."""
        return {
            parameter.names[0]: parameter.draw(rng)
            for parameter in self.kind.parameters
            if not parameter.extra or rng.random() < 0.4
        }

    def request(self, rng: random.Random, values: Mapping[str, Value]) -> str:
        """What the user says."""
        said = {name: _said(value) for name, value in values.items()}
        text = rng.choice(self.kind.requests)
        for parameter in self.kind.parameters:
            if parameter.extra and parameter.names[0] in values:
                text = (
                    f"{text[:-1]}{parameter.extra.format('{' + parameter.names[0] + '}')}{text[-1]}"
                )
        text = text.format(**said)
        if not text.endswith(".") or text.startswith("I "):
            return text
        plain = text[0].lower() + text[1:]
        return rng.choice(
            (
                text,
                text,
                text,
                f"Please {plain}",
                f"Can you {plain[:-1]}?",
                f"Could you {plain[:-1]}?",
            )
        )

    def arguments(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """The values by the names of this conversation, in the order of the schema."""
        return {
            self.names[p.names[0]]: values[p.names[0]]
            for p in self.kind.parameters
            if p.names[0] in values
        }

    def call(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """An entry of ``tool_calls``."""
        return {"function": {"name": self.name, "arguments": self.arguments(values)}}

    def outcome(self, rng: random.Random, values: Mapping[str, Value]) -> Outcome:
        """A result and the answer to it; now and then a failure."""
        if rng.random() < 0.06:
            reason = rng.choice(_FAILURES)
            text = json.dumps({"error": reason}) if rng.random() < 0.6 else f"Error: {reason}"
            return Outcome(text, f"That did not work: {reason}.", (reason,))
        said = {name: _said(value) for name, value in values.items()}
        kind = self.kind
        found = (
            kind.compute(values)
            if kind.compute
            else {name: draw(rng) for name, draw in kind.fields.items()}
        )
        if not found:
            result = rng.choice(_DONE)
            text = result if isinstance(result, str) else json.dumps(result)
            answer = kind.answer.format(**said)
            return Outcome(text, answer, tuple(v for v in said.values() if v in answer))
        results = {name: _said(value) for name, value in found.items()}
        if len(found) == 1 and rng.random() < 0.4:
            text = next(iter(results.values()))
        else:
            text = json.dumps(found)
        return Outcome(text, kind.answer.format(**said, **results), tuple(results.values()))


def call_message(offers: list[tuple[Offer, Mapping[str, Value]]], *, is_thinking: bool) -> Message:
    """The assistant's message that calls these tools."""
    calls = [offer.call(values) for offer, values in offers]
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    if is_thinking:
        thoughts = []
        for call in calls:
            arguments = call["function"]["arguments"]
            listed = " and ".join(f"{name} = {_said(value)}" for name, value in arguments.items())
            thoughts.append(f"I call {call['function']['name']} with {listed or 'no arguments'}.")
        message["reasoning_content"] = " ".join(thoughts)
    return message


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the model wrote it: every argument is text."""

    name: str
    arguments: tuple[tuple[str, str], ...]


_CALL = re.compile(
    r"<tool_call>\n<function=([^>\n]+)>\n"
    r"((?:<parameter=[^>\n]+>\n.*?\n</parameter>\n)*)"
    r"</function>\n</tool_call>",
    re.DOTALL,
)
_ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)


def parse_calls(text: str) -> list[Call] | None:
    """The calls of an answer that consists of nothing else, arguments sorted; None for any other.

    Raises nothing: what the model wrote badly is None.
    """
    calls = [
        Call(found[1], tuple(sorted(_ARGUMENT.findall(found[2])))) for found in _CALL.finditer(text)
    ]
    return calls if calls and not _CALL.sub("", text).strip() else None


def expected_call(call: Mapping[str, Any]) -> Call:
    """An entry of ``tool_calls`` as the model has to write it."""
    function = call["function"]
    arguments = {name: _said(value) for name, value in function["arguments"].items()}
    return Call(function["name"], tuple(sorted(arguments.items())))
