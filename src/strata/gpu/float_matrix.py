"""Matrices of plain types re-laid for a card: routers, small projections, files without blocks.

Owns the layout of ``FloatMatrix``; ``kernels.float_product`` reads it. A panel is eight rows:
[loads, 8 rows, 4, values of a load], so that the thread of row r and partial sum j loads sixteen
bytes holding weights k = 4 i + j, i ascending. Rows and columns past the end are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata.errors import UnsupportedError
from strata.gpu.weight_layout import FLOAT_FORMATS, PANEL_ROWS, float_panel_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

SUMS = 4  # partial sums of a row, by k modulo 4
_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)


@dataclass(frozen=True, slots=True)
class FloatMatrix:
    """A matrix of F32, F16 or BF16.

    Attributes:
        format_name: of the stored values.
        num_rows: rows of the matrix; the last panel may have fewer than eight.
        inner: weights in a row.
        panels: [num_panels, panel_bytes] uint8, contiguous, 16-byte aligned.
    """

    format_name: str
    num_rows: int
    inner: int
    panels: Tensor

    @property
    def num_panels(self) -> int:
        """Panels of eight rows."""
        return len(self.panels)


def pack_floats(
    format_name: str, raw_rows: Tensor, inner: int, out: Tensor | None = None
) -> FloatMatrix:
    """Stored rows as a matrix, on the device they are on.

    Args:
        format_name: F32, F16 or BF16.
        raw_rows: [num_rows, row_bytes] uint8 as in the file.
        inner: weights in a row.
        out: [num_panels, panel_bytes] uint8 to write to, or None for a new tensor.

    Raises:
        UnsupportedError: another format.
    """
    if format_name not in FLOAT_FORMATS:
        raise UnsupportedError(
            f"{format_name} is no plain format; known are {', '.join(FLOAT_FORMATS)}.\n"
            "  Try: a file quantised to another type."
        )
    size = FLOAT_FORMATS[format_name]
    num_rows = len(raw_rows)
    num_panels = -(-num_rows // PANEL_ROWS)
    panel_bytes = float_panel_bytes(format_name, inner)
    width = panel_bytes // PANEL_ROWS
    if out is None:
        out = torch.empty((num_panels, panel_bytes), dtype=torch.uint8, device=raw_rows.device)
    pad = (0, width - raw_rows.shape[1], 0, num_panels * PANEL_ROWS - num_rows)
    values = torch.nn.functional.pad(raw_rows, pad).view(_DTYPES[format_name])
    by_load = values.reshape(num_panels, PANEL_ROWS, -1, 16 // size, SUMS).permute(0, 2, 1, 4, 3)
    out.copy_(by_load.contiguous().view(torch.uint8).reshape(num_panels, panel_bytes))
    return FloatMatrix(format_name, num_rows, inner, out)
