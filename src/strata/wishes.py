"""One wish of a user: what is known of it, how its text is read, what is refused.

Owns no field; those are ``settings``.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any

from strata.errors import SettingsError
from strata.units import MiB, parse_bytes


@dataclass(frozen=True, slots=True)
class Wish:
    """What is known of one settings field besides its name and type.

    ``kind`` is the type of a value that is present: ``int``, ``float``, ``str``, ``bool`` or
    ``Path``.
    """

    kind: type
    help: str
    flags: tuple[str, ...]
    env: str | None = None
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    is_mib: bool = False  # a plain number is MiB; 8G and 512M are understood


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that looks most like ``name``, if one does."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(name: str, known: tuple[str, ...]) -> str:
    """What is said of a name that is no setting."""
    guess = nearest(name, known)
    hint = f"did you mean {guess}?" if guess else f"one of {', '.join(known)}."
    return f"there is no setting {name!r}.\n  Try: {hint}"


def parse(name: str, wish: Wish, value: object) -> object:
    """A value from text, as its wish wants it.

    Raises:
        SettingsError: it cannot be read.
    """
    if not isinstance(value, str):
        return Path(value) if wish.kind is Path and isinstance(value, os.PathLike) else value
    if wish.kind is int:
        num_bytes = parse_bytes(value) if wish.is_mib else None
        if num_bytes is not None:
            return round(num_bytes / MiB)
        try:
            return int(value)
        except ValueError:
            what, hint = (
                ("MiB or a size such as 8G", "8G") if wish.is_mib else ("a whole number", "1")
            )
            raise SettingsError(
                f"{name} must be {what}, not {value!r}.\n  Try: {name}={hint}"
            ) from None
    if wish.kind is float:
        try:
            return float(value)
        except ValueError:
            raise SettingsError(
                f"{name} must be a number, not {value!r}.\n  Try: {name}=0.5"
            ) from None
    if wish.kind is bool:
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if value.lower() not in known:
            raise SettingsError(f"{name} must be 0 or 1, not {value!r}.\n  Try: {name}=1")
        return known[value.lower()]
    return Path(value) if wish.kind is Path else value


def check(item: Field[Any], value: object) -> None:
    """Refuses a value that its field cannot have.

    Raises:
        SettingsError: of another type, not among the choices, or out of range.
    """
    wish: Wish = item.metadata["wish"]
    if value is None and item.default is None:
        return
    is_wrong_number = wish.kind in (int, float) and isinstance(value, bool)
    kinds = (int, float) if wish.kind is float else wish.kind
    if not isinstance(value, kinds) or is_wrong_number:
        raise SettingsError(
            f"setting {item.name} must be {wish.kind.__name__}, not {type(value).__name__} "
            f"({value!r}).\n  Try: {wish.flags[0]}"
        )
    if wish.choices is not None and value not in wish.choices:
        guess = nearest(str(value), wish.choices)
        hint = guess if guess else " or ".join(wish.choices)
        raise SettingsError(
            f"setting {item.name} must be one of {', '.join(wish.choices)}, not {value!r}.\n"
            f"  Try: {hint}"
        )
    if isinstance(value, int | float):
        if wish.minimum is not None and value < wish.minimum:
            raise SettingsError(
                f"setting {item.name} must be at least {wish.minimum}, not {value}.\n"
                f"  Try: {wish.flags[0]} {wish.minimum}"
            )
        if wish.maximum is not None and value > wish.maximum:
            raise SettingsError(
                f"setting {item.name} must be at most {wish.maximum}, not {value}.\n"
                f"  Try: {wish.flags[0]} {wish.maximum}"
            )
