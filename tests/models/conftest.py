"""Fixtures over ``tiny_models``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.models import tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., tiny_models.TinyModel]:
    """The builder of tiny models: ``tiny_model("plain", "float64")``."""
    return tiny_models.tiny_model
