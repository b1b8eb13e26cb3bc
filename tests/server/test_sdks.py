"""What OpenAI's and Anthropic's Python clients do beyond plain calls: loops, parsing, errors."""

from __future__ import annotations

import json
import os
import signal
import threading

import anthropic
import openai
import pydantic
import pytest
from tests.server.conftest import Served, fetch, wait_until

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
ABOUT_ANNA = [{"role": "user", "content": "Anna is 31 years old. Give me that as JSON."}]
LONG = {"prompt": "Count.", "max_tokens": 7000, "extra_body": {"ignore_eos": True}}


class Person(pydantic.BaseModel):
    """What is to be parsed. Bounded: a model that is let go on may write forever."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)


@pytest.fixture
def claude(demo: Served):
    with anthropic.Anthropic(base_url=demo.address, api_key="none", max_retries=0) as client:
        yield client


def test_answers_are_parsed_into_classes(client: openai.OpenAI, claude: anthropic.Anthropic):
    fields = {"model": "gpt-demo", "temperature": 0}
    chat = client.chat.completions.parse(messages=ABOUT_ANNA, response_format=Person, **fields)
    parsed = chat.choices[0].message.parsed
    assert isinstance(parsed, Person)
    response = client.responses.parse(input=ABOUT_ANNA, text_format=Person, **fields)
    assert response.output_parsed == parsed
    with client.chat.completions.stream(
        messages=ABOUT_ANNA, response_format=Person, **fields
    ) as stream:
        streamed = stream.get_final_completion()
    assert streamed.choices[0].message.parsed == parsed
    common = {"model": "gpt-demo", "max_tokens": 200, "messages": ABOUT_ANNA}
    made = claude.messages.parse(output_format=Person, **common, extra_body={"temperature": 0})
    assert made.parsed_output == parsed


def test_a_tool_runner_loops_until_the_answer(claude: anthropic.Anthropic):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name.
        """
        asked.append(city)
        return '{"sky": "clear"}'

    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    runner = claude.beta.messages.tool_runner(
        model="gpt-demo", max_tokens=300, messages=question, tools=[get_weather], max_iterations=3
    )
    turns = list(runner)
    assert 1 <= len(turns) <= 3
    assert len(asked) == sum(turn.stop_reason == "tool_use" for turn in turns)


@pytest.mark.parametrize(
    ("fields", "kind", "code"),
    [
        ({"extra_body": {"seeed": 1}}, openai.BadRequestError, "unknown_parameter"),
        ({"max_tokens": 90_000}, openai.BadRequestError, "context_length_exceeded"),
        ({"model": "other"}, openai.NotFoundError, "model_not_found"),
    ],
)
def test_errors_are_the_clients_classes(client: openai.OpenAI, fields, kind, code):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "gpt-demo", "messages": MESSAGES, **fields})
    assert caught.value.code == code
    assert "\n" in str(caught.value) or "." in str(caught.value)


def test_keys_full_queues_and_dead_engines_are_the_clients_classes():
    served = Served("--threads", 1, "--max-waiting", 1, STRATA_API_KEY="k3y")
    common = {"base_url": f"{served.address}/v1", "max_retries": 0}
    try:
        stranger = openai.OpenAI(api_key="other", **common)
        with stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with (
            anthropic.Anthropic(
                base_url=served.address, api_key="other", max_retries=0
            ) as stranger,
            pytest.raises(anthropic.AuthenticationError),
        ):
            stranger.messages.create(model="strata-demo", max_tokens=5, messages=MESSAGES)
        with openai.OpenAI(api_key="k3y", **common) as client:
            _check_busy_and_dead(served, client)
    finally:
        assert served.end() == 0


def _check_busy_and_dead(served: Served, client: openai.OpenAI) -> None:
    with client.completions.create(model="strata-demo", stream=True, **LONG) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="strata-demo", messages=MESSAGES)
        assert caught.value.response.headers["retry-after"].isdigit()
        # The engine dies in the middle of a stream: an error, not a quiet end.
        os.kill(_status(served)["engine_pid"], signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine's process ended"):
            list(stream)
    wait_until(lambda: _status(served)["state"] == "ready", 60.0)
    # Nothing had been passed on of this one when its engine dies again and again: 503.
    found: list[BaseException] = []

    def ask() -> None:
        try:
            client.completions.create(model="strata-demo", **LONG)
        except openai.APIError as error:
            found.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: _status(served)["open_requests"] == 1, 60.0)
    wait_until(lambda: _generated(served) > 0, 60.0)
    os.kill(_status(served)["engine_pid"], signal.SIGKILL)
    asking.join(120)
    assert isinstance(found[0], openai.InternalServerError)
    assert found[0].status_code == 503


def _status(served: Served) -> dict:
    return json.loads(fetch(served.address, "/v1/status", x_api_key="k3y")[1])


def _generated(served: Served) -> int:
    monitor = json.loads(fetch(served.address, "/v1/monitor", x_api_key="k3y")[1])
    return sum(request["output_tokens"] or 0 for request in monitor["requests"])
