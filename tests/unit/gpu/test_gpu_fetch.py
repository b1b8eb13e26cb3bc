"""Experts from RAM into slots: the processor's panels become the card's, bit for bit.

Checked against ``packing.pack`` of the same stored rows; contents are random bits.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from strata import _native  # noqa: E402
from strata.cpu.expert_serving import panel_bits  # noqa: E402
from strata.formats.block_formats import FORMATS  # noqa: E402
from strata.gpu.expert_slots import BlobLayout, empty_slots  # noqa: E402
from strata.gpu.kernels.fetch import Jobs, copy_from_host, repack  # noqa: E402
from strata.gpu.packing_fields import BLOCK_FORMATS  # noqa: E402
from strata.gpu.repack import make_repack  # noqa: E402


@pytest.fixture(scope="module")
def ctx() -> _native.Context:
    return _native.Context(1, "scalar")


def tables_of(ctx: _native.Context, formats, device: str):
    return tuple(make_repack(name, panel_bits(ctx, name), device) for name in formats)


def filled(ctx, formats, hidden: int, size: int, device: str, num: int = 3):
    """Blobs [num, bytes] as the processor packs random rows, and slots filled with the same."""
    rng = np.random.default_rng(7)
    layout = BlobLayout(formats, hidden, size)
    host = _native.ExpertLayer(*(FORMATS[name].ggml_id for name in formats), num, hidden, size)
    stride = -(-host.expert_bytes // 256) * 256
    blobs = np.zeros((num, stride), np.uint8)
    expected = empty_slots(layout, num, num, device)
    for expert in range(num):
        raws = []
        for role, name in enumerate(formats):
            rows, inner = layout.shape_of(role)
            shape = (rows, FORMATS[name].row_bytes(inner))
            raws.append(rng.integers(0, 256, shape).astype(np.uint8))
        host.pack(ctx, *raws, blobs[expert])
        expected.fill(expert, tuple(torch.from_numpy(raw).to(device) for raw in raws), (1, 1, 1))
    return host, blobs, expected


def jobs_of(sources: list[int], scales, slots, into: list[int]) -> Jobs:
    device = slots.blobs.device
    rows = [
        sources,
        [row.data_ptr() for row in scales],
        [slots.blobs[slot].data_ptr() for slot in into],
        [slots.scales[slot].data_ptr() for slot in into],
    ]
    return Jobs(*torch.tensor(rows, dtype=torch.int64, device=device))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_a_slot_has_the_bits_of_packing(ctx, name: str, device: str) -> None:
    # Where blocks are small: rows that end within a group, and within a load.
    small = FORMATS[name].block_size < 256
    hidden, size = (320, 32) if small else (256, 32)
    formats = (name, name, name if small and size % FORMATS[name].block_size == 0 else "Q8_0")
    host, blobs, expected = filled(ctx, formats, hidden, size, device)
    slots = empty_slots(expected.layout, 4, 3, device)
    slots.blobs.fill_(0x5A)
    memory = torch.from_numpy(blobs)
    memory = memory.pin_memory() if device == "cuda" else memory
    starts = [memory[2].data_ptr(), 0, memory[0].data_ptr()]
    raw = torch.full((3, blobs.shape[1]), 0xA5, dtype=torch.uint8, device=device)
    scales = torch.arange(9, dtype=torch.float32, device=device).view(3, 3).flip(0)
    jobs = jobs_of(starts, scales, slots, [3, 0, 1])
    copy_from_host(jobs, raw, host.expert_bytes)
    repack(tables_of(ctx, formats, device), slots.layout, jobs, raw)
    used = expected.layout.offset_of(3)
    assert torch.equal(slots.blobs[3, :used], expected.blobs[2, :used])
    assert torch.equal(slots.blobs[1, :used], expected.blobs[0, :used])
    # A job without an address leaves its slot as it was.
    assert (slots.blobs[0] == 0x5A).all()
    assert (slots.blobs[2] == 0x5A).all()
    assert slots.scales[3].tolist() == [6, 7, 8]
    assert slots.scales[1].tolist() == [0, 1, 2]


def test_formats_of_an_expert_may_differ(ctx, device: str) -> None:
    formats = ("IQ3_XXS", "IQ2_XS", "IQ4_NL")
    host, blobs, expected = filled(ctx, formats, 256, 32, device, num=1)
    slots = empty_slots(expected.layout, 1, 1, device)
    memory = torch.from_numpy(blobs)
    memory = memory.pin_memory() if device == "cuda" else memory
    raw = torch.zeros_like(torch.from_numpy(blobs), device=device)
    scales = torch.ones((1, 3), device=device)
    jobs = jobs_of([memory.data_ptr()], scales, slots, [0])
    copy_from_host(jobs, raw, host.expert_bytes)
    repack(tables_of(ctx, formats, device), slots.layout, jobs, raw)
    used = expected.layout.offset_of(3)
    assert torch.equal(slots.blobs[0, :used], expected.blobs[0, :used])
