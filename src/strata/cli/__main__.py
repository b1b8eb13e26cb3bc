"""Where the process begins: Ctrl-C while the command line itself is being imported.

Owns nothing else; imports nothing that takes time before the guard is up.
"""

import importlib
import os
import sys
from pathlib import Path

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``strata`` command."""
    # A stream that the caller closed is None; what is written to it is lost, not a fault.
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - to the process's end
    sys.stdout = sys.stdout or nowhere
    sys.stderr = sys.stderr or nowhere
    try:
        importlib.import_module("strata.cli.app").main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
