"""Gives pages of a mapped file back once their content has been copied elsewhere."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def drop_pages(view: NDArray[np.uint8]) -> None:
    """Lets the system reuse the pages of ``view``; reading it again brings them back.

    Does nothing where the array is no view of a mapped file.
    """
    owner: object = view
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if not isinstance(owner, mmap.mmap) or view.nbytes == 0:
        return
    start = view.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    # Whole pages inside the view only: the neighbours belong to other tensors.
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (start + view.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first:
        owner.madvise(mmap.MADV_DONTNEED, first, end - first)
