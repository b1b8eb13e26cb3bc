"""The server that is measured: a process of its own, what it holds, and the end of its engine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path


class Served:
    """``benchmarks.server.metered`` with the demo model."""

    def __init__(self, report: Path, *args: str) -> None:
        command = [sys.executable, "-m", "benchmarks.server.metered", str(report), "--port", "0"]
        self._process = subprocess.Popen(
            [*command, *args], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self.address = self._wait_for(r"listening on (\S+);")
        self._wait_for(r"ready: (\S+)")
        # Nobody may wait for a full pipe.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def held(self) -> tuple[int, int, int]:
        """Open files, threads, and bytes of memory of the HTTP process."""
        process = psutil.Process(self._process.pid)
        return process.num_fds(), process.num_threads(), process.memory_info().rss

    async def kill_engine(self) -> bool:
        """Kills the engine's process; False while there is none."""
        pid = (await asyncio.to_thread(self._status)).get("engine_pid")
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    async def wait_idle(self, limit_s: float = 30.0) -> None:
        """Returns when an engine is ready and nothing is asked of it.

        Raises:
            TimeoutError: it is not within ``limit_s``.
        """
        async with asyncio.timeout(limit_s):
            while True:
                status = await asyncio.to_thread(self._status)
                if status["state"] == "ready" and status["open_requests"] == 0:
                    break
                await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)  # sockets of the last clients

    def end(self) -> None:
        self._process.terminate()
        code = self._process.wait(30)
        self._reader.join()
        if self._process.stderr is not None:
            self._process.stderr.close()
        if code != 0:
            raise RuntimeError(f"the server ended with {code}:\n{''.join(self.lines[-20:])}")

    def _status(self) -> dict:
        with urllib.request.urlopen(f"{self.address}/v1/status", timeout=20) as response:
            return json.load(response)

    def _wait_for(self, pattern: str) -> str:
        for line in self._process.stderr or ():
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise RuntimeError("".join(self.lines))

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self.lines.append(line)
