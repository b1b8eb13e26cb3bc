"""Things with properties (people, products, books ...), said in English and known as values.

Owns the kinds of things, their properties' types and names, and the sentences. The JSON task asks
for them; the values are what its grader compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from training.tasks.word_pools import (
    ANIMALS,
    CITIES,
    COLOURS,
    FIRST_NAMES,
    FOODS,
    HOBBIES,
    JOBS,
    OBJECTS,
    PLAIN_WORDS,
    ROOMS,
    WEEKDAYS,
    join_words,
    made_up_word,
    with_article,
)

if TYPE_CHECKING:
    import random

Schema = Mapping[str, Any]
Value = Any

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
STRINGS: Schema = {"type": "array", "items": STRING}
INTEGERS: Schema = {"type": "array", "items": INTEGER}


@dataclass(frozen=True, slots=True)
class Property:
    """One property of a kind of thing.

    Attributes:
        names: keys it may go by.
        schema: its type.
        draw: makes a value.
        say: the predicate that states a value, to follow the subject ("is 31 years old").
    """

    names: tuple[str, ...]
    schema: Schema
    draw: Callable[[random.Random], Value]
    say: Callable[[random.Random, Value], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of thing.

    Attributes:
        plural: key of a list of them.
        name: the property that the subject itself states.
        subject: how sentences about it begin, from its name.
        properties: the others.
    """

    plural: str
    name: Property
    subject: Callable[[Value], str]
    properties: tuple[Property, ...]


def _plain(value: Value) -> str:
    return str(value)


def _one_of(forms: str) -> Callable[[random.Random, Value], str]:
    """States a value by one of the templates, which ``|`` separates."""
    templates = forms.split("|")
    return lambda rng, value: rng.choice(templates).format(value)


def _text(names: str, draw: Callable[[random.Random], Value], forms: str) -> Property:
    return Property(tuple(names.split()), STRING, draw, _one_of(forms))


def _choice(names: str, pool: tuple[str, ...], forms: str) -> Property:
    return _text(names, lambda rng: rng.choice(pool), forms)


def _enum(names: str, pool: tuple[str, ...], forms: str) -> Property:
    schema = {"type": "string", "enum": list(pool)}
    return Property(tuple(names.split()), schema, lambda rng: rng.choice(pool), _one_of(forms))


def _integer(names: str, low: int, high: int, forms: str) -> Property:
    return Property(
        tuple(names.split()), INTEGER, lambda rng: rng.randint(low, high), _one_of(forms)
    )


def _number(names: str, low: int, high: int, forms: str) -> Property:
    """Whole, or with one decimal that is not 0: the value has one spelling only."""

    def draw(rng: random.Random) -> float:
        whole = rng.randrange(low, high)
        return whole if rng.random() < 0.2 else whole + rng.randint(1, 9) / 10

    return Property(tuple(names.split()), NUMBER, draw, _one_of(forms))


def _boolean(names: str, yes: str, no: str) -> Property:
    says = {True: _one_of(yes), False: _one_of(no)}
    return Property(
        tuple(names.split()),
        BOOLEAN,
        lambda rng: rng.random() < 0.5,
        lambda rng, value: says[value](rng, value),
    )


def _strings(names: str, pool: tuple[str, ...], forms: str) -> Property:
    say = _one_of(forms)
    return Property(
        tuple(names.split()),
        STRINGS,
        lambda rng: rng.sample(pool, rng.randint(1, 3)),
        lambda rng, value: say(rng, join_words(value)),
    )


def _integers(names: str, low: int, high: int, forms: str) -> Property:
    say = _one_of(forms)
    return Property(
        tuple(names.split()),
        INTEGERS,
        lambda rng: [rng.randint(low, high) for _ in range(rng.randint(2, 4))],
        lambda rng, value: say(rng, join_words([str(number) for number in value])),
    )


def _nested(names: str, template: str, **properties: Property) -> Property:
    """An object of one level; the template names its properties."""
    schema = {
        "type": "object",
        "properties": {name: inner.schema for name, inner in properties.items()},
        "required": list(properties),
    }
    return Property(
        tuple(names.split()),
        schema,
        lambda rng: {name: inner.draw(rng) for name, inner in properties.items()},
        lambda _, value: template.format(**value),
    )


def _title(rng: random.Random) -> str:
    return f"The {rng.choice(COLOURS).capitalize()} {rng.choice(PLAIN_WORDS).capitalize()}"


def _email(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES).lower()}{rng.randint(1, 99)}@{made_up_word(rng)}.com"


def _clock(rng: random.Random) -> str:
    return f"{rng.randint(7, 21):02d}:{rng.randrange(0, 60, 5):02d}"


def _capital(rng: random.Random) -> str:
    return made_up_word(rng).capitalize()


def _street(rng: random.Random) -> str:
    return f"{rng.choice(PLAIN_WORDS).capitalize()} Street"


def _job(names: str) -> Property:
    return Property(
        tuple(names.split()),
        STRING,
        lambda rng: rng.choice(JOBS),
        lambda _, value: f"works as {with_article(value)}",
    )


