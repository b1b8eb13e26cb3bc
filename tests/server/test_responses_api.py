"""Responses of a live server, asked by OpenAI's own client; checked against the library."""

from __future__ import annotations

import base64
import json

import openai
import pytest

from strata import SamplingParams
from strata.server.faults import Fault
from strata.server.responses_store import ResponseStore

QUESTION = "What is 2 + 3?"
MESSAGES = [{"role": "user", "content": QUESTION}]
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


def ask(client, **fields):
    return client.responses.create(
        **{"model": "gpt-demo", "input": QUESTION, "temperature": 0, **fields}
    )


def test_an_answer_is_the_librarys(client, engine):
    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    expected = engine.chat(messages, SamplingParams(temperature=0)).complete()
    answer = ask(client, instructions="Be brief.")
    assert answer.output_text == expected.text
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.usage.input_tokens == expected.timings.prompt_tokens
    assert answer.usage.output_tokens == expected.timings.generated_tokens
    listed = ask(client, input=[{"role": "developer", "content": "Be brief."}, *MESSAGES])
    assert listed.output_text == expected.text
    cut = ask(client, max_output_tokens=2)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_a_stream_builds_the_response_it_ends_with(client, engine):
    thinking = engine.chat(MESSAGES, SamplingParams(temperature=0), enable_thinking=True)
    thought, _, said = thinking.complete().text.partition("</think>")
    events = list(ask(client, stream=True, reasoning={"effort": "high"}))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    deltas = {"response.reasoning_text.delta": "", "response.output_text.delta": ""}
    for event in events:
        if event.type in deltas:
            deltas[event.type] += event.delta
    assert list(deltas.values()) == [thought, said.lstrip("\n")]
    final = events[-1].response
    assert events[-1].type == "response.completed"
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert final.output[0].content[0].text == thought
    assert final.output_text == said.lstrip("\n")
    assert 0 < final.usage.output_tokens_details.reasoning_tokens < final.usage.output_tokens
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.model_dump() for item in done] == [item.model_dump() for item in final.output]


def test_a_response_goes_on_from_a_kept_one(client, engine):
    first = ask(client)
    follow = {"role": "user", "content": "And 4 + 4?"}
    second = ask(client, input=[follow], previous_response_id=first.id)
    turns = [*MESSAGES, {"role": "assistant", "content": first.output_text}, follow]
    expected = engine.chat(turns, SamplingParams(temperature=0)).complete()
    assert second.output_text == expected.text
    assert second.usage.input_tokens == expected.timings.prompt_tokens
    by_hand = ask(client, input=[*MESSAGES, *(i.model_dump() for i in first.output), follow])
    assert by_hand.output_text == expected.text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="Previous response with id") as caught:
        ask(client, previous_response_id=first.id)
    assert caught.value.code == "previous_response_not_found"
    for path in (first.id, "nope", "compact"):
        with pytest.raises(openai.NotFoundError, match=f"Response with id '{path}' not found"):
            client.responses.retrieve(path)
    unkept = ask(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_tools_are_called_and_their_results_read(client):
    question = "What is the weather in Paris?"
    fields = {"input": question, "tools": [WEATHER], "tool_choice": "required"}
    answer = ask(client, **fields)
    call = answer.output[0]
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert isinstance(json.loads(call.arguments)["city"], str)
    events = list(ask(client, **fields, stream=True))
    parts = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    assert "".join(parts) == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}
    after = ask(client, input=[result], previous_response_id=answer.id, tools=[WEATHER])
    assert after.output
    assert after.usage.input_tokens > answer.usage.input_tokens


def test_tools_in_a_namespace_are_called_by_it(client):
    space = {"type": "namespace", "name": "sky", "description": "Of the sky", "tools": [WEATHER]}
    fields = {"input": "What is the weather in Paris?", "tools": [space]}
    answer = ask(client, **fields, tool_choice="required")
    call = answer.output[0]
    assert (call.name, call.namespace) == ("get_weather", "sky")
    assert isinstance(json.loads(call.arguments)["city"], str)
    assert answer.tools[0].tools[0].name == "get_weather"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "clear"}
    again = [call.model_dump(exclude_unset=True), result]
    assert ask(client, input=again, tools=[space, WEATHER]).output
    with pytest.raises(openai.BadRequestError, match="two tools"):
        ask(client, **{**fields, "tools": [space, space]})


