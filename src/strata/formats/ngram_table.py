"""Rows of the n-gram table: from memory where they were read before, from the file otherwise.

The table is by far the largest tensor and each token needs a few short rows of it, so it is never
loaded. Owns the open file and the rows kept. Which rows a token needs is
``reference.ngram_memory.ngram_rows``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata import _native, telemetry
from strata.errors import CheckpointError
from strata.file_reads import ReadError, ReadFile
from strata.formats.row_decode import decode_rows
from strata.host_memory import available_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.file_reads import Reads
    from strata.formats.tensor_index import TensorEntry

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]
    Rows = NDArray[np.int64]

CACHE_BYTES = 64 << 20
"""Memory of rows kept, where nothing else is wished: n-grams of a text come again."""

# Of memory a kept row takes beside its own bytes, at most.
_ENTRY_BYTES = 32


@dataclass(slots=True)
class _Coming:
    """What a request does not have yet.

    Attributes:
        reads: on their way into the request's ``raw``.
        rows: [N] int64, all rows asked for.
        missing: [M] int64, which of N are read.
        repeats: [2 R] int64, pairs of N: the first is a copy of the second. None if there are none.
    """

    reads: Reads
    rows: Rows
    missing: Rows
    repeats: Rows | None


@dataclass(slots=True)
class RowRequest:
    """Rows on their way; ``wait`` gives them in the order asked for."""

    _table: NgramTable
    _shape: tuple[int, ...]
    _raw: Bytes
    _coming: _Coming | None = None

    @property
    def is_done(self) -> bool:
        """Whether no read is on its way any more."""
        return self._coming is None or self._coming.reads.is_done

    def wait(self, out: Floats | None = None) -> Floats:
        """Decoded rows, ``rows.shape + (row_size,)`` float32. Waits for the disk.

        Args:
            out: [T, row_size * rows of one token] float32, rows of any stride, to be written and
                returned instead.

        Raises:
            CheckpointError: a row could not be read.
        """
        if self._coming is not None:
            self._table.take_in(self._coming, self._raw)
            self._coming = None
        decoded = decode_rows(self._table.entry.format, self._raw, out=out)
        return decoded.reshape(*self._shape, -1) if out is None else decoded

    def abandon(self) -> None:
        """Lets the reads end, without their result."""
        if self._coming is not None:
            self._coming.reads.abandon()


class NgramTable:
    """Reader of one table.

    Args:
        entry: the table's place in its file.
        is_direct: read past the page cache, so that rows do not push weights out of memory. Falls
            back to plain reads, with a notice, where the file system refuses. None: where the
            table is larger than half of the memory that is free.
        cache_bytes: memory of rows kept, at most; 0 keeps none.

    Raises:
        CheckpointError: the file cannot be opened.
    """

    def __init__(
        self, entry: TensorEntry, *, is_direct: bool | None, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.entry = entry
        self._row_bytes = entry.row_bytes
        if is_direct is None:
            is_direct = entry.num_bytes > available_bytes() // 2
        whole = entry.shape[0] * (entry.row_bytes + _ENTRY_BYTES)
        self._kept = _native.RowCache(entry.row_bytes, min(cache_bytes, whole))
        try:
            self._file = ReadFile(entry.path, is_direct=is_direct, on_refused=self._say_plain)
        except OSError as error:
            raise self._failure(entry.offset, error.strerror) from error

    @property
    def cache_bytes(self) -> int:
        """Memory that rows kept may come to take."""
        return self._kept.num_bytes

    @property
    def num_asked(self) -> int:
        """Rows asked for so far."""
        return self._kept.num_asked

    @property
    def num_found(self) -> int:
        """Those of them that were in memory."""
        return self._kept.num_found

    def request(self, rows: Rows) -> RowRequest:
        """Starts reading ``rows`` (any shape, each 0 <= row < rows of the table); does not wait."""
        wanted = np.ascontiguousarray(rows, np.int64).reshape(-1)
        raw = np.empty((len(wanted), self._row_bytes), np.uint8)
        unknown = self._kept.take(wanted, self.entry.shape[0], self.entry.offset, raw)
        if unknown is None:
            return RowRequest(self, rows.shape, raw)
        missing, offsets, sizes, places, repeats = unknown
        reads = self._file.start(offsets, sizes, places, raw)
        return RowRequest(self, rows.shape, raw, _Coming(reads, wanted, missing, repeats))

    def take_in(self, coming: _Coming, raw: Bytes) -> None:
        """Waits for reads into ``raw``, which is then whole; its rows are kept.

        Raises:
            CheckpointError: a row could not be read.
        """
        try:
            coming.reads.wait()
        except ReadError as error:
            shorter = "" if error.errno else "; the file has become shorter"
            raise self._failure(error.offset, f"{error.strerror}{shorter}") from error
        self._kept.put(coming.rows, raw, coming.missing)
        if coming.repeats is not None:
            raw[coming.repeats[::2]] = raw[coming.repeats[1::2]]

    def close(self) -> None:
        """Ends the threads and closes the file; requests on their way are waited for."""
        self._file.close()

    def _say_plain(self) -> None:
        telemetry.notice(
            "ngram-table",
            f"{self.entry.path} cannot be read past the page cache here; n-gram rows are read "
            "through it.",
        )

    def _failure(self, offset: int, reason: str | None) -> CheckpointError:
        return CheckpointError(
            f"cannot read the n-gram table {self.entry.name}: {reason}.\n"
            f"  file: {self.entry.path}, offset {offset:#x}\n"
            "  Try: check the disk and that the file is still in place."
        )
