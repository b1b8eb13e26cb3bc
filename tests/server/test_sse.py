"""Event streams: what becomes of an error at their beginning."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from strata.server.faults import Fault
from strata.server.sse import stream_events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@pytest.mark.parametrize("error", [Fault(503, "no engine"), KeyError("a bug")])
def test_an_error_before_the_first_event_is_an_answer_of_its_own(error: Exception):
    async def events() -> AsyncGenerator[bytes, None]:
        raise error
        yield b""

    with pytest.raises(type(error)):
        asyncio.run(stream_events(events(), lambda _: b""))
