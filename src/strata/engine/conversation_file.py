"""The file of one conversation: how its tokens, states and cells lie in it.

Owns the bytes; docs/conversation-files.md describes them. Which files there are, and what is done
with them, is ``engine.conversation_disk``. Nothing in a file is trusted: sizes, types and checksums
are compared before anything is used.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from strata.engine.conversation_history import Checkpoint, History, Page
from strata.engine.conversation_points import PointKind
from strata.errors import CheckpointError
from strata.session_rules import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from strata.engine.session import Tokens
    from strata.session_rules import Arrays

MAGIC: Final = b"STRATCNV"
VERSION: Final = 1
# magic, version, checksum of the header, bytes of the header, bytes of the file
_PREFIX: Final = struct.Struct("<8sIIQQ")
_ALIGN: Final = 64
_MOST_HEADER_BYTES: Final = 1 << 26
_TYPES: Final = tuple(np.dtype(name) for name in ("<f4", "<f2", "|i1", "<i4", "<i8"))
_ARRAY: Final = struct.Struct("<HH")  # type, number of sizes
_MOST_SIZES: Final = 8


@dataclass(frozen=True, slots=True)
class Section:
    """A run of the file with its checksum."""

    offset: int
    num_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file says of itself, without its states.

    ``checkpoints`` and ``pages`` are (position, kind) and (start, stop, is whole) with the section
    that holds the arrays.
    """

    identity: str
    key: str
    tokens: Tokens
    checkpoints: tuple[tuple[int, PointKind, Section], ...]
    pages: tuple[tuple[int, int, bool, Section], ...]
    num_bytes: int


def write_conversation(file: BinaryIO, history: History, identity: str) -> int:
    """Writes a history; bytes written.

    Args:
        file: empty, at its beginning.
        history: not modified; may be shared with a session at work.
        identity: model and arithmetic that its states belong to.

    Raises:
        OSError: the disk is full, or gone.
    """
    tokens = np.ascontiguousarray(history.tokens, "<i4")
    parts = [[_bytes_of(tokens)]]
    parts += [list(_packed(item.snapshot.running)) for item in history.checkpoints]
    parts += [list(_packed(page.cells)) for page in history.pages]
    facts: dict[str, Any] = {
        "identity": identity,
        "key": history.key,
        "tokens": len(tokens),
        "checkpoints": [[item.position, str(item.kind)] for item in history.checkpoints],
        "pages": [[page.start, page.stop, page.is_whole] for page in history.pages],
    }
    lengths = [[sum(len(piece) for piece in part), _checksum(part)] for part in parts]
    facts["sections"] = lengths
    header = json.dumps(facts, separators=(",", ":")).encode()
    offsets = list(_offsets(_PREFIX.size + len(header), (num for num, _ in lengths)))
    end = offsets[-1] + lengths[-1][0]
    prefix = _PREFIX.pack(MAGIC, VERSION, zlib.crc32(header), len(header), end)
    file.write(prefix + header)
    at = len(prefix) + len(header)
    for offset, part, (num, _) in zip(offsets, parts, lengths, strict=True):
        file.write(bytes(offset - at))
        for piece in part:
            file.write(piece)
        at = offset + num
    return end


def read_contents(file: BinaryIO) -> Contents:
    """The first part of a file: everything but states and cells.

    Raises:
        CheckpointError: not such a file, of another version, cut short, or damaged; says which.
        OSError: it cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    header, num_header = _header(file, size)
    facts = _facts(header)
    lengths = facts["sections"]
    begins = list(_offsets(_PREFIX.size + num_header, (num for num, _ in lengths)))
    sections = [Section(at, *length) for at, length in zip(begins, lengths, strict=True)]
    if sections[-1].offset + sections[-1].num_bytes != size:
        raise CheckpointError(f"its parts come to other than its {size} bytes.")
    if sections[0].num_bytes != 4 * facts["tokens"]:
        raise CheckpointError("its tokens have another length than it says.")
    tokens = np.frombuffer(_read(file, sections[0]), "<i4").astype(np.int32)
    num = len(facts["checkpoints"])
    return Contents(
        identity=facts["identity"],
        key=facts["key"],
        tokens=tokens,
        checkpoints=tuple(
            (position, PointKind(kind), section)
            for (position, kind), section in zip(
                facts["checkpoints"], sections[1 : 1 + num], strict=True
            )
        ),
        pages=tuple(
            (start, stop, is_whole, section)
            for (start, stop, is_whole), section in zip(
                facts["pages"], sections[1 + num :], strict=True
            )
        ),
        num_bytes=size,
    )


def read_history(path: Path, num_tokens: int) -> History:
    """The conversation of a file, up to its last state at or before ``num_tokens``.

    Raises:
        CheckpointError: as ``read_contents``.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        contents = read_contents(file)
        checkpoints = [
            Checkpoint(Snapshot(position, _arrays(_read(file, section))), kind, 0)
            for position, kind, section in contents.checkpoints
            if position <= num_tokens
        ]
        end = checkpoints[-1].position if checkpoints else 0
        pages = [
            Page(start, stop, _arrays(_read(file, section)), is_whole)
            for start, stop, is_whole, section in contents.pages
            if start < end
        ]
    return History(contents.key, contents.tokens[:end].copy(), checkpoints, pages)


