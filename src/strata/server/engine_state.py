"""What the engine's process can be doing, how long each of it may take, what is said meanwhile.

Owns the states and the bounds, no process: ``engine_process`` goes from one state to the next.
"""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from typing import Final

from strata.server.faults import Fault

RETRY_AFTER_S: Final = 5


class State(StrEnum):
    """What the engine's process is doing."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"  # the model could not be loaded at all
    UNLOADED = "unloaded"  # on request
    CLOSED = "closed"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait, and how long."""

    max_open: int = 64
    """Requests under way or waiting; more are refused with 429."""
    ready_wait_s: float = 30.0
    """How long a request waits for a child that loads."""
    close_wait_s: float = 5.0
    """How long the child may take to end."""
    watchdog_s: float = 60.0
    """How long it may give no sign of life (``watchdog``); 0 for ever."""


def not_ready(state: State, loaded: tuple[int, int], failure: str, last_cause: str) -> Fault:
    """The answer to a request while there is no engine.

    Args:
        state: not ``READY``.
        loaded: bytes loaded, and of how many.
        failure: why the model could not be loaded at all.
        last_cause: why one that was loaded once could not be loaded again; it is tried again.
    """
    if state is State.CLOSED:
        return Fault(503, "the server is shutting down.")
    if state is State.UNLOADED:
        return Fault(503, "the model was unloaded.\n  Try: POST /v1/load", code="unloaded")
    if state is State.FAILED:
        return Fault(503, failure, code="load_failed")
    if last_cause:
        text = f"the model could not be loaded again: {last_cause}. It is tried again."
        return Fault(503, text, code="loading", retry_after_s=RETRY_AFTER_S)
    num_done, num_total = loaded
    share = f" ({100 * num_done // num_total} %)" if num_total else ""
    text = f"the model is being loaded{share}."
    return Fault(503, text, code="loading", retry_after_s=RETRY_AFTER_S)
