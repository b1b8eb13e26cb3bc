"""How much memory of the host a process may still take. Owns the reading of it, no decision."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that can be taken without swapping, page cache counted as free.

    The least of what the kernel says is available and what the process's control group leaves
    (version 2; another one sets no limit that is seen here). Where there is no ``/proc``, half of
    the machine's memory.
    """
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return min(available, _left_in(cgroup, available))


def _left_in(cgroup: Path, otherwise: int) -> int:
    """What a control group's limit leaves; pages of files in use by it can be given back."""
    try:
        limit = (cgroup / "memory.max").read_text("ascii").strip()
        if limit == "max":
            return otherwise
        used = int((cgroup / "memory.current").read_text("ascii"))
        counts = dict(
            line.split() for line in (cgroup / "memory.stat").read_text("ascii").splitlines()
        )
        return max(0, int(limit) - used + int(counts.get("file", "0")))
    except (OSError, ValueError):
        return otherwise
