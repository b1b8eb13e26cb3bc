"""Many reads of one file in flight, without the interpreter: what every tier on a disk reads with.

Owns descriptors, whether the page cache is passed by, and what errors become. The reads themselves
are done by the extension (``native/file_reads``); what lies where in a file is the caller's matter.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

NUM_THREADS = 64
"""Reads in flight at once; a solid-state disk is at its full rate from 32 to 128 on."""

DIRECT_ALIGNMENT: int = _native.DIRECT_ALIGNMENT
"""Bytes. Long direct reads go straight to their place where it lies as far into such a stretch of
memory as the read does in the file; other reads are copied once more."""


class ReadError(OSError):
    """A read failed. ``errno`` is None where the file ended inside the read.

    Attributes:
        offset: where the read begins, bytes.
        wanted, got: bytes.
    """

    def __init__(self, path: Path, number: int, offset: int, wanted: int, got: int) -> None:
        reason = os.strerror(number) if number else f"expected {wanted} bytes, found {got}"
        super().__init__(number or None, reason)
        self.filename = str(path)
        self.offset, self.wanted, self.got = offset, wanted, got


@dataclass(slots=True)
class Reads:
    """Reads on their way into an array, which must not be looked at before ``wait``."""

    _file: ReadFile
    _arguments: tuple[Int64s, Int64s, Int64s, Bytes]
    _batch: _native.FileReads
    _is_direct: bool

    @property
    def is_done(self) -> bool:
        """Whether no read is on its way any more."""
        return self._batch.is_done

    @property
    def num_reads(self) -> int:
        """Reads that have arrived; those of no bytes are not counted."""
        return self._batch.num_reads

    @property
    def num_bytes(self) -> int:
        """Bytes that have arrived."""
        return self._batch.num_bytes

    def wait(self) -> None:
        """Returns when every byte has arrived.

        Raises:
            ReadError: the first read, in the order they were given, that failed.
        """
        failure = self._batch.wait()
        if failure is not None and self._is_direct and failure[0] == errno.EINVAL:
            # Some file systems take the flag and refuse the read.
            self._file.fall_back()
            self._batch, self._is_direct = self._file.begin(*self._arguments)
            failure = self._batch.wait()
        if failure is not None:
            raise ReadError(self._file.path, *failure)

    def abandon(self) -> None:
        """Drops reads not begun and lets the others end; afterwards nothing is written any more."""
        self._batch.abandon()


class ReadFile:
    """A file open for many reads at a time.

    Args:
        path: the file.
        is_direct: read past the page cache. Falls back to plain reads where the file system
            refuses.
        num_threads: reads in flight at once.
        on_refused: called when direct reads were refused, at most once.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        is_direct: bool,
        num_threads: int = NUM_THREADS,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self._on_refused = on_refused
        self._reader = _native.FileReader(num_threads)
        self._plain = self._direct = -1
        if is_direct and hasattr(os, "O_DIRECT"):
            try:
                self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._is_direct = True
                self.fall_back()
        self._is_direct = self._direct >= 0
        if not self._is_direct and self._plain < 0:
            self._plain = self._open_plain()

    @property
    def is_direct(self) -> bool:
        """Whether reads pass the page cache by."""
        return self._is_direct

    def start(self, offsets: Int64s, sizes: Int64s, places: Int64s, out: Bytes) -> Reads:
        """Begins reads and does not wait for them.

        Rows in the page cache may be there at once: up to 512 plain reads of together 256 KiB are
        looked for there, and wake no thread if at most 128 are not in memory. Those are asked for,
        and read by ``wait``.

        Args:
            offsets: [N] int64, where each begins in the file. Any alignment.
            sizes: [N] int64, bytes of each.
            places: [N] int64, where each goes, bytes into ``out``.
            out: uint8 without gaps, any shape. No two reads may overlap.
        """
        arguments = (offsets, sizes, places, out)
        return Reads(self, arguments, *self.begin(*arguments))

    def close(self) -> None:
        """Ends the threads and closes the file; reads on their way are waited for."""
        self._reader.close()
        for descriptor in (self._plain, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._plain = self._direct = -1

    def begin(
        self, offsets: Int64s, sizes: Int64s, places: Int64s, out: Bytes
    ) -> tuple[_native.FileReads, bool]:
        """The batch of ``start``, and whether it passes the page cache by."""
        is_direct = self._is_direct
        descriptor = self._direct if is_direct else self._plain
        batch = self._reader.start(descriptor, offsets, sizes, places, out, is_direct)
        return batch, is_direct

    def fall_back(self) -> None:
        """From direct to plain reads, for good; the old descriptor may still be in use."""
        if self._plain < 0:
            self._plain = self._open_plain()
        if self._is_direct:
            self._is_direct = False
            if self._on_refused is not None:
                self._on_refused()

    def _open_plain(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY)
        if hasattr(os, "posix_fadvise"):
            # What is wanted is asked for by itself; its neighbours are not.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor
