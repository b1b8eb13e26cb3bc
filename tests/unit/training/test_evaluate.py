"""The evaluation's arithmetic: against a fake engine, brute-force counts and known probabilities.

The cache is checked against one that keeps the time of every use; perplexity against the fake
session's logits read one by one.
"""

from __future__ import annotations

import json
import lzma
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import DECODED, FakeSession
from training import eval_long
from training.eval_answers import (
    Tally,
    ask,
    case_rng,
    expected_text,
    is_json,
    run_task,
    shortened,
    split_thinking,
)
from training.eval_checks import CHECKS, JSON_TASKS, RECALL_TASKS, TOOL_TASKS, judge
from training.eval_drafts import DraftTotals
from training.eval_routing import cache_slots, layer_routing, lru_hits, routing_table
from training.eval_text import PIECE_TOKENS, cut_pieces, join_layers, piece_nats
from training.evaluate import STORY_TASK, ask_sanity, chosen_tasks, tell_stories
from training.held_out import held_out_documents, kind, sample
from training.held_out import main as held_out_main
from training.tasks.example import Example, Split, Task

from strata.engine.request import Timings
from strata.errors import CheckpointError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from random import Random


@dataclass
class FakeCompletion:
    text: str
    timings: Timings

    @property
    def token_ids(self) -> list[int]:
        return [ord(letter) for letter in self.text]

    def complete(self) -> FakeCompletion:
        return self


class FakeEngine:
    """Answers by a function of the last message; a token is a word."""

    context_len = 8192

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.asked: list[dict[str, Any]] = []
        self.drafts: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def tokenize(self, prompt: str) -> list[int]:
        return [len(word) for word in prompt.split()]

    def chat(self, messages: Sequence[Any], sampling: Any, **values: Any) -> FakeCompletion:
        self.asked.append({"messages": messages, "sampling": sampling, **values})
        timings = Timings(1, 0, 1, 0.0, 0.0, 0.0, self.drafts[0], self.drafts[1])
        return FakeCompletion(self.answer(str(messages[-1]["content"])), timings)


def _example(question: str, answer: str, **rest: Any) -> Example:
    messages = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Example("double", messages, **rest)


def _double(rng: Random, split: Split) -> Example:
    assert split is Split.HELD_OUT
    number = rng.randrange(1000)
    return _example(f"{number}", str(2 * number), facts={"value": 2 * number})


DOUBLE = Task("double", _double, lambda example, text: text == str(example.facts["value"]), 1.0)


def test_shares_count_right_answers():
    # Right for even numbers; the expected share comes from the cases themselves.
    engine = FakeEngine(lambda text: str(2 * int(text)) if int(text) % 2 == 0 else "no")
    seen = []
    tally = run_task(engine, DOUBLE, 40, lambda done, total: seen.append((done, total)))
    numbers = [case_rng("double", number).randrange(1000) for number in range(40)]
    num_even = sum(number % 2 == 0 for number in numbers)
    assert 0 < num_even < 40
    assert (tally.num_cases, tally.num_right) == (40, num_even)
    assert tally.share == num_even / 40
    assert tally.num_json == num_even  # digits are JSON, "no" is not
    assert [int(entry["messages"][-1]["content"]) for entry in engine.asked] == numbers
    assert seen == [(number, 40) for number in range(1, 41)]
    assert all(entry["sampling"].temperature == 0.0 for entry in engine.asked)
    odd = next(number for number in numbers if number % 2)
    assert tally.wrong[0].question == str(odd)
    assert (tally.wrong[0].expected, tally.wrong[0].found) == (str(2 * odd), "no")
    assert len(tally.wrong) == 5
    assert json.loads(json.dumps(tally.as_dict()))["share"] == tally.share


def test_drafts_are_added_up_by_place():
    engine = FakeEngine(lambda _: "")
    engine.drafts = ((7, 4, 2), (6, 3, 0))
    tally = run_task(engine, DOUBLE, 3)
    tally.drafts.add((1,), (1,))
    assert tally.drafts.as_dict() == {
        "positions": [
            {"proposed": 22, "accepted": 19},
            {"proposed": 12, "accepted": 9},
            {"proposed": 6, "accepted": 0},
        ]
    }


