"""Recall, code words, editing, JSON and tools: the generators, and what their graders accept.

Checked against: the chat form's own writing of the answers, JSON's parser, cases of JSON schema
written by hand, and answers spoilt in known ways.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from training.chat_format import render
from training.tasks import code_words, editing, json_objects, recall, tools
from training.tasks.example import Example, Split, Task, is_held_out
from training.tasks.filler import plain_paragraph, plain_sentence
from training.tasks.tool_catalogue import EVERYDAY
from training.tasks.tool_kinds import parse_calls
from training.tasks.word_pools import PLAIN_WORDS

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = (recall, code_words, editing, json_objects, tools)
TASKS: tuple[Task, ...] = tuple(task for module in MODULES for task in module.TASKS)
SHORT = tuple(task for task in TASKS if task.name != "code_word_long")
_ROOT = Path(__file__).parents[3]

every_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
every_short_task = pytest.mark.parametrize("task", SHORT, ids=lambda task: task.name)


def examples(task: Task, split: Split, count: int) -> list[Example]:
    return [task.generate(random.Random(f"{task.name} {n}"), split) for n in range(count)]


def written(example: Example) -> str:
    """The reference answer as the model has to write it, without thinking and end of turn."""
    segments = render(example.messages, example.tools, example.is_thinking)
    text = "".join(segment.text for segment in segments[:-2])
    return text.rpartition("<|im_start|>assistant\n")[2].rpartition("</think>\n\n")[2]


def digest() -> str:
    everything = [
        [example.messages, example.tools, example.is_thinking]
        for task in TASKS
        for split in Split
        for example in examples(task, split, 6)
    ]
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_the_same_seed_gives_the_same_examples_in_any_process(hash_seed: str) -> None:
    code = "from tests.unit.training.test_tasks_b import digest; print(digest())"
    path = os.pathsep.join([str(_ROOT), str(_ROOT / "src")])
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == digest()


@every_short_task
def test_no_held_out_question_is_ever_trained_on(task: Task) -> None:
    def asked(split: Split, count: int) -> set[str]:
        return {json.dumps([e.tools, e.prompt, written(e)]) for e in examples(task, split, count)}

    assert asked(Split.TRAIN, 800).isdisjoint(asked(Split.HELD_OUT, 200))


@pytest.mark.parametrize("split", Split)
def test_code_words_of_one_split_are_never_hidden_in_the_other(split: Split) -> None:
    for example in examples(code_words.TASKS[0], split, 200):
        for value in (*example.facts["values"], *example.facts["others"]):
            assert is_held_out(value) == (split is Split.HELD_OUT)


@every_task
@pytest.mark.parametrize("split", Split)
def test_the_grader_accepts_the_reference(task: Task, split: Split) -> None:
    for example in examples(task, split, 20 if task.name == "code_word_long" else 300):
        assert example.task == task.name
        assert task.grade(example, written(example)), example


@every_task
def test_the_grader_refuses_nothing_said_and_answers_to_other_questions(task: Task) -> None:
    made = examples(task, Split.HELD_OUT, 12 if task.name == "code_word_long" else 60)
    answers = [written(example) for example in made]
    for example, answer in zip(made, answers, strict=True):
        assert not task.grade(example, "")
        assert not task.grade(example, "I do not know.")
        others = {other for other in answers if other != answer}
        # A few share their answer in substance ("7" is in two lists), most must not.
        refused = sum(not task.grade(example, other) for other in others)
        assert refused >= 0.8 * len(others)


@every_short_task
def test_generators_keep_up_with_training(task: Task) -> None:
    start = time.perf_counter()
    examples(task, Split.TRAIN, 200)
    assert 200 / (time.perf_counter() - start) > 300


def test_recall_names_one_value_of_the_list_and_the_grader_refuses_the_rest() -> None:
    for example in examples(recall.TASKS[0], Split.TRAIN, 200):
        value, text = example.facts["value"], str(example.messages[0]["content"])
        assert value in text
        for other in example.facts["others"]:
            assert other in text.lower()
            assert not recall.grade(example, f"{written(example)} {other}")
            assert not recall.grade(example, other)


def test_a_needle_is_once_in_its_text_and_distractors_are_refused() -> None:
    has_others = 0
    for example in examples(code_words.TASKS[0], Split.HELD_OUT, 300):
        text = str(example.prompt[-1]["content"])
        values = example.facts["values"]
        assert [text.count(value) for value in values] == [1] * len(values)
        places = [text.index(value) for value in values]
        assert places == sorted(places)
        if len(values) == 2:
            assert not code_words.grade(example, f"{values[1]} and {values[0]}")
        for other in example.facts["others"]:
            has_others += 1
            assert other in text
            assert not code_words.grade(example, f"It is {values[0]} or {other}.")
    assert has_others > 50


@pytest.mark.parametrize("num_tokens", [512, 2048, 8192])
@pytest.mark.parametrize("depth", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_texts_for_the_evaluation_have_the_length_and_the_depth_asked_for(
    num_tokens: int, depth: float
) -> None:
    # One token a word is a tokenizer too; paragraphs are sums of it, as of the real one.
    def count(text: str) -> int:
        return len(text.split())

    for seed in range(3):
        rng = random.Random(seed)
        example = code_words.make(rng, Split.HELD_OUT, num_tokens, depth, count)
        text = str(example.prompt[-1]["content"])
        room = num_tokens - code_words.ANSWER_TOKENS
        assert room - 40 <= count(text) <= room
        (value,) = example.facts["values"]
        assert is_held_out(value)
        assert text.index(value) / len(text) == pytest.approx(depth, abs=80 / num_tokens)


def test_paragraphs_of_the_corpus_fill_the_text() -> None:
    def paragraph(rng: random.Random) -> str:
        return f"Corpus paragraph {rng.randrange(10**6)} is here. It ends soon."

    rng = random.Random(1)
    example = code_words.code_word_example(rng, Split.TRAIN, paragraph, 5000, 0.5)
    text = str(example.prompt[-1]["content"])
    assert text.count("Corpus paragraph") > 50
    assert 4700 < len(text) < 5300
    mixed = [code_words.long_example(random.Random(n), Split.TRAIN, paragraph) for n in range(12)]
    has_corpus = ["Corpus paragraph" in str(e.prompt[-1]["content"]) for e in mixed]
    assert any(has_corpus)
    assert not all(has_corpus)


def test_the_filler_has_some_hundred_thousand_sentences_and_no_code_word() -> None:
    rng = random.Random(5)
    sentences = [plain_sentence(rng) for _ in range(20000)]
    # By the birthday bound: with 200,000 equally likely ones, some 1,000 pairs would be the same.
    assert len(set(sentences)) > 19000
    assert not any("-" in sentence for sentence in sentences)
    assert len(PLAIN_WORDS) >= 500
    assert "  " not in plain_paragraph(rng)


def test_answers_in_json_are_valid_and_spoilt_ones_refused() -> None:
    (task,) = json_objects.TASKS
    for example in examples(task, Split.TRAIN, 300):
        answer = written(example)
        value = json.loads(answer)
        schema, expected = example.facts["schema"], example.facts["expected"]
        assert schema is not None or expected is not None
        assert not task.grade(example, f"Here it is: {answer}")
        assert not task.grade(example, answer[:-1])
        assert not task.grade(example, f"```json\n{answer}\n```")
        name = next(iter(value))
        if expected is not None or (schema is not None and name in schema["required"]):
            left = {key: inner for key, inner in value.items() if key != name}
            assert not task.grade(example, json.dumps(left))
        for wrong in (None, [], 7.25, {"a": 1}):
            assert not task.grade(example, json.dumps({**value, name: wrong})) or (
                expected is None and isinstance(value[name], float)
            )


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        (1, {"type": "integer"}, True),
        (True, {"type": "integer"}, False),
        (1.5, {"type": "integer"}, False),
        (1, {"type": "number"}, True),
        (False, {"type": "number"}, False),
        (1, {"type": "boolean"}, False),
        (True, {"type": "boolean"}, True),
        ("a", {"type": "string", "enum": ["b"]}, False),
        ([1, "a"], {"type": "array", "items": {"type": "integer"}}, False),
        ({}, {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, False),
        ({"b": 1}, {"type": "object", "properties": {}, "additionalProperties": False}, False),
        ({"b": 1}, {"type": "object", "properties": {}}, True),
        ({"a": 1}, {"type": "object", "properties": {"a": {"type": "string"}}}, False),
    ],
)
def test_values_fit_schemas_as_json_schema_says(
    value: object, schema: dict[str, Any], *, fits: bool
) -> None:
    assert json_objects.matches_schema(value, schema) is fits


def _edited(example: Example, change: Callable[[dict[str, Any]], None]) -> str:
    """The reference with its first call's function changed, as the model would write it."""
    last = json.loads(json.dumps(example.messages[-1]))
    change(last["tool_calls"][0]["function"])
    spoilt = Example("", [*example.prompt, last], example.tools, example.is_thinking)
    return written(spoilt)


