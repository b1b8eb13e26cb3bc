"""Writes GGUF version 3: one file or a set of shards, tensor by tensor, never half a file.

Owns offsets and the temporary name; gguf_values encodes the metadata. What the tensors hold is
the caller's business. Files appear under their names only when complete.
"""

import contextlib
import errno
import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError
from strata.formats.block_formats import BlockFormat
from strata.formats.gguf import (
    DEFAULT_ALIGNMENT,
    MAGIC,
    MAX_DIMS,
    MAX_NAME_BYTES,
    MetadataValue,
)
from strata.formats.gguf_values import encode_string, encode_value
from strata.formats.shards import ShardName
from strata.units import format_bytes


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor to be written: shape slowest axis first, [out, in] or [E, out, in]."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat

    @property
    def num_bytes(self) -> int:
        """Stored size."""
        num_bytes = self.format.row_bytes(self.shape[-1])
        for size in self.shape[:-1]:
            num_bytes *= size
        return num_bytes


class GgufWriter:
    """One GGUF file under construction, as a context manager.

    The header is written at once; tensors follow in any order. A normal exit completes the file
    and gives it its name; an exception, Ctrl-C included, removes what was written.

    Example:
        >>> with GgufWriter(path, {"general.architecture": "qwen4exp"}, plans) as writer:
        ...     for plan in plans:
        ...         writer.write(plan.name, quantize(plan.format, weights[plan.name]))
    """

    def __init__(
        self, path: Path, metadata: Mapping[str, MetadataValue], tensors: Sequence[TensorPlan]
    ) -> None:
        """Create the temporary file and write its header.

        Args:
            path: where the file shall be; an older file there is replaced on completion.
            metadata: values as gguf_values.encode_value takes them.
            tensors: in file order.

        Raises:
            CheckpointError: a plan or value cannot be written, or the disk refuses.
        """
        self.path = path
        if metadata.get("general.alignment", DEFAULT_ALIGNMENT) != DEFAULT_ALIGNMENT:
            raise CheckpointError(
                f"cannot write {path}: general.alignment is {metadata['general.alignment']}, "
                f"expected {DEFAULT_ALIGNMENT}."
            )
        _check_target(path)
        offset = 0
        self._offsets: dict[str, int] = {}
        self._plans = {plan.name: plan for plan in tensors}
        if len(self._plans) != len(tensors):
            raise CheckpointError(f"cannot write {path}: two tensors have the same name.")
        for plan in tensors:
            _check_plan(plan)
            self._offsets[plan.name] = offset
            offset += -(-plan.num_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        header = _header(metadata, tensors, self._offsets)
        self._data_start = len(header)
        self.total_bytes = len(header) + offset
        self._waiting = set(self._plans)
        self._filled: dict[str, int] = {}
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._stream: BinaryIO | None = None
        check_space(path.parent, self.total_bytes)
        try:
            self._stream = self._temporary.open("wb")
            self._stream.write(header)
            # The full size now: a file with holes where tensors are written out of order.
            self._stream.truncate(self.total_bytes)
        except OSError as error:
            self.abandon()
            raise self._refusal(error) from error
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, data: npt.NDArray[Any]) -> None:
        """Store one planned tensor.

        Args:
            name: of a planned tensor that is not yet written.
            data: encoded rows, uint8; or float32 values for F32. Only the byte count is checked.

        Raises:
            CheckpointError: not planned, written before, wrong size, or the disk is full.
        """
        if name in self._plans and data.nbytes != self._plans[name].num_bytes:
            raise self._wrong_size(name, data.nbytes)
        self.append(name, data)

    def append(self, name: str, data: npt.NDArray[Any]) -> None:
        """Store the next rows of one planned tensor, which is complete once all have come.

        Args:
            name: of a planned tensor that is not yet complete.
            data: encoded rows, uint8; or float32 values for F32. Only the byte count is checked.

        Raises:
            CheckpointError: not planned, complete before, too many bytes, or the disk is full.
        """
        if name not in self._waiting:
            state = "was written before" if name in self._plans else "is not among the planned"
            raise CheckpointError(f"cannot write {self.path}: tensor {name} {state}.")
        filled = self._filled.get(name, 0)
        expected = self._plans[name].num_bytes
        if filled + data.nbytes > expected:
            raise self._wrong_size(name, filled + data.nbytes)
        assert self._stream is not None, "the writer is closed"  # noqa: S101
        try:
            self._stream.seek(self._data_start + self._offsets[name] + filled)
            self._stream.write(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise self._refusal(error) from error
        self._filled[name] = filled + data.nbytes
        if self._filled[name] == expected:
            self._waiting.remove(name)

    def close(self) -> None:
        """Complete the file: to disk, then under its name.

        Raises:
            CheckpointError: tensors are missing, or the disk refuses; the file is removed.
        """
        try:
            self.seal()
            self.publish()
        finally:
            self.abandon()

    def seal(self) -> None:
        """Bring the complete file to disk, still under its temporary name.

        Raises:
            CheckpointError: tensors are missing, or the disk refuses.
        """
        if self._waiting:
            listed = ", ".join(sorted(self._waiting)[:8])
            raise CheckpointError(
                f"cannot complete {self.path}: {len(self._waiting)} tensors were not "
                f"written: {listed}."
            )
        if self._stream is None:
            return
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
        except OSError as error:
            raise self._refusal(error) from error

    def publish(self) -> None:
        """Give the sealed file its name.

        Raises:
            CheckpointError: the disk refuses.
        """
        if self._stream is None:
            return
        try:
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._refusal(error) from error
        self._stream = None

    def abandon(self) -> None:
        """Remove what was written; nothing if the file is complete."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        with contextlib.suppress(OSError):
            stream.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> "GgufWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _wrong_size(self, name: str, found: int) -> CheckpointError:
        plan = self._plans[name]
        return CheckpointError(
            f"cannot write {self.path}: tensor {name} has {found} bytes, "
            f"expected {plan.num_bytes} ({plan.format.name}, {list(plan.shape)})."
        )

    def _refusal(self, error: OSError) -> CheckpointError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return CheckpointError(
                f"cannot write {self.path}: the disk is full; the file needs "
                f"{format_bytes(self.total_bytes)} ({self.total_bytes} bytes).\n"
                "  Try: free that much, or write to another disk."
            )
        return CheckpointError(
            f"cannot write {self.path}: {error.strerror}.\n"
            "  Try: check that the folder exists and may be written to."
        )


class ShardedGgufWriter:
    """A set of shards ``NAME-00001-of-0000N.gguf`` under construction, as a context manager.

    Shards are completed together: an exception before that removes all of them.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        metadata: Mapping[str, MetadataValue],
        shards: Sequence[Sequence[TensorPlan]],
    ) -> None:
        """Create every shard's temporary file.

        Args:
            folder: where the shards shall be.
            stem: the NAME part of their names.
            metadata: goes into the first shard; the others get the shard keys only.
            shards: the tensors of each shard, in file order; the first may be empty.

        Raises:
            CheckpointError: as GgufWriter, or no shards at all.
        """
        names = ShardName(stem, 1, len(shards)).siblings()
        if not names:
            raise CheckpointError(f"cannot write {stem}: no shards are planned.")
        self.paths = tuple(folder / str(name) for name in names)
        self._writers: list[GgufWriter] = []
        self._shard_of = {plan.name: i for i, shard in enumerate(shards) for plan in shard}
        num_tensors = sum(len(shard) for shard in shards)
        if len(self._shard_of) != num_tensors:
            raise CheckpointError(f"cannot write {stem}: two tensors have the same name.")
        try:
            for i, (path, shard) in enumerate(zip(self.paths, shards, strict=True)):
                keys = dict(metadata) if i == 0 else {}
                keys["split.no"] = np.uint16(i)
                keys["split.count"] = np.uint16(len(shards))
                keys["split.tensors.count"] = np.int32(num_tensors)
                self._writers.append(GgufWriter(path, keys, shard))
            check_space(folder, sum(writer.total_bytes for writer in self._writers))
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, data: npt.NDArray[Any]) -> None:
        """Store one planned tensor in its shard; as GgufWriter.write."""
        self._writer_of(name).write(name, data)

    def append(self, name: str, data: npt.NDArray[Any]) -> None:
        """Store the next rows of one planned tensor in its shard; as GgufWriter.append."""
        self._writer_of(name).append(name, data)

    def _writer_of(self, name: str) -> GgufWriter:
        shard = self._shard_of.get(name)
        if shard is None:
            raise CheckpointError(f"cannot write: tensor {name} is not among the planned.")
        return self._writers[shard]

    def close(self) -> None:
        """Complete every shard: all are on disk before the first one gets its name."""
        try:
            for writer in self._writers:
                writer.seal()
            for writer in self._writers:
                writer.publish()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Remove every shard that is not complete."""
        for writer in self._writers:
            writer.abandon()

    def __enter__(self) -> "ShardedGgufWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def check_space(folder: Path, num_bytes: int) -> None:
    """Refuse before hours of work what the disk cannot hold.

    Raises:
        CheckpointError: fewer than ``num_bytes`` are free, or there is no such folder.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise CheckpointError(
            f"cannot write to folder {folder}: {error.strerror}.\n  Try: create it first."
        ) from error
    if free < num_bytes:
        raise CheckpointError(
            f"the disk of {folder} is too full: {format_bytes(num_bytes)} ({num_bytes} bytes) "
            f"needed, {format_bytes(free)} free.\n  Try: another disk, or a smaller format."
        )


