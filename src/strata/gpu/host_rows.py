"""Embedding and n-gram rows of a prompt chunk, decoded by threads straight to where they are sent.

A chunk of 8,192 tokens needs 130,000 rows of the n-gram table. Read one by one, as a window reads
its few, they would take the host longer than the card takes for the chunk; so they are decoded out
of a mapping of the file, many threads at once, by the extension: meanwhile the interpreter is free
for launches. Owns the threads and the mapping.
"""

from __future__ import annotations

import mmap
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError
from strata.formats.row_decode import decode_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from strata.formats.model_tensors import Embedding
    from strata.formats.tensor_index import TensorEntry

    Tokens = NDArray[np.int32]
    Floats = NDArray[np.float32]

# A thread waits for the disk where a page is not in memory: the more, the more reads in flight.
_NUM_THREADS = 32
_PIECE_TOKENS = 128


class HostRows:
    """Rows by token.

    Args:
        embedding: of the model.
        table: the n-gram table's place in its file, or None.

    Raises:
        CheckpointError: the file cannot be read.
    """

    def __init__(self, embedding: Embedding, table: TensorEntry | None) -> None:
        self._embedding = embedding
        self._table = table
        self._stored = None if table is None else _mapped(table)
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="prompt-rows")

    def start(
        self, tokens: Tokens, ngram_rows: NDArray[np.int64] | None, out: Floats
    ) -> tuple[Future[None], ...]:
        """Begins to fill ``out``; ``out`` holds the rows when every future is done.

        Args:
            tokens: [N] int32.
            ngram_rows: [N, heads] rows of the table, or None without one.
            out: [N, D + W] float32, W values of n-gram rows.
        """
        return tuple(
            self._pool.submit(self._fill, piece, tokens, ngram_rows, out)
            for piece in (
                slice(first, first + _PIECE_TOKENS)
                for first in range(0, len(tokens), _PIECE_TOKENS)
            )
        )

    def close(self) -> None:
        """Ends the threads; rows on their way are waited for."""
        self._pool.shutdown()

    def _fill(
        self, piece: slice, tokens: Tokens, ngram_rows: NDArray[np.int64] | None, out: Floats
    ) -> None:
        # Straight to where they are sent: the memory of a copy in between would be new each time,
        # and threads would wait for each other to be given its pages.
        width = self._embedding.width
        self._embedding.rows(tokens[piece], out[piece, :width])
        if ngram_rows is not None and self._table is not None and self._stored is not None:
            wanted = ngram_rows[piece].reshape(-1)
            decode_rows(self._table.format, self._stored, wanted, out=out[piece, width:])


def finished(futures: tuple[Future[None], ...]) -> None:
    """Waits for all; the first failure is raised once nothing is on its way any more."""
    wait(futures)
    for future in futures:
        future.result()


def abandoned(futures: tuple[Future[None], ...]) -> None:
    """Lets what has begun end, without its result."""
    for future in futures:
        future.cancel()
    wait(futures)


def _mapped(table: TensorEntry) -> NDArray[np.uint8]:
    """[rows, row_bytes] uint8: the stored table, read where it is looked at."""
    num_bytes = table.shape[0] * table.row_bytes
    first = table.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    try:
        with table.path.open("rb") as file:
            pages = mmap.mmap(
                file.fileno(), table.offset - first + num_bytes, access=mmap.ACCESS_READ,
                offset=first,
            )  # fmt: skip
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"cannot read the n-gram table {table.name}: {error}.\n"
            f"  file: {table.path}, offset {table.offset:#x}\n"
            "  Try: check the disk and that the file is still in place."
        ) from error
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)  # a row's neighbours are other contexts' rows
    stored = np.frombuffer(pages, np.uint8, num_bytes, table.offset - first)
    return stored.reshape(table.shape[0], table.row_bytes)
