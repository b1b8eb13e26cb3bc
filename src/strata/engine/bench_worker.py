"""One engine in its own process, measured on request.

JSON lines on standard input and output: the first line sets the engine up, every further one asks
for a round or for logits. Owns both ends of that protocol; ``bench_strata`` and ``bench_rival``
are the programs. Imports little, so that a rival's interpreter needs numpy only.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from strata.engine.bench import Measurement, peak_memory_bytes
from strata.errors import DeviceError, StrataError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from strata.engine.session import Logits

STRATA = "strata"
LLAMA_CPP = "llama.cpp"

_PROGRAMS = {STRATA: "strata.engine.bench_strata", LLAMA_CPP: "strata.engine.bench_rival"}
# The package comes last on the path: another interpreter keeps its own numpy.
_START = (
    "import runpy, sys; sys.path.append(sys.argv[1]); "
    "runpy.run_module(sys.argv[2], run_name='__main__')"
)
_PACKAGE_ROOT = Path(__file__).parents[2]


class Measured(Protocol):
    """An engine as the process needs it."""

    @property
    def description(self) -> str:
        """Name, version, and what the speed depends on."""
        ...

    def measure(self, prompt: list[int], num_decode: int) -> Measurement:
        """One round from an empty conversation."""
        ...

    def next_logits(self, prompt: list[int]) -> Logits:
        """Logits or log probabilities [V] after a prompt."""
        ...


class Worker:
    """The parent's end: a process with one loaded engine. A context manager."""

    def __init__(self, engine: str, *, python: str | None = None, **setup: object) -> None:
        """Starts the process and loads the engine.

        Args:
            engine: STRATA or LLAMA_CPP.
            python: interpreter to start instead of this one.
            setup: what the program needs to know.

        Raises:
            DeviceError: the interpreter cannot be started, or the engine cannot be set up.
        """
        self._name = engine
        program = [python or sys.executable, "-c", _START, str(_PACKAGE_ROOT), _PROGRAMS[engine]]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = subprocess.Popen(
                program,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise DeviceError(
                f"cannot start {program[0]}: {error.strerror}.\n  Try: the path of a Python."
            ) from None
        if self._process.stdin is None or self._process.stdout is None:
            raise DeviceError("a process was started without pipes.\n  Try: run it again.")
        self._requests, self._replies = self._process.stdin, self._process.stdout
        try:
            self.description = str(self._ask(setup)["description"])
        except BaseException:
            self.close()
            raise

    def measure(self, prompt: list[int], num_decode: int) -> tuple[Measurement, int]:
        """One round, and the most memory the process has held."""
        reply = self._ask({"prompt": prompt, "num_decode": num_decode})
        return Measurement(**reply["measurement"]), int(reply["peak_bytes"])

    def next_logits(self, prompt: list[int]) -> Logits:
        """Logits or log probabilities [V] float32 after a prompt."""
        return np.array(self._ask({"logits_after": prompt})["logits"], dtype=np.float32)

    def _ask(self, request: dict[str, object]) -> dict[str, Any]:
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._replies.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise DeviceError(f"the {self._name} process died.\n  it said: {self._last_words()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise DeviceError(f"{self._name}: {reply['error']}")
        return reply

    def _last_words(self) -> str:
        self._process.wait(timeout=10)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        code = self._process.returncode
        end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{lines[-1] if lines else 'nothing'} ({end})"

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._replies.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(open_engine: Callable[[dict[str, Any]], Measured]) -> None:
    """The child's end: answers requests until standard input ends."""
    # A writer of our own, so that nothing else is in its buffer.
    with open(sys.stdout.fileno(), "w", closefd=False, encoding="utf-8") as replies:
        engine: Measured | None = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if engine is None:
                    engine = open_engine(request)
                    reply: dict[str, object] = {"description": engine.description}
                else:
                    reply = _answer(engine, request)
            except StrataError as error:
                reply = {"error": str(error)}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def _answer(engine: Measured, request: dict[str, Any]) -> dict[str, object]:
    if "logits_after" in request:
        return {"logits": engine.next_logits(request["logits_after"]).tolist()}
    result = engine.measure(request["prompt"], request["num_decode"])
    return {"measurement": result.as_dict(), "peak_bytes": peak_memory_bytes()}
