"""Bit fields shared by ``block_terms`` and ``grid_terms``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Bytes = NDArray[np.uint8]

ACTIVATION_BLOCK = 32  # activations that share one scale


@dataclass(frozen=True, slots=True)
class Decoded:
    """The fields of ``BlockTerms`` with stored blocks, not matrix rows, as the first axis."""

    codes: NDArray[Any]
    scales: NDArray[np.float32]
    sub_scales: NDArray[Any] | None = None
    min_scales: NDArray[np.float32] | None = None


def half(blocks: Bytes, offset: int) -> NDArray[np.float32]:
    """[n, 1] float32 from the FP16 at this byte offset of every block."""
    return blocks[:, offset : offset + 2].copy().view("<f2").astype(np.float32)


def words(blocks: Bytes, first: int, count: int, dtype: str) -> NDArray[np.int64]:
    """[n, count] integers of a little-endian ``dtype`` starting at byte ``first``."""
    size = np.dtype(dtype).itemsize
    return blocks[:, first : first + count * size].copy().view(dtype).astype(np.int64)


def nibbles(packed: Bytes) -> Bytes:
    """[n, 2k]: all k low nibbles, then all k high nibbles."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def bit_planes(packed: Bytes, shifts: Sequence[int], mask: int, run: int = 32) -> Bytes:
    """Fields of ``run`` bytes at the first shift, of the same bytes at the next, then on.

    [n, k * run] bytes to [n, k * len(shifts) * run] fields.
    """
    runs = packed.reshape(len(packed), -1, 1, run)
    fields = runs >> np.array(list(shifts), np.uint8)[:, None] & np.uint8(mask)
    return fields.reshape(len(packed), -1)
