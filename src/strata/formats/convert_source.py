"""The tensors of a Hugging Face checkpoint under plain names, wherever they are kept.

Owns what the converter asks of them. Files are in safetensors.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from strata.formats.convert_metadata import NgramHash

if TYPE_CHECKING:
    from collections.abc import Iterable

Floats = NDArray[np.float32]
Shape = tuple[int, ...]


class TensorSource(Protocol):
    """A checkpoint's tensors under plain names (``layers.0.mlp.gate.weight``)."""

    def names(self) -> Iterable[str]:
        """Every tensor of the language model and its draft layer."""
        ...

    def shape(self, name: str) -> Shape:
        """Stored shape."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Floats:
        """Rows of the tensor seen as [product of the leading sizes, last size]; see as_matrix."""
        ...


def as_matrix(shape: Shape) -> tuple[int, int]:
    """Rows and columns under which a stored tensor is read; a vector is a column."""
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    return int(np.prod(shape[:-1], dtype=np.int64)), shape[-1]


def ngram_parts(names: Iterable[str], stem: str) -> list[str]:
    """Tensors of the n-gram table, in row order."""
    pattern = re.compile(re.escape(stem) + r"shard_(\d+)\.weight\Z")
    numbered = [(int(match[1]), name) for name in names if (match := pattern.match(name))]
    if numbered:
        return [name for _, name in sorted(numbered)]
    return [name for name in names if name == stem + "weight"]


_PREFIXES = ("model.language_model.", "language_model.model.", "model.", "language_model.")
_VISION = ("visual.", "vision_tower.")


def plain_name(name: str) -> str | None:
    """A checkpoint name without the wrapper's prefix; None for the vision tower."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name[len(prefix) :]
            break
    return None if name.startswith(_VISION) else name


class IntegerSource(TensorSource, Protocol):
    """A source that also reads integer tensors whole."""

    def integers(self, name: str) -> tuple[int, ...]:
        """All values of an integer tensor."""
        ...


def stored_hash(source: IntegerSource) -> NgramHash | None:
    """The n-gram hash constants kept in the checkpoint's buffers, if it keeps them."""
    fields = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
    found = {
        field: name
        for name in source.names()
        for field in fields
        if name.endswith(f".ple.ple_embedding.{field}")
    }
    if len(found) < len(fields):
        return None
    multipliers, sizes, offsets = (source.integers(found[field]) for field in fields)
    return NgramHash(multipliers, sizes, offsets)
