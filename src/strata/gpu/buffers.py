"""Buffers of a decode window on a card, by the names the launches use; allocated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from strata.gpu.arena import Arena
from strata.gpu.kernels.experts import ExpertRows
from strata.gpu.kernels.quantize import Codes
from strata.gpu.session_layout import HEADER_BYTES, code_sizes, input_width
from strata.gpu.shapes import total_bytes
from strata.reference.rope import rope_tables
from strata.session_rules import MAX_WINDOW_ROWS

if TYPE_CHECKING:
    from torch import Tensor

    from strata.gpu.shapes import Shapes
    from strata.model_spec import ModelSpec

_CODE_FIELDS = ("codes", "scales", "sums", "scaled_sums", "scaled_half_sums")


@dataclass(frozen=True, slots=True)
class WindowBuffers:
    """Device memory of a window, and where the host writes and reads.

    Attributes:
        tensors: by the names of ``session_layout.window_shapes``.
        codes: by width of their rows. What lies past a row's end is zero.
        experts, shared: between the launches of the routed experts, of the shared one.
        position: [1] int64, tokens before row 0; a view of the inputs.
        num_pending: [1] int32, rows of the last window that were kept; likewise.
        rows: [8, D + W] float32, embedding and n-gram rows of each token; likewise.
        host_inputs: page-locked copy of the inputs.
        host_logits: [8, V] float32, page-locked.
        host_flags: [L + 1, 4] int32, page-locked; the first of a row is the layer's.
        num_bytes: device memory of all of it.
    """

    tensors: dict[str, Tensor]
    codes: dict[int, Codes]
    experts: ExpertRows
    shared: ExpertRows
    position: Tensor
    num_pending: Tensor
    rows: Tensor
    host_inputs: Tensor
    host_logits: Tensor
    host_flags: Tensor
    num_bytes: int

    def codes_of(self, width: int, num_rows: int) -> Codes:
        """Codes of ``num_rows`` rows of this width."""
        return self.codes[width].rows(num_rows)


def make_buffers(spec: ModelSpec, shapes: Shapes, device: torch.device) -> WindowBuffers:
    """All buffers, zeroed; rotary tables filled in.

    Args:
        spec: geometry.
        shapes: of ``memory_plan.buffer_shapes``.
        device: where.

    Raises:
        DeviceError: the card has not got the memory.
    """
    arena = Arena(total_bytes(shapes.values()), device, "the buffers of a conversation")
    tensors = arena.take_all(shapes)

    def codes(name: str) -> Codes:
        return Codes(*(tensors[f"{name}.{field}"] for field in _CODE_FIELDS))

    def expert_rows(name: str) -> ExpertRows:
        return ExpertRows(tensors[f"{name}.gate_up"], codes(f"{name}.h"), tensors[f"{name}.y"])

    if "rope_cos" in tensors:
        positions = np.arange(len(tensors["rope_cos"]))
        for name, table in zip(
            ("rope_cos", "rope_sin"), rope_tables(spec.rope, positions, np.float32), strict=True
        ):
            tensors[name].copy_(torch.from_numpy(table))
    is_card = device.type == "cuda"

    def pinned(like: Tensor) -> Tensor:
        return torch.zeros(like.shape, dtype=like.dtype, pin_memory=is_card)

    inputs = tensors["inputs"]
    return WindowBuffers(
        tensors,
        {inner: codes(f"codes.{inner}") for inner in code_sizes(spec)},
        expert_rows("experts"),
        expert_rows("shared"),
        *input_views(inputs, spec),
        host_inputs=pinned(inputs),
        host_logits=pinned(tensors["logits"]),
        host_flags=pinned(tensors["flags"]),
        num_bytes=arena.num_bytes,
    )


def input_views(inputs: Tensor, spec: ModelSpec) -> tuple[Tensor, Tensor, Tensor]:
    """Position, pending rows and token rows in the bytes of a window's inputs."""
    rows = inputs[HEADER_BYTES:].view(torch.float32).reshape(MAX_WINDOW_ROWS, input_width(spec))
    return inputs[:8].view(torch.int64), inputs[8:12].view(torch.int32), rows


def input_bytes(spec: ModelSpec, num_rows: int) -> int:
    """Bytes of the inputs of a window of ``num_rows`` rows."""
    return HEADER_BYTES + num_rows * 4 * input_width(spec)
