"""Bad input through the command line: one message, the right exit code, nothing left behind.

The messages are checked against what was done to the file or the machine: the damaged tensor's
name, the path, the limit that was set.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cli.conftest import command_line, environment

from strata.formats.gguf import read_gguf
from strata.formats.synth import GEOMETRIES, synthesize, uniform_mix

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from typer.testing import Result

    Strata = Callable[..., Result]

HALF_NAN = b"\x00\x7e"
FULL = "/dev/full"


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to pipe"])
def test_synth_leaves_what_is_no_file_in_its_place(strata: Strata, tmp_path: Path, kind: str):
    target = tmp_path / "target"
    if kind == "folder":
        target.mkdir()
    else:
        os.mkfifo(target)
    out = target
    if kind == "link to pipe":
        out = tmp_path / "link"
        out.symlink_to(target)
    before = target.stat()
    result = strata("synth", out)
    assert result.exit_code == 1
    assert "not a regular file" in result.stderr
    assert str(out) in result.stderr
    assert (target.stat().st_ino, target.stat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("out", ["", "/", ".", "x" * 300])
def test_synth_refuses_names_that_no_file_can_have(strata: Strata, out: str):
    result = strata("synth", out)
    assert result.exit_code == 1
    assert "cannot write" in result.stderr
    assert "Try:" in result.stderr


def test_synth_refuses_an_absurd_number_of_heads_at_once(strata: Strata, tmp_path: Path):
    result = strata("synth", tmp_path / "x.gguf", "--set", "heads_per_ngram=1000000")
    assert result.exit_code == 1
    assert "heads_per_ngram" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_synth_without_space_leaves_nothing(tmp_path: Path):
    code, _out, err = _limited("synth", tmp_path / "x.gguf", limit=resource.RLIMIT_FSIZE)
    assert code == 1
    assert "the disk is full" in err
    assert str(tmp_path / "x.gguf") in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["blk.3.indexer.q_proj.weight", "blk.3.indexer.k_proj.weight"])
def test_a_nan_scale_of_the_indexer_is_refused(strata: Strata, tmp_path: Path, name: str):
    path = tmp_path / "nan.gguf"
    synthesize(path, GEOMETRIES["tiny"], uniform_mix("Q8_0"))
    entry = next(tensor for tensor in read_gguf(path).tensors if tensor.name == name)
    with path.open("r+b") as stream:
        stream.seek(entry.offset + 5 * entry.format.block_bytes)
        stream.write(HALF_NAN)
    result = strata("run", "-m", path, "--raw", "-n", 2, "word " * 100)
    assert result.exit_code == 1
    assert name in result.stderr
    assert str(path) in result.stderr


def test_a_stop_text_that_is_not_utf_8_is_refused(strata: Strata, tiny: Path):
    result = strata("run", "-m", tiny, "--stop", "a\udcff", "hi")
    assert result.exit_code == 2
    assert "not valid UTF-8" in result.stderr
    assert result.stdout == ""


@pytest.mark.skipif(not os.path.exists(FULL), reason="no full device here")  # noqa: PTH110
@pytest.mark.parametrize("args", [("--help",), ("--version",), ("run", "--help"), ("inspect",)])
def test_a_full_disk_under_standard_output(tiny: Path, args: tuple[str, ...]):
    args = (*args, str(tiny)) if args == ("inspect",) else args
    with open(FULL, "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            command_line(*args), stdout=full, stderr=subprocess.PIPE, env=environment(), check=False
        )
    err = done.stderr.decode()
    assert done.returncode == 1, err
    assert err.startswith("strata: no space left on device")
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_ctrl_c_while_the_command_line_is_imported():
    # The import of typer is made to meet the signal, at a certain place instead of by chance.
    script = (
        "import sys, signal, os\n"
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "from strata.cli.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env=environment(), check=False
    )
    assert done.returncode == 128 + signal.SIGINT
    assert done.stderr == b""


def _limited(*args: object, limit: int) -> tuple[int, str, str]:
    """Runs a command in a process of its own, with one resource held at 1 MiB."""
    done = subprocess.run(
        command_line(*args),
        capture_output=True,
        env=environment(),
        check=False,
        preexec_fn=lambda: resource.setrlimit(limit, (1 << 20, 1 << 20)),
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()
