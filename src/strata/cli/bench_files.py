"""The report's file: refused before anything is measured, written after."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from strata.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


def refuse_unwritable(path: Path) -> None:
    """Tries the file, and leaves everything as it was.

    Raises:
        SettingsError: it cannot be written.
    """
    is_new = not path.exists()
    try:
        with path.open("a", encoding="utf-8"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise SettingsError(
            f"--json cannot write {path}: {error.strerror}.\n"
            "  Try: a file in a folder that exists and is yours."
        ) from None


def write_report(path: Path, report: dict[str, Any]) -> None:
    """The report as JSON.

    Raises:
        SettingsError: it could be written before measuring and no longer can.
    """
    try:
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"--json cannot write {path}: {error.strerror}.\n  Try: another file."
        ) from None
