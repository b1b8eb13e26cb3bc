"""Typed access to the key-value part of a model file, with errors that name the key.

Owns how one value is read and refused. Does not know what a key means: model_spec does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index

from strata.errors import CheckpointError, UnsupportedError

# No size of a model comes near it; larger values are broken or hostile files.
MAX_SIZE = 1 << 40
MAX_LIST = 1 << 20


@dataclass(frozen=True, slots=True)
class MetadataReader:
    """Reads keys that start with ``prefix``; values may be Python or numpy scalars and lists."""

    metadata: Mapping[str, object]
    prefix: str
    source: str = ""

    @property
    def where(self) -> str:
        """The line of a message that names the file; empty when there is none."""
        return f"\n  file: {self.source}" if self.source else ""

    def has(self, key: str) -> bool:
        """Whether the file holds ``prefix + key``."""
        return self.prefix + key in self.metadata

    def missing(self, key: str) -> CheckpointError:
        """The error for an absent key."""
        return CheckpointError(
            f"the metadata lacks {self.prefix + key}.{self.where}\n"
            "  Try: convert or download the model again; the file is incomplete."
        )

    def fault(self, key: str, expected: str, found: object) -> CheckpointError:
        """The error for a key whose value is not ``expected``."""
        text = repr(found)
        text = text if len(text) <= 80 else text[:77] + "..."
        return CheckpointError(
            f"the metadata key {self.prefix + key} is {text}; expected {expected}.{self.where}\n"
            "  Try: convert or download the model again; its metadata is broken."
        )

    def unsupported(self, what: str, remedy: str) -> UnsupportedError:
        """The error for a sound file that asks for something Strata does not have."""
        return UnsupportedError(f"{what}.{self.where}\n  Try: {remedy}.")

    def require(self, *facts: tuple[str, bool, str, object]) -> None:
        """Raises the fault of the first (key, is sound, expected, found) that is not sound."""
        for key, is_sound, expected, found in facts:
            if not is_sound:
                raise self.fault(key, expected, found)

    def count(self, key: str, *, default: int | None = None, most: int = MAX_SIZE) -> int:
        """An integer from 0 to ``most``; of a per-layer list, its one non-zero value."""
        if not self.has(key):
            if default is None:
                raise self.missing(key)
            return default
        values = _plain(self.metadata[self.prefix + key])
        if isinstance(values, list):
            used = [value for value in values if value != 0]
            if not used or any(value != used[0] for value in used):
                raise self.fault(key, "one number, or the same number on every layer", values)
            values = used[0]
        try:
            value = index(values)  # type: ignore[arg-type]
        except TypeError:
            raise self.fault(key, "an integer", values) from None
        if isinstance(values, bool) or not 0 <= value <= most:
            raise self.fault(key, f"an integer from 0 to {most}", values)
        return value

    def size(self, key: str, *, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A count of at least one."""
        value = self.count(key, default=default, most=most)
        if value < 1:
            raise self.fault(key, "at least 1", value)
        return value

    def quotient(self, whole: str, parts: str) -> int:
        """``whole / parts``, which must divide evenly."""
        value, divisor = self.size(whole), self.size(parts)
        if value % divisor:
            raise self.fault(whole, f"a multiple of {parts} ({divisor})", value)
        return value // divisor

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite float."""
        if not self.has(key):
            if default is None:
                raise self.missing(key)
            return default
        raw = _plain(self.metadata[self.prefix + key])
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
            raise self.fault(key, "a finite number", raw)
        return float(raw)

    def positive_float(self, key: str, *, default: float | None = None) -> float:
        """A finite float above zero; a stored zero means ``default`` where there is one."""
        value = self.number(key, default=default)
        if value == 0 and default is not None:
            return default
        if value <= 0:
            raise self.fault(key, "above zero", value)
        return value

    def flag(self, key: str) -> bool:
        """A boolean."""
        raw = _plain(self.metadata[self.prefix + key])
        if not isinstance(raw, bool | int):
            raise self.fault(key, "true or false", raw)
        return bool(raw)

    def text(self, key: str, *, default: str, is_global: bool = False) -> str:
        """A string; ``is_global`` leaves the prefix out."""
        raw = self.metadata.get(key if is_global else self.prefix + key, default)
        return raw if isinstance(raw, str) else default

    def choice(self, key: str, allowed: Sequence[str], default: str) -> str:
        """One of ``allowed``."""
        raw = _plain(self.metadata.get(self.prefix + key, default))
        if raw not in allowed:
            raise self.fault(key, "one of " + ", ".join(allowed), raw)
        return str(raw)

    def integers(self, key: str, *, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """A list of integers (booleans count as 0 and 1)."""
        if not self.has(key):
            if default is None:
                raise self.missing(key)
            return default
        raw = _plain(self.metadata[self.prefix + key])
        if not isinstance(raw, list) or len(raw) > MAX_LIST:
            raise self.fault(key, "a list of integers", raw)
        try:
            return tuple(index(value) for value in raw)
        except TypeError:
            raise self.fault(key, "a list of integers", raw) from None

    def length(self, key: str, *, is_global: bool = False) -> int:
        """Length of a list."""
        name = key if is_global else self.prefix + key
        raw = self.metadata.get(name)
        try:
            length = 0 if isinstance(raw, str | bytes) else len(raw)  # type: ignore[arg-type]
        except TypeError:
            length = 0
        if length < 1:
            raise CheckpointError(
                f"the metadata key {name} is missing or empty.{self.where}\n"
                "  Try: convert or download the model again; the file is incomplete."
            )
        return length


def _plain(value: object) -> object:
    """numpy scalars and arrays as Python values; tuples as lists."""
    if isinstance(value, str | bytes):
        return value
    to_list = getattr(value, "tolist", None)
    if to_list is not None:
        return to_list()
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return [_plain(item) for item in value]
    return value
