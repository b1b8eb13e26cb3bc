"""Tool calls: the right tool with the right arguments, answers from results, or no tool at all.

Owns the conversations and the graders. The tools are in ``training.tasks.tool_catalogue``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from training.tasks.example import Example, Message, Split, Task, in_split
from training.tasks.tool_actions import ADD_EXPENSE, CALL_NUMBER, SEND_EMAIL
from training.tasks.tool_catalogue import EVERYDAY, made_up_kind
from training.tasks.tool_kinds import (
    Offer,
    ToolKind,
    Value,
    call_message,
    expected_call,
    parse_calls,
)
from training.tasks.tool_lookups import FIND_EMAIL, FIND_HOME, FIND_PHONE, GET_PRICE, GET_WEATHER
from training.tasks.word_pools import join_words

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

_MOST_TOOLS = 4
_MADE_UP_SHARE = 0.3
_THINKING_SHARE = 0.15
_SYSTEM = ("You are a helpful assistant.", "You can use tools.", "Use the tools where they help.")

# First tool, second tool, how the first one's field is called in the second, request; what the
# request names is drawn for the parameters of both.
_CHAINS: tuple[tuple[ToolKind, ToolKind, str, str, str], ...] = (
    (
        FIND_EMAIL,
        SEND_EMAIL,
        "email",
        "to",
        'Send an email to {name} with the subject "{subject}".',
    ),
    (FIND_PHONE, CALL_NUMBER, "phone", "number", "Call {name}."),
    (GET_PRICE, ADD_EXPENSE, "price", "amount", "Add the price of the {item} to my expenses."),
    (FIND_HOME, GET_WEATHER, "city", "city", "What is the weather in the city where {name} lives?"),
)

_FACTS = (
    ("How many days are in a week?", "A week has 7 days.", "7"),
    ("How many hours are in a day?", "A day has 24 hours.", "24"),
    ("How many minutes are in an hour?", "An hour has 60 minutes.", "60"),
    ("How many months are in a year?", "A year has 12 months.", "12"),
    ("How many legs does a spider have?", "A spider has 8 legs.", "8"),
    ("How many legs does a dog have?", "A dog has 4 legs.", "4"),
    ("How many wheels does a bicycle have?", "A bicycle has 2 wheels.", "2"),
    ("How many sides does a triangle have?", "A triangle has 3 sides.", "3"),
    ("What colour is grass?", "Grass is green.", "green"),
    ("What colour is snow?", "Snow is white.", "white"),
    ("What colour is the sky on a clear day?", "The sky is blue.", "blue"),
    ("Which day comes after Monday?", "Tuesday comes after Monday.", "Tuesday"),
    ("Which day comes after Friday?", "Saturday comes after Friday.", "Saturday"),
    ("Which month comes after March?", "April comes after March.", "April"),
    ("What is the opposite of hot?", "The opposite of hot is cold.", "cold"),
    ("What is the opposite of big?", "The opposite of big is small.", "small"),
    ("What is the capital of France?", "The capital of France is Paris.", "Paris"),
    ("What is the capital of Italy?", "The capital of Italy is Rome.", "Rome"),
    ("What do bees make?", "Bees make honey.", "honey"),
    ("Which animal says moo?", "A cow says moo.", "cow"),
)
_SMALL_TALK = (
    ("Hello!", "Hello! How can I help you?", "Hello"),
    ("Hi!", "Hello! How can I help you?", "Hello"),
    ("Good morning.", "Good morning! How can I help you?", "Good morning"),
    ("Thank you.", "You are welcome.", "welcome"),
    ("Thanks a lot!", "You are welcome.", "welcome"),
)
_ASK_TOOLS = ("Which tools do you have?", "What tools can you use?", "List your tools.")
_NO_TOOL = "I have no tool for that."


class _Scene:
    """The tools offered in one conversation, and its messages so far."""

    def __init__(self, rng: random.Random, needed: list[ToolKind]) -> None:
        """Offers the needed tools among others that cannot be taken for them."""
        self._rng = rng
        self.is_thinking = rng.random() < _THINKING_SHARE
        self.needed = [Offer(rng, kind) for kind in needed]
        self._offers = list(self.needed)
        self._groups = {kind.group for kind in needed if kind.group}
        self._names = {offer.name for offer in self.needed}
        for _ in range(rng.randint(0, _MOST_TOOLS - len(needed))):
            self.offer_another()
        rng.shuffle(self._offers)
        self.messages: list[Message] = []
        if rng.random() < 0.1:
            self.messages.append({"role": "system", "content": rng.choice(_SYSTEM)})

    def offer_another(self) -> None:
        """One more tool that nothing asked for needs."""
        while True:
            other = Offer(self._rng, _any_kind(self._rng))
            group = other.kind.group
            if any(other.kind is offer.kind for offer in self._offers):
                continue
            if other.name not in self._names and group not in self._groups:
                break
        self._names.add(other.name)
        self._offers.append(other)

    @property
    def names(self) -> list[str]:
        """Of the tools, in their order."""
        return [offer.name for offer in self._offers]

    def without_needed(self, rng: random.Random) -> None:
        """Takes the tools away that were asked for."""
        self._offers = [offer for offer in self._offers if offer not in self.needed]
        if not self._offers:
            # The names of what is missing stay taken.
            self.offer_another()
        rng.shuffle(self._offers)

    def say(self, text: str) -> None:
        """The user's turn."""
        self.messages.append({"role": "user", "content": text})

    def call(self, *calls: tuple[Offer, Mapping[str, Value]]) -> None:
        """The assistant calls tools."""
        self.messages.append(call_message(list(calls), is_thinking=self.is_thinking))

    def result(self, text: str) -> None:
        """A tool's turn."""
        self.messages.append({"role": "tool", "content": text})

    def answer(self, text: str, thought: str) -> None:
        """The assistant answers in words."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.is_thinking:
            message["reasoning_content"] = thought
        self.messages.append(message)

    def example(self, task: str, **facts: Any) -> Example:
        """The conversation as it stands."""
        tools = [offer.schema() for offer in self._offers]
        return Example(task, self.messages, tools, self.is_thinking, facts)

    def call_example(self) -> Example:
        """The conversation, which ends with calls."""
        calls = self.messages[-1]["tool_calls"]
        return self.example("tool_call", calls=[expected_call(call) for call in calls])


def _any_kind(rng: random.Random) -> ToolKind:
    return made_up_kind(rng) if rng.random() < _MADE_UP_SHARE else rng.choice(EVERYDAY)


def _values(rng: random.Random, split: Split, offer: Offer) -> dict[str, Value] | None:
    """Arguments of the split; None where the tool seems to have none there."""
    for _ in range(100):
        values = offer.draw(rng)
        if in_split(f"{offer.kind.names[0]} {json.dumps(values)}", split):
            return values
    return None


def _scene(
    rng: random.Random, split: Split, count: int = 1
) -> tuple[_Scene, list[dict[str, Value]]]:
    """That many tools that are needed, with arguments."""
    while True:
        kinds = [_any_kind(rng) for _ in range(count)]
        groups = [kind.group or kind.names[0] for kind in kinds]
        if len(set(groups)) < count:
            continue
        scene = _Scene(rng, kinds)
        if len({offer.name for offer in scene.needed}) < count:
            continue
        drawn = [_values(rng, split, offer) for offer in scene.needed]
        values = [found for found in drawn if found is not None]
        if len(values) == count:
            return scene, values


def _single(rng: random.Random, split: Split) -> Example:
    """One request, one call."""
    scene, (values,) = _scene(rng, split)
    offer = scene.needed[0]
    scene.say(offer.request(rng, values))
    scene.call((offer, values))
    return scene.call_example()


def _parallel(rng: random.Random, split: Split) -> Example:
    """Two calls at once: of one tool, or of two."""
    if rng.random() < 0.5:
        scene, (one,) = _scene(rng, split)
        first = second = scene.needed[0]
        others = [_values(rng, split, first) for _ in range(8)]
        different = [values for values in others if values is not None and values != one]
        if not different:
            return _single(rng, split)
        two = different[0]
    else:
        scene, (one, two) = _scene(rng, split, 2)
        first, second = scene.needed
    if first is second and list(one) == list(two) == ["city"] and rng.random() < 0.6:
        request = first.request(rng, {"city": f"{one['city']} and {two['city']}"})
    else:
        request = f"{first.request(rng, one)} {second.request(rng, two)}"
    scene.say(request)
    scene.call((first, one), (second, two))
    return scene.call_example()


def _second_turn(rng: random.Random, split: Split) -> Example:
    """A request, its call, its result and the answer; then another request and its call."""
    scene, (one, two) = _scene(rng, split, 2)
    first, second = scene.needed
    outcome = first.outcome(rng, one)
    scene.say(first.request(rng, one))
    scene.call((first, one))
    scene.result(outcome.text)
    scene.answer(outcome.answer, "I tell the user the result.")
    scene.say(second.request(rng, two))
    scene.call((second, two))
    return scene.call_example()


def _chain(rng: random.Random, split: Split) -> Example:
    """What the first call finds is an argument of the second; ends with either call."""
    first_kind, second_kind, found, target, request = rng.choice(_CHAINS)
    scene = _Scene(rng, [first_kind, second_kind])
    first, second = scene.needed
    while True:
        one, two = first.draw(rng), second.draw(rng)
        if second_kind is GET_WEATHER:
            two.pop("day", None)
        two[target] = first_kind.fields[found](rng)
        if in_split(json.dumps([one, two]), split):
            break
    scene.say(request.format(**{**two, **one}))
    scene.call((first, one))
    if rng.random() < 0.65:
        text = str(two[target])
        scene.result(json.dumps({found: two[target]}) if rng.random() < 0.7 else text)
        scene.call((second, two))
    return scene.call_example()


_CALL_FORMS = (_single, _parallel, _second_turn, _chain)
_CALL_SHARES = (0.68, 0.12, 0.1, 0.1)


def generate_call(rng: random.Random, split: Split) -> Example:
    """A conversation that ends with one or two calls."""
    return rng.choices(_CALL_FORMS, _CALL_SHARES)[0](rng, split)


def grade_call(example: Example, answer: str) -> bool:
    """Whether the answer is exactly these calls, in any order, each argument in any place."""
    calls = parse_calls(answer)
    if calls is None:
        return False
    return sorted(calls, key=repr) == sorted(example.facts["calls"], key=repr)


def generate_answer(rng: random.Random, split: Split) -> Example:
    """A conversation that ends with the answer from one result, or from two."""
    count = 2 if rng.random() < 0.15 else 1
    scene, drawn = _scene(rng, split, count)
    pairs = list(zip(scene.needed, drawn, strict=True))
    outcomes = [offer.outcome(rng, values) for offer, values in pairs]
    scene.say(" ".join(offer.request(rng, values) for offer, values in pairs))
    scene.call(*pairs)
    for outcome in outcomes:
        scene.result(outcome.text)
    thought = "The tool has answered." if count == 1 else "Both tools have answered."
    scene.answer(" ".join(outcome.answer for outcome in outcomes), thought)
    values = [value for outcome in outcomes for value in outcome.values]
    return scene.example("tool_answer", values=values)


def generate_no_tool(rng: random.Random, split: Split) -> Example:
    """Tools are offered, and the right answer uses none."""
    while True:
        scene, (values,) = _scene(rng, split)
        offer = scene.needed[0]
        choice = rng.random()
        if choice < 0.5:
            question = offer.request(rng, values)
            scene.without_needed(rng)
            answer, expected, thought = _NO_TOOL, [_NO_TOOL], "None of the tools can do that."
        elif choice < 0.8:
            question, answer, value = rng.choice(_FACTS)
            expected, thought = [value], "I know this without a tool."
        elif choice < 0.9:
            question, answer, value = rng.choice(_SMALL_TALK)
            expected, thought = [value], "This needs no tool."
        else:
            question = rng.choice(_ASK_TOOLS)
            expected, thought = scene.names, "I list my tools."
            answer = f"I can use {join_words(expected)}."
        if in_split(f"{question} {scene.names}", split):
            break
    scene.say(question)
    scene.answer(answer, thought)
    return scene.example("no_tool", values=expected)


def grade_words(example: Example, answer: str) -> bool:
    """Whether the answer calls nothing and says every value, none as a part of a longer one."""
    return "<tool_call>" not in answer and all(
        re.search(rf"(?<!\w){re.escape(value)}(?!\w)", answer) for value in example.facts["values"]
    )


TASKS: tuple[Task, ...] = (
    Task("tool_call", generate_call, grade_call, 3.0),
    Task("tool_answer", generate_answer, grade_words, 0.6),
    Task("no_tool", generate_no_tool, grade_words, 0.3),
)
