"""Float arrays as the kernels like them: on a cache line, and costing memory only when touched."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

# One cache line, and one AVX-512 register: a load never straddles two lines.
ALIGNMENT = 64


def zeros(shape: tuple[int, ...], dtype: type = np.float32) -> NDArray[Any]:
    """A zero array that begins at a multiple of 64 bytes; untouched pages cost nothing."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
