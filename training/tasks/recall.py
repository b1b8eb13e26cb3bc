"""Key-value recall: a list of pairs, then a question about one of them.

Owns the kinds of pairs, the layouts they are written in, and the questions.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.tasks.example import Example, Message, Split, Task, in_split
from training.tasks.word_pools import (
    CITIES,
    COLOURS,
    FIRST_NAMES,
    FOODS,
    JOBS,
    OBJECTS,
    PLAIN_WORDS,
    ROOMS,
    code_word,
    made_up_word,
    number_of_digits,
)

_Draw = Callable[[random.Random], str]
Pair = tuple[str, str]

MOST_PAIRS = 40


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of pair.

    Attributes:
        keys, values: draw one of each.
        title: what the list holds, after "Here is a list of".
        headers: the two columns of a table.
        sentences: a pair as prose, and the answer to its question (the first).
        questions: ask for the value of ``{key}``.
        reverse: ask for the key of ``{value}``; None where values repeat too often.
        most: pairs in a list, so that drawing distinct keys ends soon.
    """

    keys: _Draw
    values: _Draw
    title: str
    headers: Pair
    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    reverse: str | None
    most: int = MOST_PAIRS


def _one_of(pool: Sequence[str]) -> _Draw:
    def draw(rng: random.Random) -> str:
        return rng.choice(pool)

    return draw


def _number(fewest: int, most: int) -> _Draw:
    def draw(rng: random.Random) -> str:
        return str(number_of_digits(rng, fewest, most))

    return draw


_name, _city, _colour = _one_of(FIRST_NAMES), _one_of(CITIES), _one_of(COLOURS)

KINDS = (
    Kind(
        _name,
        _city,
        "people and the cities they live in",
        ("Name", "City"),
        (
            "{key} lives in {value}.",
            "{value} is the home of {key}.",
            "The home of {key} is {value}.",
        ),
        ("Where does {key} live?", "In which city does {key} live?", "What is the city of {key}?"),
        "Who lives in {value}?",
    ),
    Kind(
        _name,
        _colour,
        "people and their favourite colours",
        ("Name", "Colour"),
        ("{key}'s favourite colour is {value}.", "{key} likes {value}."),
        ("What is {key}'s favourite colour?", "Which colour does {key} like?"),
        "Whose favourite colour is {value}?",
    ),
    Kind(
        _name,
        _one_of(JOBS),
        "people and their jobs",
        ("Name", "Job"),
        ("The job of {key} is {value}.", "{key} works as a {value}."),
        ("What is the job of {key}?", "What does {key} work as?"),
        "Who works as a {value}?",
    ),
    Kind(
        _name,
        _one_of(FOODS),
        "people and the food they ordered",
        ("Name", "Order"),
        ("{key} ordered {value}.", "The order of {key} is {value}."),
        ("What did {key} order?", "What is the order of {key}?"),
        "Who ordered {value}?",
    ),
    Kind(
        _name,
        _number(2, 5),
        "people and their numbers",
        ("Name", "Number"),
        ("{key}'s number is {value}.", "{key} has the number {value}."),
        (
            "What is {key}'s number?",
            "Which number does {key} have?",
            "What number does {key} have?",
        ),
        "Who has the number {value}?",
    ),
    Kind(
        _one_of(OBJECTS + FOODS),
        _number(2, 4),
        "things and their prices",
        ("Item", "Price"),
        ("The {key} costs {value}.", "The price of the {key} is {value}."),
        ("What does the {key} cost?", "How much is the {key}?", "What is the price of the {key}?"),
        "What costs {value}?",
    ),
    Kind(
        _one_of(ROOMS),
        _number(3, 5),
        "rooms and their codes",
        ("Room", "Code"),
        ("The code of the {key} is {value}.", "To open the {key}, type {value}."),
        ("What is the code of the {key}?", "Which code opens the {key}?"),
        "Which room has the code {value}?",
        most=16,
    ),
    Kind(
        _one_of(ROOMS + OBJECTS),
        code_word,
        "things and their passwords",
        ("Thing", "Password"),
        ("The password of the {key} is {value}.", "The {key} has the password {value}."),
        ("What is the password of the {key}?", "Which password does the {key} have?"),
        None,
    ),
    Kind(
        made_up_word,
        made_up_word,
        "words and their meanings",
        ("Word", "Meaning"),
        ("The word {key} means {value}.", "The meaning of {key} is {value}."),
        ("What does {key} mean?", "What does the word {key} mean?"),
        "Which word means {value}?",
    ),
    Kind(
        made_up_word,
        _number(2, 5),
        "names and values",
        ("Key", "Value"),
        ("The value of {key} is {value}.", "The key {key} has the value {value}."),
        ("What is the value of {key}?", "Which value does {key} have?"),
        "Which key has the value {value}?",
    ),
    Kind(
        _one_of(PLAIN_WORDS),
        _one_of(PLAIN_WORDS),
        "keys and values",
        ("Key", "Value"),
        ("The value of {key} is {value}.", "With {key} goes {value}."),
        ("What is the value of {key}?", "What goes with {key}?"),
        "Which key has the value {value}?",
    ),
)

