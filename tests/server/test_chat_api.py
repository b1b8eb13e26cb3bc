"""Chat completions of a live server with the demo model, asked by OpenAI's own client.

Answers are checked against the library: the same engine without a server gives the same text.
"""

from __future__ import annotations

import contextlib
import json
import math

import openai
import pytest
from tests.server.conftest import fetch, wait_until

from strata import SamplingParams
from strata.server.chat_words import budget_of

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
STORY = [{"role": "user", "content": "Tell me a story of a bear and a bird."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def ask(client, **fields):
    fields = {"model": "gpt-demo", "messages": MESSAGES, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def refused(client, **fields) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, **fields)
    return caught.value


def test_an_answer_is_the_librarys(client, engine):
    expected = engine.chat(MESSAGES, SamplingParams(temperature=0)).complete()
    answer = ask(client)
    assert answer.model == "gpt-demo"
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens == expected.timings.prompt_tokens
    assert usage.completion_tokens == expected.timings.generated_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    again = ask(client)
    assert again.choices[0].message.content == expected.text
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    assert again.timings["cache_n"] == again.usage.prompt_tokens_details.cached_tokens


def test_a_stream_adds_up_to_the_answer(client):
    whole = ask(client, seed=5, temperature=1)
    chunks = list(
        ask(client, seed=5, temperature=1, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_reasoning_is_parted_and_counted(client, engine):
    values = {"enable_thinking": True}
    expected = engine.chat(MESSAGES, SamplingParams(temperature=0), **values).complete().text
    thought, _, said = expected.partition("</think>")
    answer = ask(client, reasoning_effort="high")
    message = answer.choices[0].message
    assert message.reasoning_content == thought
    assert message.content == said.lstrip("\n")
    assert (
        0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    )
    chunks = list(ask(client, stream=True, extra_body={"chat_template_kwargs": values}))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(getattr(d, "reasoning_content", None) or "" for d in deltas) == thought
    assert "".join(d.content or "" for d in deltas) == said.lstrip("\n")


@pytest.mark.parametrize("budget", [0, 5])
def test_a_budget_ends_the_reasoning(client, budget):
    answer = ask(
        client,
        reasoning_effort="high",
        extra_body={"reasoning_budget_tokens": budget},
        max_tokens=60,
    )
    message = answer.choices[0].message
    free = ask(client, reasoning_effort="high").choices[0].message.reasoning_content
    thought = getattr(message, "reasoning_content", "")
    assert free.startswith(thought.rstrip("\n"))
    assert len(thought) < len(free)
    assert answer.usage.completion_tokens_details.reasoning_tokens <= budget + 3
    assert message.content


def test_reasoning_may_be_asked_for_in_other_words(client):
    def told(**fields) -> tuple[str, str]:
        message = ask(client, extra_body=fields).choices[0].message
        return getattr(message, "reasoning_content", ""), message.content

    low = told(reasoning_effort="low")
    assert low[0]
    assert told(reasoning={"effort": "low", "summary": "auto"}) == low
    assert told(reasoning={"enabled": True, "max_tokens": 2048}) == low
    assert told(reasoning={"enabled": True, "max_tokens": 2}) != low
    assert told(reasoning={"enabled": False}) == told(reasoning_effort="none")
    for fields in (
        {"reasoning_effort": "low", "reasoning": {"effort": "high"}},
        {"reasoning": {"effort": "none", "enabled": True}},
        {"reasoning": {"exclude": True}},
        {"reasoning": {"max_tokens": 1}, "reasoning_budget_tokens": 2},
    ):
        assert refused(client, extra_body=fields).status_code == 400


@pytest.mark.parametrize(
    ("effort", "budget"), [("minimal", 512), ("low", 2048), ("medium", 8192), ("high", None)]
)
def test_an_effort_is_a_budget(effort: str, budget: int | None):
    assert budget_of(effort) == budget


def test_stop_texts_cut_across_tokens(client):
    full = ask(client).choices[0].message.content
    for start, end in ((1, 3), (2, 7), (3, 5)):
        stop = full[start:end]
        answer = ask(client, stop=[stop, "not in it"])
        assert answer.choices[0].message.content == full[: full.index(stop)]
        assert answer.choices[0].finish_reason == "stop"
        chunks = ask(client, stop=stop, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == full[: full.index(stop)]


def test_logprobs_are_the_engines(client, engine):
    sampling = SamplingParams(temperature=0, logprobs=3, max_tokens=5)
    expected = engine.chat(MESSAGES, sampling).complete().logprobs
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=5)
    found = answer.choices[0].logprobs.content
    assert [item.logprob for item in found] == pytest.approx([item.logprob for item in expected])
    assert all(len(item.top_logprobs) == 3 for item in found)
    assert (
        b"".join(bytes(item.bytes) for item in found).decode() == answer.choices[0].message.content
    )
    assert sum(math.exp(top.logprob) for top in found[0].top_logprobs) <= 1
    chunks = ask(client, logprobs=True, top_logprobs=3, max_tokens=5, stream=True)
    streamed = [
        item
        for chunk in chunks
        if chunk.choices[0].logprobs
        for item in chunk.choices[0].logprobs.content
    ]
    assert [item.token for item in streamed] == [item.token for item in found]


@pytest.mark.parametrize(
    "options",
    [
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.3},
        {"repeat_penalty": 1.3, "penalty_last_n": 8},
        {"logit_bias": {"300": 40.0, "10": -100.0}},
    ],
)
def test_sampling_is_the_librarys(client, engine, options):
    own = {
        name: options[name] for name in ("presence_penalty", "frequency_penalty") if name in options
    }
    bias = {int(name): value for name, value in options.get("logit_bias", {}).items()}
    common = {"temperature": 1.2, "seed": 11, "max_tokens": 40}
    sampling = SamplingParams.from_options({**common, **options, "logit_bias": bias})
    expected = engine.chat(STORY, sampling).complete().text
    answer = ask(client, messages=STORY, **common, **own, extra_body=options)
    assert answer.choices[0].message.content == expected
    assert expected != engine.chat(STORY, SamplingParams(**common)).complete().text


def test_length_and_n_are_honoured(client):
    cut = ask(client, max_completion_tokens=2)
    assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (2, "length")
    seeded = {
        "messages": STORY,
        "n": 2,
        "temperature": 1.5,
        "seed": 1,
        "max_tokens": 12,
        "top_p": 1,
    }
    several = ask(client, **seeded)
    texts = [choice.message.content for choice in several.choices]
    assert texts[0] != texts[1]
    assert several.usage.completion_tokens <= 24
    assert [c.message.content for c in ask(client, **seeded).choices] == texts
    chunks = list(ask(client, **seeded, stream=True))
    for index, text in enumerate(texts):
        own = [c.choices[0].delta.content or "" for c in chunks if c.choices[0].index == index]
        assert "".join(own) == text


def test_tools_are_called_and_their_results_read(client):
    question = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        answer = ask(client, messages=question, tools=[WEATHER], tool_choice=choice, max_tokens=80)
        call = answer.choices[0].message.tool_calls[0]
        assert answer.choices[0].finish_reason == "tool_calls"
        assert call.function.name == "get_weather"
        assert isinstance(json.loads(call.function.arguments)["city"], str)
    chunks = list(
        ask(
            client,
            messages=question,
            tools=[WEATHER],
            tool_choice=named,
            max_tokens=80,
            stream=True,
        )
    )
    parts = [part for c in chunks for part in c.choices[0].delta.tool_calls or []]
    assert parts[0].function.name == "get_weather"
    assert parts[0].id
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}'}
    after = [*question, answer.choices[0].message.model_dump(exclude_none=True), result]
    final = ask(client, messages=after, tools=[WEATHER], max_tokens=40)
    assert final.choices[0].message.content


def test_turns_that_templates_do_not_expect_are_put_right(client):
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "system", "content": "Answer in English."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": "Now answer."},
        *MESSAGES,
    ]
    assert ask(client, messages=messages).choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "status", "name"),
    [
        ({"extra_body": {"temprature": 1}}, 400, "temprature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"temperature": -1}, 400, "temperature"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        ({"extra_body": {"repetition_penalty": -1}}, 400, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, 400, "logit_bias"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, 400, "messages[0].mood"),
        ({"functions": []}, 400, "functions"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema"),
        ({"top_logprobs": 2}, 400, "top_logprobs"),
        ({"logit_bias": {"100000": 1}}, 400, "logit_bias"),
        ({"logit_bias": {"a": 1}}, 400, "logit_bias"),
        ({"logit_bias": {5000 * "1": 1}}, 400, "logit_bias"),
        ({"tool_choice": "required"}, 400, "tool_choice"),
        ({"n": 0}, 400, "n"),
        ({"max_tokens": 100_000}, 400, None),
        ({"stop": [""]}, 400, "stop"),
        ({"model": "gpt-9"}, 404, "model"),
        ({"reasoning_effort": "endless"}, 400, "reasoning_effort"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_tokens"),
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, 400, "chat_template_kwargs"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, status, name, stream):
    error = refused(client, stream=stream, **fields)
    assert error.status_code == status
    assert name is None or error.param == name
    assert error.body["message"]


def test_what_is_no_choice_is_told_with_the_choices(client):
    error = refused(client, store=True)
    assert error.body["message"] == "store cannot be true; it may be false."
    error = refused(client, tool_choice="maybe")
    assert error.body["message"] == (
        'tool_choice cannot be \'maybe\'; it may be "auto", "none", "required".'
    )


def test_pictures_are_refused_in_plain_words(client):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = refused(client, messages=[{"role": "user", "content": [part]}])
    assert isinstance(error, openai.BadRequestError)
    assert "no image input" in error.message


def test_a_client_that_leaves_ends_its_answer(client, demo):
    def num_open() -> int:
        return json.loads(fetch(demo.address, "/v1/status")[1])["open_requests"]

    endless = {"extra_body": {"ignore_eos": True}, "max_tokens": 7000}
    with ask(client, stream=True, **endless) as stream:
        next(iter(stream))
        assert num_open() == 1
    wait_until(lambda: num_open() == 0)
    with contextlib.suppress(openai.APITimeoutError):
        ask(client.with_options(timeout=0.5), **endless)
    wait_until(lambda: num_open() == 0)
    assert ask(client).choices[0].message.content
