"""A few rows of blocks to float32 at once: what a token takes of an embedding or an n-gram table.

The same bits as ``block_decode``, which defines them and serves what the extension does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.formats.block_decode import dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.formats.block_formats import BlockFormat

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]


def decode_rows(
    fmt: BlockFormat,
    raw: Bytes,
    rows: NDArray[np.integer] | None = None,
    scale: float = 1.0,
    out: Floats | None = None,
) -> Floats:
    """Rows of ``raw`` as float32, each value multiplied by ``scale``.

    Args:
        fmt: format of every row.
        raw: [R, row_bytes] uint8, without gaps; not modified.
        rows: [N] which, 0 <= row < R; all of them if None.
        scale: rounded to float32 first.
        out: [N / k, k * n] float32, rows of any stride, to be written instead; None for a new one.

    Returns:
        [N, n] float32, or ``out``.
    """
    num_rows = len(raw) if rows is None else len(rows)
    if not (raw.flags.c_contiguous and _native.is_row_format(fmt.ggml_id)):
        values = dequantize(fmt, raw if rows is None else raw[rows]) * np.float32(scale)
        if out is None:
            return values
        if out.shape[1] % values.shape[1]:
            raise ValueError("the output has the wrong size")
        out[...] = values.reshape(out.shape)
        return out
    if out is None:
        width = raw.shape[1] // fmt.block_bytes * fmt.block_size
        out = np.empty((num_rows, width), np.float32)
    wanted = None if rows is None else rows.astype(np.int64)
    _native.decode_rows(fmt.ggml_id, raw, wanted, scale, out)
    return out
