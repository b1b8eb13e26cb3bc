"""Packages of Debian and PyPI, fetched and unpacked in a folder without being installed.

Owns the calls of ``apt-get``, ``dpkg`` and ``pip``. Does not read what is in a package.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from training.readers import Source


@dataclass(frozen=True, slots=True)
class Package:
    """An unpacked package: its folder, and its version as its file names it."""

    folder: Path
    version: str


def fetch(source: Source, folder: Path) -> Package:
    """The package of ``source``, downloaded to ``folder`` unless it lies there.

    Raises:
        SystemExit: it cannot be downloaded; the text says what to do.
    """
    pattern = f"{source.package}_*.deb" if source.is_debian else f"{source.package}-*.tar.gz"
    unpacked = folder / "unpacked" / source.package
    unpacked.parent.mkdir(parents=True, exist_ok=True)
    if not list(folder.glob(pattern)):
        if source.is_debian:
            _run(["apt-get", "download", source.package], folder)
        else:
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
            _run([*pip, source.package], folder)
    archive = max(folder.glob(pattern))
    if source.is_debian:
        version = unquote(archive.name.split("_")[1])
        if not unpacked.exists():
            _run(["dpkg", "-x", str(archive), str(unpacked)], folder)
    else:
        version = archive.name.removesuffix(".tar.gz").removeprefix(f"{source.package}-")
        if not unpacked.exists():
            with tarfile.open(archive) as stored:
                stored.extractall(unpacked, filter="data")
    return Package(unpacked, version)


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SystemExit(f"{command[0]} cannot be run: {error}.\n  Try: a Debian system.") from None
    if done.returncode != 0:
        raise SystemExit(
            f"'{' '.join(command)}' failed: {done.stderr.strip()[-400:]}\n"
            f"  folder: {folder}\n"
            "  Try: apt-get update, or put the package there by hand."
        )
