"""The report's file, written after measuring. It is refused before by ``result_files``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from strata.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


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
