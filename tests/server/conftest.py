"""A live server with the shipped demo model, and the clients that talk to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import openai
import pytest

from strata import Engine, errors

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = str(Path(errors.__file__).resolve().parents[1])


class Served:
    """A server in a process of its own."""

    PROGRAM = ("strata.cli.app", "serve")

    def __init__(self, *args: object, **changes: str) -> None:
        inherited = os.environ  # noqa: TID251 - a process needs its PATH and HOME
        command = [sys.executable, "-m", *self.PROGRAM, "--port", "0", *map(str, args)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, "PYTHONPATH": SOURCE, **changes},
        )
        self.lines: list[str] = []
        self.address = self.wait_for(r"listening on (\S+);")
        self.name = self.wait_for(r"ready: (\S+)")

    def wait_for(self, pattern: str) -> str:
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError("".join(self.lines))

    def end(self) -> int:
        self.process.terminate()
        self.process.stderr.read()
        code = self.process.wait(timeout=20)
        self.process.stderr.close()
        return code


@pytest.fixture(scope="session")
def demo() -> Iterator[Served]:
    served = Served("--threads", 1, "--alias", "gpt-demo")
    yield served
    assert served.end() == 0


@pytest.fixture(scope="module")
def client(demo: Served) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of the live server."""
    with openai.OpenAI(base_url=f"{demo.address}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The library, whose answers a server's are compared with."""
    with Engine.open(threads=1) as engine:
        yield engine


def fetch(
    address: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """(status, body, headers) of one plain request."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named.setdefault("content-type", "application/json")
    request = urllib.request.Request(address + path, data=body, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


def wait_until(is_true, limit_s: float = 10.0) -> None:
    end_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.02)
