"""Held-out prose for the evaluation: a sample of the corpus' held-out part, kept in the repository.

``python -m training.held_out HELD_OUT.xz`` samples what ``training.corpus`` set apart: every kind
of text in proportion, but none whose licence asks the same licence of what it becomes part of.
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import CheckpointError
from training.documents import SEPARATOR, read_documents
from training.manuals import COPYLEFT_LABELS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HELD_OUT_TEXT = Path(__file__).parent / "data" / "held_out.xz"
SAMPLE_BYTES = 200_000
# Of longer ones the beginning is taken, so that many are heard.
MAX_DOCUMENT_BYTES = 3_000


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


def kind(document: str) -> str:
    """What a document is one of, by its title: ``Python``, or ``chapter`` of a novel."""
    title = document.split("\n", 1)[0]
    label, colon, _ = title.partition(": ")
    named = re.search(r"what they mean|chapter", title)
    return label if colon or not named else named[0]


def sample(documents: Iterable[str], num_bytes: int = SAMPLE_BYTES) -> list[str]:
    """Beginnings of documents of every kind, as much of each as in proportion, none twice.

    The order is by checksum, so that the first of them are a sample too.
    """
    ordered = sorted(set(documents), key=lambda text: (zlib.crc32(text.encode()), text))
    kinds: dict[str, int] = {}
    for document in ordered:
        kinds[kind(document)] = kinds.get(kind(document), 0) + len(document.encode())
    share = num_bytes / max(sum(kinds.values()), 1)
    room = {name: size * share for name, size in kinds.items()}
    chosen = []
    for document in ordered:
        beginning = _beginning(document)
        size = len(beginning.encode())
        # A kind of which there is little has one document more often than its share is one.
        if size <= 2 * room[kind(document)]:
            chosen.append(beginning)
            room[kind(document)] -= size
    return chosen


def _beginning(document: str) -> str:
    """Whole paragraphs, no more of them than ``MAX_DOCUMENT_BYTES``, but the first in any case."""
    title, *paragraphs = document.split("\n\n")
    kept = [title]
    size = len(title.encode())
    for number, paragraph in enumerate(paragraphs):
        size += len(paragraph.encode()) + 2
        if number and size > MAX_DOCUMENT_BYTES:
            break
        kept.append(paragraph)
    return "\n\n".join(kept)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.held_out", description=__doc__)
    parser.add_argument("held_out", type=Path, help="held-out file of training.corpus")
    parser.add_argument("--out", type=Path, default=HELD_OUT_TEXT)
    options = parser.parse_args(arguments)
    documents = held_out_documents(options.held_out)
    shippable = [text for text in documents if kind(text) not in COPYLEFT_LABELS]
    text = SEPARATOR.join(sample(shippable)).encode()
    options.out.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(text)} bytes of text in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
