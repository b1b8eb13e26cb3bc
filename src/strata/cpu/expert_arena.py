"""Every routed expert of a model in RAM, and the threads that answer a card from there.

Owns the memory (one blob an expert: gate, up, down in the processor's panels) and the server's
life. The card's side is ``gpu``; what both say to each other is ``tiers.hand_off``.
"""

from __future__ import annotations

import mmap
import time
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu import native as _tables  # noqa: F401 - the grids must be known to the extension
from strata.errors import DeviceError, PlanError
from strata.formats.block_formats import FORMATS
from strata.formats.file_pages import drop_pages
from strata.formats.naming import Role, tensor_name
from strata.host_memory import available_bytes
from strata.tiers.hand_off import FIELDS, SERVED, ExpertMemory, MailboxLayout
from strata.tiers.share import Cost
from strata.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from strata._native import Context, ExpertLayer, ExpertServer
    from strata.formats.model_tensors import ModelTensors
    from strata.formats.tensor_index import TensorIndex
    from strata.model_spec import ModelSpec

    Bytes = NDArray[np.uint8]

# Whole pages, which a card can be given one expert at a time.
_ALIGNMENT = 4096
# A kernel may look this far behind the last expert.
_READ_PAST = 64
_GROUP = 256
_PANEL_ROWS = 16
# Seconds a server's thread has to end in; a layer takes thousandths.
_STOP_SECONDS = 10.0
_MEASURED_REQUESTS = 20
# From the card's request to the processor and back, beside the computing.
_ROUND_TRIP_SECONDS = 8e-6


# Servers whose thread cannot be ended; to destroy one would be to wait for it.
_stuck: list[ExpertServer] = []


