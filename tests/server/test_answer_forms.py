"""Answers of a required form through the live server: each API, each client, each kind of form.

What is written is checked by ``jsonschema``, pydantic (inside the official clients' ``parse``) and
``re``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field
from tests.form_schemas import PERSON, SCHEMAS, check, closed
from tests.server.conftest import fetch

if TYPE_CHECKING:
    from collections.abc import Iterator

ASK = [{"role": "user", "content": "Tell me about a person."}]
WEATHER = {
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": closed(
        {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
        }
    ),
}
# The small model goes on for long where a text may be of any length.
SHORT = {"max_tokens": 1500, "seed": 3}


class Pet(BaseModel):
    kind: Literal["cat", "dog", "Fisch 🐟"]
    lives: int = Field(ge=1, le=9)


class Owner(BaseModel):
    name: str = Field(max_length=16)
    pets: list[Pet] = Field(max_length=3)
    note: Literal["ja", "nein"] | None


class Mood(BaseModel):
    """What is left of a schema when Anthropic's client has taken bounds out of it."""

    mood: Literal["glad", "sad", "ganz gut 🙂"]
    sure: bool
    cause: Literal["a", "b"] | None


@pytest.fixture(scope="module")
def claude(demo) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=demo.address, api_key="none", max_retries=0) as client:
        yield client


def format_of(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def chat(client, **fields):
    wanted = {"model": "gpt-demo", "messages": ASK, **SHORT, **fields}
    return client.chat.completions.create(**wanted).choices[0]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_followed(client, demo, name):
    schema = SCHEMAS[name]
    [quote] = json.loads(fetch(demo.address, "/tokenize", b'{"content": "\\""}')[1])["tokens"]
    num_whole = 0
    for seed in range(6):
        # The small model may never end a text of any length by itself.
        fields = {"seed": seed, "logit_bias": {str(quote): 3 * seed}, "max_tokens": 300}
        choice = chat(client, response_format=format_of(schema), **fields)
        assert choice.finish_reason in ("stop", "length")
        if choice.finish_reason == "stop":
            check(choice.message.content, schema)
            num_whole += 1
        if num_whole == 2:
            break
    assert num_whole == 2


def test_json_object_and_text(client):
    choice = chat(client, response_format={"type": "json_object"}, temperature=0)
    assert choice.finish_reason == "stop"
    assert isinstance(json.loads(choice.message.content), dict)
    assert chat(client, response_format={"type": "text"}, max_tokens=5).message.content


def test_the_official_client_parses(client, demo):
    for seed in range(4):
        answer = client.chat.completions.parse(
            model=demo.name, messages=ASK, response_format=Owner, seed=seed, max_tokens=1500
        )
        assert isinstance(answer.choices[0].message.parsed, Owner)
        assert answer.choices[0].message.refusal is None
    response = client.responses.parse(model=demo.name, input="A pet?", text_format=Owner)
    assert isinstance(response.output_parsed, Owner)
    assert (response.text.format.type, response.text.format.strict) == ("json_schema", True)
    plain = client.responses.create(
        model=demo.name, input="A pet?", text={"format": {"type": "json_object"}}
    )
    assert isinstance(json.loads(plain.output_text), dict)


def test_streams_give_the_same_text(client, demo):
    fields = {"model": demo.name, "messages": ASK, "seed": 5, "max_tokens": 1500}
    whole = client.chat.completions.parse(**fields, response_format=Owner).choices[0].message
    with client.chat.completions.stream(**fields, response_format=Owner) as stream:
        final = stream.get_final_completion().choices[0].message
    assert final.content == whole.content
    assert final.parsed == whole.parsed
    with client.responses.stream(model=demo.name, input="A pet?", text_format=Owner) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Owner)


def test_anthropic_parses(claude, demo):
    fields = {"model": demo.name, "max_tokens": 1500, "messages": ASK}
    message = claude.messages.parse(**fields, output_format=Mood)
    assert isinstance(message.parsed_output, Mood)
    thinking = {"type": "enabled", "budget_tokens": 20}
    message = claude.messages.parse(**fields, output_format=Mood, thinking=thinking)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert isinstance(message.parsed_output, Mood)
    older = claude.messages.create(
        **fields, extra_body={"output_format": {"type": "json_schema", "schema": PERSON}}
    )
    check(older.content[0].text, PERSON)


def test_reasoning_is_free_and_the_answer_is_not(client):
    for budget in (5, 40):
        choice = chat(
            client,
            response_format=format_of(PERSON),
            reasoning_effort="low",
            logprobs=True,
            extra_body={"reasoning_budget_tokens": budget},
        )
        assert choice.message.reasoning_content
        check(choice.message.content, PERSON)
        said = b"".join(bytes(item.bytes) for item in choice.logprobs.content)
        assert said.decode().strip("\n") == choice.message.content


def test_several_answers_each_have_the_form(client):
    answer = client.chat.completions.create(
        model="gpt-demo", messages=ASK, response_format=format_of(PERSON), n=3, **SHORT
    )
    people = [check(choice.message.content, PERSON) for choice in answer.choices]
    assert len({json.dumps(person) for person in people}) > 1


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("grammar", 'start: "yes" | "no"', "yes|no"),
        ("grammar", "%llguidance {}\nstart: /[ab]{3}/", "[ab]{3}"),
        ("grammar", 'root ::= "x" [0-9] ("é" | "日本")\n', "x[0-9](é|日本)"),
        ("regex", "[0-9]{3}-é{2}日", "[0-9]{3}-é{2}日"),
        ("guided_regex", "(ab){1,3}", "(ab){1,3}"),
        ("guided_choice", ["red", "日本語"], "red|日本語"),
        ("guided_grammar", 'start: "1" | "[" start "]"', r"\[*1\]*"),
        ("structured_outputs", {"choice": ["u", "v"]}, "[uv]"),
        ("structured_outputs", {"regex": "[x-z]{2}"}, "[x-z]{2}"),
    ],
)
def test_forms_that_other_servers_take(client, field, value, pattern):
    extra = {field: value}
    assert re.fullmatch(pattern, chat(client, extra_body=extra, temperature=2).message.content)
    text = client.completions.create(
        model="gpt-demo", prompt="It is ", max_tokens=200, seed=1, extra_body=extra
    )
    assert re.fullmatch(pattern, text.choices[0].text)


