"""What every command shows on stderr: notes, progress bars, and how Ctrl-C ends things.

Owns the two-second rule and the thread an answer is made in. stdout belongs to the commands.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from strata import telemetry
from strata.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from strata.engine.generation import Generation
    from strata.engine.request import TokenEvent

# Shorter waits need no bar.
SHOW_AFTER_S = 2.0
EXIT_INTERRUPTED = 130
# A chunk of a large prompt can take long, and native code does not see Ctrl-C.
INTERRUPT_GRACE_S = 1.0


def say(message: str) -> None:
    """One line on stderr."""
    typer.echo(message, err=True)


@contextmanager
def notices_on_stderr() -> Iterator[None]:
    """Shows telemetry events as lines on stderr meanwhile."""
    stop = telemetry.listen(lambda event: say(f"note: {event.message}"))
    try:
        yield
    finally:
        stop()


class Bar:
    """A progress bar that appears after two seconds, and only on a terminal.

    Call it with (done, total); it is the ``on_progress`` of the library.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._started_s = time.perf_counter()
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        """Shows that ``done`` of ``total`` is behind us."""
        if self._progress is None:
            waited_s = time.perf_counter() - self._started_s
            if not self._is_terminal or waited_s < SHOW_AFTER_S or done >= total:
                return
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeRemainingColumn(),
            )
            console = Console(stderr=True)
            self._progress = Progress(*columns, console=console, transient=True)
            self._task = self._progress.add_task(self._label, total=total)
            self._progress.start()
        self._progress.update(self._task, completed=done, total=total)
        if done >= total:
            self.close()

    def close(self) -> None:
        """Takes the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        self._started_s = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Answer:
    """Reads a generation in another thread, so that Ctrl-C is seen while native code runs."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._events: queue.SimpleQueue[TokenEvent | BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pump, name="strata-answer", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[TokenEvent]:
        """The events as they come. May be iterated again after a ``KeyboardInterrupt``."""
        while True:
            try:
                item = self._events.get(timeout=0.2)
            except queue.Empty:
                # Ctrl-C may have come between taking the last item and seeing it.
                if self._thread.is_alive() or not self._events.empty():
                    continue
                return
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def cancel(self) -> None:
        """Asks for the end; the events that are left say ``cancelled``."""
        self._generation.cancel()

    def has_ended(self, timeout_s: float) -> bool:
        """Whether the thread ends within that time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _pump(self) -> None:
        try:
            for event in self._generation:
                self._events.put(event)
            self._events.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that reads
            self._events.put(error)


def interrupt(answer: Answer) -> None:
    """Ends an answer after Ctrl-C, and the process with it if the answer does not end soon."""
    answer.cancel()
    if not answer.has_ended(INTERRUPT_GRACE_S):
        leave_now()


def leave_now() -> NoReturn:
    """Ends the process at once with the exit code of Ctrl-C, whatever native code is doing."""
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)


def read_stdin() -> str:
    """Standard input as text.

    Raises:
        RequestError: it is not UTF-8.
    """
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"standard input is not UTF-8: byte 0x{data[error.start]:02x} at offset "
            f"{error.start}.\n  Try: iconv -t UTF-8 before the pipe."
        ) from None
