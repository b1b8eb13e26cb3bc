"""All tools that conversations offer: everyday ones, and made-up ones without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.tool_actions import ACTIONS
from training.tasks.tool_kinds import Draw, Parameter, ToolKind
from training.tasks.tool_lookups import LOOKUPS
from training.tasks.tool_parameters import between, one_of
from training.tasks.word_pools import CITIES, COLOURS, FIRST_NAMES, OBJECTS, ROOMS, made_up_word

if TYPE_CHECKING:
    import random

EVERYDAY: tuple[ToolKind, ...] = LOOKUPS + ACTIONS

_VERBS = ("get", "find", "check", "read", "set", "start", "update", "count")
_SUBJECTS: tuple[tuple[str, Draw], ...] = (
    ("city", one_of(CITIES)),
    ("person", one_of(FIRST_NAMES)),
    ("room", one_of(ROOMS)),
    ("colour", one_of(COLOURS)),
    ("number", between(1, 9999)),
    ("code", between(100, 99999)),
    ("word", made_up_word),
    ("item", one_of(OBJECTS)),
)


def made_up_kind(rng: random.Random) -> ToolKind:
    """A tool that exists nowhere else: only its schema says what its parameters are."""
    verb = rng.choice(_VERBS)
    noun = made_up_word(rng) if rng.random() < 0.5 else rng.choice(OBJECTS)
    count = rng.choice((1, 1, 2, 2, 3))
    parameters = []
    for topic, draw in rng.sample(_SUBJECTS, count):
        name = made_up_word(rng) if rng.random() < 0.4 else topic
        kind = "integer" if topic in ("number", "code") else "string"
        parameters.append(Parameter((name,), kind, f"The {topic}", draw))
    listed = " and ".join(f"{p.names[0]} {{{p.names[0]}}}" for p in parameters)
    loose = " and ".join(f"{p.description.lower()} {{{p.names[0]}}}" for p in parameters)
    about = " and ".join(p.description.lower() for p in parameters)
    return ToolKind(
        (f"{verb}_{noun}",),
        f"{verb.capitalize()} the {noun} for {about}",
        tuple(parameters),
        (
            f"{verb.capitalize()} the {noun} for {loose}.",
            f"{verb.capitalize()} the {noun} with {listed}.",
            f"{verb.capitalize()} the {noun}: {listed}.",
        ),
        f"The result for the {noun} is {{{noun}_result}}.",
        {f"{noun}_result": between(1, 9999) if rng.random() < 0.6 else made_up_word},
        group=f"made up {noun}",
    )
