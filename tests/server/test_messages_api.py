"""Messages of a live server, asked by Anthropic's own client; checked against the library."""

from __future__ import annotations

import json

import anthropic
import pytest
from tests.server.conftest import fetch

from strata import SamplingParams

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def client(demo):
    with anthropic.Anthropic(base_url=demo.address, api_key="none", max_retries=0) as client:
        yield client


def fields_of(**fields):
    # The client has no temperature any more; the API has.
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    common = {"model": "gpt-demo", "messages": MESSAGES, "max_tokens": 300}
    return {**common, **fields, "extra_body": extra}


def ask(client, **fields):
    return client.messages.create(**fields_of(**fields))


def test_an_answer_is_the_librarys(client, engine):
    system = {"role": "system", "content": "Be brief.\nBe kind."}
    expected = engine.chat([system, *MESSAGES], SamplingParams(temperature=0)).complete()
    blocks = [{"type": "text", "text": text} for text in ("Be brief.", "Be kind.")]
    answer = ask(client, system=blocks)
    assert [block.text for block in answer.content] == [expected.text]
    assert (answer.stop_reason, answer.stop_sequence, answer.role) == (
        "end_turn",
        None,
        "assistant",
    )
    usage = answer.usage
    num_prompt = usage.input_tokens + usage.cache_read_input_tokens
    assert num_prompt == expected.timings.prompt_tokens
    assert usage.output_tokens == expected.timings.generated_tokens
    counted = client.messages.count_tokens(model="gpt-demo", messages=MESSAGES, system=blocks)
    assert counted.input_tokens == num_prompt


def test_a_stream_adds_up_with_thinking(client, engine):
    whole = ask(client, thinking=THINKING)
    expected = engine.chat(MESSAGES, SamplingParams(temperature=0), enable_thinking=True)
    thought, _, said = expected.complete().text.partition("</think>")
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.content[0].thinking == thought
    assert whole.content[1].text == said.lstrip("\n")
    with client.messages.stream(**fields_of(thinking=THINKING)) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert [block.model_dump() for block in final.content] == [
        block.model_dump() for block in whole.content
    ]
    assert final.stop_reason == "end_turn"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 2


def test_stop_sequences_length_and_prefill(client):
    full = ask(client).content[0].text
    answer = ask(client, stop_sequences=["zzz", full[2:4]])
    assert answer.content[0].text == full[:2]
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", full[2:4])
    assert ask(client, max_tokens=2).stop_reason == "max_tokens"
    begun = [*MESSAGES, {"role": "assistant", "content": full[:5]}]
    assert full[:5] + ask(client, messages=begun).content[0].text == full


def test_tools_are_called_and_their_results_read(client):
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        answer = ask(client, messages=QUESTION, tools=[WEATHER], tool_choice=choice)
        assert answer.stop_reason == "tool_use"
        call = answer.content[0]
        assert (call.type, call.name) == ("tool_use", "get_weather")
        assert isinstance(call.input["city"], str)
    with client.messages.stream(
        **fields_of(messages=QUESTION, tools=[WEATHER], tool_choice=choice)
    ) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id}
    content = [{"type": "text", "text": '{"sky": "clear"}'}]
    after = [
        *QUESTION,
        {
            "role": "assistant",
            "content": [block.model_dump(exclude_none=True) for block in answer.content],
        },
        {
            "role": "user",
            "content": [{**result, "content": content}, {"type": "text", "text": "So?"}],
        },
    ]
    assert ask(client, messages=after, tools=[WEATHER]).content


def test_reasoning_of_older_turns_is_forgotten_on_request(client):
    def turn(thought: str) -> dict:
        block = {"type": "thinking", "thinking": thought, "signature": ""}
        said = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": thought}}
        return {"role": "assistant", "content": [block, said]}

    result = {"type": "tool_result", "tool_use_id": "a", "content": "clear"}
    answered = {"role": "user", "content": [result]}
    turns = [*QUESTION, turn("one"), answered, turn("two"), answered]

    def count(**edit: object) -> int:
        management = {"edits": [{"type": "clear_thinking_20251015", **edit}]} if edit else None
        extra = {} if management is None else {"extra_body": {"context_management": management}}
        return client.messages.count_tokens(model="gpt-demo", messages=turns, **extra).input_tokens

    assert count(keep="all") == count()
    assert count(keep={"type": "thinking_turns", "value": 2}) == count()
    assert count(keep={"type": "thinking_turns", "value": 1}) < count()
    with pytest.raises(anthropic.BadRequestError, match="value"):
        count(keep={"type": "thinking_turns", "value": 0})
    with pytest.raises(anthropic.BadRequestError, match="clear_tool_uses"):
        client.messages.count_tokens(
            model="gpt-demo",
            messages=turns,
            extra_body={"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        )


def test_models_are_listed_in_this_apis_words_too(client):
    listed = list(client.models.list())
    assert [(model.id, model.type) for model in listed] == [
        ("strata-demo", "model"),
        ("gpt-demo", "model"),
    ]
    assert client.models.retrieve("gpt-demo").created_at.year >= 2026


def test_the_query_of_betas_is_accepted(demo):
    body = json.dumps({"model": "gpt-demo", "messages": MESSAGES, "max_tokens": 1}).encode()
    assert fetch(demo.address, "/v1/messages?beta=true", body)[0] == 200


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"extra_body": {"top_q": 1}}, anthropic.BadRequestError, "top_q"),
        ({"model": "claude-9"}, anthropic.NotFoundError, "claude-9"),
        ({"messages": []}, anthropic.BadRequestError, "no message"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens"),
        ({"max_tokens": 9000}, anthropic.BadRequestError, "context"),
        ({"stop_sequences": [""]}, anthropic.BadRequestError, "stop_sequences holds an empty"),
        ({"tool_choice": {"type": "any"}}, anthropic.BadRequestError, "tool_choice"),
        ({"extra_body": {"mcp_servers": []}}, anthropic.BadRequestError, "mcp_servers"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            anthropic.BadRequestError,
            "output_config.format",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            "no image input",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, kind, words, stream):
    with pytest.raises(kind) as caught:
        ask(client, stream=stream, **fields)
    assert words in str(caught.value)
    assert caught.value.body["type"] == "error"
