"""Checkpoints that lie in memory, as the converter reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.formats.convert_source import as_matrix, plain_name
from strata.formats.convert_transforms import RecipeBook, spec_from_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from strata.formats.convert_source import Floats, Shape


class ArraySource:
    """A state dictionary as a ``TensorSource``; names with or without the wrapper's prefix."""

    def __init__(self, state: Mapping[str, np.ndarray]) -> None:
        self._arrays = {
            plain: array for name, array in state.items() if (plain := plain_name(name)) is not None
        }

    def names(self) -> Iterable[str]:
        return self._arrays

    def shape(self, name: str) -> Shape:
        return self._arrays[name].shape

    def rows(self, name: str, start: int, stop: int) -> Floats:
        array = self._arrays[name]
        return array.reshape(as_matrix(array.shape))[start:stop].astype(np.float32)

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(int(value) for value in self._arrays[name].ravel())


def converted(
    state: Mapping[str, np.ndarray], config: Mapping[str, object]
) -> dict[str, np.ndarray]:
    """Every GGUF tensor of a checkpoint by name, float32, as the converter makes it."""
    source = ArraySource(state)
    spec, _ = spec_from_config(config, source)
    return {
        recipe.name: recipe.read(source, 0, recipe.num_rows).reshape(recipe.shape)
        for recipe in RecipeBook(source, spec).build()
    }
