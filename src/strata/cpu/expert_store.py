"""A file with every routed expert of one model, each blob as the products want it.

Owns the format, the making of it (once for a model; goes on where it was broken off) and what is
refused. Who reads it is ``expert_tier``.

    8 bytes   STRATAEX
    u32, u32  version 1, bytes of the JSON
    JSON      model: its fingerprint; geometry; for each layer formats, bytes of a blob, offset
    u32       CRC-32 of everything before it
    table     for each layer: E u32 CRC-32 of the blobs, u32 CRC-32 of those; zeros until written
    layers    E blobs of each, whole pages
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu.expert_files import ExpertsOnDisk
from strata.cpu.expert_layers import allocate, pack_experts
from strata.errors import CheckpointError, DeviceError, PlanError
from strata.formats.block_formats import format_by_id
from strata.formats.model_tensors import ModelTensors
from strata.result_files import sync_folder
from strata.units import MiB, format_bytes, whole_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from strata._native import Context
    from strata.cpu.expert_layers import LayerShape
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec

    OnProgress = Callable[[int, int], None]

SUFFIX = ".experts"
_MAGIC = b"STRATAEX"
_VERSION = 1
_MAX_HEADER = 16 * MiB
# Packed and written at a time.
_PIECE_BYTES = 64 * MiB


class StoreDamaged(CheckpointError):
    """A store that is not whole, or not in this version's form; it can be made anew."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """What a store of one model looks like.

    Attributes:
        model: its fingerprint.
        header: the first bytes, as they have to be.
        table: offset of the checksums.
        offsets: of each layer's first blob.
        num_bytes: of the whole file.
        shapes: of the layers.
    """

    model: str
    header: bytes
    table: int
    offsets: tuple[int, ...]
    num_bytes: int
    shapes: tuple[LayerShape, ...]

    def record_of(self, layer: int) -> tuple[int, int]:
        """Offset and bytes of a layer's checksums."""
        sizes = [4 * (shape.num_experts + 1) for shape in self.shapes]
        return self.table + sum(sizes[:layer]), sizes[layer]

    def on_disk(self, path: Path) -> ExpertsOnDisk:
        """The experts in a store of this layout."""
        extents = [
            [(0, offset + expert * shape.blob_bytes, shape.blob_bytes)]
            for shape, offset in zip(self.shapes, self.offsets, strict=True)
            for expert in range(shape.num_experts)
        ]
        return ExpertsOnDisk((path,), np.array(extents, np.int64))


def store_layout(ctx: Context, shapes: Sequence[LayerShape], model: str) -> StoreLayout:
    """The layout for a model of this fingerprint, with the panels this program makes."""
    table_bytes = sum(4 * (shape.num_experts + 1) for shape in shapes)
    formats = sorted({number for shape in shapes for number in shape.formats})
    facts = {
        "model": model,
        # A program that lays rows out otherwise cannot use it.
        "panels": {str(number): _panel_check(ctx, number) for number in formats},
        "layers": [
            [shape.formats, shape.num_experts, shape.native.expert_bytes, shape.blob_bytes]
            for shape in shapes
        ],
    }
    text = json.dumps(facts, separators=(",", ":")).encode()
    header = struct.pack("<8sII", _MAGIC, _VERSION, len(text)) + text
    header += struct.pack("<I", zlib.crc32(header))
    table = whole_pages(len(header))
    sizes = [shape.num_experts * shape.blob_bytes for shape in shapes]
    offsets = np.cumsum([table + whole_pages(table_bytes), *sizes]).tolist()
    return StoreLayout(model, header, table, tuple(offsets[:-1]), offsets[-1], tuple(shapes))


