"""One tensor of a model file at a time: read, checked, packed, and let go.

Owns the checks of values and the count of bytes. What the tensors are for is ``weights``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu.file_pages import drop_pages
from strata.errors import CheckpointError
from strata.formats.naming import Role, tensor_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from strata._native import Context, Experts, Matrix
    from strata.cpu.buffers import Floats
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec

    Bytes = NDArray[np.uint8]
    OnProgress = Callable[[int, int], None]


class TensorLoader:
    """Reads tensors of one model by role and layer.

    Args:
        ctx: its threads pack; the packed form does not depend on its instruction set.
        index: an open model whose layout has been checked.
        spec: its geometry.
        total_bytes: what will be read in all, for ``on_progress``.
        on_progress: called with (bytes read, bytes to read).
    """

    def __init__(
        self,
        ctx: Context,
        index: TensorIndex,
        spec: ModelSpec,
        total_bytes: int,
        on_progress: OnProgress | None,
    ) -> None:
        self._ctx = ctx
        self._index = index
        self._spec = spec
        self._on_progress = on_progress
        self._read_bytes = 0
        self._total_bytes = total_bytes
        self.num_bytes: Counter[str] = Counter()

    def stack(self, roles: tuple[Role, Role, Role], layer: int, size: int, owner: str) -> Experts:
        """Experts [num, size, D], [num, size, D], [num, D, size]; two equal roles are fused."""
        names = [tensor_name(role, layer) for role in roles]
        entries = [self._index[name] for name in names]
        num = entries[0].shape[0] if len(entries[0].shape) == 3 else 1
        gate_format, up_format, down_format = (entry.format.ggml_id for entry in entries)
        experts = _native.Experts(
            gate_format, up_format, down_format, num, self._spec.hidden_size, size
        )
        raws = []
        for name in names:
            raw = self._index.raw(name)
            self._check_finite(name, raw)
            raws.append(raw if raw.ndim == 3 else raw[None])
        scales = [self.scales(name, num) for name in names]
        is_fused = names[0] == names[1]
        for e in range(num):
            gate, up, down = (raw[e] for raw in raws)
            if is_fused:
                gate, up = gate[:size], up[size:]
            experts.load(self._ctx, e, gate, up, down, *(scale[e] for scale in scales))
            self._advance(sum(part.nbytes for part in (gate, up, down)))
        for raw in raws:
            drop_pages(raw)
        self.num_bytes[owner] += experts.num_bytes
        return experts

    def matrix(self, role: Role, layer: int | None) -> Matrix:
        """A packed matrix [out, in].

        Raises:
            CheckpointError: it holds NaN or infinity, or its scale is wrong.
        """
        name = tensor_name(role, layer)
        entry, raw = self._index[name], self._index.raw(name)
        self._check_finite(name, raw)
        if raw.ndim == 1:  # a single output, stored as a vector
            raw = raw[None]
        scale = self.scales(name, 1)[0]
        matrix = _native.Matrix.pack(self._ctx, entry.format.ggml_id, raw, entry.shape[-1], scale)
        self.num_bytes["dense weights"] += matrix.num_bytes
        self._advance(raw.nbytes)
        if role is not Role.EMBEDDING:
            drop_pages(raw)
        return matrix

    def scales(self, name: str, num: int) -> list[float]:
        """What a file keeps beside a tensor to multiply its outputs by: [num], ones if nothing.

        NVFP4 files have ``STEM.scale`` beside ``STEM.weight``: one value, or one for each expert.

        Raises:
            CheckpointError: another number of values, or one that is not finite.
        """
        companion = f"{name.removesuffix('.weight')}.scale"
        if companion not in self._index:
            return [1.0] * num
        values = self._index.array(companion).reshape(-1)
        if values.size not in (1, num):
            raise CheckpointError(
                f"{companion} has {values.size} values, expected 1 or {num}.\n"
                f"  file: {self._index[companion].path}\n"
                "  Try: download or convert the file again; its tensors disagree."
            )
        if not np.isfinite(values).all():
            raise self.not_finite(companion)
        return [float(value) for value in np.broadcast_to(values, num)]

    def floats(self, role: Role, layer: int | None) -> Floats:
        """A small tensor as float32."""
        name = tensor_name(role, layer)
        values = self._index.array(name)
        if not np.isfinite(values).all():
            raise self.not_finite(name)
        self.num_bytes["dense weights"] += values.nbytes
        self._advance(self._index[name].num_bytes)
        return values

    def norms(self, role: Role, layer: int | None) -> Floats:
        """Gammas of every stream, [S, D]."""
        return self.floats(role, layer).reshape(self._spec.num_streams, self._spec.hidden_size)

    def transposed(self, role: Role, layer: int) -> Floats:
        """A convolution's [channels, kernel] as [kernel, channels]: channels lie in lanes."""
        return np.ascontiguousarray(self.floats(role, layer).T)

    def _check_finite(self, name: str, raw: Bytes) -> None:
        """NaN and infinity in plain types; in blocks a bad scale shows in the first logits."""
        exponent_masks = {"F32": (np.uint32, 0x7F800000), "F16": (np.uint16, 0x7C00),
                          "BF16": (np.uint16, 0x7F80)}  # fmt: skip
        known = exponent_masks.get(self._index[name].format.name)
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

    def not_finite(self, name: str) -> CheckpointError:
        """The error of a tensor with a value that is no number."""
        entry = self._index[name]
        return CheckpointError(
            f"tensor {name} holds NaN or infinity; every weight must be a finite number.\n"
            f"  file: {entry.path}, offset {entry.offset:#x}\n"
            "  Try: download or convert the file again; it is damaged."
        )

    def _advance(self, num_bytes: int) -> None:
        self._read_bytes += num_bytes
        if self._on_progress is not None:
            self._on_progress(min(self._read_bytes, self._total_bytes), self._total_bytes)
