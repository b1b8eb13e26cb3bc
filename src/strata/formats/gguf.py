"""Reads one GGUF file (versions 2 and 3, little endian): metadata, tensor records, mapped bytes.

Trusts nothing in the file: every count and offset is checked against the file's size before
memory is taken for it. Joining shards is tensor_index's job, decoding is block_decode's.
"""

import mmap
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.block_formats import BlockFormat, format_by_id
from strata.units import MiB

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
# A vocabulary of 250,000 tokens takes 10 MiB; a longer header is damage, and would cost memory.
MAX_HEADER_BYTES = 512 * MiB
MAX_ALIGNMENT = 1 * MiB
MAX_NAME_BYTES = 65535
MAX_ARRAY_DEPTH = 4

STRING_TYPE = 8
ARRAY_TYPE = 9
# GGUF value type number to the numpy type of its little-endian bytes.
SCALAR_DTYPES: Mapping[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

MetadataValue = Any
"""int, float, bool, str, list of str, numpy array (numbers and bools), or list of such arrays."""

# The least a record can take: name length, one character, type or dimensions, value or offset.
_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

_TRY_AGAIN = "Try: download or write the file again; it is damaged."


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in a file.

    Attributes:
        name: as in the file.
        shape: slowest axis first: [out, in] or [E, out, in]; the last axis is contiguous.
        format: how each row of the last axis is stored.
        path: the file.
        offset: first byte, counted from the start of the file.
        num_bytes: stored size.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    path: Path
    offset: int
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row (last axis)."""
        return self.format.row_bytes(self.shape[-1])


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A read header and the mapped file.

    Attributes:
        data: the whole file, [size] uint8, read-only; lives as long as any view of it.
    """

    path: Path
    version: int
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorEntry, ...]
    data: npt.NDArray[np.uint8]


