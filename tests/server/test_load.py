"""The short form of benchmarks/server/load: rude clients, killed engines, nothing lost or mixed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_client_gets_its_own_answer_whatever_the_others_do():
    command = [sys.executable, "-m", "benchmarks.server.load"]
    ran = subprocess.run(
        [*command, "--clients", "8", "--seconds", "10", "--kills", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
