"""Results are there whole or not at all, and nothing but a file is ever replaced."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from strata.result_files import refuse_unwritable, write_whole


def test_a_link_stays_a_link(tmp_path: Path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()), daemon=True)
    refuse_unwritable("--json", pipe)  # leaves the pipe for what comes
    reader.start()
    write_whole(pipe, b"told")
    reader.join(timeout=10)
    assert heard == [b"told"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no such device here")
def test_a_full_disk_is_an_error(tmp_path: Path):
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_whole(link, b"x")
    assert Path("/dev/full").is_char_device()
