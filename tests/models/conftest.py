"""Fixtures over ``tiny_models`` and, on a card, ``smallest_model``.

What needs triton is imported where it is asked for: its tests have been skipped where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.models import tiny_models
from tests.models.bits import one_by_one
from tests.models.smallest_model import write_smallest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.models.on_card import Tiered

NUM_TOKENS = 12


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., tiny_models.TinyModel]:
    """The builder of tiny models: ``tiny_model("plain", "float64")``."""
    return tiny_models.tiny_model


@pytest.fixture(scope="session")
def smallest_path(tmp_path_factory) -> Path:
    """A file of the smallest model. Read it, do not write."""
    return write_smallest(tmp_path_factory.mktemp("smallest"))


@pytest.fixture(scope="session")
def tokens() -> np.ndarray:
    """[12] any tokens, the same for all."""
    drawn = np.random.default_rng(3).integers(0, tiny_models.VOCAB_SIZE, NUM_TOKENS)
    return drawn.astype(np.int32)


@pytest.fixture(scope="session")
def single(smallest_path: Path, tokens: np.ndarray) -> np.ndarray:
    """[12, V] logits of the tokens decoded one by one, all experts on the card: the yardstick."""
    from tests.models.on_card import gpu_model

    return one_by_one(gpu_model(smallest_path).new_session(32), tokens)


@pytest.fixture(scope="session")
def prompt_logits(smallest_path: Path) -> np.ndarray:
    """[V] of the last token of ``PROMPT``, all experts on the card."""
    from tests.models.on_card import PROMPT, gpu_model

    return gpu_model(smallest_path).new_session(80).prefill(PROMPT)


@pytest.fixture
def tiered(smallest_path: Path) -> Iterator[Callable[..., Tiered]]:
    """Makes models with fewer slots than experts; their threads are ended."""
    from tests.models.on_card import tiered_model

    made: list[Tiered] = []

    def make(slots, **options) -> Tiered:
        made.append(tiered_model(smallest_path, slots, **options))
        return made[-1]

    yield make
    for one in made:
        one.model.close()