class ExpertArena:
    """The experts of all layers; ``tiers.hand_off.ExpertHost``.

    Args:
        ctx: threads that pack and compute; used by nobody else while a mailbox is open.
        index: an open model whose layout has been checked.
        spec: its geometry.

    Raises:
        DeviceError: the system refused the memory.
        PlanError: it has not got so much.
    """

    def __init__(self, ctx: Context, index: TensorIndex, spec: ModelSpec) -> None:
        self._ctx = ctx
        self._spec = spec
        self._names = [_names_of(index, layer) for layer in range(spec.num_layers)]
        self._layers: list[ExpertLayer] = []
        for names in self._names:
            gate, up, down = (index[name].format.ggml_id for name in names)
            sizes = (spec.num_experts, spec.hidden_size, spec.expert_size)
            self._layers.append(_native.ExpertLayer(gate, up, down, *sizes))
        strides = [-(-layer.expert_bytes // _ALIGNMENT) * _ALIGNMENT for layer in self._layers]
        all_bytes = [spec.num_experts * stride for stride in strides]
        self._num_bytes = sum(all_bytes) + _READ_PAST
        self._memory = _allocate(self._num_bytes)
        self._scales = np.ones((spec.num_layers, spec.num_experts, 3), np.float32)
        starts = np.cumsum([0, *all_bytes]).tolist()
        base = self._memory.ctypes.data
        self._places = tuple(
            ExpertMemory(base + start, stride, scales)
            for start, stride, scales in zip(starts, strides, self._scales, strict=False)
        )
        for layer, place in zip(self._layers, self._places, strict=True):
            layer.set_memory(place.address, place.blob_bytes, place.scales.ctypes.data)
        self._panel_bits: dict[str, NDArray[np.int64]] = {}
        self._server: ExpertServer | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all experts."""
        return self._num_bytes

    @property
    def layers(self) -> Sequence[ExpertMemory]:
        """The memory of each layer's experts."""
        return self._places

    def fill(self, tensors: ModelTensors) -> None:
        """Packs every expert of the file, one layer after the other.

        Raises:
            CheckpointError: a tensor cannot be used; names it.
        """
        for layer in range(self._spec.num_layers):
            self.fill_layer(layer, tensors)

    def fill_layer(self, layer: int, tensors: ModelTensors) -> None:
        """Packs the experts of one layer."""
        names, size, num = self._names[layer], self._spec.expert_size, self._spec.num_experts
        raws = [tensors.raw(name) for name in names]
        for role, name in enumerate(names):
            self._scales[layer, :, role] = tensors.scales(name, num)
        is_fused = names[0] == names[1]
        for expert in range(num):
            gate, up, down = (raw[expert] for raw in raws)
            if is_fused:
                gate, up = gate[:size], up[size:]
            self._layers[layer].pack(self._ctx, gate, up, down, self.blob(layer, expert))
            tensors.advance(gate.nbytes + up.nbytes + down.nbytes)
        for raw in raws:
            drop_pages(raw)

    def blob(self, layer: int, expert: int) -> Bytes:
        """The bytes of an expert; a view."""
        place = self._places[layer]
        first = place.address - self._memory.ctypes.data + expert * place.blob_bytes
        return self._memory[first : first + place.blob_bytes]

    def permutation(self, format_name: str) -> NDArray[np.int64]:
        """See ``panel_bits``."""
        if format_name not in self._panel_bits:
            self._panel_bits[format_name] = panel_bits(self._ctx, format_name)
        return self._panel_bits[format_name]

    def open(self, address: int, layout: MailboxLayout, owner: object) -> None:
        """Begins to answer requests in a mailbox at this address, in memory of ``owner``."""
        fields = zip(FIELDS[:-1], layout.offsets, strict=False)
        self._server = _native.ExpertServer(
            self._ctx, self._layers, [address + offset for _, offset in fields], layout.max_rows,
            layout.top_k, (self._memory, self._scales, owner),
        )  # fmt: skip
        self._server.start(0)

    def begin(self) -> None:
        """A window is about to be launched: requests will come."""
        self._opened().begin()

    def end(self) -> None:
        """The window is over."""
        self._opened().end()

    def restart(self, number: int) -> bool:
        """Answers again after a fault, from request ``number + 1`` on; False where it cannot."""
        server = self._opened()
        if not server.stop(_STOP_SECONDS):
            return False
        server.start(number)
        return True

    def stop(self) -> bool:
        """Ends the thread that answers, as if it had died; ``restart`` begins anew."""
        return self._opened().stop(_STOP_SECONDS)

    def measured(self) -> Cost:
        """What it costs to compute experts of the first layer, measured now.

        Raises:
            DeviceError: no answer came.
        """
        spec = self._spec
        layout = MailboxLayout(1, 1, spec.top_k, spec.hidden_size)
        box = np.zeros(layout.num_bytes, np.uint8)
        addresses = [box.ctypes.data + offset for offset in layout.offsets[: len(FIELDS) - 1]]
        server = _native.ExpertServer(
            self._ctx, self._layers[:1], addresses, 1, spec.top_k, (self._memory, self._scales, box)
        )
        parts = dict(zip(FIELDS, layout.offsets, strict=False))
        request, answer, ids = (
            box[parts[name] : parts[name] + 4 * num].view(np.int32)
            for name, num in (("request", 4), ("answer", 2), ("ids", spec.top_k))
        )
        request[2] = 1
        server.start(0)
        server.begin()
        seconds: dict[int, float] = {}
        before, number = 0, 0
        for num in (1, spec.top_k):
            for repeat in range(_MEASURED_REQUESTS):
                # Others every time: weights come from memory, not from a cache.
                first = (repeat * spec.top_k) % max(1, spec.num_experts - spec.top_k)
                ids[:] = -1
                ids[:num] = first + np.arange(num)
                number += 1
                request[0] = number
                end = time.monotonic() + _STOP_SECONDS
                while answer[0] != number and time.monotonic() < end:
                    time.sleep(2e-5)
                if answer[0] != number:
                    if not server.stop(_STOP_SECONDS):
                        _stuck.append(server)
                    raise DeviceError(
                        "the thread that computes experts in memory gave no answer within "
                        f"{_STOP_SECONDS:g} s when it was measured.\n"
                        "  Try: start again; if it comes back, --pcie-frac 0."
                    )
            counts = np.zeros((1, len(SERVED)), np.int64)
            server.read_counts(counts)
            seconds[num] = (int(counts[0, 4]) - before) / _MEASURED_REQUESTS / 1e9
            before = int(counts[0, 4])
        server.stop(_STOP_SECONDS)
        each = max(1e-7, (seconds[spec.top_k] - seconds[1]) / max(1, spec.top_k - 1))
        return Cost(max(0.0, seconds[1] - each) + _ROUND_TRIP_SECONDS, each)

    def counts(self) -> NDArray[np.int64]:
        """[L, 5] what was done for each layer since the start: ``hand_off.SERVED``."""
        out = np.zeros((self._spec.num_layers, len(SERVED)), np.int64)
        if self._server is not None:
            self._server.read_counts(out)
        return out

    def close(self) -> None:
        """Ends the threads. The mailbox may be freed afterwards.

        A thread that does not end keeps its mailbox and the experts: it may still write there.

        Raises:
            DeviceError: it does not end.
        """
        server, self._server = self._server, None
        if server is None or server.stop(_STOP_SECONDS):
            return
        _stuck.append(server)
        raise DeviceError(
            f"the thread that computes experts in memory did not end within {_STOP_SECONDS:g} s; "
            "its memory stays taken.\n  Try: end the program."
        )

    def _opened(self) -> ExpertServer:
        assert self._server is not None  # noqa: S101 - a window is run by who opened it
        return self._server


def panel_bits(ctx: Context, format_name: str) -> NDArray[np.int64]:
    """Where the bits of sixteen stored rows of 256 weights lie in a packed panel.

    Found by packing: n patterns tell 2^n bits apart. Of a shorter row the panel is the beginning,
    in whole blocks.

    Returns:
        [16 * row bits] for each bit of the panel the stored one, row * row_bits + bit, twice that
        number, plus one where it is turned over.
    """
    fmt = FORMATS[format_name]
    row_bytes = fmt.row_bytes(_GROUP)
    num_bits = _PANEL_ROWS * row_bytes * 8

    def packed(bits: NDArray[np.int64]) -> NDArray[np.int64]:
        raw = np.packbits(bits.astype(np.uint8), bitorder="little").reshape(_PANEL_ROWS, row_bytes)
        out = np.zeros(num_bits // 8, np.uint8)
        _native.pack_panels(ctx, fmt.ggml_id, raw, _GROUP, out)
        return np.unpackbits(out, bitorder="little").astype(np.int64)

    flips = packed(np.zeros(num_bits, np.int64))
    numbers = np.arange(num_bits)
    found = np.zeros(num_bits, np.int64)
    for bit in range(int(num_bits).bit_length()):
        found |= (packed(numbers >> bit & 1) ^ flips) << bit
    if not np.array_equal(np.sort(found), numbers):
        raise AssertionError(f"packing {format_name} does not keep every bit")
    return 2 * found + flips


def _names_of(index: TensorIndex, layer: int) -> tuple[str, str, str]:
    """The tensors of gate, up and down; two equal ones are fused."""
    fused = tensor_name(Role.EXPERTS_GATE_UP, layer)
    down = tensor_name(Role.EXPERTS_DOWN, layer)
    if fused in index:
        return fused, fused, down
    return tensor_name(Role.EXPERTS_GATE, layer), tensor_name(Role.EXPERTS_UP, layer), down


def _allocate(num_bytes: int) -> Bytes:
    """Memory in large pages where the system gives them."""
    available = available_bytes()
    if num_bytes > available:
        raise PlanError(
            f"experts that are not on the card lie in memory, {format_bytes(num_bytes)} in all; "
            f"{format_bytes(available)} are available.\n"
            "  Try: close other programs; or a file with smaller weights."
        )
    try:
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise DeviceError(
            f"the system refused {format_bytes(num_bytes)} of memory for experts ({error}).\n"
            "  Try: close other programs, or a file with smaller weights."
        ) from error
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