def test_more_cases_begin_with_the_same_ones():
    few, many = FakeEngine(lambda _: ""), FakeEngine(lambda _: "")
    run_task(few, DOUBLE, 3)
    run_task(many, DOUBLE, 6)
    assert [e["messages"] for e in few.asked] == [e["messages"] for e in many.asked[:3]]


@pytest.mark.parametrize(
    ("text", "is_thinking", "expected"),
    [
        ("twelve", False, ("", "twelve")),
        ("3 x 4\n</think>\n\n12", True, ("3 x 4", "12")),
        ("3 x 4 is", True, ("3 x 4 is", "")),  # cut off before the answer
        ("a </think> b </think>\n\nc", True, ("a </think> b", "c")),
        ("<think>\n\n</think>\n\n12", False, ("<think>", "12")),
    ],
)
def test_the_answer_follows_the_thinking(
    text: str, *, is_thinking: bool, expected: tuple[str, str]
):
    assert split_thinking(text, is_thinking=is_thinking) == expected


def test_a_question_reaches_the_engine_whole():
    tools = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    example = _example("go", "", tools=tools, is_thinking=True)
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    messages = (example.messages[0], {"role": "assistant", "content": "", "tool_calls": [call]})
    example = Example("call", messages, tools, is_thinking=True)
    engine = FakeEngine(lambda _: "so\n</think>\n\n<tool_call>")
    answer = ask(engine, example)
    [asked] = engine.asked
    assert asked["messages"] == example.messages[:1]
    assert asked["tools"] == tools
    assert asked["enable_thinking"] is True
    assert (answer.reasoning, answer.text) == ("so", "<tool_call>")
    assert json.loads(expected_text(example)) == [{"name": "f", "arguments": {"x": 1}}]
    assert asked["sampling"].max_tokens == 2 * len(expected_text(example).split()) + 48


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"a": 1}', True), ("[]", True), ('{"a": 1} ok', False), ("{a: 1}", False), ("", False)],
)
def test_json_is_the_whole_answer(text: str, *, expected: bool):
    assert is_json(text) is expected


def test_long_questions_are_shortened_in_the_middle():
    assert shortened("x" * 400) == "x" * 400
    text = "a" * 300 + "b" * 300
    assert shortened(text) == "a" * 200 + " [...] " + "b" * 200


