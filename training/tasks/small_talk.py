"""Greetings, questions about the model, simple facts, definitions, and what it cannot know.

Owns what the demo model says about itself. The tables of facts are in ``facts`` and
``definitions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.arithmetic import exchange
from training.tasks.definitions import DEFINITIONS, content_words
from training.tasks.example import Example, Split, Task, in_split
from training.tasks.facts import FACTS, TOPICS, Fact
from training.tasks.grading import has_phrase, words_of
from training.tasks.small_talk_phrases import (
    EXCHANGES,
    GREETINGS,
    INTRODUCTIONS,
    LEADS,
    SUBJECTS,
    UNABLE_ANSWERS,
    UNABLE_REQUESTS,
    UNABLE_SUBJECTS,
    UNKNOWN_ANSWERS,
    UNKNOWN_REQUESTS,
    Talk,
)
from training.tasks.story_world import HE_NAMES, SHE_NAMES

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

_BY_TOPIC = {topic: [fact for fact in FACTS if fact.topic == topic] for topic in TOPICS}
# Large groups are asked more, but small ones are not forgotten.
_TOPIC_WEIGHTS = [len(_BY_TOPIC[topic]) ** 0.7 for topic in TOPICS]


def loosely_typed(request: str, rng: random.Random) -> str:
    """The request as people type it: now and then in small letters or without its last mark."""
    drawn = rng.random()
    if drawn < 0.08:
        return request.rstrip("?.!").lower()
    if drawn < 0.16:
        return request.rstrip("?.!")
    if drawn < 0.2:
        return request[0].lower() + request[1:]
    return request


def draw_fact(rng: random.Random, split: Split) -> tuple[str, Fact]:
    """A way to ask and its fact. Facts are learnt by heart: what is held out is the way to ask."""
    while True:
        topic = rng.choices(TOPICS, _TOPIC_WEIGHTS)[0]
        fact = rng.choice(_BY_TOPIC[topic])
        ask = rng.choice(fact.asks)
        if in_split(ask, split):
            return ask, fact


def draw_definition(rng: random.Random, split: Split) -> tuple[str, Fact]:
    """A way to ask what a thing is; held out as facts are."""
    while True:
        fact = rng.choice(DEFINITIONS)
        ask = rng.choice(fact.asks)
        if in_split(ask, split):
            return ask, fact


def _with_lead(request: str, rng: random.Random) -> str:
    if rng.random() < 0.12 and request[1:2].islower():
        # A name keeps its capital letter.
        keeps = request.split()[0] not in _PLAIN_STARTS
        lead = rng.choice(LEADS)
        return lead + (
            request if keeps or lead.endswith("! ") else request[0].lower() + request[1:]
        )
    return request


_PLAIN_STARTS = frozenset(
    ("What", "Which", "Who", "How", "Where", "Tell", "Name", "Write", "Do", "Can", "With", "Of")
)


def simple_fact(rng: random.Random, split: Split) -> Example:
    """A question with one certain answer."""
    ask, fact = draw_fact(rng, split)
    request = loosely_typed(_with_lead(ask, rng), rng)
    return exchange("simple_fact", request, fact.answer, key=fact.key)


def grade_fact(example: Example, text: str) -> bool:
    """Whether the key is in an answer of one sentence."""
    key = str(example.facts["key"])
    for article in ("a ", "an ", "the "):
        key = key.removeprefix(article)
    return has_phrase(text, key) and len(text.split()) <= 20


def definition(rng: random.Random, split: Split) -> Example:
    """What an everyday thing is."""
    ask, fact = draw_definition(rng, split)
    request = loosely_typed(_with_lead(ask, rng), rng)
    return exchange("definition", request, fact.answer, meaning=fact.key)


def grade_definition(example: Example, text: str) -> bool:
    """Whether at least half of the meaningful words of the definition are there."""
    wanted = content_words(str(example.facts["meaning"]))
    return 2 * len(wanted & set(words_of(text))) >= len(wanted) and len(text.split()) <= 30


def draw_talk(rng: random.Random, split: Split) -> tuple[str, Talk]:
    """A remark or question about the model, and its kind."""
    while True:
        talk = rng.choices(EXCHANGES, [kind.weight for kind in EXCHANGES])[0]
        request = rng.choice(talk.requests)
        if talk.may_be_greeted and rng.random() < 0.25:
            request = f"{rng.choice(GREETINGS)} {request}"
        if in_split(request, split):
            return request, talk


def chat(rng: random.Random, split: Split) -> Example:
    """A greeting, thanks, a farewell, or a question about the model itself."""
    if rng.random() < 0.08:
        return _introduction(rng, split)
    request, talk = draw_talk(rng, split)
    answer = rng.choice(talk.answers)
    return exchange("chat", loosely_typed(request, rng), answer, any_of=talk.keys)


def _introduction(rng: random.Random, split: Split) -> Example:
    while True:
        name = rng.choice((*HE_NAMES, *SHE_NAMES))
        request = rng.choice(INTRODUCTIONS).format(name=name)
        if in_split(request, split):
            break
    answer = rng.choice((f"Hello, {name}! How can I help you?", f"Nice to meet you, {name}!"))
    return exchange("chat", request, answer, any_of=(name,))


def grade_any(example: Example, text: str) -> bool:
    """Whether one of the expected phrases is in the answer."""
    return any(has_phrase(text, phrase) for phrase in example.facts["any_of"])


def _fill_subjects(
    requests: tuple[str, ...],
    subjects: Mapping[str, tuple[str, ...]],
    rng: random.Random,
    split: Split,
) -> str:
    while True:
        request = rng.choice(requests)
        for slot, words in subjects.items():
            if f"{{{slot}}}" in request:
                request = request.replace(f"{{{slot}}}", rng.choice(words))
        if in_split(request, split):
            return request


def draw_unknown(rng: random.Random, split: Split) -> str:
    """A question that nobody could answer from what the model has read."""
    return _fill_subjects(UNKNOWN_REQUESTS, SUBJECTS, rng, split)


def unknown(rng: random.Random, split: Split) -> Example:
    """A question or a wish of which the model must say that it is beyond it."""
    if rng.random() < 0.3:
        request = _fill_subjects(UNABLE_REQUESTS, UNABLE_SUBJECTS, rng, split)
        return exchange("unknown", request, rng.choice(UNABLE_ANSWERS), any_of=("do not know",))
    request = draw_unknown(rng, split)
    answer = rng.choice(UNKNOWN_ANSWERS)
    return exchange("unknown", loosely_typed(request, rng), answer, any_of=("do not know",))


TASKS: tuple[Task, ...] = (
    Task("simple_fact", simple_fact, grade_fact, 0.6),
    Task("definition", definition, grade_definition, 0.25),
    Task("chat", chat, grade_any, 0.4),
    Task("unknown", unknown, grade_any, 0.25),
)
