"""Whose states are on disk: a line of text that another model, device or version does not have."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

import strata

if TYPE_CHECKING:
    from strata.formats.tensor_index import TensorIndex

# Raised with every change of a number that a session computes; states of another are not mixed.
NUMERICS_VERSION: Final = 1
# A model's bytes are compared in this many places.
_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def identity_of(index: TensorIndex, numerics: str) -> str:
    """What states belong to: the model's bytes, the device's arithmetic, this version of both.

    Args:
        index: an open model. Its tensors are compared by name, shape and format, its bytes in some
            places: reading all of them takes minutes, and two models do not differ in one place.
        numerics: the device and the format of its cells.
    """
    digest = hashlib.sha256()
    for name, value in sorted(index.metadata.items()):
        digest.update(f"{name}={value!r}\n".encode(errors="replace"))
    names = sorted(index)
    for name in names:
        entry = index[name]
        digest.update(f"{name} {entry.shape} {entry.format.name} {entry.num_bytes}\n".encode())
    step = max(1, len(names) // _NUM_SAMPLES)
    for name in names[::step]:
        stored = index.raw(name).reshape(-1)
        middle = len(stored) // 2
        digest.update(stored[:_SAMPLE_BYTES].tobytes())
        digest.update(stored[middle : middle + _SAMPLE_BYTES].tobytes())
    facts = [digest.hexdigest()[:32], numerics, strata.__version__, NUMERICS_VERSION]
    return json.dumps(facts)
