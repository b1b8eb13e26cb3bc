"""Responses that are kept, so that a later one can go on from them. In memory, the newest few.

Owns the bound on their number and bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from strata.server.faults import Fault
from strata.server.responses_compaction import listed

if TYPE_CHECKING:
    from strata.server.structs import Json

_MAX_KEPT: Final = 1000
_MAX_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """A response, and the items that lead up to its end."""

    response: dict[str, Any]
    input_items: list[Json]
    output_items: list[Json]
    num_bytes: int

    @property
    def items(self) -> list[Json]:
        """What a conversation that goes on from here begins with."""
        return [*self.input_items, *self.output_items]


class ResponseStore:
    """The kept responses by id; the oldest go first."""

    def __init__(self, *, max_kept: int = _MAX_KEPT, max_bytes: int = _MAX_BYTES) -> None:
        self._max_kept = max_kept
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._num_bytes = 0

    def add(self, response: dict[str, Any], given: list[Json], made: list[Json]) -> None:
        """Keeps ``response``, which answered the items ``given`` with those ``made``."""
        listed_items = listed(given)
        size = len(msgspec.json.encode([response, listed_items, made]))
        self._kept[response["id"]] = Kept(response, listed_items, made, size)
        self._num_bytes += size
        while len(self._kept) > self._max_kept or self._num_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def get(self, response_id: str) -> Kept:
        """A kept response.

        Raises:
            Fault: 404, there is none of that id.
        """
        kept = self._kept.get(response_id)
        if kept is None:
            raise Fault(404, f"Response with id '{response_id}' not found.{self._why()}")
        return kept

    def before(self, response_id: str) -> Kept:
        """The response that a request goes on from.

        Raises:
            Fault: 400, there is none of that id.
        """
        kept = self._kept.get(response_id)
        if kept is None:
            raise Fault(
                400,
                f"Previous response with id '{response_id}' not found.{self._why()}",
                code="previous_response_not_found",
                field="previous_response_id",
            )
        return kept

    def _why(self) -> str:
        return f"\n  The newest {self._max_kept} are kept in memory, until the server ends."

    def remove(self, response_id: str) -> None:
        """Forgets one; raises Fault as ``get``."""
        self._num_bytes -= self.get(response_id).num_bytes
        del self._kept[response_id]
