"""Memory of the host that a card can read: page-locked slice by slice, and a way around the rest.

Owns what is page-locked, until it is closed. A system may refuse at any size (``ulimit -l``, WSL);
what it refused goes through a small buffer that is page-locked for certain.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from strata.errors import DeviceError
from strata.units import MiB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

# A refusal costs no more than what is left of a slice.
_SLICE_BYTES = 256 * MiB
_PORTABLE_AND_MAPPED = 3
_NUM_BOUNCES = 2


class ReadExperts(Protocol):
    """``tiers.hand_off.ExpertHost.read``."""

    def __call__(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> None:
        """Copies experts of a layer to addresses."""


class HostMemory:
    """Regions as the card sees them.

    Args:
        blobs: (address, number, bytes of one) of blobs that stay where they are until ``close``;
            each is whole pages.
        device: of the card; a processor reads everything as it is.
        limit_bytes: most that is page-locked; None for all.
        bounce_shape: (places, bytes) of the buffer for what is not; there are two of them.
        owner: of the blobs; kept as long as they are page-locked.
        read: copies experts of a layer to addresses.
    """

    def __init__(
        self,
        blobs: Sequence[tuple[int, int, int]],
        device: torch.device,
        limit_bytes: int | None,
        bounce_shape: tuple[int, int],
        owner: object,
        read: ReadExperts,
    ) -> None:
        self._read = read
        self._is_card = device.type == "cuda"
        self._driver = _driver() if self._is_card else None
        self._slices: list[int] = []
        # Memory that is freed while it is locked stays taken, so a model that failed to be made,
        # or was dropped, lets go too. The end of the process does so by itself.
        self._release = weakref.finalize(self, _let_go, self._driver, self._slices, owner)
        self._release.atexit = False
        self._locked: dict[int, int] = {}
        self._bounce = [
            torch.zeros(bounce_shape, dtype=torch.uint8, pin_memory=self._is_card)
            for _ in range(_NUM_BOUNCES)
        ]
        self._next = 0
        # Who reads each, and when that was launched.
        self._readers: list[torch.cuda.Stream | None] = [None] * _NUM_BOUNCES
        self._has_read: list[torch.cuda.Event | None] = [None] * _NUM_BOUNCES
        left = limit_bytes
        for address, num, size in blobs:
            count = num if left is None else min(num, left // size)
            self._locked[address] = self._lock(address, count, size)
            if self._locked[address] < num:
                break
            left = None if left is None else left - num * size
        self.locked_bytes = sum(self._locked.get(at, 0) * size for at, _, size in blobs)

    def reachable(self, address: int, num: int, size: int) -> NDArray[np.int64]:
        """[num] addresses of such blobs; 0 for those the card cannot read where they are."""
        places = address + np.arange(num, dtype=np.int64) * size
        places[self._locked.get(address, 0) :] = 0
        return places

    def send(self, source: int, target: int, num_bytes: int, stream: int) -> None:
        """Copies a blob that is page-locked to the card, by its copy engine."""
        assert self._driver is not None  # noqa: S101 - there is a card
        error = self._driver.cuMemcpyHtoDAsync_v2(
            ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(num_bytes),
            ctypes.c_void_p(stream),
        )  # fmt: skip
        if error:
            raise DeviceError(
                f"the driver refused a copy of {num_bytes} bytes (error {error}).\n"
                "  Try: start again; if it comes back, --device cpu."
            )

    def bounced(
        self,
        wanted: Sequence[tuple[int, int]],
        stream: torch.cuda.Stream | None = None,
        *,
        is_passing: bool = False,
    ) -> NDArray[np.int64]:
        """Copies of experts, (layer, expert), that the card cannot read where they are.

        One place of a buffer each; where they are. What reads them is launched before the next
        call. What the card still reads of a buffer is waited for; with two of them a disk is at
        work for one while the card is at the other.

        Args:
            wanted: at most as many as there are places.
            stream: that alone will read them; None: nobody knows which.
            is_passing: they stay in no slot, so they will be asked for again.

        Raises:
            CheckpointError: one lies in a file that cannot be read.
        """
        buffer = self._free_bounce(stream)
        places = [buffer[number].data_ptr() for number in range(len(wanted))]
        by_layer: dict[int, tuple[list[int], list[int]]] = {}
        for (layer, expert), place in zip(wanted, places, strict=True):
            experts, own = by_layer.setdefault(layer, ([], []))
            experts.append(expert)
            own.append(place)
        for layer, (experts, own) in by_layer.items():
            self._read(layer, experts, own, is_passing=is_passing)
        return np.array(places, np.int64)

    def _free_bounce(self, stream: torch.cuda.Stream | None) -> Tensor:
        """The buffer whose turn it is, once the card has read what was in it."""
        number, self._next = self._next, (self._next + 1) % _NUM_BOUNCES
        if not self._is_card:
            return self._bounce[number]
        if self._readers[number - 1] is None:
            torch.cuda.synchronize()
            self._has_read = [None] * _NUM_BOUNCES
        else:
            # Whatever reads the buffer before this one has been launched by now.
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._readers[number - 1])
            self._has_read[number - 1] = event
        ready = self._has_read[number]
        if ready is not None:
            ready.synchronize()
        self._readers[number] = stream
        return self._bounce[number]

    def close(self) -> None:
        """Lets go of what is page-locked, once the card has read what it was told to."""
        self._release()

    def _lock(self, address: int, num: int, size: int) -> int:
        """How many blobs from the first on could be page-locked, some at a time."""
        if self._driver is None:
            return num
        step = max(1, _SLICE_BYTES // size)
        for first in range(0, num, step):
            at = address + first * size
            error = self._driver.cuMemHostRegister_v2(
                ctypes.c_void_p(at), ctypes.c_size_t(min(step, num - first) * size),
                ctypes.c_uint(_PORTABLE_AND_MAPPED),
            )  # fmt: skip
            if error:
                return first
            self._slices.append(at)
        return num


def _let_go(driver: ctypes.CDLL | None, slices: list[int], _owner: object) -> None:
    if driver is None or not slices:
        return
    try:
        torch.cuda.synchronize()
    finally:
        for address in slices:
            driver.cuMemHostUnregister(ctypes.c_void_p(address))
        slices.clear()


def _driver() -> ctypes.CDLL:
    """The driver's library, which torch has loaded already."""
    torch.zeros(1, device="cuda")  # a context of this thread
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
