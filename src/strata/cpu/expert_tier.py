"""Experts of which only some are in memory: kept ones, a bounded cache, and files for the rest.

Owns the memory, the open files and what is counted. Which experts are kept is decided by
``tiers.resident_plan``; reading and the order in which places are given up are the extension's
(``native/expert_source``).
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from strata import _native, telemetry
from strata.cpu.expert_layers import READ_PAST, allocate, factors_of
from strata.cpu.look_ahead import NO_LOOK_AHEAD, AheadCounts, packed_router
from strata.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from strata._native import Context, ExpertCopies, ExpertSource
    from strata.cpu.expert_files import ExpertsOnDisk
    from strata.cpu.expert_layers import LayerShape
    from strata.cpu.look_ahead import LookAhead
    from strata.formats.model_tensors import ModelTensors


FOUND = (
    "kept", "cached", "read", "bytes", "wait_ns", "scanned", "scan_read", "windows",
)  # fmt: skip
"""What is counted for each layer: experts found among the kept ones, in the cache, read; bytes
read; time waited for them. Of the experts, those that prompts asked for, and that were read for
these. Windows that asked."""


class FileCounts(NamedTuple):
    """What became of the experts that were asked for, since the start.

    Attributes:
        kept, cached, file_reads: found among the kept ones, found in the cache, read from a file.
        file_bytes: that were read.
        wait_s: that somebody waited for them.
    """

    kept: int
    cached: int
    file_reads: int
    file_bytes: int
    wait_s: float


class ExpertTier:
    """Every routed expert of a model, wherever it lies.

    Args:
        ctx: threads that pack what comes from a model's own file.
        shapes: of the layers.
        disk: where every expert can be read.
        kept: for each layer the experts that stay in memory.
        num_places: of the cache, at least one.
        ahead: experts that are read before they are asked for.

    Attributes:
        source: what a server and the products take experts from.
        scales: [L, E, 3] float32, factors on the outputs.
        kept: for each layer [n] int64, as given.
        kept_addresses: of each layer's first kept blob; they lie one after the other.

    Raises:
        DeviceError: the system refused the memory.
        CheckpointError: a file cannot be opened.
    """

    def __init__(
        self,
        ctx: Context,
        shapes: Sequence[LayerShape],
        disk: ExpertsOnDisk,
        kept: Sequence[NDArray[np.int64]],
        num_places: int,
        ahead: LookAhead = NO_LOOK_AHEAD,
    ) -> None:
        self._ctx, self._ahead = ctx, ahead
        self._shapes, self._disk, self._num_places = tuple(shapes), disk, num_places
        self.kept = tuple(kept)
        self.place_bytes = max(shape.blob_bytes for shape in shapes)
        sizes = [len(own) * shape.blob_bytes for own, shape in zip(kept, shapes, strict=True)]
        starts = np.cumsum([0, *sizes])
        all_places = num_places + ahead.num_places
        self._num_bytes = int(starts[-1]) + all_places * self.place_bytes + READ_PAST
        self._memory = allocate(self._num_bytes)
        base = self._memory.ctypes.data
        self.kept_addresses: list[int] = (base + starts[:-1]).tolist()
        self.scales = np.ones((len(shapes), shapes[0].num_experts, 3), np.float32)
        for layer, shape in enumerate(shapes):
            at = self.kept_addresses[layer]
            shape.native.set_memory(at, shape.blob_bytes, self.scales[layer].ctypes.data)
        self._descriptors: list[int] = []
        files = self._opened(disk.paths)
        self.source: ExpertSource = _native.ExpertSource(
            ctx, [shape.native for shape in shapes], files, disk.extents,
            base + int(starts[-1]), all_places, self.place_bytes, (self._memory, self.scales),
            ahead.num_places,
        )  # fmt: skip
        self.source.look_ahead(ahead.top_k)

    @property
    def num_bytes(self) -> int:
        """Memory of the experts, kept and cached."""
        return self._num_bytes

    @property
    def blob_bytes(self) -> list[int]:
        """[L] of an expert of each layer."""
        return [shape.blob_bytes for shape in self._shapes]

    @property
    def num_places(self) -> int:
        """Experts the cache has room for."""
        return self._num_places

    def fill_layer(self, layer: int, tensors: ModelTensors) -> None:
        """Brings a layer's factors and kept experts into memory.

        Raises:
            CheckpointError: a file cannot be read, or a factor cannot be used.
        """
        shape, kept = self._shapes[layer], self.kept[layer].tolist()
        self.scales[layer] = factors_of(shape, tensors)
        places = [
            self.kept_addresses[layer] + number * shape.blob_bytes for number in range(len(kept))
        ]
        self.read(layer, kept, places)
        for expert, place in zip(kept, places, strict=True):
            self.source.set_home(layer, expert, place)
        self._set_router(layer, tensors)
        num_bytes = sum(tensors.index[name].num_bytes for name in dict.fromkeys(shape.names))
        tensors.advance(num_bytes)

    def stop_look_ahead(self) -> None:
        """Reads nothing ahead: what comes is not what routers choose."""
        self.source.look_ahead(0)

    def resume_look_ahead(self) -> None:
        """The end of that."""
        self.source.look_ahead(self._ahead.top_k)

    def ahead_counts(self) -> AheadCounts:
        """Of all layers, since the start."""
        return AheadCounts(*self.ahead_counts_by_layer().sum(axis=0).tolist())

    def ahead_counts_by_layer(self) -> NDArray[np.int64]:
        """[L, ``AheadCounts``] since the start."""
        out = np.zeros((len(self._shapes), len(AheadCounts._fields)), np.int64)
        self.source.read_ahead_counts(out)
        return out

    def begin_read(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> ExpertCopies:
        """Begins to copy blobs to these addresses, whole pages each.

        Args:
            layer: whose they are.
            experts: of the layer.
            places: addresses, one for each.
            is_passing: they will be asked for again, since they stay nowhere: what is read of them
                is cached as far as places are free. Otherwise nothing is.
        """
        return self.source.copy(layer, experts, places, is_passing)

    def read(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> None:
        """The same, and waits.

        Raises:
            CheckpointError: a file cannot be read.
        """
        finish_read(self.begin_read(layer, experts, places, is_passing=is_passing))

    def take_failure(self) -> str:
        """Why an expert could not be read, which and where; told once, empty where none failed."""
        return self.source.take_failure()

    def counts(self) -> FileCounts:
        """Of all layers."""
        kept, cached, reads, num_bytes, waited = self.counts_by_layer().sum(axis=0).tolist()[:5]
        return FileCounts(kept, cached, reads, num_bytes, waited / 1e9)

    def disk_bytes_per_s(self) -> float | None:
        """Of reads that were waited for to their end; None before there was one."""
        num_bytes, nanoseconds = self.source.timed_reads
        return num_bytes * 1e9 / nanoseconds if nanoseconds else None

    def counts_by_layer(self) -> NDArray[np.int64]:
        """[L, ``FOUND``] since the start."""
        out = np.zeros((len(self._shapes), len(FOUND)), np.int64)
        self.source.read_counts(out)
        return out

    def close(self) -> None:
        """Closes the files; nobody may ask for experts any more."""
        self.source.close()
        self._close_all()

    def _set_router(self, layer: int, tensors: ModelTensors) -> None:
        """Lets a layer's experts be guessed by its router, where anything is read ahead.

        Raises:
            CheckpointError: the router holds NaN or infinity.
        """
        if self._ahead.num_places:
            router = packed_router(self._ctx, layer, tensors)
            if router is not None:
                self.source.set_router(layer, router)

    def _opened(self, paths: Sequence[Path]) -> list[tuple[str, int, int]]:
        files = []
        try:
            for path in paths:
                plain = os.open(path, os.O_RDONLY)
                self._descriptors.append(plain)
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(plain, 0, 0, os.POSIX_FADV_RANDOM)
                files.append((str(path), self._opened_directly(path), plain))
        except OSError as error:
            self._close_all()
            raise CheckpointError(
                f"cannot open the experts' file: {error.strerror}.\n  file: {path}\n"
                "  Try: check the path and the rights."
            ) from error
        return files

    def _opened_directly(self, path: Path) -> int:
        """A descriptor past the page cache, or -1 where the file system has no such thing."""
        if not hasattr(os, "O_DIRECT"):
            return -1
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            telemetry.notice(
                "expert-file",
                f"{path} cannot be read past the page cache here; experts are read through it.",
            )
            return -1
        self._descriptors.append(descriptor)
        return descriptor

    def _close_all(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()


def finish_read(copies: ExpertCopies) -> None:
    """Waits for blobs to be where they were to go.

    Raises:
        CheckpointError: a file cannot be read.
    """
    try:
        copies.wait()
    except _native.ExpertsNotRead as error:
        raise not_read(error) from error


def not_read(error: Exception | str) -> CheckpointError:
    """The error of an expert that could not be read; its text says which, why and where."""
    return CheckpointError(
        f"{error}\n  Try: ask again; if it comes back, check the disk and that the file is still "
        "in place."
    )