def read_gguf(path: Path) -> GgufFile:
    """The header of the GGUF file at ``path``, checked, with the file mapped.

    Raises:
        CheckpointError: the file cannot be read or breaks the format.
        UnsupportedError: unknown version or tensor type.

    Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """
    data = map_file(path)
    cursor = _Cursor(path, data)
    version = _read_version(cursor)
    num_tensors = cursor.count("tensor", _MIN_TENSOR_BYTES)
    num_keys = cursor.count("metadata key", _MIN_KEY_BYTES)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_keys):
        key = cursor.name("metadata key")
        if key in metadata:
            cursor.fail(f"metadata key {key!r} appears twice")
        metadata[key] = cursor.value(cursor.scalar("I"), key)
    alignment = _alignment(cursor, metadata)
    records = [_read_record(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = _place(cursor, records, data_start, alignment)
    return GgufFile(path, version, metadata, tensors, data)


def map_file(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a regular file as a read-only map, [size] uint8.

    Raises:
        CheckpointError: the file does not exist, is empty, or cannot be read.
    """
    try:
        # A pipe would block in open, so it is refused by its kind first.
        if not stat.S_ISREG(path.stat().st_mode):
            raise CheckpointError(
                f"cannot read {path}: not a regular file.\n  Try: the path of a .gguf file."
            )
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                raise CheckpointError(f"{path} is empty; expected a GGUF file.\n  {_TRY_AGAIN}")
            return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the path.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(
            f"cannot read {path}: {reason}.\n  Try: check the path and its permissions."
        ) from error


@dataclass(slots=True)
class _Record:
    """A tensor record as the file has it: dims fastest first, offset from the data's start."""

    name: str
    dims: tuple[int, ...]
    type_id: int
    offset: int
    at: int


class _Cursor:
    """Reads values one after another, and knows the place for an error."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.size = len(data)
        self.position = 0
        self._view = data.data[:MAX_HEADER_BYTES]

    @property
    def remaining(self) -> int:
        """Bytes left that may belong to the header."""
        return len(self._view) - self.position

    def fail(self, what: str, error: type[CheckpointError] = CheckpointError) -> NoReturn:
        """Raise, with file and offset."""
        raise error(f"{what}.\n  file: {self.path}, offset {self.position:#x}\n  {_TRY_AGAIN}")

    def take(self, num_bytes: int, what: str) -> memoryview:
        """The next bytes."""
        if num_bytes > self.remaining:
            if self.size > MAX_HEADER_BYTES:
                self.fail(f"header does not end within {MAX_HEADER_BYTES} bytes ({what})")
            self.fail(
                f"file is truncated: {what} needs {num_bytes} bytes, {self.remaining} are left"
            )
        start = self.position
        self.position += num_bytes
        return self._view[start : self.position]

    def scalar(self, code: str) -> int:
        """The next integer, ``code`` as in struct."""
        value: int = struct.unpack("<" + code, self.take(struct.calcsize(code), "a number"))[0]
        return value

    def count(self, noun: str, min_bytes: int) -> int:
        """The next 64-bit count, refused if that many items of ``min_bytes`` cannot follow."""
        number = self.scalar("Q")
        if number * min_bytes > self.remaining:
            self.fail(
                f"{noun} count {number} is absurd: {self.remaining} bytes are left, "
                f"each takes at least {min_bytes}"
            )
        return number

    def text(self, what: str) -> str:
        """The next length-prefixed UTF-8 string."""
        raw = self.take(self.count(f"{what}: byte", 1), what)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def name(self, what: str) -> str:
        """The next string, as a name: not empty, not absurdly long."""
        name = self.text(what)
        if not 0 < len(name) <= MAX_NAME_BYTES:
            self.fail(f"{what} has {len(name)} characters; expected 1 to {MAX_NAME_BYTES}")
        return name

    def value(self, type_id: int, key: str, depth: int = 0) -> MetadataValue:
        """The next metadata value of GGUF type ``type_id``."""
        if type_id == STRING_TYPE:
            return self.text(f"value of {key!r}")
        if type_id == ARRAY_TYPE:
            return self._array(key, depth)
        dtype = self._dtype(type_id, key)
        return self._numbers(dtype, 1, key)[0].item()

    def _array(self, key: str, depth: int) -> MetadataValue:
        type_id = self.scalar("I")
        what = f"{key!r}: array item"
        if type_id == STRING_TYPE:
            return [self.text(what) for _ in range(self.count(what, 8))]
        if type_id == ARRAY_TYPE:
            if depth == MAX_ARRAY_DEPTH:
                self.fail(f"value of {key!r} nests arrays deeper than {MAX_ARRAY_DEPTH}")
            return [self._array(key, depth + 1) for _ in range(self.count(what, 12))]
        dtype = self._dtype(type_id, key)
        return self._numbers(dtype, self.count(what, dtype.itemsize), key)

    def _dtype(self, type_id: int, key: str) -> np.dtype[Any]:
        code = SCALAR_DTYPES.get(type_id)
        if code is None:
            self.fail(f"value of {key!r} has unknown type {type_id}", UnsupportedError)
        return np.dtype(code)

    def _numbers(self, dtype: np.dtype[Any], number: int, key: str) -> npt.NDArray[Any]:
        raw = self.take(number * dtype.itemsize, f"value of {key!r}")
        if dtype == np.bool_ and (np.frombuffer(raw, np.uint8) > 1).any():
            self.fail(f"value of {key!r} holds a bool other than 0 and 1")
        values = np.frombuffer(raw, dtype).astype(dtype.newbyteorder("="))
        values.flags.writeable = False
        return values


def _read_version(cursor: _Cursor) -> int:
    magic = bytes(cursor.take(4, "magic"))
    if magic != MAGIC:
        raise CheckpointError(
            f"{cursor.path} is not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}.\n"
            "  Try: the path of a .gguf file (a download page or a pointer file is not one)."
        )
    version = cursor.scalar("I")
    if version not in VERSIONS:
        hint = " (a big-endian file)" if version & 0xFFFF == 0 else ""
        raise UnsupportedError(
            f"GGUF version {version:#x}{hint} is not known; known are 2 and 3, little endian.\n"
            f"  file: {cursor.path}\n  Try: a newer conversion of this model."
        )
    return version


def _alignment(cursor: _Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_sound = type(alignment) is int and 0 < alignment <= MAX_ALIGNMENT
    if not is_sound or alignment & (alignment - 1):
        cursor.fail(f"general.alignment is {alignment!r}; expected a power of two to 1 MiB")
    return int(alignment)


def _read_record(cursor: _Cursor) -> _Record:
    at = cursor.position
    name = cursor.name("tensor name")
    num_dims = cursor.scalar("I")
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.fail(f"{name} has {num_dims} dimensions; expected 1 to {MAX_DIMS}")
    dims = tuple(cursor.scalar("Q") for _ in range(num_dims))
    if 0 in dims:
        cursor.fail(f"{name} has shape {list(reversed(dims))}; a size is zero")
    return _Record(name, dims, cursor.scalar("I"), cursor.scalar("Q"), at)


def _place(
    cursor: _Cursor, records: list[_Record], data_start: int, alignment: int
) -> tuple[TensorEntry, ...]:
    """Entries in file order; each inside the file, none over another, no name twice."""
    names: set[str] = set()
    tensors = []
    for record in records:
        cursor.position = record.at
        if record.name in names:
            cursor.fail(f"tensor {record.name} appears twice")
        names.add(record.name)
        tensors.append(_entry(cursor, record, data_start, alignment))
    end, last = data_start, ""
    for entry in sorted(tensors, key=lambda entry: entry.offset):
        if entry.offset < end:
            cursor.position = entry.offset
            cursor.fail(f"tensors {last} and {entry.name} overlap by {end - entry.offset} bytes")
        end, last = entry.offset + entry.num_bytes, entry.name
    return tuple(tensors)


def _entry(cursor: _Cursor, record: _Record, data_start: int, alignment: int) -> TensorEntry:
    shape = tuple(reversed(record.dims))
    try:
        block_format = format_by_id(record.type_id)
        num_bytes = block_format.row_bytes(shape[-1])
    except CheckpointError as error:
        raise type(error)(
            f"tensor {record.name}: {error}\n  file: {cursor.path}, offset {record.at:#x}"
        ) from None
    for size in shape[:-1]:
        num_bytes *= size
    if record.offset % alignment:
        cursor.fail(f"{record.name} begins at {record.offset}, not a multiple of {alignment}")
    offset = data_start + record.offset
    if offset + num_bytes > cursor.size:
        cursor.fail(
            f"file is truncated: {record.name} ({list(shape)}, {block_format.name}) ends at byte "
            f"{offset + num_bytes}, the file has {cursor.size}"
        )
    return TensorEntry(record.name, shape, block_format, cursor.path, offset, num_bytes)