def test_code_words_by_length_and_depth():
    # A reader that knows no more than the last third of what it is given.
    def last_third(text: str) -> str:
        return text[len(text) * 2 // 3 :].rpartition("\n\n")[0]

    engine = FakeEngine(last_third)
    seen: list[tuple[int, int]] = []
    cells, tally = eval_long.code_word_cells(
        engine, 4, lambda done, total: seen.append((done, total)), lengths=(400, 900)
    )
    assert [(cell.num_tokens, cell.depth) for cell in cells] == [
        (length, depth) for length in (400, 900) for depth in (0.1, 0.5, 0.9)
    ]
    assert [cell.num_cases for cell in cells] == [4] * 6
    for cell in cells:
        assert cell.share == cell.num_right / 4
        shortest, longest = cell.prompt_tokens
        assert 0.7 * cell.num_tokens < shortest <= longest <= cell.num_tokens
    found = {(cell.num_tokens, cell.depth): cell.num_right for cell in cells}
    assert found[400, 0.1] == found[900, 0.1] == 0
    assert found[400, 0.9] + found[900, 0.9] >= 4
    assert tally.num_right == sum(cell.num_right for cell in cells)
    assert seen == [(number, 24) for number in range(1, 25)]


def _brute_force_hits(ids: list[int], num_slots: int) -> int:
    """Keeps the time of every use and looks for the oldest each time."""
    last_use: dict[int, int] = {}
    hits = 0
    for time, expert in enumerate(ids):
        if expert in last_use:
            hits += 1
        elif len(last_use) == num_slots:
            del last_use[min(last_use, key=lambda held: last_use[held])]
        last_use[expert] = time
    return hits


@given(st.lists(st.integers(0, 11), min_size=1, max_size=200), st.integers(1, 12))
def test_cache_hits_equal_brute_force(ids: list[int], num_slots: int):
    assert lru_hits(np.array(ids, np.int32)[:, None], num_slots) == _brute_force_hits(
        ids, num_slots
    )


def test_a_cache_as_large_as_the_layer_misses_each_expert_once():
    ids = np.random.default_rng(1).integers(0, 8, (50, 2))
    assert lru_hits(ids, 8) == 100 - len(np.unique(ids))


@pytest.mark.parametrize(
    ("share", "num", "slots"), [(0.12, 32, 4), (0.25, 32, 8), (0.5, 32, 16), (0.12, 4, 1)]
)
def test_slots_of_a_share(share: float, num: int, slots: int):
    assert cache_slots(share, num) == slots


def test_routing_of_one_layer():
    # Expert 0 in every token, the others in turn.
    ids = np.array([[0, 1 + token % 7] for token in range(70)], np.int32)
    found = layer_routing(3, ids, 8)
    assert found.layer == 3
    assert found.most_used == 0.5
    assert found.num_unused == 0
    assert found.use_shares == {"12 %": 0.5, "25 %": 0.5 + 10 / 140, "50 %": 0.5 + 30 / 140}
    # Of two slots one always holds expert 0, and the other is never asked for what it holds.
    assert found.hit_shares["25 %"] == 69 / 140
    assert found.hit_shares["12 %"] == 0.0
    assert [layer.layer for layer in routing_table(np.stack([ids, ids]), 8)] == [0, 1]
    assert layer_routing(0, ids, 16).num_unused == 8


@pytest.mark.parametrize("num_tokens", [2, 8, 9, 16, 21])
def test_nats_are_those_of_tokens_read_one_by_one(num_tokens: int):
    tokens = np.random.default_rng(2).integers(0, 32, num_tokens).astype(np.int32)
    session = FakeSession(32, 64)
    expected = 0.0
    for end in range(1, num_tokens):
        logits = session.logits_after(tokens[:end].tolist(), [DECODED] * end)
        probabilities = np.exp(logits.astype(np.float64))
        expected -= math.log(probabilities[tokens[end]] / probabilities.sum())
    assert piece_nats(session, tokens) == pytest.approx(expected, rel=1e-9)
    assert session.position == num_tokens


def test_documents_are_cut_into_pieces():
    documents = [[1], [2, 3, 4], list(range(PIECE_TOKENS + 5)), [], list(range(9)), [7, 8]]
    pieces = cut_pieces(documents, 10_000)
    assert [len(piece) for piece in pieces] == [3, PIECE_TOKENS, 5, 9, 2]
    assert pieces[2].tolist() == list(range(PIECE_TOKENS, PIECE_TOKENS + 5))
    assert [len(piece) for piece in cut_pieces(documents, PIECE_TOKENS + 10)] == [
        3, PIECE_TOKENS, 5, 2,
    ]  # fmt: skip
    assert [len(piece) for piece in cut_pieces(documents, 4)] == [3]


def test_held_out_sample_is_in_proportion():
    def texts(title: str, count: int, size: int) -> list[str]:
        return [
            f"{title}{number}\n\n" + "\n\n".join([f"{number:04} " + "word " * 19] * size)
            for number in range(count)
        ]

    words = texts("Nouns and what they mean, part ", 100, 40)
    documents = [*words, *texts("Python: ", 200, 10), *texts("Emma, chapter ", 10, 200)]
    assert [kind(documents[at]) for at in (0, 100, -1)] == ["what they mean", "Python", "chapter"]
    chosen = sample(documents, 80_000)
    sizes = dict.fromkeys(map(kind, chosen), 0)
    for document in chosen:
        sizes[kind(document)] += len(document)
    # There are 400, 200 and 200 KB.
    assert sizes["what they mean"] == pytest.approx(40_000, abs=3_000)
    assert sizes["Python"] == pytest.approx(20_000, abs=3_000)
    assert sizes["chapter"] == pytest.approx(20_000, abs=3_000)
    assert max(map(len, chosen)) <= 3_100
    assert len(set(chosen)) == len(chosen)
    # Beginnings, cut between paragraphs, in an order that says nothing of the kind.
    assert all(any(text.startswith(part) for text in documents) for part in chosen)
    assert all(part.endswith("word ") for part in chosen)
    assert len({kind(document) for document in chosen[:12]}) > 1
    assert sample(reversed(documents), 80_000) == chosen


def test_the_sample_is_of_what_may_be_shipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    held_out = tmp_path / "all.xz"
    stored = "\n\x1e\n".join(f"{label}: a\n\n{'word ' * 40}" for label in ("Git", "Python", "GIMP"))
    held_out.write_bytes(lzma.compress(stored.encode()))
    out = tmp_path / "sample.xz"
    assert held_out_main([str(held_out), "--out", str(out)]) == 0
    assert [kind(text) for text in held_out_documents(out)] == ["Python"]
    assert "bytes of text" in capsys.readouterr().out


def test_held_out_files(tmp_path: Path):
    path = tmp_path / "held_out.xz"
    path.write_bytes(lzma.compress(b"a\n\x1e\nb"))
    assert held_out_documents(path) == ["a", "b"]
    plain = tmp_path / "prose.txt"
    plain.write_text("one document")
    assert held_out_documents(plain) == ["one document"]
    with pytest.raises(CheckpointError, match="cannot be read"):
        held_out_documents(tmp_path / "none.xz")


def test_layers_are_joined_over_windows():
    ids = np.arange(3 * 10 * 2).reshape(3, 10, 2).astype(np.int32)
    told = [ids[layer, start : start + 4] for start in (0, 4, 8) for layer in range(3)]
    np.testing.assert_array_equal(join_layers(told, 3), ids)


def _good_results() -> dict[str, Any]:
    names = ("add_two_digits", "recall", "json", "tool_call")
    tally = Tally("", 100, 100, 100)
    return {
        "tasks": [{**tally.as_dict(), "name": name} for name in names],
        "code_words": [{"share": 1.0}, {"share": 0.95}],
        "sanity": {"is_right": True},
        "drafts": {
            "positions": [
                {"proposed": 100, "accepted": 75},
                {"proposed": 75, "accepted": 42},
            ]
        },
    }


def test_thresholds_are_of_tasks_that_exist():
    names = {"add_two_digits", STORY_TASK, *RECALL_TASKS, *JSON_TASKS, *TOOL_TASKS}
    assert names <= {task.name for task in chosen_tasks(())}
    for task in chosen_tasks(JSON_TASKS):
        example = task.generate(case_rng(task.name, 0), Split.HELD_OUT)
        assert is_json(expected_text(example))
    with pytest.raises(SettingsError, match="add_two_digits"):
        chosen_tasks(["add_two_digit"])


def test_good_results_pass_every_check():
    verdicts = judge(_good_results())
    assert len(verdicts) == len(CHECKS) == 9
    assert all(verdict.is_met for verdict in verdicts)


def test_one_wrong_answer_too_many_fails():
    results = _good_results()
    results["tasks"][0]["num_right"] = 97
    assert all(verdict.is_met for verdict in judge(results))
    results["tasks"][0]["num_right"] = 96
    results["tasks"][2]["num_json"] = 98
    results["code_words"][0]["share"] = 0.94
    results["drafts"]["positions"][1]["accepted"] = 41
    results["sanity"]["is_right"] = False
    assert [verdict.name for verdict in judge(results) if verdict.is_met is False] == [
        "code word found, worst of the lengths and depths",
        "two-digit addition",
        "JSON valid",
        "12*12 gives 144",
        "second draft token accepted",
    ]


def test_nothing_measured_is_not_passed():
    assert [verdict.is_met for verdict in judge({})] == [None] * len(CHECKS)


@pytest.mark.parametrize(("answer", "is_right"), [("12 x 12 = 144.", True), ("1445", False)])
def test_sanity_question(answer: str, *, is_right: bool):
    engine = FakeEngine(lambda _: answer)
    assert ask_sanity(engine)["is_right"] is is_right
    assert engine.asked[0]["messages"] == ({"role": "user", "content": "What is 12*12?"},)


def test_stories_are_told_to_different_requests():
    drafts = DraftTotals()
    engine = FakeEngine(lambda text: f"story {text}")
    engine.drafts = ((5, 3), (4, 1))
    stories = tell_stories(engine, DOUBLE, 6, drafts)
    assert (drafts.proposed, drafts.accepted) == ([30, 18], [24, 6])
    assert len({story["request"] for story in stories}) == 6
    assert all(story["story"] == f"story {story['request']}" for story in stories)
