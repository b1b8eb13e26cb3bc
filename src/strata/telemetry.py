"""Events worth telling: a fall-back and its reason, a warning about a file.

Owns the list of listeners and the "once" rule. Does not print: the command line listens and
writes to stderr; without a listener an event goes to the ``strata`` logger.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

_LOGGER = logging.getLogger("strata")
_LOGGER.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``key`` names the kind, ``message`` is fit to show to a user."""

    key: str
    message: str


Listener = Callable[[Event], None]


class _Bus:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.listeners: list[Listener] = []
        self.told: set[Event] = set()


_BUS = _Bus()


def notice(key: str, message: str) -> None:
    """Tells every listener, once for each (key, message) in this process."""
    event = Event(key, message)
    with _BUS.lock:
        if event in _BUS.told:
            return
        _BUS.told.add(event)
    _tell(event)


def notice_each(key: str, message: str) -> None:
    """Tells every listener, however often the same is said: of what happens to a server."""
    _tell(Event(key, message))


def _tell(event: Event) -> None:
    with _BUS.lock:
        listeners = list(_BUS.listeners)
    if not listeners:
        _LOGGER.info("%s: %s", event.key, event.message)
    for listener in listeners:
        listener(event)


def listen(listener: Listener) -> Callable[[], None]:
    """Adds a listener; the function returned takes it away again."""
    with _BUS.lock:
        _BUS.listeners.append(listener)

    def stop() -> None:
        with _BUS.lock:
            if listener in _BUS.listeners:
                _BUS.listeners.remove(listener)

    return stop


def forget() -> None:
    """Lets every event be told again; for tests and for opening another model."""
    with _BUS.lock:
        _BUS.told.clear()
