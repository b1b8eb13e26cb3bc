"""Where experts can be read from, and a name for the model they belong to. Opens nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.units import PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from strata.cpu.expert_layers import LayerShape
    from strata.formats.tensor_index import TensorIndex

# Pages of each tensor that go into a fingerprint beside the place of every tensor.
_SAMPLES = 16


@dataclass(frozen=True, slots=True)
class ExpertsOnDisk:
    """Where the bytes of experts lie.

    Attributes:
        paths: of the files.
        extents: [L * E, P, 3] int64: file, offset, bytes; P is 1 for packed blobs, 3 for gate, up
            and down as a GGUF stores them.
    """

    paths: tuple[Path, ...]
    extents: NDArray[np.int64]

    @property
    def is_packed(self) -> bool:
        """Whether nothing has to be packed after reading."""
        return int(self.extents.shape[1]) == 1


def in_place(index: TensorIndex, shapes: Sequence[LayerShape]) -> ExpertsOnDisk:
    """The experts where the model's own files have them."""
    numbers = {path: number for number, path in enumerate(index.paths)}
    extents = []
    for shape in shapes:
        for expert in range(shape.num_experts):
            parts = []
            for role, name in enumerate(shape.names):
                entry = index[name]
                size = entry.num_bytes // shape.num_experts
                offset = entry.offset + expert * size
                if shape.is_fused and role < 2:
                    size //= 2
                    offset += role * size
                parts.append((numbers[entry.path], offset, size))
            extents.append(parts)
    return ExpertsOnDisk(index.paths, np.array(extents, np.int64))


def fingerprint(index: TensorIndex, shapes: Sequence[LayerShape]) -> str:
    """A hash that tells models apart: every tensor's place and form, and samples of the experts."""
    digest = hashlib.sha256()
    for name, entry in index.items():
        digest.update(f"{name} {entry.shape} {entry.format.ggml_id} {entry.offset}\n".encode())
    for shape in shapes:
        for name in dict.fromkeys(shape.names):
            flat = index.raw(name).reshape(-1)
            for first in (
                np.linspace(0, max(0, flat.size - PAGE_BYTES), _SAMPLES).astype(int).tolist()
            ):
                digest.update(flat[first : first + PAGE_BYTES].tobytes())
    return digest.hexdigest()