def _check_target(path: Path) -> None:
    """Refuse what is no file: the rename at the end would put one in place of a device or pipe."""
    try:
        is_other = bool(path.name) and path.exists() and not path.is_file()
    except (OSError, ValueError) as error:
        # ValueError: a NUL in the path.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError(
            f"cannot write {path}: {reason}.\n  Try: another name for the file."
        ) from error
    if is_other or not path.name:
        raise CheckpointError(
            f"cannot write {path}: that is not a regular file.\n"
            "  Try: the name of a new .gguf file."
        )


def _check_plan(plan: TensorPlan) -> None:
    if not 1 <= len(plan.shape) <= MAX_DIMS or min(plan.shape) < 1:
        raise CheckpointError(
            f"cannot write tensor {plan.name}: shape {list(plan.shape)}, expected 1 to {MAX_DIMS} "
            "sizes above zero."
        )
    if not 0 < len(plan.name) <= MAX_NAME_BYTES:
        raise CheckpointError(
            f"cannot write a tensor whose name has {len(plan.name)} characters, "
            f"expected 1 to {MAX_NAME_BYTES}."
        )


def _header(
    metadata: Mapping[str, MetadataValue], tensors: Sequence[TensorPlan], offsets: dict[str, int]
) -> bytes:
    """Everything before the tensor data, padded to the alignment."""
    parts = [MAGIC, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [encode_string(key), encode_value(value)]
    for plan in tensors:
        dims = plan.shape[::-1]
        parts.append(encode_string(plan.name))
        parts.append(struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        parts.append(struct.pack("<IQ", plan.format.ggml_id, offsets[plan.name]))
    header = b"".join(parts)
    return header + b"\0" * (-len(header) % DEFAULT_ALIGNMENT)
