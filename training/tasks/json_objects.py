"""JSON objects to a list of keys, to a schema, or from lines of text.

Owns the requests, the check of a value against a schema, and the grader. What the objects are
about is in ``training.tasks.records``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from training.tasks.example import Example, Message, Split, Task, in_split
from training.tasks.records import KINDS, Kind, Property, Schema, Value
from training.tasks.word_pools import join_words, made_up_word

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

# Types of single values, as ``isinstance`` takes them.
_SCALARS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}

_ASK_KEYS = (
    "Give a JSON object with {keys}.",
    "Give a JSON object with the keys {keys}.",
    "Write this as a JSON object with the keys {keys}.",
    "Turn the text into a JSON object with the keys {keys}.",
    "Make a JSON object of it. Keys: {keys}.",
    "Return JSON with the keys {keys}.",
)
_ASK_SCHEMA = (
    "Give a JSON object that fits this schema:",
    "Write the facts as a JSON object to this schema:",
    "Answer with a JSON object that follows this JSON schema:",
    "Fill in this JSON schema:",
    "Return a JSON object for this schema:",
)
_ASK_INVENT = (
    "Give an example of a JSON object that fits this schema:",
    "Make up a JSON object that fits this schema:",
    "Write any JSON object that follows this schema:",
)
_ASK_LINES = (
    "Write these lines as a JSON object:",
    "Convert to JSON:",
    "Turn this into a JSON object:",
    "Give this as JSON:",
)
_INDENTED = (" Indent it by two spaces.", " Use an indentation of two spaces.")
_SYSTEM = ("Answer with JSON only.", "You answer in JSON.", "Always reply with one JSON object.")


def matches_schema(value: Value, schema: Schema) -> bool:
    """Whether the value fits the schema.

    Knows ``type`` (string, integer, number, boolean, array, object), ``enum``, ``items``,
    ``properties``, ``required`` and ``additionalProperties: false``, which is what the task uses.
    """
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema["type"]
    if kind == "array":
        return isinstance(value, list) and all(
            matches_schema(item, schema["items"]) for item in value
        )
    if kind == "object":
        return isinstance(value, dict) and _fits_object(value, schema)
    # In Python a boolean is an integer; in JSON it is not.
    if isinstance(value, bool):
        return bool(kind == "boolean")
    return isinstance(value, _SCALARS[kind])


def _fits_object(value: Mapping[str, Value], schema: Schema) -> bool:
    properties = schema["properties"]
    if any(name not in value for name in schema.get("required", ())):
        return False
    if not schema.get("additionalProperties", True) and any(
        name not in properties for name in value
    ):
        return False
    return all(
        matches_schema(inner, properties[name])
        for name, inner in value.items()
        if name in properties
    )


def is_same(found: Value, expected: Value) -> bool:
    """Equality that tells true from 1."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(is_same(found[key], expected[key]) for key in expected)
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(is_same, found, expected))
        )
    return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _sentences(rng: random.Random, subject: str, predicates: list[str]) -> str:
    """The predicates about the subject, one to three in a sentence."""
    texts = []
    left = list(predicates)
    while left:
        count = rng.choice((1, 2, 2, 3))
        texts.append(f"{subject} {join_words(left[:count])}.")
        left = left[count:]
    return " ".join(texts)


