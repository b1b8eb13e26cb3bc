"""Tensors of a model file as a device loads them: checked values, companions, progress.

Owns what is refused while weights are read, whatever they are packed into. What the tensors are
for is each device's ``weights``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError
from strata.formats.naming import INDEX_ROLES, Role, tensor_name
from strata.formats.row_decode import decode_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from strata.formats.block_formats import BlockFormat
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Rows of the embedding, decoded when asked for; the table stays in the mapped file."""

    format: BlockFormat
    raw: Bytes
    scale: float = 1.0

    @property
    def width(self) -> int:
        """Values of a row."""
        return int(self.raw.shape[1]) // self.format.block_bytes * self.format.block_size

    def rows(self, tokens: NDArray[np.int32], out: Floats | None = None) -> Floats:
        """[T, D] float32 of tokens [T]; written to ``out``, rows of any stride, if it is given."""
        return decode_rows(self.format, self.raw, tokens, self.scale, out)


class ModelTensors:
    """Reads tensors of one model, and counts how much of it has been read.

    Args:
        index: an open model whose layout has been checked.
        spec: its geometry.
        has_draft: the draft layer will be read too.
        on_progress: called with (bytes read, bytes to read).
    """

    def __init__(
        self,
        index: TensorIndex,
        spec: ModelSpec,
        *,
        has_draft: bool,
        on_progress: OnProgress | None,
    ) -> None:
        self.index = index
        self._on_progress = on_progress
        self._read_bytes = 0
        self._total_bytes = _bytes_to_read(index, spec, has_draft=has_draft)

    def raw(self, name: str) -> Bytes:
        """Stored bytes of a tensor, [..., row_bytes]; plain types have been checked.

        Raises:
            CheckpointError: it holds NaN or infinity.
        """
        raw = self.index.raw(name)
        self._check_finite(name, raw)
        return raw

    def floats(self, name: str) -> Floats:
        """A small tensor as float32.

        Raises:
            CheckpointError: it holds NaN or infinity.
        """
        values = self.index.array(name)
        if not np.isfinite(values).all():
            raise self.not_finite(name)
        self.advance(self.index[name].num_bytes)
        return values

    def embedding(self, name: str) -> Embedding:
        """The rows of an embedding."""
        return Embedding(self.index[name].format, self.index.raw(name), self.scales(name, 1)[0])

    def scales(self, name: str, num: int) -> list[float]:
        """What a file keeps beside a tensor to multiply its outputs by: [num], ones if nothing.

        NVFP4 files have ``STEM.scale`` beside ``STEM.weight``: one value, or one for each expert.

        Raises:
            CheckpointError: another number of values, or one that is not finite.
        """
        companion = f"{name.removesuffix('.weight')}.scale"
        if companion not in self.index:
            return [1.0] * num
        values = self.index.array(companion).reshape(-1)
        if values.size not in (1, num):
            raise CheckpointError(
                f"{companion} has {values.size} values, expected 1 or {num}.\n"
                f"  file: {self.index[companion].path}\n"
                "  Try: download or convert the file again; its tensors disagree."
            )
        if not np.isfinite(values).all():
            raise self.not_finite(companion)
        return [float(value) for value in np.broadcast_to(values, num)]

    def refuse_bad_indexer(self, layer: int) -> None:
        """Its outputs only choose blocks and feed no product: no later check would see a NaN.

        Raises:
            CheckpointError: a projection of the layer's indexer holds NaN or infinity.
        """
        for role in (Role.INDEX_Q, Role.INDEX_K):
            name = tensor_name(role, layer)
            if not np.isfinite(self.index.array(name)).all():
                raise self.not_finite(name)

    def not_finite(self, name: str) -> CheckpointError:
        """The error of a tensor with a value that is no number."""
        entry = self.index[name]
        return CheckpointError(
            f"tensor {name} holds NaN or infinity; every weight must be a finite number.\n"
            f"  file: {entry.path}, offset {entry.offset:#x}\n"
            "  Try: download or convert the file again; it is damaged."
        )

    def advance(self, num_bytes: int) -> None:
        """``num_bytes`` of the file have been dealt with."""
        self._read_bytes += num_bytes
        if self._on_progress is not None:
            self._on_progress(min(self._read_bytes, self._total_bytes), self._total_bytes)

    def _check_finite(self, name: str, raw: Bytes) -> None:
        """NaN and infinity in plain types; in blocks a bad scale shows in the first logits."""
        exponent_masks = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00),
                          "BF16": (np.uint16, 0x7F80)}  # fmt: skip
        known = exponent_masks.get(self.index[name].format.name)
        if known is None:
            return
        word, mask = known
        rows = raw.reshape(-1, raw.shape[-1])
        # Some MiB at a time: the comparison makes arrays of the size of its input.
        step = max(1, (4 << 20) // rows.shape[1])
        for first in range(0, len(rows), step):
            words = rows[first : first + step].view(word)
            if ((words & word(mask)) == mask).any():
                raise self.not_finite(name)


def _bytes_to_read(index: TensorIndex, spec: ModelSpec, *, has_draft: bool) -> int:
    unread = {Role.NGRAM_TABLE.value}
    if not spec.is_head_tied:
        unread.add(Role.EMBEDDING.value)
    for block in range(spec.num_layers, spec.num_layers + spec.num_draft_layers):
        is_read = has_draft and block == spec.num_layers
        optional = (*INDEX_ROLES, Role.DRAFT_EMBEDDING) if is_read else Role
        unread |= {f"blk.{block}.{role.value}" for role in optional}
    return sum(entry.num_bytes for name, entry in index.items() if name not in unread)