_PERSON = Kind(
    "people",
    _choice("name first_name person", FIRST_NAMES, "{}"),
    _plain,
    (
        _integer("age age_years years", 3, 95, "is {} years old|is {}"),
        _choice("city home town", CITIES, "lives in {}|comes from {}"),
        _job("job profession work"),
        _strings("hobbies likes interests", HOBBIES, "likes {}|has the hobbies {}"),
        _boolean("is_student student", "is a student", "is not a student|is no student"),
        _integer("height_cm height", 100, 200, "is {} cm tall|measures {} cm"),
        _text("email mail email_address", _email, "has the email address {}"),
        _choice("favourite_colour colour", COLOURS, "likes the colour {} best"),
        _integer("children num_children", 1, 6, "has {} children"),
        _boolean("has_car owns_car", "has a car", "has no car"),
        _nested(
            "address home_address",
            "has the address {number} {street} in {city}",
            street=_text("street", _street, "{}"),
            number=_integer("number", 1, 99, "{}"),
            city=_choice("city", CITIES, "{}"),
        ),
    ),
)
_PRODUCT = Kind(
    "products",
    _choice("name product item", OBJECTS, "{}"),
    "The {}".format,
    (
        _number("price cost price_euros", 1, 200, "costs {} euros|costs {}"),
        _boolean(
            "in_stock available is_available",
            "is in stock|is available",
            "is not in stock|is not available",
        ),
        _choice("colour paint", COLOURS, "is {}"),
        _number("weight_kg weight", 1, 40, "weighs {} kg"),
        _integer("quantity count pieces", 2, 500, "comes in a box of {} pieces"),
        _integers("sizes available_sizes", 10, 60, "comes in the sizes {}"),
        _enum("quality grade", ("low", "medium", "high"), "is of {} quality"),
        _choice("maker made_in", CITIES, "was made in {}"),
        _nested(
            "size dimensions",
            "is {width} cm wide and {height} cm high",
            width=_integer("width", 5, 150, "{}"),
            height=_integer("height", 5, 150, "{}"),
        ),
    ),
)
_BOOK = Kind(
    "books",
    _text("title book name", _title, "{}"),
    'The book "{}"'.format,
    (
        _choice("author writer", FIRST_NAMES, "was written by {}|is by {}"),
        _integer("year published", 1900, 2025, "appeared in {}|is from {}"),
        _integer("pages num_pages", 40, 900, "has {} pages"),
        _number("price cost", 3, 50, "costs {} euros|costs {}"),
        _strings("topics subjects about", ANIMALS + HOBBIES, "is about {}"),
        _boolean("is_new new", "is new", "is not new"),
        _enum("language", ("English", "French", "German", "Spanish"), "is written in {}"),
        _choice("cover cover_colour", COLOURS, "has a cover in {}"),
    ),
)
_MEETING = Kind(
    "meetings",
    _text("title meeting topic", lambda rng: rng.choice(PLAIN_WORDS).capitalize(), "{}"),
    'The meeting "{}"'.format,
    (
        _enum("day weekday", WEEKDAYS, "takes place on {}"),
        _text("time start start_time", _clock, "starts at {}|begins at {}"),
        _choice("room place", ROOMS, "is in the {}"),
        _integer("minutes duration length", 10, 180, "lasts {} minutes|takes {} minutes"),
        _strings("guests people attendees", FIRST_NAMES, "has the guests {}"),
        _boolean("is_open open", "is open to all", "is not open to all"),
        _choice("leader host", FIRST_NAMES, "is led by {}"),
    ),
)
_TOWN = Kind(
    "towns",
    _text("name town", _capital, "{}"),
    "The town {}".format,
    (
        _integer(
            "inhabitants population people", 200, 90000, "has {} inhabitants|is home to {} people"
        ),
        _text("river", _capital, "lies on the river {}"),
        _text("country land", _capital, "belongs to the country {}"),
        _boolean("has_harbour harbour", "has a harbour", "has no harbour"),
        _strings("sights known_for", OBJECTS, "is known for its {}"),
        _integer("founded year", 900, 1900, "was founded in {}"),
        _integer("schools num_schools", 1, 30, "has {} schools"),
        _choice("mayor", FIRST_NAMES, "has the mayor {}"),
    ),
)
_PET = Kind(
    "pets",
    _text("name pet", _capital, "{}"),
    _plain,
    (
        Property(
            ("species", "animal", "kind"),
            STRING,
            lambda rng: rng.choice(ANIMALS),
            lambda _, value: f"is {with_article(value)}",
        ),
        _integer("age age_years", 1, 20, "is {} years old|is {}"),
        _strings("food eats diet", FOODS, "eats {}"),
        _boolean("can_swim swims", "can swim", "cannot swim"),
        _choice("owner", FIRST_NAMES, "belongs to {}"),
        _number("weight_kg weight", 1, 60, "weighs {} kg"),
        _choice("colour", COLOURS, "is {}"),
        _enum("size", ("small", "medium", "large"), "is of {} size"),
    ),
)
_ORDER = Kind(
    "orders",
    _integer("id order order_id number", 100, 99999, "{}"),
    "Order {}".format,
    (
        _choice("customer name", FIRST_NAMES, "is from {}"),
        _strings("items products contents", FOODS + OBJECTS, "contains {}|is for {}"),
        _number("total price", 2, 300, "costs {} euros|costs {}"),
        _boolean("is_paid paid", "is paid", "is not paid|is unpaid"),
        _choice("city destination", CITIES, "goes to {}"),
        _enum("status", ("open", "packed", "sent"), "has the status {}"),
        _enum("day delivery_day", WEEKDAYS, "arrives on {}"),
    ),
)
_TRAIN = Kind(
    "trains",
    _integer("train number train_number", 10, 9999, "{}"),
    "Train {}".format,
    (
        _choice("from start origin", CITIES, "comes from {}"),
        _choice("to end destination", CITIES, "goes to {}"),
        _integer("platform track", 1, 24, "leaves from platform {}|stands on platform {}"),
        _text("time departure", _clock, "leaves at {}"),
        _boolean("is_late late", "is late", "is not late"),
        _integer("cars num_cars", 2, 14, "has {} cars"),
        _integers("stops stop_minutes", 1, 59, "stops at the minutes {}"),
    ),
)

KINDS = (_PERSON, _PERSON, _PRODUCT, _BOOK, _MEETING, _TOWN, _PET, _ORDER, _TRAIN)
