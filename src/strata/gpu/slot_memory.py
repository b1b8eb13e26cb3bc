"""Memory of slots that can be given back to the card, and taken again, while models run.

Addresses stay what they are, so launches that were captured stay right: only what lies behind them
goes and comes, in segments. Owns the driver's calls for it. Where the driver has them not, the
memory is an arena like any other, and stays.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import TYPE_CHECKING

import torch

from strata import telemetry
from strata.errors import DeviceError
from strata.gpu.arena import Arena
from strata.units import MiB, format_bytes

if TYPE_CHECKING:
    from torch import Tensor

_SEGMENT_BYTES = 16 * MiB
_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows_attributes", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class Segments:
    """A range of a card's addresses, each segment of which is there or not.

    Args:
        num_bytes: of the range; rounded up.
        device: the card.

    Raises:
        DeviceError: the driver refuses.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        torch.zeros(1, device=device)  # a context of this thread
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        number = torch.cuda.current_device() if device.index is None else device.index
        location = _Location(_DEVICE, number)
        self._properties = _Properties(_PINNED, 0, location, None, (ctypes.c_uint8 * 8)())
        self._access = _Access(location, _READ_WRITE)
        self.size = _SEGMENT_BYTES
        self.count = max(1, -(-num_bytes // self.size))
        address = ctypes.c_uint64()
        self._call("cuMemAddressReserve", ctypes.byref(address), self._bytes(self.count),
                   ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))  # fmt: skip
        self.address = int(address.value)
        self._handles: dict[int, int] = {}
        self.close = weakref.finalize(
            self, _free, self._driver, self.address, self.size, self.count, self._handles
        )
        self.close.atexit = False

    def take(self, number: int) -> bool:
        """Puts memory behind a segment; whether it had none."""
        if number in self._handles:
            return False
        handle, at = ctypes.c_uint64(), self._at(number)
        self._call("cuMemCreate", ctypes.byref(handle), self._bytes(1),
                   ctypes.byref(self._properties), ctypes.c_uint64(0))  # fmt: skip
        try:
            self._call("cuMemMap", at, self._bytes(1), ctypes.c_size_t(0), handle,
                       ctypes.c_uint64(0))  # fmt: skip
        except DeviceError:
            self._driver.cuMemRelease(handle)
            raise
        self._handles[number] = int(handle.value)
        self._call("cuMemSetAccess", at, self._bytes(1), ctypes.byref(self._access),
                   ctypes.c_size_t(1))  # fmt: skip
        return True

    def release(self, number: int) -> None:
        """Gives a segment's memory back; nothing may read it any more."""
        handle = self._handles.pop(number, None)
        if handle is not None:
            self._driver.cuMemUnmap(self._at(number), self._bytes(1))
            self._driver.cuMemRelease(ctypes.c_uint64(handle))

    def tensor(self, num_bytes: int) -> Tensor:
        """[bytes] uint8: the range from its beginning on."""
        told = {"shape": (num_bytes,), "typestr": "|u1", "data": (self.address, False),
                "version": 3}  # fmt: skip
        holder = type("Range", (), {"__cuda_array_interface__": told, "owner": self})()
        tensor = torch.as_tensor(holder, device="cuda")
        assert tensor.data_ptr() == self.address  # noqa: S101 - no copy was made
        return tensor

    def _at(self, number: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.address + number * self.size)

    def _bytes(self, num_segments: int) -> ctypes.c_size_t:
        return ctypes.c_size_t(num_segments * self.size)

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise DeviceError(
                f"the card refused memory for slots ({name}, error {error}).\n"
                "  Try: close what else uses the card."
            )


class SlotMemory(Arena):
    """An arena whose pieces can be given back, and taken again, segment by segment.

    Args:
        num_bytes: all of it.
        device: where.
        what: what it is for, for messages.
        segments: makes the range; None where the device has none.

    Raises:
        DeviceError: the device has not got it.
    """

    def __init__(
        self, num_bytes: int, device: torch.device, what: str, segments: Segments | None
    ) -> None:
        self._segments = segments
        if segments is None:
            super().__init__(num_bytes, device, what)
            return
        try:
            for number in range(segments.count):
                segments.take(number)
        except DeviceError as error:
            segments.close()
            raise DeviceError(
                f"the card refused {format_bytes(num_bytes)} for {what}.\n"
                "  Try: close what else uses the card, or --device cpu."
            ) from error
        self._memory = segments.tensor(num_bytes).zero_()
        self._used = 0

    def release(self, address: int, num_bytes: int) -> int:
        """Gives back what lies wholly inside these bytes; nothing may read them any more.

        Returns:
            The bytes given back.
        """
        found = self._inside(address, num_bytes)
        if self._segments is not None:
            for number in found:
                self._segments.release(number)
        return len(found) * (0 if self._segments is None else self._segments.size)

    def restore(self, address: int, num_bytes: int) -> None:
        """Takes these bytes again; what they hold is not known.

        Raises:
            DeviceError: the card has not got them; none of them are taken then.
        """
        if self._segments is None:
            return
        taken: list[int] = []
        try:
            for number in self._touched(address, num_bytes):
                if self._segments.take(number):
                    taken.append(number)
        except DeviceError:
            for number in taken:
                self._segments.release(number)
            raise

    def _inside(self, address: int, num_bytes: int) -> range:
        if self._segments is None:
            return range(0)
        first = -(-(address - self._segments.address) // self._segments.size)
        end = (address - self._segments.address + num_bytes) // self._segments.size
        return range(first, max(first, end))

    def _touched(self, address: int, num_bytes: int) -> range:
        if self._segments is None or not num_bytes:
            return range(0)
        first = (address - self._segments.address) // self._segments.size
        end = -(-(address - self._segments.address + num_bytes) // self._segments.size)
        return range(first, end)


def slot_memory(num_bytes: int, device: torch.device, what: str) -> SlotMemory:
    """Memory for slots, which can be given back where the driver allows it.

    Raises:
        DeviceError: the card has not got it.
    """
    segments = _tried(num_bytes, device) if device.type == "cuda" else None
    return SlotMemory(num_bytes, device, what, segments)


def _tried(num_bytes: int, device: torch.device) -> Segments | None:
    """Segments that have been written to, or None where something of it cannot be done here."""
    segments = None
    try:
        segments = Segments(num_bytes, device)
        segments.take(0)
        segments.tensor(min(num_bytes, segments.size)).zero_()
        torch.cuda.synchronize()
    except (DeviceError, OSError, AttributeError, RuntimeError, TypeError, AssertionError) as error:
        if segments is not None:
            segments.close()
        reason = (str(error) or type(error).__name__).splitlines()[0]
        telemetry.notice("slot-memory", f"slots keep their memory once they have it: {reason}")
        return None
    return segments


def _free(
    driver: ctypes.CDLL, address: int, size: int, count: int, handles: dict[int, int]
) -> None:
    if handles:
        torch.cuda.synchronize()
    for number, handle in handles.items():
        driver.cuMemUnmap(ctypes.c_uint64(address + number * size), ctypes.c_size_t(size))
        driver.cuMemRelease(ctypes.c_uint64(handle))
    handles.clear()
    driver.cuMemAddressFree(ctypes.c_uint64(address), ctypes.c_size_t(size * count))
