"""One allocation that holds many tensors, so that what was planned is what is taken."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata.errors import DeviceError
from strata.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from strata.gpu.shapes import Shape, Shapes

_DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "float64")
}


class Arena:
    """Zeroed memory on a device, handed out in pieces; nothing is given back singly.

    Args:
        num_bytes: all of it.
        device: where.
        what: what it is for, for messages.

    Raises:
        DeviceError: the device has not got it.
    """

    def __init__(self, num_bytes: int, device: torch.device, what: str) -> None:
        try:
            self._memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"the card refused {format_bytes(num_bytes)} for {what}.\n"
                "  Try: close what else uses the card, or --device cpu."
            ) from error
        self._used = 0

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return self._memory.numel()

    @property
    def used_bytes(self) -> int:
        """Bytes handed out."""
        return self._used

    def release(self, address: int, num_bytes: int) -> int:  # noqa: ARG002
        """Gives bytes back, if that can be done here; how many."""
        return 0

    def restore(self, address: int, num_bytes: int) -> None:
        """Takes again what was given back.

        Raises:
            DeviceError: the device has not got it; none of it is taken then.
        """

    def take(self, shape: Shape) -> Tensor:
        """A zeroed tensor of its own."""
        dtype = _DTYPES[shape.dtype]
        first, size = self._used, math.prod(shape.sizes) * dtype.itemsize
        self._used += shape.num_bytes
        assert self._used <= self.num_bytes  # noqa: S101 - the plan has counted every tensor
        return self._memory[first : first + size].view(dtype).reshape(shape.sizes)

    def take_all(self, shapes: Shapes) -> dict[str, Tensor]:
        """Every shape by its name."""
        return {name: self.take(shape) for name, shape in shapes.items()}

    def overlay(self, parts: Mapping[str, Shapes]) -> dict[str, dict[str, Tensor]]:
        """Every part by its name; all of them begin at the same place."""
        first, end, taken = self._used, self._used, {}
        for name, shapes in parts.items():
            self._used = first
            taken[name] = self.take_all(shapes)
            end = max(end, self._used)
        self._used = end
        return taken
