"""The right to use the one conversation: by one request at a time, or by several in turns.

Owns what happens when requests change, and whether the engine still lives. Which request is next is
decided by whoever asks for its next event.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from strata.errors import EngineStopped, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from strata.engine.conversation import Conversation
    from strata.engine.generation import Generation
    from strata.engine.tiers import ExpertTiers


class Turn:
    """The right to use the one live conversation, and whether the engine still lives."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self._lock = threading.Lock()
        self._cause: BaseException | None = None
        self._is_closed = False
        self._current: weakref.ref[Generation] | None = None
        self.tiers: ExpertTiers | None = None
        self.after_request: Callable[[], None] | None = None

    def check_alive(self) -> None:
        """Raises when the engine can serve nothing any more."""
        if self._cause is not None:
            raise EngineStopped(
                f"the engine has stopped: {self._cause}.\n  Try: open the model again."
            ) from self._cause
        if self._is_closed:
            raise EngineStopped("the engine is closed.\n  Try: open the model again.")

    def take(self, generation: Generation) -> None:
        """Begins a request.

        Raises:
            RequestError: another one is under way.
            EngineStopped: the engine has died or was closed.
        """
        self.check_alive()
        if not self._lock.acquire(blocking=False):
            raise RequestError(
                "the engine serves one request at a time, and one is under way.\n"
                "  Try: read the other generation to its end, or call its close()."
            )
        try:
            self.check_alive()  # it may have been closed before the lock was ours
        except EngineStopped:
            self._lock.release()
            raise
        self._current = weakref.ref(generation)

    def enter(self, generation: Generation) -> bool:  # noqa: ARG002 - there is no other
        """The conversation is this request's; whether another used it since the last time."""
        return False

    def forget(self, generation: Generation) -> None:  # noqa: ARG002 - there is no other
        """The request has failed: nothing in the session is trusted."""
        self.conversation.forget()

    def give_back(self, generation: Generation) -> None:  # noqa: ARG002 - there is no other
        """Ends the request."""
        self._current = None
        try:
            if self.after_request is not None:
                self.after_request()
        finally:
            self._lock.release()

    def settle(self) -> None:
        """Lets the conversation be saved, unless a request is under way; then after that one."""
        if self._lock.acquire(blocking=False):
            try:
                if self._cause is None and not self._is_closed:
                    self.conversation.settle()
            finally:
                self._lock.release()

    def when_idle(self, action: Callable[[], None]) -> bool:
        """Does something if no request is under way; whether it did."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            action()
        finally:
            self._lock.release()
        return True

    def stop(self, cause: BaseException) -> None:
        """Marks the engine dead because of ``cause``."""
        self._cause = cause

    def close(self, free: Callable[[], None]) -> None:
        """Ends the request under way, waits for its thread, then calls ``free``; once."""
        current = self._current() if self._current is not None else None
        if current is not None:
            current.close()
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                free()


class SharedTurn(Turn):
    """Several requests in turns, all of them asked for events by one thread.

    A request whose turn begins finds the conversation as it left it: the one before is put aside.
    """

    def __init__(self, conversation: Conversation) -> None:
        super().__init__(conversation)
        self._holder: Generation | None = None
        self._num_open = 0
        self._open: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._lost: weakref.WeakSet[Generation] = weakref.WeakSet()  # could not be put aside
        self.change_s = 0.0  # what the last change of requests cost

    def take(self, generation: Generation) -> None:
        """Begins a request.

        Raises:
            EngineStopped: the engine has died or was closed.
        """
        self.check_alive()
        if self._num_open == 0:
            self._lock.acquire()
        self._num_open += 1
        self._open.add(generation)

    def enter(self, generation: Generation) -> bool:
        """The conversation is this request's; whether another used it since the last time.

        Raises:
            RequestError: its state was lost when another was to have a turn.
        """
        if generation in self._lost:
            raise RequestError(
                "the request could not be put aside for another, and its state is gone.\n"
                "  Try: ask again."
            )
        if self._holder is generation:
            return False
        begin_s = time.perf_counter()
        holder, self._holder = self._holder, None
        if holder is not None:
            self._lost.add(holder)  # unless this is done
            holder.set_aside(self.conversation.suspend())
            self._lost.discard(holder)
        is_back = generation.suspended is not None
        if generation.suspended is not None:
            self.conversation.go_on(generation.suspended)
            generation.suspended = None
        self._holder = generation
        self.change_s = time.perf_counter() - begin_s
        return is_back

    def forget(self, generation: Generation) -> None:
        """The request has failed: nothing in the session is trusted, unless it is another's."""
        if self._holder is None or self._holder is generation:
            self.conversation.forget()

    def give_back(self, generation: Generation) -> None:
        """Ends the request; its conversation stays live, or parked."""
        generation.suspended = None
        if self._holder is generation:
            self._holder = None
        self._open.discard(generation)
        self._num_open -= 1
        if self._num_open == 0:
            super().give_back(generation)

    def close(self, free: Callable[[], None]) -> None:
        """Ends all requests under way, waits for their thread, then calls ``free``; once."""
        for generation in list(self._open):
            generation.close()
        super().close(free)

    def settle(self) -> None:
        """Lets the conversation be saved, if no request is in the middle of it."""
        if self._num_open == 0:
            super().settle()
        elif self._holder is None and self._cause is None:
            self.conversation.settle()