class _Sketch:
    """One kind of thing with the properties and key names of one example."""

    def __init__(
        self, rng: random.Random, kind: Kind, fewest: int, most: int, *, is_flat: bool = False
    ) -> None:
        """Chooses the properties; flat, none of them is an object itself."""
        self.kind = kind
        properties = [
            member
            for member in kind.properties
            if not (is_flat and member.schema["type"] == "object")
        ]
        count = rng.randint(fewest, min(most, len(properties)))
        camel = rng.random() < 0.15
        chosen: list[tuple[str, Property]] = []
        for member in (kind.name, *rng.sample(properties, count)):
            # The first name is the usual one.
            name = member.names[0] if rng.random() < 0.5 else rng.choice(member.names)
            if name not in [other for other, _ in chosen]:
                chosen.append((_camel(name) if camel else name, member))
        self.members = dict(chosen)

    def draw(self, rng: random.Random) -> dict[str, Value]:
        """Values of all properties."""
        return {name: member.draw(rng) for name, member in self.members.items()}

    def say(self, rng: random.Random, value: Mapping[str, Value]) -> str:
        """Sentences that state the value; what it lacks is not mentioned."""
        (first, _), *rest = self.members.items()
        predicates = [member.say(rng, value[name]) for name, member in rest if name in value]
        rng.shuffle(predicates)
        return _sentences(rng, self.kind.subject(value[first]), predicates)

    def schema(self, rng: random.Random, optional: set[str]) -> dict[str, Any]:
        """The schema of these properties."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: member.schema for name, member in self.members.items()},
            "required": [name for name in self.members if name not in optional],
        }
        if rng.random() < 0.2:
            schema["additionalProperties"] = False
        return schema


def _drawn(rng: random.Random, split: Split, sketch: _Sketch) -> dict[str, Value]:
    while True:
        value = sketch.draw(rng)
        if in_split(json.dumps(value), split):
            return value


def _example(
    rng: random.Random,
    prompt: str,
    answer: Value,
    schema: Schema | None,
    expected: Value | None,
) -> Example:
    is_indented = rng.random() < 0.12
    messages: list[Message] = []
    if rng.random() < 0.12:
        messages.append({"role": "system", "content": rng.choice(_SYSTEM)})
    if is_indented:
        first, line, rest = prompt.partition("\n")
        # Behind the request, wherever that stands.
        prompt = prompt + rng.choice(_INDENTED) if prompt.endswith(".") else prompt
        if not prompt.endswith("spaces."):
            prompt = f"{first[:-1]}.{rng.choice(_INDENTED)}{line}{rest}"
    text = json.dumps(answer, indent=2 if is_indented else None, ensure_ascii=False)
    messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
    return Example("json", messages, facts={"schema": schema, "expected": expected})


def _to_keys(rng: random.Random, split: Split) -> Example:
    """Facts, then the keys that are wanted."""
    sketch = _Sketch(rng, rng.choice(KINDS), 1, 5, is_flat=True)
    value = _drawn(rng, split, sketch)
    facts = sketch.say(rng, value)
    wanted = list(value)
    if len(wanted) > 2 and rng.random() < 0.3:
        # Not everything that is said is wanted.
        wanted.remove(rng.choice(wanted[1:]))
    answer = {name: value[name] for name in wanted}
    quoted = [f'"{name}"' for name in wanted] if rng.random() < 0.4 else wanted
    request = rng.choice(_ASK_KEYS).format(keys=join_words(quoted))
    prompt = f"{request}\n\n{facts}" if rng.random() < 0.4 else f"{facts}\n\n{request}"
    return _example(rng, prompt, answer, None, answer)


def _schema_text(rng: random.Random, schema: Schema) -> str:
    return json.dumps(schema, indent=2 if rng.random() < 0.08 else None)


def _to_schema(rng: random.Random, split: Split) -> Example:
    """A schema and facts to put in; what is optional may be missing from the facts."""
    sketch = _Sketch(rng, rng.choice(KINDS), 1, 5)
    value = _drawn(rng, split, sketch)
    optional = {name for name in list(value)[1:] if rng.random() < 0.1}
    schema = sketch.schema(rng, optional)
    answer = {name: inner for name, inner in value.items() if name not in optional}
    if len(answer) == 1:
        answer = value
    facts = sketch.say(rng, answer)
    listing = _schema_text(rng, schema)
    if rng.random() < 0.4:
        prompt = f"{facts}\n\n{rng.choice(_ASK_SCHEMA)}\n{listing}"
    else:
        prompt = f"{rng.choice(_ASK_SCHEMA)}\n{listing}\n\n{facts}"
    return _example(rng, prompt, answer, schema, answer)


def _to_list(rng: random.Random, split: Split) -> Example:
    """Several things of one kind in an array."""
    sketch = _Sketch(rng, rng.choice(KINDS), 1, 2)
    values = [_drawn(rng, split, sketch) for _ in range(rng.randint(2, 3))]
    key = sketch.kind.plural
    inner = sketch.schema(rng, set())
    schema = {
        "type": "object",
        "properties": {key: {"type": "array", "items": inner}},
        "required": [key],
    }
    facts = " ".join(sketch.say(rng, value) for value in values)
    prompt = f"{rng.choice(_ASK_SCHEMA)}\n{json.dumps(schema)}\n\n{facts}"
    return _example(rng, prompt, {key: values}, schema, {key: values})


def _invented(rng: random.Random, split: Split) -> Example:
    """A schema alone; any value that fits is right."""
    while True:
        sketch = _Sketch(rng, rng.choice(KINDS), 1, 6)
        schema = sketch.schema(rng, set())
        if in_split(json.dumps(schema), split):
            break
    prompt = f"{rng.choice(_ASK_INVENT)}\n{_schema_text(rng, schema)}"
    return _example(rng, prompt, sketch.draw(rng), schema, None)


def _scalar(rng: random.Random) -> Value:
    kind = rng.choice(("string", "string", "integer", "integer", "number", "boolean"))
    if kind == "string":
        return made_up_word(rng)
    if kind == "integer":
        return rng.randrange(10 ** rng.randint(1, 5))
    if kind == "number":
        return rng.randrange(100) + rng.randint(1, 9) / 10
    return rng.random() < 0.5


def _from_lines(rng: random.Random, split: Split) -> Example:
    """Lines ``key: value``, of a known kind of thing or of made-up words."""
    if rng.random() < 0.5:
        sketch = _Sketch(rng, rng.choice(KINDS), 1, 5)
        drawn = _drawn(rng, split, sketch)
        value = {name: inner for name, inner in drawn.items() if not isinstance(inner, dict | list)}
    else:
        while True:
            value = {made_up_word(rng): _scalar(rng) for _ in range(rng.randint(2, 7))}
            if in_split(json.dumps(value), split):
                break
    between = rng.choice((": ", ": ", " = "))
    lines = []
    for name, inner in value.items():
        written = inner if isinstance(inner, str) else json.dumps(inner)
        lines.append(f"{name}{between}{written}")
    prompt = f"{rng.choice(_ASK_LINES)}\n" + "\n".join(lines)
    return _example(rng, prompt, value, None, value)


_FORMS = (_to_keys, _to_schema, _to_list, _invented, _from_lines)
_SHARES = (0.32, 0.38, 0.08, 0.08, 0.14)


def generate(rng: random.Random, split: Split) -> Example:
    """One request of any form."""
    return rng.choices(_FORMS, _SHARES)[0](rng, split)


def grade(example: Example, answer: str) -> bool:
    """Whether the answer is JSON only, fits the schema, and has the values that were given."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    schema, expected = example.facts["schema"], example.facts["expected"]
    if schema is not None and not matches_schema(value, schema):
        return False
    return expected is None or is_same(value, expected)


TASKS: tuple[Task, ...] = (Task("json", generate, grade, 2.0),)