def test_calls_fit_an_offered_tool_and_spoilt_ones_are_refused() -> None:
    def rename(function: dict[str, Any]) -> None:
        function["name"] += "_x"

    def change_value(function: dict[str, Any]) -> None:
        name = next(iter(function["arguments"]))
        function["arguments"][name] = "something else"

    def drop(function: dict[str, Any]) -> None:
        function["arguments"].popitem()

    def turn_around(function: dict[str, Any]) -> None:
        function["arguments"] = dict(reversed(function["arguments"].items()))

    for example in examples(tools.TASKS[0], Split.TRAIN, 300):
        offered = {tool["function"]["name"]: tool["function"] for tool in example.tools}
        assert len(offered) == len(example.tools) <= 4
        for message in example.messages:
            for call in message.get("tool_calls", ()):
                function = call["function"]
                parameters = offered[function["name"]]["parameters"]
                strict = {**parameters, "additionalProperties": False}
                assert json_objects.matches_schema(function["arguments"], strict)
        answer = written(example)
        assert not tools.grade_call(example, f"Sure. {answer}")
        assert not tools.grade_call(example, f"{answer}\n{answer}")
        assert not tools.grade_call(example, answer.removesuffix("</tool_call>"))
        for change in (rename, change_value, drop):
            assert not tools.grade_call(example, _edited(example, change))
        assert tools.grade_call(example, _edited(example, turn_around))
        if len(example.facts["calls"]) == 2:
            first, second = answer.split("\n</tool_call>\n")
            second = second.removesuffix("\n</tool_call>")
            swapped = f"{second}\n</tool_call>\n{first}\n</tool_call>"
            assert tools.grade_call(example, swapped)


