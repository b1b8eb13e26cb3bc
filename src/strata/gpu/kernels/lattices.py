"""Lattice tables of the i-quants as words on a device, made once for each device."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from strata.formats.grids import GRIDS

_GRID_OF = {
    "IQ1_S": "iq1s",
    "IQ1_M": "iq1s",
    "IQ2_XXS": "iq2xxs",
    "IQ2_XS": "iq2xs",
    "IQ2_S": "iq2s",
    "IQ3_XXS": "iq3xxs",
    "IQ3_S": "iq3s",
}


@cache
def lattice(format_name: str, device: torch.device) -> Tensor:
    """[entries, words] int32: the points of a format's lattice, four signed bytes a word.

    Points of IQ1 are multiplied by eight. A format without a lattice gets one zero word.
    """
    if format_name not in _GRID_OF:
        return torch.zeros(1, dtype=torch.int32, device=device)
    points = np.ascontiguousarray(GRIDS[_GRID_OF[format_name]])
    if _GRID_OF[format_name] == "iq1s":
        points = points * np.int8(8)
    return torch.from_numpy(points.view(np.int32).copy()).to(device)
