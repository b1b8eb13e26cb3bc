"""The short form of benchmarks/server/contract: schemathesis finds no 500."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["fuzzing", "coverage"])
def test_schemathesis_finds_no_server_error(phase: str):
    command = [sys.executable, "-m", "benchmarks.server.contract", "--phases", phase]
    ran = subprocess.run(
        [*command, "--examples", "10", "--seconds", "12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr
    assert "Tested" in ran.stdout