def test_the_input_of_a_kept_response_is_listed_in_pages(client):
    first = ask(client)
    again = ask(client, input=[*MESSAGES, *MESSAGES], previous_response_id=first.id)
    listed = list(client.responses.input_items.list(again.id, order="asc", limit=2))
    assert len(listed) == 4  # the client asks for all pages
    assert [item.role for item in listed] == ["user", "assistant", "user", "user"]
    assert listed[0].content[0].text == QUESTION
    assert listed[1].content[0].text == first.output_text
    page = client.responses.input_items.list(again.id, limit=3)
    assert [item.id for item in page.data] == [item.id for item in listed[:0:-1]]
    assert (page.has_more, page.last_id) == (True, listed[1].id)
    long = "0001" + 5000 * "1"  # more digits than Python makes a number of
    for fields in (
        {"limit": 0}, {"limit": 1000}, {"limit": long}, {"order": "up"}, {"after": "x"},
    ):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(again.id, **fields)
        assert caught.value.param == next(iter(fields))
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(first.id)


def test_the_length_of_an_input_is_told(client):
    fields = {"instructions": "Be brief.", "tools": [WEATHER]}
    counted = client.responses.input_tokens.count(model="gpt-demo", input=QUESTION, **fields)
    assert counted.input_tokens == ask(client, **fields).usage.input_tokens


def test_a_compacted_conversation_goes_on(client, engine):
    first = ask(client)
    made = client.responses.compact(model="gpt-demo", previous_response_id=first.id)
    assert made.object == "response.compaction"
    assert [item.type for item in made.output] == ["message", "compaction"]
    assert made.output[0].content[0].text == QUESTION
    assert made.usage.output_tokens > 0
    follow = {"role": "user", "content": "And 4 + 4?"}
    # The client's types know no user's message here, though the service gives them too.
    shorter = [item.model_dump(exclude_unset=True, warnings=False) for item in made.output]
    after = ask(client, input=[*shorter, follow])
    summary = {"role": "user", "content": _summary_of(made.output[1].encrypted_content)}
    turns = [*MESSAGES, summary, follow]
    expected = engine.chat(turns, SamplingParams(temperature=0)).complete()
    assert after.output_text == expected.text
    for sealed in ("", "gAAAA", "strata.1.%%%"):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, input=[{"type": "compaction", "encrypted_content": sealed}, follow])
        assert caught.value.param == "input[0].encrypted_content"
    with pytest.raises(openai.BadRequestError):
        client.responses.compact(model="gpt-demo", input=[])


def _summary_of(sealed: str) -> str:
    text = base64.b64decode(sealed.removeprefix("strata.1.")).decode()
    return f"Summary of the conversation so far:\n{text}"


def test_logprobs_are_told_when_asked_for(client, engine):
    sampling = SamplingParams(temperature=0, logprobs=2)
    expected = engine.chat(MESSAGES, sampling).complete()
    answer = ask(client, top_logprobs=2, include=["message.output_text.logprobs"])
    part = answer.output[0].content[0]
    # The end of the answer has a log-probability in the library, but is no text.
    own = [item.logprob for item in expected.logprobs][: len(part.logprobs)]
    assert [item.logprob for item in part.logprobs] == pytest.approx(own)
    assert "".join(item.token for item in part.logprobs) == part.text
    assert all(len(item.top_logprobs) == 2 for item in part.logprobs)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"extra_body": {"seeed": 1}}, "seeed"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "x", "mood": 1}]}, "input[0].mood"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"conversation": "c"}, "conversation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, name, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=stream, **fields)
    assert caught.value.param == name


def test_the_store_keeps_the_newest_within_its_bounds():
    store = ResponseStore(max_kept=2)
    for name in "abc":
        store.add({"id": name}, [], [])
    with pytest.raises(Fault):
        store.get("a")
    assert store.get("c").response == {"id": "c"}
    small = ResponseStore(max_bytes=100)
    small.add({"id": "a", "text": "x" * 60}, [], [])
    small.add({"id": "b", "text": "y" * 60}, [], [])
    with pytest.raises(Fault):
        small.get("a")
    small.remove("b")
    small.add({"id": "c", "text": "z" * 60}, [], [])
    assert small.get("c")
