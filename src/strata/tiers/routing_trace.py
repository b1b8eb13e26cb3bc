"""Which experts a run asked for: the trace in memory, and its file.

Owns the file format ``STRT`` (docs/expert-cache.md). Who records is ``tiers.recorder``; what is
learned from a trace is ``tiers.replay``.
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError, SettingsError
from strata.result_files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from strata.model_spec import ModelSpec

    Ids = NDArray[np.uint16]

MAGIC = b"STRT"
VERSION = 1
# Ids are 16 bits wide, and so are the pairs of a profile.
MAX_EXPERTS = 1 << 16
MAX_LAYERS = 1 << 12
MAX_NAME_BYTES = 1 << 12
# Rows of one window; no chunk of a prompt is larger.
MAX_ROWS = 1 << 16
# Of all ids unpacked: a million tokens of 48 layers and ten experts.
MAX_BYTES = 1 << 30
_HEAD = struct.Struct("<4s6I")  # magic, version, L, E, K, windows, bytes of the name
_WINDOW = struct.Struct("<5I")  # kind, position, rows, rows kept, bytes of the block
_SUM = struct.Struct("<I")


class WindowKind(enum.IntEnum):
    """What the rows of a window were read for."""

    PROMPT = 0
    DECODE = 1


@dataclass(frozen=True, slots=True, eq=False)
class RoutingWindow:
    """Expert ids of rows that one step computed together.

    Attributes:
        kind: a chunk of a prompt, or a decode window.
        position: tokens of the conversation before its first row.
        num_kept: first rows that were accepted; all of a prompt's.
        ids: [L, T, K] uint16, of each row in the order the router gave them.
    """

    kind: WindowKind
    position: int
    num_kept: int
    ids: Ids

    @property
    def num_rows(self) -> int:
        """T."""
        return int(self.ids.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class RoutingTrace:
    """Windows in the order they were computed, and the geometry they belong to.

    Attributes:
        model_name: the name the model's file gives itself; may be empty.
        num_layers: L.
        num_experts: E.
        top_k: K.
        windows: in order.
    """

    model_name: str
    num_layers: int
    num_experts: int
    top_k: int
    windows: tuple[RoutingWindow, ...]

    def check(self, spec: ModelSpec, *, least_decoded: int) -> None:
        """Refuses a trace that says nothing of a model.

        Raises:
            SettingsError: it is of another geometry, or fewer tokens were decoded.
        """
        found = (self.num_layers, self.num_experts, self.top_k)
        own = (spec.num_layers, spec.num_experts, spec.top_k)
        if found != own:
            raise SettingsError(
                f"the trace has {found[0]} layers with {found[2]} of {found[1]} experts, the model "
                f"{own[0]} with {own[2]} of {own[1]}.\n"
                "  Try: --routing with a trace of this model, or leave it out."
            )
        if self.num_decoded < least_decoded:
            raise SettingsError(
                f"the trace has {self.num_decoded} decoded tokens, and {least_decoded} or more are "
                "needed.\n  Try: --routing with a longer trace, or leave it out."
            )

    @property
    def num_decoded(self) -> int:
        """Tokens accepted from decode windows."""
        return sum(w.num_kept for w in self.windows if w.kind is WindowKind.DECODE)

    @property
    def num_prompt(self) -> int:
        """Tokens read as prompt."""
        return sum(w.num_rows for w in self.windows if w.kind is WindowKind.PROMPT)

    def uses(self) -> NDArray[np.int64]:
        """[L, E] how often each expert was chosen by a row that was kept."""
        counts = np.zeros(self.num_layers * self.num_experts, np.int64)
        first = np.arange(self.num_layers)[:, None, None] * self.num_experts
        for window in self.windows:
            keys = window.ids[:, : window.num_kept].astype(np.int64) + first
            counts += np.bincount(keys.reshape(-1), minlength=len(counts))
        return counts.reshape(self.num_layers, self.num_experts)


def write_trace(path: Path, trace: RoutingTrace) -> None:
    """Writes the file beside its place and moves it there when it is whole.

    Raises:
        OSError: it cannot be written.
    """
    name = trace.model_name.encode("utf-8")
    head = _HEAD.pack(
        MAGIC, VERSION, trace.num_layers, trace.num_experts, trace.top_k, len(trace.windows),
        len(name),
    )  # fmt: skip
    parts = [head, name]
    for window in trace.windows:
        block = _packed(window.ids)
        parts += [
            _WINDOW.pack(
                window.kind, window.position, window.num_rows, window.num_kept, len(block)
            ),
            block,
        ]
    body = b"".join(parts)
    write_whole(path, body + _SUM.pack(zlib.crc32(body)))


def read_trace(path: Path) -> RoutingTrace:
    """The trace of a file, every number of it checked.

    Raises:
        CheckpointError: it is no trace, of another version, or damaged.
        OSError: it cannot be read.
    """
    return _Reader(path, path.read_bytes()).trace()


def check_ids(ids: Ids, num_experts: int) -> str | None:
    """What is wrong with ids [L, T, K], or None: each below E, and no row names one twice."""
    if ids.size and int(ids.max()) >= num_experts:
        return f"expert {int(ids.max())} of {num_experts}"
    ordered = np.sort(ids, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        return "a row that names an expert twice"
    return None


def _packed(ids: Ids) -> bytes:
    """Low bytes of all ids, then high bytes: the second half is nearly free."""
    raw = np.ascontiguousarray(ids, dtype="<u2").view(np.uint8).reshape(-1, 2)
    return zlib.compress(raw.T.tobytes(), 6)


class _Reader:
    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._at = 0
        self._num_unpacked = 0

    def trace(self) -> RoutingTrace:
        """Reads all of it."""
        if self._data[:4] != MAGIC:
            raise self._fault(f"the file begins with {self._data[:4]!r}, expected {MAGIC!r}")
        _, version, num_layers, num_experts, top_k, num_windows, name_bytes = self._fields(
            _HEAD, "the head"
        )
        if version != VERSION:
            raise self._fault(f"version {version}, expected {VERSION}")
        self._check_sum()
        self._bound("layers", num_layers, 1, MAX_LAYERS)
        self._bound("experts", num_experts, 1, MAX_EXPERTS)
        self._bound("experts of a row", top_k, 1, num_experts)
        self._bound("bytes of the name", name_bytes, 0, MAX_NAME_BYTES)
        self._bound("windows", num_windows, 0, len(self._data) // _WINDOW.size)
        try:
            name = self._take(name_bytes, "the name").decode("utf-8")
        except UnicodeDecodeError:
            raise self._fault("the model's name is not UTF-8") from None
        windows = tuple(
            self._window(number, num_layers, num_experts, top_k) for number in range(num_windows)
        )
        if self._at != len(self._data) - _SUM.size:
            left = len(self._data) - _SUM.size - self._at
            raise self._fault(f"{left} bytes follow the last window, expected none")
        return RoutingTrace(name, num_layers, num_experts, top_k, windows)

    def _window(self, number: int, num_layers: int, num_experts: int, top_k: int) -> RoutingWindow:
        what = f"window {number}"
        kind, position, num_rows, num_kept, num_packed = self._fields(_WINDOW, what)
        self._bound(f"{what}: kind", kind, 0, max(WindowKind))
        self._bound(f"{what}: rows", num_rows, 1, MAX_ROWS)
        lowest = num_rows if kind == WindowKind.PROMPT else 0
        self._bound(f"{what}: rows kept", num_kept, lowest, num_rows)
        block = self._take(num_packed, what)
        num_bytes = 2 * num_layers * num_rows * top_k
        self._num_unpacked += num_bytes
        if self._num_unpacked > MAX_BYTES:
            raise self._fault(f"it unpacks to more than {MAX_BYTES} bytes")
        unpacker = zlib.decompressobj()
        try:
            # Grows as it unpacks: a claim alone takes no memory.
            raw = unpacker.decompress(block, num_bytes + 1)
        except zlib.error as error:
            raise self._fault(f"{what} cannot be unpacked ({error})") from None
        if len(raw) != num_bytes or not unpacker.eof or unpacker.unused_data:
            raise self._fault(f"{what} unpacks to other than the {num_bytes} bytes it claims")
        planes = np.frombuffer(raw, np.uint8).reshape(2, -1)
        ids = (planes[0] | planes[1].astype(np.uint16) << 8).reshape(num_layers, num_rows, top_k)
        if wrong := check_ids(ids, num_experts):
            raise self._fault(f"{what} has {wrong}")
        return RoutingWindow(WindowKind(kind), position, num_kept, ids)

    def _check_sum(self) -> None:
        body, told = self._data[: -_SUM.size], self._data[-_SUM.size :]
        (expected,) = _SUM.unpack(told)
        if zlib.crc32(body) != expected:
            raise self._fault(f"checksum {zlib.crc32(body):08x}, expected {expected:08x}")

    def _fields(self, shape: struct.Struct, what: str) -> tuple[int, ...]:
        return shape.unpack(self._take(shape.size, what))

    def _take(self, num_bytes: int, what: str) -> bytes:
        left = len(self._data) - _SUM.size - self._at
        if num_bytes > left:
            raise self._fault(f"{what} needs {num_bytes} bytes, {max(left, 0)} are left")
        self._at += num_bytes
        return self._data[self._at - num_bytes : self._at]

    def _bound(self, what: str, value: int, lowest: int, highest: int) -> None:
        if not lowest <= value <= highest:
            raise self._fault(f"{what}: {value}, expected {lowest} to {highest}")

    def _fault(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"the routing trace cannot be used: {what}.\n"
            f"  file: {self._path}, near offset {self._at}\n"
            "  Try: record it again with strata run --routing-trace."
        )
