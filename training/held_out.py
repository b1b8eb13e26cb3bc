"""Held-out prose for the evaluation: a sample of the corpus' held-out part, kept in the repository.

``python -m training.held_out HELD_OUT.xz`` samples what ``training.corpus`` set apart.
"""

from __future__ import annotations

import argparse
import lzma
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import CheckpointError
from training.documents import SEPARATOR, read_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HELD_OUT_TEXT = Path(__file__).parent / "data" / "held_out.xz"
SAMPLE_BYTES = 200_000
# A page that is one long list would be most of the sample.
MAX_DOCUMENT_BYTES = 8_000


def held_out_documents(path: Path) -> list[str]:
    """Documents of a corpus file (.xz), or a text file as one document.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        if path.suffix == ".xz":
            return read_documents(path)
        return [path.read_text(encoding="utf-8")]
    except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise CheckpointError(
            f"the held-out text cannot be read: {error}.\n  file: {path}\n  Try: another --text."
        ) from error


def sample(documents: Iterable[str], num_bytes: int = SAMPLE_BYTES) -> list[str]:
    """Documents of moderate length from all over the corpus, in an order chance would give.

    The order is by checksum, so that the first of them are a sample too.
    """
    chosen, room = [], num_bytes
    for document in sorted(documents, key=lambda text: (zlib.crc32(text.encode()), text)):
        size = len(document.encode())
        if size <= min(room, MAX_DOCUMENT_BYTES):
            chosen.append(document)
            room -= size
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.held_out", description=__doc__)
    parser.add_argument("held_out", type=Path, help="held-out file of training.corpus")
    parser.add_argument("--out", type=Path, default=HELD_OUT_TEXT)
    options = parser.parse_args(arguments)
    text = SEPARATOR.join(sample(held_out_documents(options.held_out))).encode()
    options.out.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(text)} bytes of text in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
