"""A tiny model file, and the command line in this process or in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from strata import errors, telemetry
from strata.cli.app import app
from strata.formats.convert_types import TypePlan
from strata.formats.synth import GEOMETRIES, synthesize

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer.testing import Result

# Where this process has the package from: installed, or the source tree.
SOURCE = str(Path(errors.__file__).resolve().parents[1])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    synthesize(path, GEOMETRIES["tiny"], TypePlan.preset("q8_0"))
    return path


@pytest.fixture
def strata() -> Callable[..., Result]:
    """Runs a command in this process, which has told nothing yet, as a new one would."""

    def run(*args: object, stdin: str | bytes | None = None) -> Result:
        telemetry.forget()
        return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)

    return run


def command_line(*args: object) -> list[str]:
    return [sys.executable, "-m", "strata.cli.app", *(str(arg) for arg in args)]


def environment(**changes: str) -> dict[str, str]:
    inherited = os.environ  # noqa: TID251 - a process needs its PATH and HOME
    return {**inherited, "PYTHONPATH": SOURCE, "COLUMNS": "120", **changes}


def spawn(*args: object, **changes: str) -> subprocess.Popen[bytes]:
    """Starts a command as a process of its own, with pipes on all three sides."""
    return subprocess.Popen(
        command_line(*args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**changes),
    )


def finish(process: subprocess.Popen[bytes], stdin: bytes = b"") -> tuple[int, str, str]:
    out, err = process.communicate(stdin, timeout=120)
    return process.returncode, (out or b"").decode("utf-8"), err.decode("utf-8")
