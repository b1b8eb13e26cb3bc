"""What a card and the processor say to each other about a layer's missing experts, and who answers.

Owns the layout of the mailbox, memory both can reach, and the protocol of the side with the bytes
(docs/decisions/0005-hand-off.md). Moves and computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from strata.errors import StrataError
    from strata.formats.model_tensors import ModelTensors
    from strata.tiers.share import Cost

# Every part begins with a cache line of its own: one side spins on a line the other does not write.
_LINE_BYTES = 128
FIELDS = ("request", "answer", "ids", "codes", "scales", "sums", "outputs", "routed")
SERVED = (
    "requests", "entries", "experts", "bytes", "nanoseconds", "from_file", "file_bytes",
)  # fmt: skip
"""What is counted for each layer of experts computed in RAM; ``from_file`` were read there first.
The time is the processor's without the disk's."""

ROUND_TRIP_S = 8e-6
"""What the thread that answers takes until it sees a request, and the card its answer, at first."""


@dataclass(frozen=True, slots=True)
class MailboxLayout:
    """Where the parts of a mailbox lie; N rows, K experts of a row, D values of a row.

    ``request`` int32 [4]: number, layer, rows, fault (0 none, 1 no answer in time, 2 refused).
    ``answer`` int32 [2]: number, status (0 good, 1 a value is not finite, 2 the request made no
    sense, 3 an expert could not be read, 4 something else went wrong). ``ids`` int32 [N, K], -1
    where an expert is not asked for. ``codes`` int8 [N, D], ``scales`` float32 [N, D / 32],
    ``sums`` int32 [N, D / 16]: the activations of docs/numerics.md. ``outputs`` float32 [N * K, D].
    ``routed`` int32 [L, N, K]: what each layer of the last window asked for.
    """

    num_layers: int
    max_rows: int
    top_k: int
    hidden_size: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each of ``FIELDS``."""
        rows, values = self.max_rows, self.max_rows * self.hidden_size
        ids = 4 * rows * self.top_k
        return (
            16, 8, ids, values, values // 8, values // 4, 4 * values * self.top_k,
            self.num_layers * ids,
        )  # fmt: skip

    @property
    def offsets(self) -> tuple[int, ...]:
        """Byte at which each of ``FIELDS`` begins, and the bytes of all."""
        rounded = (-(-size // _LINE_BYTES) * _LINE_BYTES for size in self.sizes)
        return (0, *accumulate(rounded))

    @property
    def num_bytes(self) -> int:
        """Of the whole mailbox."""
        return self.offsets[-1]


@dataclass(frozen=True, slots=True)
class ExpertMemory:
    """The experts of a layer in RAM, one blob each: gate, up and down as the processor packs them.

    Attributes:
        address: of the first blob.
        blob_bytes: from one blob to the next, whole pages of memory.
        scales: [E, 3] float32, factors on the outputs.
        held: [n] int64, the experts that lie there for good, in their order; the others are in
            files, and where they are in memory changes. None: all of them, by number.
    """

    address: int
    blob_bytes: int
    scales: NDArray[np.float32]
    held: NDArray[np.int64] | None = None

    @property
    def num_held(self) -> int:
        """Blobs at ``address`` and behind it."""
        return len(self.scales) if self.held is None else len(self.held)


class ExpertHost(Protocol):
    """The processor's side: has every expert's bytes and computes those a card has not got."""

    @property
    def layers(self) -> Sequence[ExpertMemory]:
        """The memory of each layer's experts."""

    def fill_layer(self, layer: int, tensors: ModelTensors) -> None:
        """Takes the experts of a layer from a file."""

    def read(
        self, layer: int, experts: list[int], places: list[int], *, is_passing: bool = False
    ) -> None:
        """Copies experts' blobs to these addresses, from memory or from a file.

        Args:
            layer: whose they are.
            experts: of the layer.
            places: addresses, one for each.
            is_passing: they stay in no slot, so they will be asked for again.

        Raises:
            CheckpointError: the file cannot be read.
        """

    def take_failure(self) -> StrataError | None:
        """Why a request was refused, if there is more to say than that; told once."""

    def stop_look_ahead(self) -> None:
        """Guesses no more what routers will choose: others choose."""

    def permutation(self, format_name: str) -> NDArray[np.int64]:
        """Where bits of sixteen stored rows lie in a panel; ``expert_serving.panel_bits``."""

    def open(self, address: int, layout: MailboxLayout, owner: object) -> None:
        """Begins to answer requests in a mailbox at this address, in memory of ``owner``."""

    def begin(self) -> None:
        """A window is about to be launched: requests will come."""

    def end(self) -> None:
        """The window is over."""

    def restart(self, number: int) -> bool:
        """Answers again after a fault, from request ``number + 1`` on; False where it cannot."""

    def measured(self) -> Cost:
        """What it costs to compute experts of the first layer, measured now."""

    def counts(self) -> NDArray[np.int64]:
        """[L, 7] what was done for each layer since the start: ``SERVED``."""

    def ahead_counts(self) -> NDArray[np.int64]:
        """[L, 4] the same of reads that nobody had asked for; ``tiers.counters.add_ahead``."""

    def close(self) -> None:
        """Ends the threads. The mailbox may be freed afterwards.

        Raises:
            DeviceError: one does not end.
        """
