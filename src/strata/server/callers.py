"""Who asks, as far as it matters for taking turns: an address and a program, no person."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

# Set for each HTTP request before its route runs, and read where its work is handed over.
CALLER: Final[ContextVar[str]] = ContextVar("caller", default="")


def caller_of(address: str | None, user_agent: str | None) -> str:
    """Requests of one program on one machine share their turns.

    Args:
        address: of the other side, without its port.
        user_agent: as the program calls itself.
    """
    return f"{address or ''} {user_agent or ''}"[:200]
