"""A small model's experts as blobs of one file: shapes that the tests of memory and files share."""

from __future__ import annotations

from strata import _native
from strata.cpu.expert_layers import LayerShape
from strata.formats.block_formats import FORMATS

LAYERS, EXPERTS, SIZE = 2, 8, 32
NUM_KEYS = LAYERS * EXPERTS
BLOB = 4096


def shapes() -> list[LayerShape]:
    number = FORMATS["Q8_0"].ggml_id
    formats = (number, number, number)
    names = ("gate", "up", "down")
    return [
        LayerShape(
            names, formats, _native.ExpertLayer(*formats, EXPERTS, SIZE, SIZE), BLOB, EXPERTS, SIZE
        )
        for _ in range(LAYERS)
    ]
