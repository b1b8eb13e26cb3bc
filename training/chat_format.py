"""A finished conversation to text and token ids, and which of them the model learns to write.

Owns the second writing of ``data/chat_template.jinja``: the same text, cut where learning starts
and stops. The template itself runs in ``strata.text.chat_template``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a conversation's text.

    Attributes:
        text: what the template renders here.
        is_learned: the model is trained to write it.
        is_control: ``text`` is one control token; in other segments nothing becomes one.
    """

    text: str
    is_learned: bool
    is_control: bool = False


def render(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    is_thinking: bool = False,  # noqa: FBT001  # as in Example
) -> list[Segment]:
    """Segments of a conversation that ends with the assistant's answer.

    Joined, they are what the chat template renders. Learned is what the assistant adds to the
    generation prompt, the closing control token included, in every turn.

    Args:
        messages: as in ``Example``; contents are text.
        tools: functions offered.
        is_thinking: the answer reasons first.

    Raises:
        ValueError: the last message is not the assistant's, or its reasoning and ``is_thinking``
            disagree: no generation prompt leads to such an answer.
    """
    if not messages or messages[-1]["role"] != "assistant":
        raise ValueError("a conversation to learn from ends with the assistant's answer")
    if bool(_thought_and_text(messages[-1])[0]) != is_thinking:
        raise ValueError("an answer has reasoning exactly when thinking is on")
    segments = list(_system(messages, tools))
    question = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            segments += _given("user", _text(message))
        elif role == "assistant":
            segments += _answer(message, is_current=index > question)
        elif role == "tool" and messages[index - 1]["role"] != "tool":
            segments += _given("user", "\n".join(_results(messages[index:])))
        elif role not in ("system", "tool") or (role == "system" and index > 0):
            raise ValueError(f"message {index} has the role {role!r}")
    return segments


def encode(
    segments: Sequence[Segment], tokenizer: Tokenizer
) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.bool_]]:
    """Token ids [N] of the segments, and which of them are learned [N].

    The ids are those of the engine. Segments must be cut where pieces end, as ``render`` does.
    Sets ``tokenizer.encode_special_tokens``, so that control tokens in a text stay text.

    Raises:
        KeyError: a control segment is not in the vocabulary.
    """
    tokenizer.encode_special_tokens = True
    ids: list[int] = []
    is_learned: list[bool] = []
    for segment in segments:
        if segment.is_control:
            token_id = tokenizer.token_to_id(segment.text)
            if token_id is None:
                raise KeyError(segment.text)
            found = [token_id]
        else:
            found = tokenizer.encode(segment.text, add_special_tokens=False).ids
        ids += found
        is_learned += [segment.is_learned] * len(found)
    return np.array(ids, dtype=np.uint16), np.array(is_learned, dtype=np.bool_)


def _given(role: str, text: str) -> Iterator[Segment]:
    """A turn the model only reads."""
    yield Segment(TURN_START, is_learned=False, is_control=True)
    yield Segment(f"{role}\n{text}", is_learned=False)
    yield Segment(TURN_END, is_learned=False, is_control=True)
    yield Segment("\n", is_learned=False)


def _system(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Iterator[Segment]:
    parts = [_text(messages[0])] if messages[0]["role"] == "system" else []
    if tools:
        listed = "".join(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools)
        parts.append(f"You can call these functions:\n<tools>\n{listed}</tools>")
    text = "\n\n".join(filter(None, parts))
    if text:
        yield from _given("system", text)


def _answer(message: Message, *, is_current: bool) -> Iterator[Segment]:
    """A turn of the assistant; before the last question (not current) its reasoning is dropped."""
    thought, text = _thought_and_text(message)
    opening = "assistant\n"
    if is_current and thought:
        opening += "<think>\n"
        text = f"{thought}\n</think>\n\n{text}"
    elif is_current:
        opening += "<think>\n\n</think>\n\n"
    yield Segment(TURN_START, is_learned=False, is_control=True)
    yield Segment(opening, is_learned=False)
    if text:
        yield Segment(text, is_learned=True)
    yield Segment(TURN_END, is_learned=True, is_control=True)
    yield Segment("\n", is_learned=False)


def _thought_and_text(message: Message) -> tuple[str, str]:
    """Reasoning, and the text with the tool calls; either may be empty."""
    thought = (message.get("reasoning_content") or "").strip()
    text = _text(message)
    if "</think>" in text:
        head, *_, text = text.split("</think>")
        thought = thought or head.split("<think>")[-1].strip()
        text = text.strip()
    calls = "\n".join(_call(call.get("function", call)) for call in message.get("tool_calls") or ())
    return thought, "\n\n".join(filter(None, (text, calls)))


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    lines = [f"<tool_call>\n<function={function['name']}>\n"]
    for name, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"<parameter={name}>\n{written}\n</parameter>\n")
    return "".join([*lines, "</function>\n</tool_call>"])


def _results(messages: Sequence[Message]) -> Iterator[str]:
    """Results of the tool messages at the start of ``messages``."""
    for message in messages:
        if message["role"] != "tool":
            return
        yield f"<tool_response>\n{_text(message)}\n</tool_response>"


def _text(message: Message) -> str:
    return (message.get("content") or "").strip()
