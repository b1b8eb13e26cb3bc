"""Drills: many look-ups or a long copy in one answer.

A question about one pair of a list trains a handful of tokens, and a small model then takes very
long to find out that a value belongs to its key. Here nearly every learned token needs that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from training.tasks import recall
from training.tasks.example import Example, Message, Split, Task, in_split
from training.tasks.word_pools import (
    FIRST_NAMES,
    PLAIN_WORDS,
    code_word,
    made_up_word,
    number_of_digits,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

_MOST_TURNS = 8
# Of the questions that ask for keys: finding what stands before a value is learned later than what
# follows a key, and by itself.
_REVERSE_SHARE = 0.5
_REVERSE_SHARE_AHEAD = 0.8
# Of the questions that stand before the list: those that ask for a key are the last to be learned.
_FIRST_SHARE = 0.6
# Pairs in a list. Short lists are common: a network of 64 wide that sees lists of 2 to 8 pairs
# finds out that values belong to keys after 160 steps, one that sees 8 alone after 700.
_MOST_PAIRS = 40
# Pairs drawn for a list; one in some dozen is held out.
_TRIES = 2000
_ALL = (
    "Write the {what} of each: {keys}.",
    "Give me the {what} for each of these: {keys}.",
    "List the {what} of {keys}, one a line.",
)
_REPEAT = (
    "Repeat this exactly: {text}",
    "Say this after me: {text}",
    "Copy this word for word: {text}",
    "{text}\n\nRepeat the text above.",
)


def _held(kind: recall.Kind, count: int, rng: random.Random, split: Split) -> list[recall.Pair]:
    """Pairs with distinct keys; those of the split alone."""
    pairs: dict[str, str] = {}
    for _ in range(_TRIES):
        key, value = kind.keys(rng), kind.values(rng)
        if in_split(f"{key}:{value}", split):
            pairs[key] = value
        if len(pairs) == count:
            break
    return list(pairs.items())


def _num_pairs(rng: random.Random, kind: recall.Kind) -> int:
    """From 2 up, small numbers more often, every power of two alike."""
    drawn = int(math.exp(rng.uniform(math.log(2), math.log(_MOST_PAIRS + 1))))
    return min(kind.most, drawn)


def _is_reversible(kind: recall.Kind, pairs: list[recall.Pair]) -> bool:
    return kind.reverse is not None and len({value for _, value in pairs}) == len(pairs)


def look_up_all(rng: random.Random, split: Split) -> Example:
    """A list of pairs; the answer gives the values of several keys, or the keys of several values,
    in another order."""
    kind = rng.choice(recall.KINDS)
    pairs = _held(kind, _num_pairs(rng, kind), rng, split)
    asked = rng.sample(pairs, rng.randint(2, len(pairs))) if len(pairs) > 2 else pairs
    listing = recall.layout(rng, kind, pairs)
    what = kind.headers[1]
    if _is_reversible(kind, pairs) and rng.random() < _REVERSE_SHARE:
        what = kind.headers[0]
        asked = [(value, key) for key, value in asked]
    question = rng.choice(_ALL).format(what=what.lower(), keys=", ".join(key for key, _ in asked))
    answer = "\n".join(f"{key}: {value}" for key, value in asked)
    is_first = rng.random() < _FIRST_SHARE
    text = f"{question}\n\n{listing}" if is_first else f"{listing}\n\n{question}"
    return _conversation("look_up_all", [text], [answer])


def look_up_in_turns(rng: random.Random, split: Split) -> Example:
    """A list of pairs, then a question a turn."""
    kind = rng.choice(recall.KINDS)
    pairs = _held(kind, _num_pairs(rng, kind), rng, split)
    questions = [
        recall.ask(rng, kind, pairs, pair, reverse_share=_REVERSE_SHARE)
        for pair in rng.choices(pairs, k=rng.randint(2, _MOST_TURNS))
    ]
    texts = [question.text for question in questions]
    parts = [recall.layout(rng, kind, pairs), texts[0]]
    texts[0] = "\n\n".join(parts[::-1] if rng.random() < _FIRST_SHARE else parts)
    return _conversation("look_up_in_turns", texts, [question.answer for question in questions])


def look_up_ahead(rng: random.Random, split: Split) -> Example:
    """A question, then the list: what is asked for has to be remembered while the list goes by.

    Mostly the key of a value, which no word of the answer before it gives away.
    """
    kind = rng.choice(recall.KINDS)
    pairs = _held(kind, _num_pairs(rng, kind), rng, split)
    question = recall.ask(rng, kind, pairs, rng.choice(pairs), reverse_share=_REVERSE_SHARE_AHEAD)
    text = f"{question.text}\n\n{recall.introduced(rng, kind, pairs)}"
    return _conversation("look_up_ahead", [text], [question.answer])


def _words(rng: random.Random) -> str:
    draws: Sequence[Callable[[random.Random], str]] = (
        lambda r: r.choice(PLAIN_WORDS),
        lambda r: r.choice(FIRST_NAMES),
        made_up_word,
        code_word,
        lambda r: str(number_of_digits(r, 1, 5)),
    )
    some = rng.sample(draws, rng.randint(1, 3))
    return rng.choice((" ", ", ")).join(
        rng.choice(some)(rng) for _ in range(rng.choice((4, 8, 16, 32)))
    )


def repeat(rng: random.Random, split: Split) -> Example:
    """Words in no order, to be copied."""
    text = _words(rng)
    while not in_split(text, split):
        text = _words(rng)
    return _conversation("repeat", [rng.choice(_REPEAT).format(text=text)], [text])


def _conversation(task: str, texts: list[str], answers: list[str]) -> Example:
    messages: list[Message] = []
    for text, answer in zip(texts, answers, strict=True):
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": answer})
    return Example(task=task, messages=messages)


def grade(example: Example, answer: str) -> bool:
    """Whether the answer is the expected one, word for word."""
    return bool(answer.strip() == example.messages[-1]["content"])


LOOK_UPS = ("look_up_all", "look_up_in_turns", "look_up_ahead", "recall")
"""Tasks whose answers are right only if the value of a key has been found."""

TASKS: tuple[Task, ...] = (
    Task("look_up_all", look_up_all, grade, 2.5),
    Task("look_up_in_turns", look_up_in_turns, grade, 1.5),
    Task("look_up_ahead", look_up_ahead, grade, 8.0),
    Task("repeat", repeat, grade, 1.0),
)
