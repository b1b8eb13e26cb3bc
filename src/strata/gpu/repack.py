"""From the processor's panels to the card's: which word of one comes from which words of the other.

Both keep exactly the file's bits, so the way is a permutation of bits inside a group of 256 weights
of sixteen rows. Owns the tables that ``kernels.fetch`` walks along; they are worked out from where
the processor's packing puts each bit (``ExpertHost.permutation``) and ``packing_fields``, and no
format is treated by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.formats.block_formats import FORMATS
from strata.gpu.packing import PANEL_ROWS, panel_bytes, places_of
from strata.gpu.packing_fields import GROUP, planes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from strata.gpu.packing_fields import Plane

    Ints = NDArray[np.int64]

HOST_ROWS = 16  # rows of one of the processor's panels: two of the card's
_ROTATION_SHIFT = 16  # of a term: the source word below, the rotation above


@dataclass(frozen=True, slots=True)
class Repack:
    """The tables of one format.

    Attributes:
        format_name: of both sides.
        terms: int32; for plane after plane [terms, words]: the source word and, above bit 16, by
            how many bits it is rotated to the left.
        masks: int32, likewise: the bits of that word that belong here.
        flips: int32 [words] of every plane: bits turned over.
        planes: (first term, first flip, words, terms a word, bytes a word) of each plane. A word
            has two bytes where a load has; words go by panel, load, row.
        group_bytes: of sixteen rows on the processor's side.
    """

    format_name: str
    terms: Tensor
    masks: Tensor
    flips: Tensor
    planes: tuple[tuple[int, int, int, int, int], ...]
    group_bytes: int

    def num_units(self, rows: int, inner: int) -> int:
        """Groups of sixteen rows in a matrix."""
        return rows // HOST_ROWS * -(-inner // GROUP)

    def host_bytes(self, rows: int, inner: int) -> int:
        """Bytes of a matrix as the processor has it."""
        return rows * FORMATS[self.format_name].row_bytes(inner)

    def begins(self, rows: int, inner: int, units: int, threads: int) -> tuple[int, ...]:
        """The first program of each plane, and how many there are.

        Args:
            rows, inner: of a matrix.
            units: groups of a thread.
            threads: of a program; each has a word of a group, and several where words are more.
        """
        begins = [0]
        for _, _, num_words, _, _ in self.planes:
            across = max(1, threads // (1 << (num_words - 1).bit_length()))
            begins.append(begins[-1] - (-self.num_units(rows, inner) // (units * across)))
        return tuple(begins)

    def shape(self, rows: int, inner: int) -> dict[str, object]:
        """Constants of a kernel for a matrix of this format.

        ``PLACES``: (offset in a panel, bytes of a full group, bytes in all) of each plane.
        """
        places = tuple(
            (
                place.offset,
                place.loads * PANEL_ROWS * place.load_bytes,
                place.total_loads * PANEL_ROWS * place.load_bytes,
            )
            for place in places_of(self.format_name, inner)
        )
        return {
            "PLANES": self.planes,
            "PLACES": places,
            "NUM_PLANES": len(self.planes),
            "GROUPS": -(-inner // GROUP),
            "GROUP_BYTES": self.group_bytes,
            "HOST_BYTES": HOST_ROWS * FORMATS[self.format_name].row_bytes(inner),
            "PANEL_BYTES": panel_bytes(self.format_name, inner),
            "PANELS": rows // HOST_ROWS,
        }


def make_repack(format_name: str, permutation: Ints, device: torch.device | str) -> Repack:
    """The tables of a format.

    Args:
        format_name: of ``packing_fields.BLOCK_FORMATS``.
        permutation: [16 * row bits] of ``ExpertHost.permutation``.
        device: where the tables are used.
    """
    row_bits = FORMATS[format_name].row_bytes(GROUP) * 8
    place = np.empty(HOST_ROWS * row_bits, np.int64)  # of a stored bit in the processor's panel
    place[permutation >> 1] = np.arange(len(permutation))
    turned = np.zeros(HOST_ROWS * row_bits, np.int64)
    turned[permutation >> 1] = permutation & 1
    all_terms, all_masks, all_flips, planes = [], [], [], []
    first_term = first_flip = 0
    for plane in planes_of(format_name):
        stored = _stored_bits(plane, row_bits)
        terms, masks = _terms(place[stored])
        flips = _joined(turned[stored] ^ _flips(plane, stored.shape))
        num_terms, num_words = terms.shape
        planes.append((first_term, first_flip, num_words, num_terms, stored.shape[1] // 8))
        first_term, first_flip = first_term + terms.size, first_flip + num_words
        all_terms.append(terms.reshape(-1))
        all_masks.append(masks.reshape(-1))
        all_flips.append(flips)

    def table(parts: list[Ints]) -> Tensor:
        words = np.concatenate(parts).astype(np.uint32).view(np.int32)
        return torch.from_numpy(words).to(device)

    return Repack(
        format_name, table(all_terms), table(all_masks), table(all_flips), tuple(planes),
        HOST_ROWS * row_bits // 8,
    )  # fmt: skip


def _stored_bits(plane: Plane, row_bits: int) -> Ints:
    """[words, bits of a word]: row * row_bits + bit, words by panel, load, row, place."""
    word_bits = 8 * min(4, plane.load_bytes)
    bits = plane.bits.reshape(plane.loads, 1, -1, word_bits)
    rows = np.arange(HOST_ROWS).reshape(2, 1, PANEL_ROWS, 1, 1)
    return (rows * row_bits + bits[None]).reshape(-1, word_bits)


def _flips(plane: Plane, shape: tuple[int, ...]) -> Ints:
    byte = plane.flips >> np.arange(8) & 1
    return np.broadcast_to(np.tile(byte, shape[1] // 8), shape)


def _terms(places: Ints) -> tuple[Ints, Ints]:
    """For each word the source words, rotated, that make it up: [terms, words] and masks."""
    rotations = (np.arange(places.shape[1]) - places % 32) % 32
    keys = places // 32 | rotations << _ROTATION_SHIFT
    by_word: list[dict[int, int]] = []
    for row in keys.tolist():
        found: dict[int, int] = {}
        for bit, key in enumerate(row):
            found[key] = found.get(key, 0) | 1 << bit
        by_word.append(found)
    num_terms = max(map(len, by_word))
    terms = np.zeros((num_terms, len(by_word)), np.int64)
    masks = np.zeros_like(terms)
    for word, found in enumerate(by_word):
        terms[: len(found), word] = list(found)
        masks[: len(found), word] = list(found.values())
    return terms, masks


def _joined(bits: Ints) -> Ints:
    """[words, n] bits to [words]."""
    words: Ints = (bits << np.arange(bits.shape[1])).sum(axis=1)
    return words
