"""Stored rows re-laid for a card: panels of eight rows, planes a thread loads by 16 bytes.

Owns the layout of a packed matrix and the way there and back, on any torch device. Which bits go
where is ``packing_fields``; how kernels read them is ``kernels.unpack``.

A matrix is a run of panels, so matrices of one format and inner size can be laid end to end and
multiplied in one launch. A panel is a run of planes; a plane is [loads, 8 rows, load_bytes], its
loads ascending with the groups of 256 weights. The last group of a row may be shorter: loads that
hold nothing of it are left out. Rows past the end of a matrix are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from strata.errors import CheckpointError
from strata.formats.block_formats import FORMATS
from strata.gpu.packing_fields import GROUP, planes_of

if TYPE_CHECKING:
    from strata.gpu.packing_fields import Plane

PANEL_ROWS = 8
BLOCKS = 8  # blocks of 32 weights in a group
_CHUNK_BYTES = 1 << 24  # stored bytes re-laid at a time; bits in flight take eight times that


@dataclass(frozen=True, slots=True)
class PlanePlace:
    """Where a plane lies in a panel: byte offset, bytes a load, loads a group, loads in all."""

    offset: int
    load_bytes: int
    loads: int
    total_loads: int


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A quantised matrix as the kernels read it.

    Attributes:
        format_name: of ``packing_fields.BLOCK_FORMATS``.
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
        """Panels of eight rows, the last perhaps not full."""
        return len(self.panels)


@cache
def places_of(format_name: str, inner: int) -> tuple[PlanePlace, ...]:
    """The planes of a panel whose rows have ``inner`` weights."""
    groups, rest = divmod(inner // 32, BLOCKS)
    places, offset = [], 0
    for plane in planes_of(format_name):
        total = groups * plane.loads + -(-plane.loads * rest // BLOCKS)
        places.append(PlanePlace(offset, plane.load_bytes, plane.loads, total))
        offset += total * PANEL_ROWS * plane.load_bytes
    return tuple(places)


@cache
def panel_bytes(format_name: str, inner: int) -> int:
    """Bytes of one panel of eight rows; a multiple of 16."""
    last = places_of(format_name, inner)[-1]
    return last.offset + last.total_loads * PANEL_ROWS * last.load_bytes


def pack(format_name: str, raw_rows: Tensor, inner: int, out: Tensor | None = None) -> PackedMatrix:
    """Stored rows as a packed matrix, on the device they are on.

    Args:
        format_name: a quantised block format.
        raw_rows: [num_rows, row_bytes] uint8 as in the file.
        inner: weights in a row.
        out: [num_panels, panel_bytes] uint8 to write to, or None for a new tensor.

    Raises:
        CheckpointError: rows of another size.
        UnsupportedError: not a quantised format.
    """
    planes = planes_of(format_name)
    expected = FORMATS[format_name].row_bytes(inner)
    if raw_rows.shape[1] != expected:
        raise CheckpointError(
            f"rows of {inner} weights as {format_name} take {expected} bytes, "
            f"found {raw_rows.shape[1]}.\n  Try: download the file again."
        )
    num_rows = len(raw_rows)
    num_panels = -(-num_rows // PANEL_ROWS)
    if out is None:
        shape = (num_panels, panel_bytes(format_name, inner))
        out = torch.empty(shape, dtype=torch.uint8, device=raw_rows.device)
    step = max(1, _CHUNK_BYTES // (expected * PANEL_ROWS))
    for first in range(0, num_panels, step):
        last = min(first + step, num_panels)
        rows = raw_rows[first * PANEL_ROWS : last * PANEL_ROWS]
        parts = _pack_rows(planes, places_of(format_name, inner), _groups(format_name, rows))
        torch.cat(parts, dim=1, out=out[first:last])
    return PackedMatrix(format_name, num_rows, inner, out)


def unpack(matrix: PackedMatrix) -> Tensor:
    """[num_rows, row_bytes] uint8: the stored rows a matrix was packed from."""
    name, inner = matrix.format_name, matrix.inner
    fmt = FORMATS[name]
    num_groups = -(-inner // GROUP)
    group_bits = GROUP // fmt.block_size * fmt.block_bytes * 8
    shape = (matrix.num_panels * PANEL_ROWS, num_groups, group_bits)
    stored = torch.zeros(shape, dtype=torch.uint8, device=matrix.panels.device)
    for plane, place in zip(planes_of(name), places_of(name, inner), strict=True):
        size = place.total_loads * PANEL_ROWS * place.load_bytes
        field = matrix.panels[:, place.offset : place.offset + size]
        field = field ^ plane.flips
        field = field.reshape(-1, place.total_loads, PANEL_ROWS, place.load_bytes).transpose(1, 2)
        field = field.reshape(shape[0], -1)
        missing = num_groups * plane.loads * plane.load_bytes - field.shape[1]
        field = torch.nn.functional.pad(field, (0, missing)).reshape(shape[0], num_groups, -1)
        stored[:, :, torch.from_numpy(plane.bits).to(field.device)] = _bits(field)
    rows = _bytes(stored).reshape(shape[0], -1)
    return rows[: matrix.num_rows, : fmt.row_bytes(inner)].contiguous()


def _groups(format_name: str, rows: Tensor) -> Tensor:
    """[rows up to whole panels, groups, group_bytes], zero where nothing is stored."""
    fmt = FORMATS[format_name]
    group_bytes = GROUP // fmt.block_size * fmt.block_bytes
    pad = (0, -rows.shape[1] % group_bytes, 0, -len(rows) % PANEL_ROWS)
    padded = torch.nn.functional.pad(rows, pad)
    return padded.reshape(len(padded), -1, group_bytes)


def _pack_rows(
    planes: tuple[Plane, ...], places: tuple[PlanePlace, ...], groups: Tensor
) -> list[Tensor]:
    """The planes of some panels, each [panels, bytes of the plane]."""
    bits: Tensor | None = None
    parts = []
    for plane, place in zip(planes, places, strict=True):
        if plane.bytes is not None:
            field = groups[:, :, torch.from_numpy(plane.bytes).to(groups.device)]
        else:
            bits = _bits(groups) if bits is None else bits
            field = _bytes(bits[:, :, torch.from_numpy(plane.bits).to(groups.device)])
        loads = field.reshape(len(groups), -1, plane.load_bytes)[:, : place.total_loads]
        by_panel = loads.reshape(-1, PANEL_ROWS, place.total_loads, plane.load_bytes)
        parts.append(by_panel.transpose(1, 2).reshape(len(by_panel), -1) ^ plane.flips)
    return parts


def _bits(field: Tensor) -> Tensor:
    """[..., n] bytes to [..., 8n] bits, lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=field.device)
    return (field[..., None] >> shifts & 1).flatten(-2)


def _bytes(bits: Tensor) -> Tensor:
    """[..., 8n] bits to [..., n] bytes."""
    weights = (1 << torch.arange(8, device=bits.device)).to(torch.uint8)
    eights = bits.reshape(*bits.shape[:-1], -1, 8)
    return torch.sum(eights * weights, dim=-1, dtype=torch.uint8)
