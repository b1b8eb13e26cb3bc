"""Where a figure comes from: machine, date, command, commit. Goes beside every measurement."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import strata

_CPU_INFO = Path("/proc/cpuinfo")


def provenance() -> dict[str, object]:
    """For JSON: what measured, when, and from which sources.

    ``commit`` is None outside a repository; ``sources`` names the code in any case.
    """
    return {
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["strata", *sys.argv[1:]]),
        "commit": commit(),
        "sources": source_digest(),
        "python": platform.python_version(),
    }


def machine(cpu_info: Path = _CPU_INFO) -> dict[str, object]:
    """The processor, how many of them, and the memory."""
    name = platform.processor() or platform.machine()
    if cpu_info.exists():
        for line in cpu_info.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": name,
        "processors": os.cpu_count(),
        "memory_bytes": pages,
        "system": platform.platform(terse=True),
    }


def commit(folder: Path | None = None) -> str | None:
    """The commit checked out where the package lies, with ``+`` when its files differ from it."""
    folder = Path(strata.__file__).parent if folder is None else folder
    # Installed, the package lies in a repository at most by chance, and is unknown to it.
    head = _git(folder, "rev-parse", "HEAD")
    if head is None or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    return head + ("+" if changed else "")


def source_digest(folder: Path | None = None) -> str:
    """Twelve digits that stand for every Python file of the package."""
    folder = Path(strata.__file__).parent if folder is None else folder
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
