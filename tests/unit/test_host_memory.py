"""Memory left to a process, against files written by hand."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from strata.host_memory import available_bytes

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: {64 << 20} kB\nMemFree: 7 kB\nMemAvailable: {40 << 20} kB\n")
    return path


def control_group(folder: Path, limit: str, used: int, files: int) -> Path:
    group = folder / "cgroup"
    group.mkdir()
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon {used - files}\nfile {files}\n")
    return group


def test_without_a_group(meminfo: Path, tmp_path: Path):
    assert available_bytes(meminfo, tmp_path / "none") == 40 * GIB


@pytest.mark.parametrize(
    ("limit", "left"),
    [("max", 40 * GIB), (str(16 * GIB), 11 * GIB), (str(100 * GIB), 40 * GIB), (str(3 * GIB), 0)],
)
def test_a_group_leaves_less(meminfo: Path, tmp_path: Path, limit: str, left: int):
    group = control_group(tmp_path, limit, used=7 * GIB, files=2 * GIB)
    assert available_bytes(meminfo, group) == left


@pytest.mark.parametrize("text", ["", "MemTotal: 4 kB\n", "MemAvailable: many kB\n"])
def test_where_nothing_is_said(tmp_path: Path, text: str):
    path = tmp_path / "meminfo"
    path.write_text(text)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_bytes(path, tmp_path) == whole // 2
    assert available_bytes(tmp_path / "none", tmp_path) == whole // 2


def test_of_this_machine():
    assert 0 < available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
