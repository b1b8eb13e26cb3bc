"""Checked against the chat template itself, run by the engine's text side and by plain Jinja in
the settings transformers uses; ids against the engine's own way from messages to tokens.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
import numpy as np
import pytest
import tokenizers
import training
from hypothesis import given, settings
from hypothesis import strategies as st
from training.chat_format import Segment, encode, render
from training.config import DEMO

from strata.engine.model_text import ModelText
from strata.errors import RequestError
from strata.formats.convert_tokenizer import tokenizer_metadata
from strata.text.chat_template import ChatTemplate
from strata.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = Path(training.__file__).parent / "data"
SOURCE = (FOLDER / "chat_template.jinja").read_text("utf-8")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = ChatTemplate(SOURCE, CONTROL)
METADATA, _ = tokenizer_metadata(FOLDER, DEMO.config(), DEMO.vocab_size)
ENGINE = ModelText.from_metadata(METADATA, DEMO.vocab_size)
ENGINE_TOKENIZER = Tokenizer.from_metadata(METADATA)
ENGINE_TEMPLATE = ChatTemplate.from_metadata(METADATA, ENGINE_TOKENIZER)
TOKENIZER = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "<b>Now & 'then'</b>", "parameters": {}},
}
CALL = {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}}
OTHER = {"function": {"name": "clock", "arguments": {"is_utc": True, "at": None, "text": "a\nb"}}}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def assistant(text: str | None, **more: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


CASES: dict[str, tuple[list[Mapping[str, Any]], list[Mapping[str, Any]], bool]] = {
    "one question": ([user("Hi\n"), assistant(" Hello. ")], [], False),
    "system": ([system(" Be brief. "), user("Hi"), assistant("Yes.")], [], False),
    "empty system": ([system(" "), user("Hi"), assistant("Yes.")], [], False),
    "thinking": ([user("2+2?"), assistant("4", reasoning_content=" add\n")], [], True),
    "thinking in the content": ([user("Q"), assistant("<think>\nadd\n</think>\n\n4")], [], True),
    "several turns": (
        [user("A"), assistant("1"), user("B"), assistant("2"), user("C"), assistant("3")],
        [],
        False,
    ),
    "earlier reasoning is dropped": (
        [
            user("A"),
            assistant("1", reasoning_content="old"),
            user("B"),
            assistant("<think>\nolder\n</think>\n\n2"),
            user("C"),
            assistant("3", reasoning_content="new"),
        ],
        [],
        True,
    ),
    "a call": ([user("Rain?"), assistant(None, tool_calls=[CALL])], [WEATHER], False),
    "words before a call, system and two tools": (
        [system("S"), user("Rain?"), assistant("I will look.", tool_calls=[CALL])],
        [WEATHER, WEATHER],
        False,
    ),
    "two calls and two results": (
        [
            user("Rain?"),
            assistant("", tool_calls=[CALL, OTHER]),
            tool("wet\n"),
            tool("noon"),
            assistant("Wet at noon."),
        ],
        [WEATHER],
        False,
    ),
    "thinking between calls": (
        [
            user("A"),
            assistant("1", reasoning_content="gone"),
            user("Rain?"),
            assistant("", reasoning_content="ask", tool_calls=[CALL]),
            tool("wet"),
            assistant("", tool_calls=[OTHER]),
            tool("noon"),
            assistant("Wet.", reasoning_content="so it is"),
        ],
        [WEATHER],
        True,
    ),
    "a call before the last question": (
        [
            user("A"),
            assistant("", tool_calls=[CALL]),
            tool("wet"),
            assistant("Wet."),
            user("B"),
            assistant("2"),
        ],
        [WEATHER],
        False,
    ),
    "control tokens in the messages": (
        [
            system("<|im_end|>"),
            user("<|im_start|>user\n<|endoftext|><|im_end|>"),
            assistant("<|im_end|> <tool_call> <|im_start|>"),
        ],
        [],
        False,
    ),
    "no answer text": ([user("A"), assistant("")], [], False),
}


def joined(segments: list[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def engine_text(messages: list[Mapping[str, Any]], **values: Any) -> str:
    return "".join(span.text for span in TEMPLATE.render(messages, **values))


@pytest.mark.parametrize("name", CASES)
def test_same_text_as_the_template(name: str) -> None:
    messages, tools, is_thinking = CASES[name]
    expected = engine_text(messages, tools=tools, add_generation_prompt=False)
    assert joined(render(messages, tools, is_thinking)) == expected
    plain = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    values = {"messages": messages, "tools": tools, "add_generation_prompt": False}
    assert plain.from_string(SOURCE).render(values) == expected


@pytest.mark.parametrize("name", CASES)
def test_learned_is_what_follows_the_generation_prompt(name: str) -> None:
    messages, tools, is_thinking = CASES[name]
    prompt = engine_text(messages[:-1], tools=tools, enable_thinking=is_thinking)
    segments = render(messages, tools, is_thinking)
    text = joined(segments)
    assert text.startswith(prompt)
    learned = np.concatenate([np.full(len(s.text), s.is_learned) for s in segments])
    # All of the last turn but the line feed after it; before it, only turns of the assistant.
    assert learned[len(prompt) : -1].all()
    assert not learned[-1]
    assert text.endswith("<|im_end|>\n")
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            continue
        turn = engine_text(messages[: index + 1], tools=tools, add_generation_prompt=False)
        is_last_result = message["role"] != "tool" or messages[index + 1]["role"] != "tool"
        if is_last_result and text.startswith(turn):
            assert not learned[len(turn) - 1]
    num_answers = sum(message["role"] == "assistant" for message in messages)
    ends = [s for s in segments if s.is_control and s.is_learned]
    assert [s.text for s in ends] == ["<|im_end|>"] * num_answers


@pytest.mark.parametrize("name", CASES)
def test_control_tokens_are_the_engines(name: str) -> None:
    messages, tools, is_thinking = CASES[name]
    ours = [s.text for s in render(messages, tools, is_thinking) if s.is_control]
    spans = TEMPLATE.render(messages, tools, add_generation_prompt=False)
    assert ours == [span.text for span in spans if not span.is_plain]


def check_ids(messages: list[Mapping[str, Any]], tools: list[Any], *, is_thinking: bool) -> None:
    """Ids are those of the engine; the prompt is not learned, and all of the answer is."""
    ids, learned = encode(render(messages, tools, is_thinking), TOKENIZER)
    assert (ids.dtype, learned.dtype) == (np.uint16, np.bool_)
    spans = ENGINE_TEMPLATE.render(messages, tools, add_generation_prompt=False)
    assert ids.tolist() == ENGINE_TOKENIZER.encode_spans(spans)
    values = {"tools": tools, "enable_thinking": is_thinking}
    prompt = ENGINE.encode_chat(messages[:-1], values)
    assert ids[: len(prompt)].tolist() == prompt
    assert not learned[len(prompt) - 1]
    assert learned[len(prompt) : -1].all()
    assert ids[-2] in ENGINE.end_ids
    assert ENGINE_TOKENIZER.decode(ids[-1:].tolist()) == "\n"
    assert not learned[-1]


@pytest.mark.parametrize("name", CASES)
def test_ids_are_the_engines(name: str) -> None:
    messages, tools, is_thinking = CASES[name]
    check_ids(messages, tools, is_thinking=is_thinking)


def test_messages_hold_no_control_tokens() -> None:
    ids, _ = encode(render(*CASES["control tokens in the messages"]), TOKENIZER)
    turn_start, turn_end, end_of_text = (
        TOKENIZER.token_to_id(text) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    )
    assert [np.sum(ids == i) for i in (turn_start, turn_end, end_of_text)] == [3, 3, 0]
    assert np.sum(ids == TOKENIZER.token_to_id("<tool_call>")) == 1


def test_a_control_token_the_vocabulary_lacks() -> None:
    with pytest.raises(KeyError, match="<\\|nothing\\|>"):
        encode([Segment("<|nothing|>", is_learned=False, is_control=True)], TOKENIZER)


def test_written_out() -> None:
    """The form itself, by hand."""
    text = joined(render(*CASES["two calls and two results"]))
    assert text == (
        "<|im_start|>system\nYou can call these functions:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", '
        '"description": "<b>Now & \'then\'</b>", "parameters": {}}}\n</tools><|im_end|>\n'
        "<|im_start|>user\nRain?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n"
        "<parameter=days>\n[1, 2]\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=clock>\n<parameter=is_utc>\ntrue\n</parameter>\n"
        "<parameter=at>\nnull\n</parameter>\n<parameter=text>\na\nb\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nwet\n</tool_response>\n"
        "<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nWet at noon.<|im_end|>\n"
    )
    text = joined(render(*CASES["earlier reasoning is dropped"]))
    assert text == (
        "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n"
        "<|im_start|>user\nB<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\nC<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nnew\n</think>\n\n3<|im_end|>\n"
    )


def test_thinking_is_off_unless_asked_for() -> None:
    for values in ({}, {"enable_thinking": False}):
        assert engine_text([user("A")], **values).endswith("\n<think>\n\n</think>\n\n")
    assert engine_text([user("A")], enable_thinking=True).endswith("assistant\n<think>\n")


def test_arguments_as_json_text() -> None:
    as_text = {"type": "function", "id": "1", "function": {"name": "weather"}}
    as_text["function"]["arguments"] = json.dumps(CALL["function"]["arguments"])
    messages = [user("A"), assistant(None, tool_calls=[as_text])]
    expected = joined(render([user("A"), assistant(None, tool_calls=[CALL])]))
    assert joined(render(messages)) == expected
    assert engine_text(messages, add_generation_prompt=False) == expected


def test_contents_as_parts() -> None:
    messages = [user([{"type": "text", "text": "What "}, {"type": "text", "text": "now?"}])]
    assert engine_text(messages, add_generation_prompt=False) == (
        "<|im_start|>user\nWhat now?<|im_end|>\n"
    )
    messages = [user([{"type": "image_url", "image_url": "x"}])]
    with pytest.raises(RequestError, match="reads text only"):
        engine_text(messages)


@pytest.mark.parametrize(
    "messages",
    [[], [user("A"), system("B")], [{"role": "cook", "content": "A"}], [user(3)]],
)
def test_the_template_refuses(messages: list[Mapping[str, Any]]) -> None:
    with pytest.raises(RequestError, match="the chat template refused"):
        engine_text(messages)


def test_what_no_prompt_leads_to_is_refused() -> None:
    with pytest.raises(ValueError, match="ends with the assistant"):
        render([user("A")])
    with pytest.raises(ValueError, match="exactly when thinking"):
        render([user("A"), assistant("B")], is_thinking=True)
    with pytest.raises(ValueError, match="exactly when thinking"):
        render([user("A"), assistant("B", reasoning_content="C")])
    with pytest.raises(ValueError, match="role 'system'"):
        render([user("A"), system("B"), assistant("C")])


PIECES = ["a", " ", "\n", "<think>", "</think>", "<|im_end|>", "é", "{", "<tool_call>"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=3))
def test_any_text(turns: list[tuple[str, str, str]]) -> None:
    messages = []
    for question, answer, thought in turns:
        messages += [user(question), assistant(answer, reasoning_content=thought)]
    expected = engine_text(messages, add_generation_prompt=False)
    try:
        segments = render(messages, is_thinking=True)
        is_thinking = True
    except ValueError:
        segments = render(messages, is_thinking=False)
        is_thinking = False
    assert joined(segments) == expected
    check_ids(messages, [], is_thinking=is_thinking)
