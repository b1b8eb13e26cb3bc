"""Random JSON schemas of the keywords that forms follow; every one comes from its seed."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("a", "b", "c", "é", "x y", "0")
PATTERNS = ("^a", "b$", "[0-9]", "^[a-f]*$", "x|y", "é", "^(a|bc)+$", "\\d", "\\s?", "\\w")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "hostname", "uri", "duration")
VALUES = ("a", "b", 1, 2.5, None, True, "é", [1], {"a": 1}, "long text", 0, -1, 1e3)


class Schemas:
    """Makes one schema, and the definitions it refers to."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.definitions: dict[str, Any] = {}

    def whole(self, depth: int = 3) -> dict[str, Any]:
        schema = self.any(depth)
        return {**schema, "$defs": self.definitions} if self.definitions else schema

    def any(self, depth: int) -> dict[str, Any]:
        kinds = [self.text, self.integer, self.number, self.listed, self.named]
        if depth > 0:
            deep = [self.object, self.object, self.array, self.tuple, self.choice, self.reference]
            kinds += [lambda made=made: made(depth - 1) for made in deep]
        return self.random.choice(kinds)()

    def text(self) -> dict[str, Any]:
        least = self.random.randrange(4)
        made = {"type": "string", "minLength": least, "maxLength": least + self.random.randrange(6)}
        if self.random.random() < 0.3:
            made["pattern"] = self.random.choice(PATTERNS)
        return made

    def integer(self) -> dict[str, Any]:
        low = self.random.randrange(-1000, 1000)
        made = {"type": "integer", self.random.choice(("minimum", "exclusiveMinimum")): low}
        high = low + self.random.randrange(2, 2000)
        made[self.random.choice(("maximum", "exclusiveMaximum"))] = high
        if self.random.random() < 0.2:
            made["multipleOf"] = self.random.choice((1, 2, 3, 5, 7, 10))
        return made

    def number(self) -> dict[str, Any]:
        low = round(self.random.uniform(-50, 50), self.random.randrange(4))
        made = {"type": "number", self.random.choice(("minimum", "exclusiveMinimum")): low}
        high = round(low + self.random.uniform(0.1, 100), self.random.randrange(1, 4))
        made[self.random.choice(("maximum", "exclusiveMaximum"))] = high
        return made

    def listed(self) -> dict[str, Any]:
        if self.random.random() < 0.3:
            return {"const": self.random.choice(VALUES)}
        return {"enum": self.random.sample(VALUES, self.random.randrange(1, 5))}

    def named(self) -> dict[str, Any]:
        if self.random.random() < 0.5:
            return {"type": self.random.choice(("null", "boolean", ["null", "boolean"]))}
        return {"type": "string", "format": self.random.choice(FORMATS)}

    def object(self, depth: int) -> dict[str, Any]:
        members = {
            self.random.choice(NAMES): self.any(depth) for _ in range(self.random.randrange(4))
        }
        required = self.random.sample(list(members), self.random.randrange(len(members) + 1))
        made: dict[str, Any] = {"type": "object", "properties": members, "required": required}
        other = self.random.choice((False, False, True, None))
        if other is not True:
            made["additionalProperties"] = self.any(depth) if other is None else False
        if self.random.random() < 0.1:
            made["patternProperties"] = {self.random.choice(("^a", "b")): self.any(depth)}
        return made

    def array(self, depth: int) -> dict[str, Any]:
        least = self.random.randrange(2)
        items = {"items": self.any(depth), "maxItems": least + self.random.randrange(3)}
        return {"type": "array", "minItems": least, **items}

    def tuple(self, depth: int) -> dict[str, Any]:
        first = [self.any(depth) for _ in range(self.random.randrange(1, 3))]
        rest = self.random.choice((False, {"type": "null"}))
        return {"type": "array", "prefixItems": first, "items": rest, "maxItems": 4}

    def choice(self, depth: int) -> dict[str, Any]:
        word = self.random.choice(("anyOf", "anyOf", "oneOf", "allOf"))
        return {word: [self.any(depth) for _ in range(self.random.randrange(1, 4))]}

    def reference(self, depth: int) -> dict[str, Any]:
        name = f"d{len(self.definitions)}"
        self.definitions[name] = {}
        self.definitions[name] = self.any(depth)
        return {"$ref": f"#/$defs/{name}"}
