"""A file of random blobs, and what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.unit.cpu.expert_blobs import BLOB, NUM_KEYS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def content() -> np.ndarray:
    """[keys, BLOB] of the file."""
    return np.random.default_rng(1).integers(0, 256, (NUM_KEYS, BLOB), np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory, content: np.ndarray) -> Path:
    """The file; not to be changed."""
    file = tmp_path_factory.mktemp("experts") / "blobs"
    file.write_bytes(content.tobytes())
    return file