_INTRODUCTIONS = (
    "Here is a list of {title}:",
    "This is a list of {title}:",
    "List of {title}:",
    "Remember these {title}:",
)
_ONLY = (
    "{question} Answer with the {what} only.",
    "{question} Give only the {what}.",
    "{question} Reply with just the {what}.",
)


def _pairs(rng: random.Random, kind: Kind, count: int) -> list[Pair]:
    """That many pairs with distinct keys."""
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        pairs[kind.keys(rng)] = kind.values(rng)
    return list(pairs.items())


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def layout(rng: random.Random, kind: Kind, pairs: list[Pair]) -> str:
    """The pairs in one of the layouts."""
    choice = rng.random()
    if choice < 0.4:
        template = rng.choice(kind.sentences)
        sentences = [_capital(template.format(key=key, value=value)) for key, value in pairs]
        return rng.choice((" ", "\n")).join(sentences)
    if choice < 0.5:
        return json.dumps(dict(pairs))
    if choice < 0.62:
        rows = [kind.headers, ("---", "---"), *pairs]
        return "\n".join(f"| {left} | {right} |" for left, right in rows)
    if choice < 0.68:
        return "\n".join(f"{left},{right}" for left, right in [kind.headers, *pairs])
    between = rng.choice((": ", ": ", " - ", " = ", " -> "))
    before = rng.choice(("", "", "- "))
    return "\n".join(f"{before}{key}{between}{value}" for key, value in pairs)


def introduced(rng: random.Random, kind: Kind, pairs: list[Pair]) -> str:
    """The pairs in one of the layouts, mostly behind a line that says what they are."""
    listing = layout(rng, kind, pairs)
    if rng.random() < 0.7:
        return f"{rng.choice(_INTRODUCTIONS).format(title=kind.title)}\n{listing}"
    return listing


@dataclass(frozen=True, slots=True)
class Question:
    """A question about one pair, and what is to be said."""

    pair: Pair
    text: str
    answer: str
    value: str
    is_value_only: bool


def _words(text: str) -> set[str]:
    return {word.removesuffix("'s").lower() for word in re.findall(r"[\w'-]+", text)}


def ask(
    rng: random.Random, kind: Kind, pairs: list[Pair], pair: Pair, *, reverse_share: float = 0.2
) -> Question:
    """A question about this pair and its answer; some, where they can, ask for the key."""
    key, value = pair
    is_unique = sum(other == value for _, other in pairs) == 1
    is_reverse = kind.reverse is not None and is_unique and rng.random() < reverse_share
    if is_reverse and kind.reverse is not None:
        text, expected, what = kind.reverse.format(value=value), key, kind.headers[0].lower()
    else:
        text, expected = rng.choice(kind.questions).format(key=key), value
        what = kind.headers[1].lower()
    is_value_only = rng.random() < 0.35
    answer = _capital(kind.sentences[0].format(key=key, value=value))
    if is_value_only:
        text, answer = rng.choice(_ONLY).format(question=text, what=what), expected
    return Question(pair, text, answer, expected, is_value_only)


def generate(rng: random.Random, split: Split) -> Example:
    """A list of 2 to 40 pairs and one question about it, or two in two turns."""
    kind = rng.choice(KINDS)
    count = min(kind.most, int(math.exp(rng.uniform(math.log(2), math.log(MOST_PAIRS + 1)))))
    pairs = _pairs(rng, kind, count)
    held = [pair for pair in pairs if in_split(f"{pair[0]}:{pair[1]}", split)]
    while not held:
        pairs = _pairs(rng, kind, count)
        held = [pair for pair in pairs if in_split(f"{pair[0]}:{pair[1]}", split)]
    question = ask(rng, kind, pairs, rng.choice(held))
    listing = introduced(rng, kind, pairs)
    messages: list[Message] = []
    choice = rng.random()
    earlier = [pair for pair in held if question.pair != pair]
    if choice < 0.2 and earlier:
        first = ask(rng, kind, pairs, rng.choice(earlier))
        messages += [
            {"role": "user", "content": f"{listing}\n\n{first.text}"},
            {"role": "assistant", "content": first.answer},
            {"role": "user", "content": question.text},
        ]
    elif choice < 0.35:
        messages.append({"role": "user", "content": f"{question.text}\n\n{listing}"})
    else:
        messages.append({"role": "user", "content": f"{listing}\n\n{question.text}"})
    messages.append({"role": "assistant", "content": question.answer})
    return Example(
        task="recall",
        messages=messages,
        facts={
            "value": question.value,
            "is_value_only": question.is_value_only,
            "others": sorted(
                {word.lower() for pair in pairs for word in pair} - _words(question.answer)
            ),
        },
    )


def grade(example: Example, answer: str) -> bool:
    """Whether the value is named, and nothing else of the list."""
    value = example.facts["value"]
    if example.facts["is_value_only"]:
        return bool(answer.strip().rstrip(".") == value)
    named = _words(answer)
    return bool(value.lower() in named and named.isdisjoint(example.facts["others"]))


TASKS: tuple[Task, ...] = (Task("recall", generate, grade, 2.0),)
