"""The thread that answers a card from the host's memory: its life, and what its work costs.

Owns the server and the tables of bits. Where experts lie is decided by those who derive from it:
``expert_arena`` has all of them in memory, ``expert_host`` some of them in files. The card's side
is ``gpu``; what both say to each other is ``tiers.hand_off``.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from strata import _native
from strata.cpu import native as _tables  # noqa: F401 - the grids must be known to the extension
from strata.errors import DeviceError
from strata.formats.block_formats import FORMATS
from strata.tiers.hand_off import FIELDS, ROUND_TRIP_S, SERVED, MailboxLayout
from strata.tiers.share import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from strata._native import Context, ExpertLayer, ExpertServer, ExpertSource
    from strata.errors import StrataError
    from strata.model_spec import ModelSpec

_GROUP = 256
_PANEL_ROWS = 16
# Seconds a server's thread has to end in; a layer takes thousandths.
_STOP_SECONDS = 10.0
_MEASURED_REQUESTS = 20


# Servers whose thread cannot be ended; to destroy one would be to wait for it.
_stuck: list[ExpertServer] = []


class ExpertServing:
    """The part of ``tiers.hand_off.ExpertHost`` that does not depend on where experts lie.

    Args:
        ctx: threads that pack and compute; used by nobody else while a mailbox is open.
        spec: geometry of the model.
        layers: its experts, whose memory is set before a mailbox is opened.
        owners: of their memory; kept as long as a server may read it.
        source: brings experts that are not in memory; None where all are.
    """

    def __init__(
        self,
        ctx: Context,
        spec: ModelSpec,
        layers: list[ExpertLayer],
        owners: tuple[object, ...],
        source: ExpertSource | None = None,
    ) -> None:
        self._ctx, self._spec = ctx, spec
        self._layers, self._owners, self._source = layers, owners, source
        self._panel_bits: dict[str, NDArray[np.int64]] = {}
        self._server: ExpertServer | None = None

    def take_failure(self) -> StrataError | None:
        """Nothing more is to be said of a refused request where no file is read."""
        return None

    def stop_look_ahead(self) -> None:
        """Nothing is read ahead where no file is read."""

    def permutation(self, format_name: str) -> NDArray[np.int64]:
        """See ``panel_bits``."""
        if format_name not in self._panel_bits:
            self._panel_bits[format_name] = panel_bits(self._ctx, format_name)
        return self._panel_bits[format_name]

    def open(self, address: int, layout: MailboxLayout, owner: object) -> None:
        """Begins to answer requests in a mailbox at this address, in memory of ``owner``."""
        fields = zip(FIELDS[:-1], layout.offsets, strict=False)
        self._server = self._new_server(
            [address + offset for _, offset in fields], layout.max_rows, owner
        )
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
        server = self._new_server(addresses, 1, box)
        parts = dict(zip(FIELDS, layout.offsets, strict=False))
        request, answer, ids = (
            box[parts[name] : parts[name] + 4 * num].view(np.int32)
            for name, num in (("request", 4), ("answer", 2), ("ids", spec.top_k))
        )
        layer, experts = self._measured_experts()
        request[1], request[2] = layer, 1
        server.start(0)
        server.begin()
        seconds: dict[int, float] = {}
        before, number = 0, 0
        counts = np.zeros((len(self._layers), len(SERVED)), np.int64)
        for num in (1, spec.top_k):
            spent: list[int] = []
            for repeat in range(_MEASURED_REQUESTS):
                # Others every time: weights come from memory, not from a cache.
                first = (repeat * spec.top_k) % max(1, len(experts) - spec.top_k)
                chosen = experts[first : first + num]
                ids[:] = -1
                ids[: len(chosen)] = chosen
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
                server.read_counts(counts)
                now = int(counts[:, SERVED.index("nanoseconds")].sum())
                spent.append(now - before)
                before = now
            # The middle: a thread that had to be woken says nothing of the rate.
            seconds[num] = statistics.median(spent) / 1e9
        server.stop(_STOP_SECONDS)
        each = max(1e-7, (seconds[spec.top_k] - seconds[1]) / max(1, spec.top_k - 1))
        return Cost(max(0.0, seconds[1] - each) + ROUND_TRIP_S, each)

    def counts(self) -> NDArray[np.int64]:
        """[L, 7] what was done for each layer since the start: ``hand_off.SERVED``."""
        out = np.zeros((self._spec.num_layers, len(SERVED)), np.int64)
        if self._server is not None:
            self._server.read_counts(out)
        return out

    def ahead_counts(self) -> NDArray[np.int64]:
        """[L, 4] reads that nobody had asked for; none where no file is read."""
        return np.zeros((self._spec.num_layers, 4), np.int64)

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

    def _measured_experts(self) -> tuple[int, Sequence[int]]:
        """A layer, and experts of it that are in memory."""
        return 0, range(self._spec.num_experts)

    def _new_server(self, addresses: list[int], max_rows: int, owner: object) -> ExpertServer:
        return _native.ExpertServer(
            self._ctx, self._layers, addresses, max_rows, self._spec.top_k,
            (*self._owners, owner), self._source,
        )  # fmt: skip

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
