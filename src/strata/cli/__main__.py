"""Where the process begins: Ctrl-C while the command line itself is being imported.

Owns nothing else; imports nothing that takes time before the guard is up.
"""

import importlib
import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``strata`` command."""
    try:
        importlib.import_module("strata.cli.app").main()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
