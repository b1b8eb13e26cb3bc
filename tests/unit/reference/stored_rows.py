"""Random stored rows of any block format with finite scales, for tests."""

from __future__ import annotations

import numpy as np

from strata.formats.block_formats import FORMATS

# Byte offsets of the FP16 scales in a block; IQ1_M spreads its scale over high nibbles.
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def random_rows(name: str, num_rows: int, inner: int, seed: int) -> np.ndarray:
    """[num_rows, row_bytes] uint8: every code and sub-scale occurs, scales are around 1/100."""
    rng = np.random.default_rng(seed)
    fmt = FORMATS[name]
    if fmt.is_plain:
        values = rng.normal(size=(num_rows, inner)).astype(np.float32)
        bits = {"F32": values, "F16": values.astype(np.float16)}.get(
            name, (values.view(np.uint32) >> 16).astype(np.uint16)
        )
        return bits.view(np.uint8)
    blocks = rng.integers(0, 256, (num_rows * inner // fmt.block_size, fmt.block_bytes), np.uint8)
    for offset in _HALVES.get(name, ()):
        scales = rng.uniform(0.002, 0.02, len(blocks)) * rng.choice([-1, 1], len(blocks))
        blocks[:, offset : offset + 2] = scales.astype("<f2")[:, None].view(np.uint8)
    if name == "IQ1_M":
        scales = rng.uniform(0.002, 0.02, len(blocks)).astype("<f2").view(np.uint16)
        for i in range(4):
            nibble = (scales >> 4 * i & 15).astype(np.uint8)
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | nibble << 4
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(115, 125, len(blocks))
    return blocks.reshape(num_rows, -1)