@pytest.mark.parametrize(
    "extra",
    [
        {"json_schema": PERSON},
        {"json_schema": json.dumps(PERSON)},
        {"guided_json": PERSON},
        {"structured_outputs": {"json": PERSON}},
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"response_format": {"type": "json_schema", "schema": PERSON}},
    ],
)
def test_schemas_that_other_servers_take(client, extra):
    check(chat(client, extra_body=extra).message.content, PERSON)


def tool(**rest: object) -> dict:
    return {"type": "function", "function": {**WEATHER, **rest}}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
@pytest.mark.parametrize("effort", ["none", "low"])
def test_required_calls_obey_the_schema(client, choice, effort):
    for seed in (1, 2):
        answer = chat(
            client,
            tools=[tool()],
            tool_choice=choice,
            seed=seed,
            temperature=1.5,
            reasoning_effort=effort,
            extra_body={"reasoning_budget_tokens": 20} if effort == "low" else {},
        )
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content is None
        for call in answer.message.tool_calls:
            check(call.function.arguments, WEATHER["parameters"])


def test_strict_tools_are_called_only_as_they_should_be(client, claude, demo):
    for seed in range(4):
        answer = chat(client, tools=[tool(strict=True)], seed=seed, temperature=1.5, max_tokens=400)
        for call in answer.message.tool_calls or []:
            if answer.finish_reason != "length":
                check(call.function.arguments, WEATHER["parameters"])
    response = client.responses.create(
        model=demo.name,
        input="Weather in Rome?",
        tools=[{"type": "function", **WEATHER, "strict": True}],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [call] = response.output
    check(call.arguments, WEATHER["parameters"])
    schema = WEATHER["parameters"]
    message = claude.messages.create(
        model=demo.name,
        max_tokens=500,
        messages=ASK,
        tools=[{"name": "get_weather", "input_schema": schema, "strict": True}],
        tool_choice={"type": "any"},
    )
    assert message.stop_reason == "tool_use"
    for block in message.content:
        check(json.dumps(block.input), schema)


def test_an_answer_of_a_form_may_be_a_call_instead(client):
    seen = set()
    for seed in range(8):
        answer = chat(
            client,
            tools=[tool()],
            response_format=format_of(PERSON),
            seed=seed,
            temperature=3,
            extra_body={"top_k": 0, "top_p": 1},
        )
        if answer.message.tool_calls:
            check(answer.message.tool_calls[0].function.arguments, WEATHER["parameters"])
        else:
            check(answer.message.content, PERSON)
        seen.add(answer.finish_reason)
    assert seen <= {"tool_calls", "stop"}


REFUSED = [
    ({"response_format": format_of({"properties": {"a": {"not": {}}}})}, "properties.a", "not"),
    ({"response_format": format_of({"uniqueItems": True})}, "schema", "uniqueItems"),
    ({"response_format": format_of({"$ref": "https://example.org/x"})}, "schema", "example.org"),
    ({"response_format": format_of(None)}, "schema", "missing"),
    ({"response_format": {"type": "grammar"}}, "response_format.type", ""),
    ({"grammar": "start: missing"}, "grammar", "missing"),
    ({"grammar": "root ::= missing"}, "grammar", ""),
    ({"regex": "(?=x)"}, "regex", "look-around"),
    ({"json_schema": "{"}, "json_schema", "JSON"),
    ({"guided_choice": []}, "guided_choice", ""),
    ({"structured_outputs": {"magic": 1}}, "structured_outputs.magic", "unknown"),
    ({"regex": "a", "grammar": 'start: "a"'}, "grammar and regex", "one form"),
    ({"regex": "a", "ignore_eos": True}, "ends", ""),
    (
        {"tools": [{"type": "function", "function": {
            "name": "f", "strict": True, "parameters": {"properties": {"a": {"if": {}}}}}}]},
        "tool f", "a",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "place", "word"), REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_compiled_is_a_400_by_name(client, fields, place, word, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="gpt-demo", messages=ASK, stream=stream, extra_body=fields
        )
    assert place in caught.value.body["message"]
    assert word in caught.value.body["message"]
    assert caught.value.body["param"]


def test_hostile_schemas_leave_the_server_well(demo):
    deep = '{"items":' * 5000 + "{}" + "}" * 5000
    for schema in (
        deep,
        '{"type":"integer","multipleOf":99999989}',
        '{"enum":[' + "1," * 90000 + "1]}",
    ):
        form = '{"type":"json_schema","json_schema":{"name":"x","schema":' + schema + "}}"
        body = '{"model":"gpt-demo","max_tokens":3,"messages":[{"role":"user","content":"x"}],'
        body += f'"response_format":{form}}}'
        status, answer, _ = fetch(demo.address, "/v1/chat/completions", body.encode())
        assert status in (200, 400, 413), answer
    assert fetch(demo.address, "/health")[0] == 200
