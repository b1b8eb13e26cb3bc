"""Packed matrices: the way back gives the stored bytes, and no bit is stored twice."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from strata.errors import CheckpointError  # noqa: E402
from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.packing import PANEL_ROWS, pack, panel_bytes, unpack  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS, GROUP, planes_of  # noqa: E402
from strata.reference.block_terms import QUANTISED_FORMATS  # noqa: E402

INNERS = {32: 608, 64: 640, 256: 512}


def test_every_format_with_expert_arithmetic_can_be_packed() -> None:
    assert set(BLOCK_FORMATS) == set(QUANTISED_FORMATS)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_every_stored_bit_has_one_place(name: str) -> None:
    fmt = FORMATS[name]
    bits = np.concatenate([plane.bits for plane in planes_of(name)])
    assert np.array_equal(np.sort(bits), np.arange(GROUP // fmt.block_size * fmt.block_bytes * 8))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_unpacking_gives_the_stored_rows(name: str) -> None:
    inner, num_rows = INNERS[FORMATS[name].block_size], 21
    raw = np.random.default_rng().integers(0, 256, (num_rows, FORMATS[name].row_bytes(inner)))
    rows = torch.from_numpy(raw.astype(np.uint8))
    matrix = pack(name, rows, inner)
    assert torch.equal(unpack(matrix), rows)
    # A short last group may pad its scales to one load, never its codes.
    stored = -(-num_rows // PANEL_ROWS) * PANEL_ROWS * rows.shape[1]
    assert stored <= matrix.panels.numel() <= 1.08 * stored
    assert panel_bytes(name, inner) % 16 == 0


def test_rows_of_another_size_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"(?s)576 bytes, found 34.*Try:"):
        pack("Q4_K", torch.zeros(8, 34, dtype=torch.uint8), 1024)
