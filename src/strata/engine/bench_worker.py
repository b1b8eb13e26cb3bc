"""One engine in its own process, measured on request. Started by ``Worker``, never by hand.

Speaks JSON lines on standard input and output: the first line sets the engine up, every further
one asks for a round. Owns both ends of that protocol.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.engine.bench import Measurement, measure, peak_memory_bytes
from strata.engine.build import open_parts
from strata.engine.rival import LlamaCpp, RivalOptions, describe_build
from strata.errors import DeviceError, StrataError
from strata.settings import Settings

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

STRATA = "strata"
LLAMA_CPP = "llama.cpp"

Round = Callable[[list[int], int], Measurement]


class Worker:
    """The parent's end: a process with one loaded engine. A context manager."""

    def __init__(self, engine: str, **setup: object) -> None:
        self._name = engine
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "strata.engine.bench_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise DeviceError("a process was started without pipes.\n  Try: run it again.")
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self.description = str(self._ask({"engine": engine, **setup})["description"])

    def measure(self, prompt: list[int], num_decode: int) -> tuple[Measurement, int]:
        """One round, and the most memory the process has held."""
        reply = self._ask({"prompt": prompt, "num_decode": num_decode})
        return Measurement(**reply["measurement"]), int(reply["peak_bytes"])

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
        return lines[-1] if lines else f"nothing (exit code {self._process.returncode})"

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


def _open_strata(setup: dict[str, Any]) -> tuple[Round, str]:
    parts = open_parts(Settings.from_options(setup["settings"]))
    session = parts.model.new_session(parts.context_len)

    def one_round(prompt: list[int], num_decode: int) -> Measurement:
        return measure(session, np.array(prompt, dtype=np.int32), num_decode)

    return one_round, "strata"


def _open_llama_cpp(setup: dict[str, Any]) -> tuple[Round, str]:
    rival = LlamaCpp(
        RivalOptions(
            model=Path(setup["model"]),
            threads=setup["threads"],
            context_len=setup["context_len"],
            has_flash_attention=setup["has_flash_attention"],
            kv_format=setup["kv_format"],
        )
    )
    return rival.measure, describe_build()


_OPENERS = {STRATA: _open_strata, LLAMA_CPP: _open_llama_cpp}


def _serve() -> None:
    # A writer of our own, so that nothing else is in its buffer.
    with open(sys.stdout.fileno(), "w", closefd=False, encoding="utf-8") as replies:

        def reply(message: dict[str, object]) -> None:
            replies.write(json.dumps(message) + "\n")
            replies.flush()

        one_round: Round | None = None
        for line in sys.stdin:
            request = json.loads(line)
            try:
                if one_round is None:
                    one_round, description = _OPENERS[request["engine"]](request)
                    reply({"description": description})
                    continue
                result = one_round(request["prompt"], request["num_decode"])
            except StrataError as error:
                reply({"error": str(error)})
                return
            reply({"measurement": result.as_dict(), "peak_bytes": peak_memory_bytes()})


if __name__ == "__main__":
    _serve()
