"""The check at start-up that a slot holds the bytes the table of residents says it holds.

Owns the comparison and its message; how bytes are read back from a card is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from strata.errors import DeviceError
from strata.tiers.slots import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from strata.tiers.slots import Residency

    Bytes = NDArray[np.uint8]


def verify_slots(
    residency: Residency,
    read_slot: Callable[[int], Bytes],
    read_expert: Callable[[int, int], Bytes],
    slots: Iterable[int] | None = None,
) -> int:
    """Compares slots with the host's copy of their experts, byte for byte; how many it compared.

    Args:
        residency: who is meant to be where.
        read_slot: bytes of a slot as they lie on the card, at least as many as its blob has.
        read_expert: bytes of (layer, expert) as the host has them.
        slots: which to compare, those that hold nothing being passed over; None for slot 0.

    Raises:
        DeviceError: a byte differs; names slot, offset and slot size.
    """
    num_compared = 0
    for slot in (0,) if slots is None else slots:
        if slot >= len(residency.key_in) or residency.key_in[slot] == EMPTY:
            continue
        layer, expert = divmod(int(residency.key_in[slot]), residency.layout.num_experts)
        expected, found = read_expert(layer, expert), read_slot(slot)
        num_compared += 1
        if len(found) < len(expected):
            raise DeviceError(
                f"expert slot {slot} has {len(found)} bytes, and expert {expert} of layer {layer} "
                f"needs {len(expected)}.\n  Try: --device cpu, and report this with the model."
            )
        different = np.flatnonzero(found[: len(expected)] != expected)
        if len(different):
            at = int(different[0])
            raise DeviceError(
                f"expert slot {slot} does not hold expert {expert} of layer {layer}: byte {at} is "
                f"{found[at]:#04x}, expected {expected[at]:#04x} (slot of {len(found)} bytes).\n"
                "  Try: start again; if it comes back, --device cpu."
            )
    return num_compared
