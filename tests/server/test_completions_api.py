"""Completions of a live server, asked by OpenAI's own client; checked against the library."""

from __future__ import annotations

import openai
import pytest

from strata import Engine, SamplingParams

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def expected():
    with Engine.open(threads=1) as engine:
        yield engine.generate_text(PROMPT, SamplingParams(temperature=0, max_tokens=12, logprobs=2))


def ask(client, **fields):
    fields = {
        "model": "strata-demo",
        "prompt": PROMPT,
        "temperature": 0,
        "max_tokens": 12,
        **fields,
    }
    return client.completions.create(**fields)


def test_text_and_ids_are_continued_as_by_the_library(client, expected):
    assert ask(client).choices[0].text == expected.text
    with Engine.open(threads=1) as engine:
        ids = engine.tokenize(PROMPT)
    answer = ask(client, prompt=ids, echo=True)
    assert answer.choices[0].text == PROMPT + expected.text
    assert answer.usage.prompt_tokens == len(ids)
    assert len(ask(client, max_tokens=None).choices[0].text) > 0


def test_a_stream_adds_up(client, expected):
    chunks = list(ask(client, stream=True, echo=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == PROMPT + expected.text
    assert chunks[-2].choices[0].finish_reason == str(expected.finish_reason)
    assert chunks[-1].usage.completion_tokens == expected.timings.generated_tokens


def test_several_prompts_and_choices_keep_their_order(client):
    answer = ask(client, prompt=[PROMPT, "The sun"], n=2, temperature=1, seed=3)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert texts[0] == ask(client, temperature=1, seed=3).choices[0].text
    assert texts[3] == ask(client, prompt="The sun", temperature=1, seed=4).choices[0].text
    assert texts[0] != texts[1]


def test_logprobs_in_columns(client, expected):
    found = ask(client, logprobs=2).choices[0].logprobs
    assert found.token_logprobs == pytest.approx([item.logprob for item in expected.logprobs])
    assert "".join(found.tokens) == expected.text
    assert found.text_offset == [len("".join(found.tokens[:n])) for n in range(len(found.tokens))]
    assert all(
        max(top.values()) >= own
        for top, own in zip(found.top_logprobs, found.token_logprobs, strict=False)
    )
    chunks = list(ask(client, logprobs=2, stream=True))
    offsets = [
        x for c in chunks if c.choices[0].logprobs for x in c.choices[0].logprobs.text_offset
    ]
    assert offsets == found.text_offset


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [8192]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"extra_body": {"grammar": "x"}}, "grammar"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(client, fields, name):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **fields)
    assert caught.value.param == name
