"""Where the clients are that this package does not depend on; scripts/try_clients installs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.server.conftest import SOURCE, Served

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "build" / "clients"
MODULES = CLIENTS / "node_modules"


class StandIn(Served):
    """The server with the scripted engine."""

    PROGRAM = ("tests.agents.stand_in",)

    def __init__(self, script: Path) -> None:
        super().__init__(script, PYTHONPATH=os.pathsep.join((SOURCE, str(ROOT))))


def client(name: str) -> str:
    """The path of a client's program; the test is skipped where there is none."""
    inherited = os.environ  # noqa: TID251 - programs are looked for where people have them
    venvs = [str(CLIENTS / name / "bin") for name in ("venv", "open-webui")]
    folders = [str(MODULES / ".bin"), *venvs, inherited["PATH"]]
    found = shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"{name} is not installed; scripts/try_clients installs it")
    return found


def run_client(
    command: list[str], folder: Path, home: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs one to its end, with a home of its own and nothing of this machine's settings."""
    inherited = os.environ  # noqa: TID251 - a process needs its PATH
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": inherited["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )
