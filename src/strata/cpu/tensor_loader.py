"""One tensor of a model file at a time: read, packed, and let go.

Owns the count of bytes held. What the tensors are for is ``weights``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.formats.file_pages import drop_pages
from strata.formats.naming import Role, tensor_name

if TYPE_CHECKING:
    from strata._native import Context, Experts, Matrix
    from strata.cpu.buffers import Floats
    from strata.formats.model_tensors import ModelTensors
    from strata.model_spec import ModelSpec


class TensorLoader:
    """Reads tensors of one model by role and layer.

    Args:
        ctx: its threads pack; the packed form does not depend on its instruction set.
        tensors: of an open model.
        spec: its geometry.
    """

    def __init__(self, ctx: Context, tensors: ModelTensors, spec: ModelSpec) -> None:
        self._ctx = ctx
        self._tensors = tensors
        self._spec = spec
        self.num_bytes: Counter[str] = Counter()

    def stack(self, roles: tuple[Role, Role, Role], layer: int, size: int, owner: str) -> Experts:
        """Experts [num, size, D], [num, size, D], [num, D, size]; two equal roles are fused."""
        names = [tensor_name(role, layer) for role in roles]
        entries = [self._tensors.index[name] for name in names]
        num = entries[0].shape[0] if len(entries[0].shape) == 3 else 1
        gate_format, up_format, down_format = (entry.format.ggml_id for entry in entries)
        experts = _native.Experts(
            gate_format, up_format, down_format, num, self._spec.hidden_size, size
        )
        raws = []
        for name in names:
            raw = self._tensors.raw(name)
            raws.append(raw if raw.ndim == 3 else raw[None])
        scales = [self._tensors.scales(name, num) for name in names]
        is_fused = names[0] == names[1]
        for e in range(num):
            gate, up, down = (raw[e] for raw in raws)
            if is_fused:
                gate, up = gate[:size], up[size:]
            experts.load(self._ctx, e, gate, up, down, *(scale[e] for scale in scales))
            self._tensors.advance(sum(part.nbytes for part in (gate, up, down)))
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
        entry, raw = self._tensors.index[name], self._tensors.raw(name)
        if raw.ndim == 1:  # a single output, stored as a vector
            raw = raw[None]
        scale = self._tensors.scales(name, 1)[0]
        matrix = _native.Matrix.pack(self._ctx, entry.format.ggml_id, raw, entry.shape[-1], scale)
        self.num_bytes["dense weights"] += matrix.num_bytes
        self._tensors.advance(raw.nbytes)
        if role is not Role.EMBEDDING:
            drop_pages(raw)
        return matrix

    def floats(self, role: Role, layer: int | None) -> Floats:
        """A small tensor as float32."""
        name = tensor_name(role, layer)
        values = self._tensors.floats(name)
        self.num_bytes["dense weights"] += values.nbytes
        return values

    def norms(self, role: Role, layer: int | None) -> Floats:
        """Gammas of every stream, [S, D]."""
        return self.floats(role, layer).reshape(self._spec.num_streams, self._spec.hidden_size)

    def transposed(self, role: Role, layer: int) -> Floats:
        """A convolution's [channels, kernel] as [kernel, channels]: channels lie in lanes."""
        return np.ascontiguousarray(self.floats(role, layer).T)
