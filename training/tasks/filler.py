"""Plain sentences about nothing in particular, to hide a code word in.

Owns the built-in filler: millions of distinct sentences from templates, grouped into paragraphs
on one topic, so that long texts can be made without any corpus. It never contains a hyphenated
word, so that a code word cannot occur by chance.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from training.tasks.word_pools import (
    ANIMALS,
    CITIES,
    COLOURS,
    FIRST_NAMES,
    FOODS,
    HOBBIES,
    JOBS,
    OBJECTS,
    ROOMS,
    WEEKDAYS,
    made_up_word,
    words_of,
)

if TYPE_CHECKING:
    import random

_SLOT = re.compile(r"\{(\w+)\}")
_AN = re.compile(r"\b([aA]) (?=[aeio]|um)")

# Slots that are drawn from a list; {village}, {number} and {clock} are made.
_POOLS: dict[str, tuple[str, ...]] = {
    "name": FIRST_NAMES,
    "friend": FIRST_NAMES,
    "city": CITIES,
    "colour": COLOURS,
    "animal": ANIMALS,
    "food": FOODS,
    "object": OBJECTS,
    "room": ROOMS,
    "job": JOBS,
    "hobby": HOBBIES,
    "day": WEEKDAYS,
    "time": (
        "in the morning",
        "at noon",
        "in the afternoon",
        "in the evening",
        "after lunch",
        "before breakfast",
        "at night",
        "after dinner",
        "early in the day",
        "late in the day",
    ),
    "weather": words_of(
        "cold warm mild windy cloudy sunny foggy rainy dry wet bright grey calm stormy"
    ),
    "sky": (
        "the clouds moved slowly to the east",
        "the sun came out again",
        "a light rain began to fall",
        "the wind grew stronger",
        "the air smelled of wet grass",
        "the fog lay over the fields",
        "the sky turned pale and clear",
        "the first stars could be seen",
        "the snow began to melt",
        "the leaves were falling one by one",
        "the puddles froze on the road",
    ),
    "place": (
        "the market",
        "the station",
        "the school",
        "the harbour",
        "the bakery",
        "the church",
        "the mill",
        "the bridge",
        "the park",
        "the square",
        "the library",
        "the inn",
        "the post office",
        "the old barn",
        "the river bank",
        "the town hall",
        "the orchard",
        "the bus stop",
        "the lake",
        "the museum",
    ),
    "did": (
        "walked to",
        "waited at",
        "came back from",
        "talked about",
        "drew a picture of",
        "met a friend at",
        "read about",
        "left early for",
        "stayed near",
        "took the road to",
        "swept the path to",
    ),
    "quality": words_of(
        "old small heavy light clean broken useful pretty plain strange new large narrow simple"
        " sturdy fine round flat"
    ),
    "mood": words_of(
        "happy tired quiet curious busy late hungry pleased calm patient surprised cheerful"
    ),
}

_TOPICS: tuple[tuple[str, ...], ...] = (
    (
        "It was a {weather} {day} in {city}, and {sky}.",
        "On {day} it was {weather}, but {sky} {time}.",
        "The {weather} weather stayed for {number} days.",
        "{name} looked out of the window and saw that {sky}.",
        "People in {city} said that it had not been so {weather} for {number} years.",
        "{name} put on a {colour} coat because it was {weather}.",
        "By {day} the weather in {city} was {weather} again.",
        "The {animal} did not mind that it was {weather}.",
    ),
    (
        "In {village} the {job} and the {job} met {time}.",
        "{name} {did} {place} with a {quality} {object}.",
        "The {job} of {village} sold a {object} to {name}.",
        "Nobody in {village} knew why the {object} was so {quality}.",
        "{name} was {mood} and {did} {place} {time}.",
        "The {animal} slept in front of {place} all day.",
        "{name} lived with {friend} in a {colour} house near {place}.",
        "Every {day} the people of {village} talked about {food} and {food}.",
    ),
    (
        "The train from {city} to {city} left at {clock}.",
        "{name} was {mood} because the train to {city} was late.",
        "There were {number} people in the carriage, and one of them had a {animal}.",
        "The conductor found a {quality} {object} on platform {digit}.",
        "{name} sat beside a {job} from {city} and talked about {hobby}.",
        "At {clock} the train stopped, and {sky}.",
        "The ticket to {city} was {colour} and a little {quality}.",
        "{name} ate some {food} while the train passed {village}.",
    ),
    (
        "{name} bought {number} pounds of {food} at the market.",
        "The {food} was fresh, but the {food} was not.",
        "{name} made a soup of {food} and {food} {time}.",
        "In the kitchen there was a {quality} {object} beside the {food}.",
        "{name} and {friend} cooked {food} for {number} guests.",
        "The {job} asked for more {food} and a {colour} plate.",
        "{name} wrote the recipe down and kept it under a {object}.",
        "There was a smell of {food} near {place}.",
    ),
    (
        "The garden of {name} was full of {colour} flowers.",
        "A {animal} and a {animal} lived behind {place}.",
        "{name} watered the plants {time} and was {mood}.",
        "The {animal} looked at the {object} and went away.",
        "{name} found {number} eggs and a {quality} {object} in the grass.",
        "Near the fence stood a {quality} {object}, painted {colour}.",
        "The {animal} ate the {food} that {friend} had left there.",
        "{name} counted {number} birds on the roof {time}.",
    ),
    (
        "{name} liked {hobby}, and {friend} liked {hobby}.",
        "On {day} the class learned about the {animal} and the {animal}.",
        "The teacher gave {name} a {colour} {object} as a prize.",
        "{name} read {number} pages about {city} {time}.",
        "{name} and {friend} practised {hobby} near {place}.",
        "The lesson began at {clock}, and {name} was {mood}.",
        "{friend} forgot the {object} at school and {did} {place}.",
        "The children of {village} built a {quality} {object} out of paper.",
    ),
    (
        "{name} moved the {object} into the {room} {time}.",
        "The {room} was {quality}, and its walls were {colour}.",
        "There were {number} chairs and a {object} in the {room}.",
        "{name} opened the door of the {room} and was {mood}.",
        "Behind the {object} in the {room} there was a {quality} {object}.",
        "{friend} cleaned the {room} on {day}.",
        "The {job} repaired the {object} and went home {time}.",
        "{name} painted the {room} {colour} in {number} hours.",
    ),
)

_COMPILED = tuple(tuple(_SLOT.split(template) for template in topic) for topic in _TOPICS)


def _fill(rng: random.Random, slot: str) -> str:
    if slot == "village":
        return made_up_word(rng).capitalize()
    if slot == "number":
        return str(rng.randint(2, 60))
    if slot == "digit":
        return str(rng.randint(1, 9))
    if slot == "clock":
        return f"{rng.randint(5, 22)}:{rng.randrange(0, 60, 5):02d}"
    return rng.choice(_POOLS[slot])


def _sentence(rng: random.Random, parts: list[str]) -> str:
    # Odd places of a split template are slots.
    text = "".join(_fill(rng, part) if at % 2 else part for at, part in enumerate(parts))
    return _AN.sub(r"\1n ", text)


def plain_sentence(rng: random.Random) -> str:
    """One filler sentence on any topic."""
    return _sentence(rng, rng.choice(rng.choice(_COMPILED)))


def plain_paragraph(rng: random.Random) -> str:
    """Three to seven filler sentences of different forms on one topic, on one line."""
    templates = rng.sample(rng.choice(_COMPILED), rng.randint(3, 7))
    return " ".join(_sentence(rng, parts) for parts in templates)
