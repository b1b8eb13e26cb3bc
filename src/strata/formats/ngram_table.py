"""Rows of the n-gram table, read from the file when asked for, many reads in flight.

The table is by far the largest tensor and each token needs a few short rows of it, so it is never
loaded. Owns the file descriptor and the reading threads. Which rows a token needs is
``reference.ngram_memory.ngram_rows``.
"""

from __future__ import annotations

import errno
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata import telemetry
from strata.errors import CheckpointError
from strata.formats.block_decode import dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.formats.tensor_index import TensorEntry

    Floats = NDArray[np.float32]
    Rows = NDArray[np.int64]

# Direct reads begin and end at multiples of this; 4 KiB suits every common disk and file system.
DIRECT_ALIGNMENT = 4096
NUM_THREADS = 16
# A read of a solid-state disk takes some 100 us; fewer rows per task keep more reads in flight,
# more rows per task cost less interpreter time.
MIN_TASK_ROWS = 4


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Rows on their way; ``wait`` gives them in the order asked for."""

    table: NgramTable
    shape: tuple[int, ...]
    order: NDArray[np.intp]
    raw: NDArray[np.uint8]
    tasks: tuple[Future[None], ...]

    def wait(self) -> Floats:
        """Decoded rows, ``rows.shape + (row_size,)`` float32. Waits for the disk.

        Raises:
            CheckpointError: a row could not be read.
        """
        for task in self.tasks:
            task.result()
        decoded = dequantize(self.table.entry.format, self.raw)
        return decoded[self.order].reshape(*self.shape, -1)

    def abandon(self) -> None:
        """Lets the reads end, without their result."""
        for task in self.tasks:
            task.cancel()
        wait(self.tasks)


class NgramTable:
    """Reader of one table.

    Args:
        entry: the table's place in its file.
        is_direct: read past the page cache, so that rows do not push weights out of memory. Falls
            back to plain reads, with a notice, where the file system refuses.

    Raises:
        CheckpointError: the file cannot be opened.
    """

    def __init__(self, entry: TensorEntry, *, is_direct: bool) -> None:
        self.entry = entry
        self._row_bytes = entry.row_bytes
        self._fd = -1
        self._is_direct = is_direct and hasattr(os, "O_DIRECT")
        if self._is_direct:
            try:
                self._fd = os.open(entry.path, os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise self._failure(entry.offset, error.strerror) from error
                self._fall_back()
        if self._fd < 0:
            self._fd = self._open_plain()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="ngram-rows")

    def request(self, rows: Rows) -> RowRequest:
        """Starts reading ``rows`` (any shape, each 0 <= row < rows of the table); does not wait."""
        distinct, order = np.unique(rows.reshape(-1), return_inverse=True)
        raw = np.empty((len(distinct), self._row_bytes), np.uint8)
        per_task = max(MIN_TASK_ROWS, -(-len(distinct) // (4 * NUM_THREADS)))
        tasks = tuple(
            self._pool.submit(self._read, distinct[i : i + per_task], raw[i : i + per_task])
            for i in range(0, len(distinct), per_task)
        )
        return RowRequest(self, rows.shape, order.reshape(-1), raw, tasks)

    def close(self) -> None:
        """Ends the threads and closes the file; requests on their way are waited for."""
        self._pool.shutdown()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self, rows: Rows, out: NDArray[np.uint8]) -> None:
        """Each row of the table into its row of ``out``; runs on a thread of the pool."""
        if self._is_direct:
            try:
                return self._read_direct(rows, out)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise self._failure(self.entry.offset, error.strerror) from error
                # Some file systems take the flag and refuse the read.
                self._fall_back()
        return self._read_plain(rows, out)

    def _read_direct(self, rows: Rows, out: NDArray[np.uint8]) -> None:
        span = (self._row_bytes // DIRECT_ALIGNMENT + 2) * DIRECT_ALIGNMENT
        # Anonymous memory, because it begins at a page.
        with mmap.mmap(-1, span) as buffer, memoryview(buffer) as view:
            for row, place in zip(rows.tolist(), out, strict=True):
                offset = self._offset(row)
                before = offset % DIRECT_ALIGNMENT
                size = -(-(before + self._row_bytes) // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
                with view[:size] as window:
                    got = os.preadv(self._fd, [window], offset - before)
                self._check_length(got - before, offset)
                with view[before : before + self._row_bytes] as stored:
                    place[:] = np.frombuffer(stored, np.uint8)

    def _read_plain(self, rows: Rows, out: NDArray[np.uint8]) -> None:
        for row, place in zip(rows.tolist(), out, strict=True):
            offset = self._offset(row)
            try:
                stored = os.pread(self._fd, self._row_bytes, offset)
            except OSError as error:
                raise self._failure(offset, error.strerror) from error
            self._check_length(len(stored), offset)
            place[:] = np.frombuffer(stored, np.uint8)

    def _offset(self, row: int) -> int:
        assert 0 <= row < self.entry.shape[0], (row, self.entry.shape)  # noqa: S101
        return self.entry.offset + row * self._row_bytes

    def _check_length(self, got: int, offset: int) -> None:
        if got < self._row_bytes:
            found = f"expected {self._row_bytes} bytes, found {max(got, 0)}"
            raise self._failure(offset, f"{found}; the file has become shorter")

    def _open_plain(self) -> int:
        try:
            return os.open(self.entry.path, os.O_RDONLY)
        except OSError as error:
            raise self._failure(self.entry.offset, error.strerror) from error

    def _fall_back(self) -> None:
        """From direct to plain reads, for good."""
        telemetry.notice(
            "ngram-table",
            f"{self.entry.path} cannot be read past the page cache here; n-gram rows are read "
            "through it.",
        )
        if self._fd >= 0:
            # The descriptor stays the same number: other threads may be using it.
            plain = self._open_plain()
            os.dup2(plain, self._fd, inheritable=False)
            os.close(plain)
        self._is_direct = False

    def _failure(self, offset: int, reason: str | None) -> CheckpointError:
        return CheckpointError(
            f"cannot read the n-gram table {self.entry.name}: {reason}.\n"
            f"  file: {self.entry.path}, offset {offset:#x}\n"
            "  Try: check the disk and that the file is still in place."
        )