def _header(file: BinaryIO, size: int) -> tuple[bytes, int]:
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise CheckpointError("it is not the file of a conversation.")
    _, version, checksum, num_header, num_bytes = _PREFIX.unpack(prefix)
    if version != VERSION:
        raise CheckpointError(f"it has version {version}; this one reads {VERSION}.")
    if num_bytes != size:
        raise CheckpointError(f"it has {size} bytes of {num_bytes}.")
    if num_header > min(size - _PREFIX.size, _MOST_HEADER_BYTES):
        raise CheckpointError(f"its header of {num_header} bytes cannot be.")
    header = file.read(num_header)
    if len(header) != num_header or zlib.crc32(header) != checksum:
        raise CheckpointError("its header is damaged: the checksum differs.")
    return header, num_header


def _facts(header: bytes) -> Mapping[str, Any]:
    """The header's JSON, every field of the right kind, positions and pages in order."""
    try:
        facts = json.loads(header)
        _check_facts(facts)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise CheckpointError("its header does not say what it should.") from None
    return facts  # type: ignore[no-any-return]


def _check_facts(facts: Any) -> None:
    """Raises ValueError, TypeError or KeyError for anything unexpected."""
    num_tokens = _natural(facts["tokens"])
    if not (isinstance(facts["identity"], str) and isinstance(facts["key"], str)):
        raise TypeError
    positions = [_natural(position) for position, _ in facts["checkpoints"]]
    for _, kind in facts["checkpoints"]:
        PointKind(kind)
    starts = [_natural(start) for start, _, _ in facts["pages"]]
    stops = [_natural(stop) for _, stop, _ in facts["pages"]]
    if not all(isinstance(is_whole, bool) for _, _, is_whole in facts["pages"]):
        raise TypeError
    is_ordered = _ascends([0, *positions]) and _ascends([0, *stops])
    if not is_ordered or starts != [0, *stops[:-1]]:
        raise ValueError
    if positions[-1] != num_tokens or num_tokens > stops[-1] or num_tokens <= starts[-1]:
        raise ValueError
    if len(facts["sections"]) != 1 + len(positions) + len(stops):
        raise ValueError
    for num, checksum in facts["sections"]:
        if _natural(num) >= 1 << 62 or _natural(checksum) >= 1 << 32:
            raise ValueError


def _ascends(numbers: list[int]) -> bool:
    """Whether there is one after the first, and each is larger than the one before it."""
    return len(numbers) > 1 and all(one < two for one, two in itertools.pairwise(numbers))


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    return value


def _offsets(at: int, lengths: Iterable[int]) -> Iterator[int]:
    """Where sections of these lengths begin, the first at ``at`` or a little after."""
    for num in lengths:
        at += -at % _ALIGN
        yield at
        at += num


def _read(file: BinaryIO, section: Section) -> bytearray:
    """A section whose checksum is right; its own memory, so that arrays in it can be written."""
    content = bytearray(section.num_bytes)
    file.seek(section.offset)
    num_read = file.readinto(content)  # type: ignore[attr-defined]
    if num_read != section.num_bytes or zlib.crc32(content) != section.checksum:
        raise CheckpointError(
            f"it is damaged at byte {section.offset} or after: the checksum differs."
        )
    return content


def _checksum(pieces: Iterable[memoryview]) -> int:
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return value


def _packed(arrays: Arrays) -> Iterator[memoryview]:
    """Number of arrays; then of each its type and sizes; then, aligned, their elements."""
    at = 0
    heads = [struct.pack("<I", len(arrays))]
    for item in arrays:
        heads.append(_ARRAY.pack(_TYPES.index(item.dtype), item.ndim))
        heads.append(struct.pack(f"<{item.ndim}Q", *item.shape))
    head = b"".join(heads)
    yield memoryview(head)
    at = len(head)
    for item in arrays:
        if item.nbytes == 0:
            continue
        yield memoryview(bytes(-at % _ALIGN))
        at += -at % _ALIGN
        yield _bytes_of(item)
        at += item.nbytes


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _arrays(content: bytearray) -> Arrays:
    """What ``_packed`` made; views of ``content``.

    Raises:
        CheckpointError: it is something else.
    """
    try:
        forms, at = _forms(content)
    except struct.error:
        raise CheckpointError("a list of arrays in it ends too early.") from None
    arrays: list[NDArray[Any]] = []
    for dtype, sizes in forms:
        num_bytes = math.prod(sizes) * dtype.itemsize
        at += -at % _ALIGN if num_bytes else 0
        if at + num_bytes > len(content):
            raise CheckpointError("an array in it is larger than its place.")
        flat = np.frombuffer(content, dtype, math.prod(sizes), at if num_bytes else 0)
        try:
            arrays.append(flat.reshape(sizes))
        except (ValueError, OverflowError):  # no elements, but sizes beyond any memory
            raise CheckpointError("an array in it has sizes that cannot be.") from None
        at += num_bytes
    if at != len(content):
        raise CheckpointError("bytes in it belong to nothing.")
    return tuple(arrays)


def _forms(content: bytearray) -> tuple[list[tuple[np.dtype[Any], tuple[int, ...]]], int]:
    (num_arrays,) = struct.unpack_from("<I", content)
    forms, at = [], 4
    for _ in range(num_arrays):
        kind, num_sizes = _ARRAY.unpack_from(content, at)
        if kind >= len(_TYPES) or num_sizes > _MOST_SIZES:
            raise CheckpointError("an array in it has a type or a number of sizes that cannot be.")
        at += _ARRAY.size
        forms.append((_TYPES[kind], struct.unpack_from(f"<{num_sizes}Q", content, at)))
        at += 8 * num_sizes
    return forms, at