def test_a_call_is_parsed_whatever_its_values_hold() -> None:
    text = (
        "<tool_call>\n<function=send>\n<parameter=text>\ntwo\nlines <b>\n</parameter>\n"
        "<parameter=to>\n\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=stop>\n</function>\n</tool_call>"
    )
    calls = parse_calls(text)
    assert calls is not None
    assert [(call.name, dict(call.arguments)) for call in calls] == [
        ("send", {"text": "two\nlines <b>", "to": ""}),
        ("stop", {}),
    ]
    assert parse_calls("") is None
    assert parse_calls("<tool_call>\n<function=a>\n</function>\n") is None


def test_answers_from_results_say_what_the_tool_returned() -> None:
    for example in examples(tools.TASKS[1], Split.TRAIN, 200):
        answer = written(example)
        assert example.facts["values"]
        for value in example.facts["values"]:
            assert not tools.grade_words(example, answer.replace(value, "something"))
            if value.isdigit():
                assert not tools.grade_words(example, answer.replace(value, f"1{value}"))


def test_there_are_forty_tools_and_conversations_of_every_kind() -> None:
    assert len(EVERYDAY) >= 40
    made = examples(tools.TASKS[0], Split.TRAIN, 400)
    kinds = {
        "thinking": sum(example.is_thinking for example in made),
        "parallel": sum(len(example.facts["calls"]) == 2 for example in made),
        "after a result": sum(example.prompt[-1]["role"] == "tool" for example in made),
        "second turn": sum(
            sum(message["role"] == "user" for message in example.prompt) == 2 for example in made
        ),
    }
    assert min(kinds.values()) >= 12, kinds
    for example in made:
        last = example.messages[-1]
        assert bool(last.get("reasoning_content")) == example.is_thinking


def test_edits_are_checked_letter_for_letter() -> None:
    for example in examples(editing.TASKS[0], Split.TRAIN, 300):
        answer = written(example)
        assert answer == answer.strip() != ""
        assert editing.grade(example, f" {answer}\n")
        assert not editing.grade(example, answer + "!")
        assert not editing.grade(example, answer[1:])
