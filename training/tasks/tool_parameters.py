"""Parameters and values that several tools share, and the short form tools are written in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from training.tasks.tool_kinds import Draw, Parameter, ToolKind, Value
from training.tasks.word_pools import (
    CITIES,
    FIRST_NAMES,
    FOODS,
    OBJECTS,
    PLAIN_WORDS,
    ROOMS,
    WEEKDAYS,
    made_up_word,
    words_of,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping


def one_of(pool: tuple[str, ...]) -> Draw:
    """Draws from a pool."""
    return lambda rng: rng.choice(pool)


def between(low: int, high: int) -> Draw:
    """Draws a whole number, both ends included."""
    return lambda rng: rng.randint(low, high)


def decimal(rng: random.Random) -> Value:
    """A number that is whole or has one decimal other than 0."""
    whole = rng.randint(1, 300)
    return whole if rng.random() < 0.6 else whole + rng.randint(1, 9) / 10


def clock(rng: random.Random) -> str:
    """A time of day as HH:MM."""
    return f"{rng.randint(6, 22):02d}:{rng.randrange(0, 60, 5):02d}"


def email_address(rng: random.Random) -> str:
    """An address such as ``anna12@melka.com``."""
    return f"{rng.choice(FIRST_NAMES).lower()}{rng.randint(1, 99)}@{made_up_word(rng)}.com"


def phone_number(rng: random.Random) -> str:
    """Three and four digits."""
    return f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"


def path(rng: random.Random) -> str:
    """A file in a folder."""
    ending = rng.choice(("txt", "md", "csv", "log"))
    return f"{rng.choice(PLAIN_WORDS)}/{rng.choice(PLAIN_WORDS)}.{ending}"


def expression(rng: random.Random) -> str:
    """Two whole numbers with a sign between them."""
    sign = rng.choice("+-*")
    high = 99 if sign == "*" else 9999
    return f"{rng.randint(2, high)} {sign} {rng.randint(2, high)}"


def computed(values: Mapping[str, Value]) -> Mapping[str, Value]:
    """The result of the ``expression``."""
    left, sign, right = values["expression"].split()
    a, b = int(left), int(right)
    return {"result": a + b if sign == "+" else a - b if sign == "-" else a * b}


_MESSAGE_FORMS = (
    "I am late",
    "I am at the {object}",
    "Please bring the {object}",
    "Lunch is ready",
    "See you on {day}",
    "The {object} is in the {room}",
    "Happy birthday",
    "Where is the {object}?",
    "I bought {food} and {food}",
    "Meet me in the {room}",
    "Call me on {day}",
    "Do not forget the {food}",
)


def short_text(rng: random.Random) -> str:
    """A short sentence to send or to note, without a full stop."""
    text = rng.choice(_MESSAGE_FORMS)
    pools = (("object", OBJECTS), ("day", WEEKDAYS), ("room", ROOMS), ("food", FOODS))
    for slot, pool in pools:
        while f"{{{slot}}}" in text:
            text = text.replace(f"{{{slot}}}", rng.choice(pool), 1)
    return text


def string(names: str, description: str, draw: Draw, extra: str = "") -> Parameter:
    """A text parameter."""
    return Parameter(words_of(names), "string", description, draw, extra=extra)


def integer(names: str, description: str, low: int, high: int) -> Parameter:
    """A whole-number parameter."""
    return Parameter(words_of(names), "integer", description, between(low, high))


def one_of_few(names: str, description: str, options: str, extra: str = "") -> Parameter:
    """A text parameter that allows only these words."""
    pool = words_of(options)
    return Parameter(words_of(names), "string", description, one_of(pool), pool, extra)


CITY = string("city location town place", "Name of the city", one_of(CITIES))
FROM = string("from_city start origin departure", "Where it starts", one_of(CITIES))
TO = string("to_city end destination arrival", "Where it ends", one_of(CITIES))
NAME = string("name person contact who", "Name of the person", one_of(FIRST_NAMES))
ROOM = string("room place where", "The room", one_of(ROOMS))
ITEM = string("item product thing", "Name of the item", one_of(OBJECTS))
FOOD = string("food ingredient dish", "The food", one_of(FOODS))
DAY = string("day weekday date", "Day of the week", one_of(WEEKDAYS))
TIME = string("time at clock", "Time of day as HH:MM", clock)
PATH = string("path file filename", "Path of the file", path)
TEXT = string("text message content body", "The text", short_text)
WORD = string("word term", "The word", one_of(PLAIN_WORDS))
MINUTES = integer("minutes duration length", "Number of minutes", 1, 120)
ON_DAY = string("day weekday date", "Day of the week", one_of(WEEKDAYS), " on {}")

SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")
LANGUAGES = "French German Spanish Italian Dutch Polish"
DEVICES = ("lamp", "fan", "radio", "heater", "oven", "camera", "printer", "kettle")


def tool(
    names: str,
    description: str,
    parameters: tuple[Parameter, ...],
    requests: tuple[str, ...],
    answer: str,
    group: str = "",
    **fields: Draw,
) -> ToolKind:
    """A tool; names are separated by spaces, ``fields`` are those of its result."""
    return ToolKind(words_of(names), description, parameters, requests, answer, fields, None, group)
