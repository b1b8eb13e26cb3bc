"""Sizes of tensors before they exist: what a plan adds up and an arena hands out. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ALIGNMENT = 256
"""Every tensor of an arena begins at a multiple of this."""

ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float32": 4,
        "float16": 2,
        "bfloat16": 2,
        "int8": 1,
        "uint8": 1,
        "int32": 4,
        "int64": 8,
        "float64": 8,
    }
)


@dataclass(frozen=True, slots=True)
class Shape:
    """One tensor: its sizes and the name of its torch type."""

    sizes: tuple[int, ...]
    dtype: str = "float32"

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in an arena."""
        size = math.prod(self.sizes) * ITEM_BYTES[self.dtype]
        return -(-size // ALIGNMENT) * ALIGNMENT


Shapes = dict[str, Shape]


def total_bytes(shapes: Iterable[Shape]) -> int:
    """Bytes of an arena that holds them."""
    return sum(shape.num_bytes for shape in shapes)
