"""How many digits in a row a number of JSON may have, for models that would repeat them for ever.

Owns the count. Knows no tokens and no grammar: it reads the bytes of a JSON text that is valid so
far, and digits inside its strings are none of its business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_DIGITS: Final = 40
"""A number of 128 bits has 39; 17 say which double is meant."""
DIGITS: Final = b"0123456789"
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a JSON text one is."""

    num_digits: int = 0  # in a row, up to here, outside strings
    is_string: bool = False
    is_escaped: bool = False

    @property
    def is_full(self) -> bool:
        """Whether no digit should follow."""
        return self.num_digits >= MAX_DIGITS

    def after(self, data: bytes) -> Place:
        """Behind more of the text."""
        num_digits, is_string, is_escaped = self.num_digits, self.is_string, self.is_escaped
        for byte in data:
            if is_string:
                is_string = is_escaped or byte != _QUOTE
                is_escaped = not is_escaped and byte == _BACKSLASH
            elif byte in DIGITS:
                num_digits += 1
            else:
                num_digits = 0
                is_string = byte == _QUOTE
        return Place(num_digits, is_string, is_escaped)
