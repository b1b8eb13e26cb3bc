"""Files of documents, as the corpus is kept: written once, read by everything that trains.

Owns the form (xz, UTF-8, documents joined by ``SEPARATOR``, the first line of each its title) and
which documents are kept from training. Needs nothing but the standard library.
"""

from __future__ import annotations

import lzma
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SEPARATOR: Final = "\n\x1e\n"

# One document in this many is never trained on.
HELD_OUT_SHARE: Final = 50


@dataclass(frozen=True, slots=True)
class Document:
    """One piece of text: its title (one line) and its paragraphs."""

    title: str
    paragraphs: list[str]

    @property
    def text(self) -> str:
        """As it is written to a file."""
        return "\n\n".join([self.title, *self.paragraphs])

    @property
    def is_held_out(self) -> bool:
        """Whether it is kept from training; says the title alone."""
        return zlib.crc32(self.title.encode()) % HELD_OUT_SHARE == 0


def read_documents(path: Path) -> list[str]:
    """Texts of a file's documents, each with its title as first line.

    Raises:
        OSError: there is no such file.
        lzma.LZMAError: it is not xz.
    """
    return lzma.decompress(path.read_bytes()).decode("utf-8").split(SEPARATOR)


def write_documents(path: Path, documents: Iterable[Document]) -> int:
    """Writes a file; bytes of its text. The same documents give the same file."""
    text = SEPARATOR.join(document.text for document in documents).encode("utf-8")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
    return len(text)
