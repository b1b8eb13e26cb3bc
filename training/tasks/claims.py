"""Claims made from the facts, true or false, to be confirmed or denied.

Owns how a fact becomes a question for yes or no; ``instructions`` asks them under a rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.arithmetic import exchange
from training.tasks.example import Example, Split, Task, in_split
from training.tasks.facts import FACTS
from training.tasks.grading import words_of

if TYPE_CHECKING:
    import random

_YES_NO = {
    "capitals": "Is {y} the capital of {x}?",
    "colours": "Is {x} {y}?",
    "opposites": "Is {y} the opposite of {x}?",
    "plurals": "Is {y} the plural of {x}?",
    "days": "Does {y} come after {x}?",
    "months": "Does {y} come after {x}?",
}
_SIDES = {
    "capitals": ("The capital of ", " is "),
    "colours": ("", " is "),
    "opposites": ("The opposite of ", " is "),
    "plurals": ("The plural of ", " is "),
    "days": ("After ", " comes "),
    "months": ("After ", " comes "),
}


def _claims(topic: str) -> list[tuple[str, str]]:
    """The two sides of the topic's facts."""
    before, between = _SIDES[topic]
    found = []
    for fact in FACTS:
        text = fact.answer.removesuffix(".")
        if fact.topic == topic and text.startswith(before) and between in text:
            left, _, right = text.removeprefix(before).partition(between)
            found.append((left, right))
    return found


_CLAIMS = {topic: _claims(topic) for topic in _YES_NO}


def draw_claim(rng: random.Random) -> tuple[str, bool]:
    """A question to be answered with yes or no, and whether it is yes."""
    topic = rng.choice(tuple(_YES_NO))
    left, right = rng.choice(_CLAIMS[topic])
    is_true = rng.random() < 0.5
    while not is_true:
        _, other = rng.choice(_CLAIMS[topic])
        if other != right:
            right = other
            break
    if topic == "colours":
        left = left[0].lower() + left[1:]
    return _YES_NO[topic].format(x=left, y=right), is_true


def yes_or_no(rng: random.Random, split: Split) -> Example:
    """A claim to be confirmed or denied, without a system message."""
    while True:
        request, is_true = draw_claim(rng)
        if in_split(request, split):
            break
    answer, value = ("Yes.", "yes") if is_true else ("No.", "no")
    return exchange("yes_or_no", request, answer, value=value)


def grade_yes_or_no(example: Example, text: str) -> bool:
    """Whether the answer begins with the right yes or no."""
    return words_of(text)[:1] == [example.facts["value"]]


TASKS: tuple[Task, ...] = (Task("yes_or_no", yes_or_no, grade_yes_or_no, 0.6),)