def open_store(path: Path, layout: StoreLayout) -> ExpertsOnDisk:
    """The experts in a store that was made before.

    Raises:
        StoreDamaged: it is not whole.
        CheckpointError: it is another model's, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_header(path, file.read(_header_bytes(path, file.read(16)) - 16), layout)
            if size != layout.num_bytes:
                raise _damaged(path, f"it has {size} bytes, expected {layout.num_bytes}")
            for layer in range(len(layout.shapes)):
                if _record(file.fileno(), layout, layer) is None:
                    raise _damaged(path, f"the checksums of layer {layer} are not there")
    except OSError as error:
        raise CheckpointError(
            f"cannot read the expert store: {error.strerror}.\n  file: {path}\n"
            "  Try: check the disk, or --expert-store with another folder."
        ) from error
    return layout.on_disk(path)


def make_store(
    path: Path,
    layout: StoreLayout,
    ctx: Context,
    index: TensorIndex,
    spec: ModelSpec,
    on_progress: OnProgress | None = None,
) -> ExpertsOnDisk:
    """Makes the store at ``path``; a part that was made before is gone on with.

    Args:
        path: of the file; until it is whole it has ``.part`` behind its name.
        layout: ``store_layout`` of the model.
        ctx: its threads pack.
        index: the open model.
        spec: its geometry.
        on_progress: called with (bytes there, bytes in all).

    Raises:
        PlanError: the disk is full, or the folder cannot be written to.
        DeviceError: another program is making the same store, or the disk refuses.
        CheckpointError: a tensor cannot be used; names it.
    """
    part = path.with_name(path.name + ".part")
    descriptor = -1
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT, 0o644)
        _lock(descriptor, path)
        num_done = _prepare(descriptor, layout)
        tensors = ModelTensors(index, spec, has_draft=False, on_progress=None)
        for layer in range(len(layout.shapes)):
            if layer >= num_done:
                _write_layer(descriptor, layout, layer, ctx, tensors, on_progress)
        os.fsync(descriptor)
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise _not_made(path, part, layout, error) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return layout.on_disk(path)


def _panel_check(ctx: Context, number: int) -> int:
    """A checksum of how rows of a format are laid out."""
    fmt = format_by_id(number)
    inner = max(256, fmt.block_size)
    raw = np.random.default_rng(0).integers(0, 256, (16, fmt.row_bytes(inner)), np.uint8)
    out = np.zeros(raw.size, np.uint8)
    _native.pack_panels(ctx, number, raw, inner, out)
    return zlib.crc32(out.tobytes())


def _header_bytes(path: Path, first: bytes) -> int:
    """Bytes of the header that begins so."""
    if len(first) < 16:
        raise _damaged(path, "it ends inside its header")
    magic, version, num = struct.unpack("<8sII", first)
    if magic != _MAGIC:
        raise CheckpointError(
            f"this is no expert store.\n  file: {path}\n  Try: delete it, or --expert-store with "
            "another folder."
        )
    if version != _VERSION or num > _MAX_HEADER:
        raise _damaged(path, f"it is of version {version}, expected {_VERSION}")
    return 16 + int(num) + 4


def _check_header(path: Path, rest: bytes, layout: StoreLayout) -> None:
    text, own = rest[:-4], layout.header[16:-4]
    first = struct.pack("<8sII", _MAGIC, _VERSION, len(text))
    if len(rest) < 4 or struct.unpack("<I", rest[-4:])[0] != zlib.crc32(first + text):
        raise _damaged(path, "its header is damaged")
    if text == own:
        return
    if json.loads(text).get("model") != json.loads(own)["model"]:
        raise CheckpointError(
            f"this expert store is another model's.\n  file: {path}\n"
            "  Try: delete it, or --expert-store with another folder."
        )
    raise _damaged(path, "another version of Strata laid it out")


def _record(descriptor: int, layout: StoreLayout, layer: int) -> NDArray[np.uint32] | None:
    """[E] checksums of a layer that is whole, or None."""
    offset, size = layout.record_of(layer)
    raw = os.pread(descriptor, size, offset)
    if len(raw) < size or struct.unpack("<I", raw[-4:])[0] != zlib.crc32(raw[:-4]):
        return None
    return np.frombuffer(raw[:-4], "<u4")


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DeviceError(
            f"another program is making the expert store.\n  file: {path}\n"
            "  Try: again when it has ended."
        ) from error


def _prepare(descriptor: int, layout: StoreLayout) -> int:
    """Header and room; how many layers are there already."""
    num_done = 0
    if os.pread(descriptor, len(layout.header), 0) == layout.header:
        while num_done < len(layout.shapes) and _is_whole(descriptor, layout, num_done):
            num_done += 1
    else:
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, layout.offsets[0])
        os.pwrite(descriptor, layout.header, 0)
    # A full disk is met now, not after an hour.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, layout.num_bytes)
    os.fsync(descriptor)
    return num_done


def _is_whole(descriptor: int, layout: StoreLayout, layer: int) -> bool:
    """Whether a layer's blobs are as their checksums say; of what was broken off, all are read."""
    sums, shape = _record(descriptor, layout, layer), layout.shapes[layer]
    if sums is None:
        return False
    first = layout.offsets[layer]
    return all(
        zlib.crc32(os.pread(descriptor, shape.blob_bytes, first + expert * shape.blob_bytes))
        == sums[expert]
        for expert in range(shape.num_experts)
    )


def _write_layer(
    descriptor: int,
    layout: StoreLayout,
    layer: int,
    ctx: Context,
    tensors: ModelTensors,
    on_progress: OnProgress | None,
) -> None:
    shape, offset = layout.shapes[layer], layout.offsets[layer]
    step = max(1, min(shape.num_experts, _PIECE_BYTES // shape.blob_bytes))
    room = allocate(step * shape.blob_bytes).reshape(step, shape.blob_bytes)
    sums = np.zeros(shape.num_experts, "<u4")
    for first in range(0, shape.num_experts, step):
        experts = range(first, min(first + step, shape.num_experts))
        pack_experts(ctx, shape, tensors, experts, iter(room))
        for place, expert in enumerate(experts):
            sums[expert] = zlib.crc32(room[place])
        at = offset + first * shape.blob_bytes
        _write(descriptor, room[: len(experts)].reshape(-1), at)
        if on_progress is not None:
            on_progress(at + len(experts) * shape.blob_bytes, layout.num_bytes)
    # The checksums say that a layer is there, so they come after it.
    os.fsync(descriptor)
    record = sums.tobytes()
    os.pwrite(
        descriptor, record + struct.pack("<I", zlib.crc32(record)), layout.record_of(layer)[0]
    )
    os.fsync(descriptor)
    if hasattr(os, "posix_fadvise"):
        size = shape.num_experts * shape.blob_bytes
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def _write(descriptor: int, content: NDArray[np.uint8], offset: int) -> None:
    view = content.data
    while len(view):
        num = os.pwrite(descriptor, view, offset)
        view, offset = view[num:], offset + num


def _not_made(path: Path, part: Path, layout: StoreLayout, error: OSError) -> PlanError:
    size = format_bytes(layout.num_bytes)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        # Room that would be of no use to anyone.
        part.unlink(missing_ok=True)
    return PlanError(
        f"the expert store of {size} cannot be made: {error.strerror}.\n  file: {path}\n"
        "  Try: --expert-store with a folder that has room, or --mmap-experts, which reads "
        "the model's own file."
    )


def _damaged(path: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"the expert store is not usable: {what}.\n  file: {path}\n"
        "  Try: delete it; it is made anew from the model."
    )
