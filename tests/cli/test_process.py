"""The command as a process: start-up time, exit codes, Ctrl-C, a reader that goes away."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from tests.cli.conftest import command_line, environment, finish, spawn

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

ENDLESS = ("--raw", "--ignore-eos", "-n", 3000, "hello")


def first_bytes(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.read(3)


def test_help_is_quick_and_loads_no_numpy():
    best_s = 10.0
    for _ in range(5):
        started_s = time.perf_counter()
        code, out, _err = finish(spawn("--help"))
        best_s = min(best_s, time.perf_counter() - started_s)
        assert code == 0
        assert "chat" in out
    # 0.1 s on the slowest machine so far; the rest is room for a busy one.
    assert best_s < 0.3


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "Usage"),
        (("run",), 2, "Usage"),
        (("run", "hi", "-m", "/no/such/file.gguf"), 1, "/no/such/file.gguf"),
        (("run", "hi", "--threads", "0"), 2, "threads must be at least 1"),
        (("inspect", "/no/such/file.gguf"), 1, "/no/such/file.gguf"),
        (("synth", "/no/such/folder/x.gguf"), 1, "/no/such/folder"),
    ],
)
def test_exit_codes(args: tuple[str, ...], code: int, message: str):
    got, out, err = finish(spawn(*args))
    assert got == code
    assert message in out + err
    assert "Traceback" not in err


def test_ctrl_c_in_an_answer(tiny: Path):
    process = spawn("run", "-m", tiny, *ENDLESS)
    assert first_bytes(process)
    process.send_signal(signal.SIGINT)
    code, _out, err = finish(process)
    assert code == 130
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_error_message(tiny: Path):
    process = spawn("run", "-m", tiny, *ENDLESS)
    assert first_bytes(process)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    code, _out, err = finish(process)
    assert code == 1
    assert "Traceback" not in err
    assert "pipe" not in err.lower()


def test_ctrl_c_in_chat_stops_the_answer_and_not_the_chat(tiny: Path):
    process = spawn("chat", "-m", tiny, "--context", 4000, "-n", 3000, "--temperature", 0)
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    process.stdin.flush()
    assert first_bytes(process)
    process.send_signal(signal.SIGINT)
    code, _out, err = finish(process, b"/help\n")
    assert code == 0
    assert "(cancelled)" in err
    assert "Ctrl-C stops an answer" in err  # /help was still answered
    assert "Traceback" not in err


def read_until(pipe: IO[bytes], text: bytes) -> None:
    """Reads lines up to the one with the text; a process that ends before fails the test."""
    while text not in (line := pipe.readline()):
        assert line, f"the process ended before it said {text!r}"


def test_ctrl_c_twice_at_the_prompt_leaves_chat(tiny: Path):
    process = spawn("chat", "-m", tiny)
    assert process.stderr is not None
    read_until(process.stderr, b"Ctrl-D")
    time.sleep(0.2)  # the line is written just before the first read begins
    process.send_signal(signal.SIGINT)
    read_until(process.stderr, b"Ctrl-C again")
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code = process.wait(timeout=30)
    _code, _out, err = finish(process)
    assert code == 130
    assert "Traceback" not in err


def test_leaving_chat_leaves_the_shell_a_line_of_its_own(tiny: Path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command_line("chat", "-m", tiny),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stderr is not None
    shown = b""
    while b"> " not in shown:
        shown += os.read(ours, 1000)
    os.write(ours, b"\x04")
    assert process.wait(timeout=30) == 0
    process.stderr.close()
    os.set_blocking(ours, False)
    assert os.read(ours, 1000).endswith(b"\n")
    os.close(theirs)
    os.close(ours)
