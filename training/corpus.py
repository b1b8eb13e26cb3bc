"""``python -m training.corpus OUT.xz --packages FOLDER``: the English text the demo learns from.

Owns what is kept of all sources together: no paragraph twice, shares, the held-out part and the
table of origins. Reading is in ``training.sources``, the form of files in ``training.documents``.
"""

from __future__ import annotations

import argparse
import re
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from training.documents import write_documents
from training.packages import fetch
from training.sources import SOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from training.documents import Document
    from training.packages import Package
    from training.readers import Source

TABLE: Final = Path(__file__).parent / "data" / "sources.md"

_NO_LETTERS: Final = re.compile(r"[\W\d_]+")
# Shorter ones have lost what they were about.
MIN_DOCUMENT: Final = 200


@dataclass(frozen=True, slots=True)
class Collected:
    """What one source gives to the corpus."""

    source: Source
    version: str
    documents: list[Document]

    @property
    def num_bytes(self) -> int:
        """Length in the file, separators left out."""
        return sum(len(document.text.encode()) for document in self.documents)


def without_repeats(documents: Iterable[Document], seen: set[str]) -> list[Document]:
    """The documents without paragraphs that ``seen`` knows; adds the others to it.

    Paragraphs that differ in nothing but spaces, marks and numbers are the same.
    """
    kept = []
    for document in documents:
        # The paragraph order stays; what is left of a document may be too little.
        fresh = []
        for paragraph in document.paragraphs:
            letters = _NO_LETTERS.sub("", paragraph).lower()
            if letters not in seen:
                seen.add(letters)
                fresh.append(paragraph)
        if sum(map(len, fresh)) >= MIN_DOCUMENT:
            kept.append(replace(document, paragraphs=fresh))
    return kept


def within(documents: Sequence[Document], max_bytes: float) -> list[Document]:
    """As many documents, in order, as fit: those with the lowest checksums of their titles."""
    chosen: set[int] = set()
    num_bytes = 0
    numbers = range(len(documents))
    for number in sorted(numbers, key=lambda i: (zlib.crc32(documents[i].title.encode()), i)):
        num_bytes += len(documents[number].text.encode())
        if num_bytes > max_bytes:
            break
        chosen.add(number)
    return [documents[number] for number in numbers if number in chosen]


def share_out(collected: Sequence[Collected], max_bytes: float) -> list[Collected]:
    """Every source cut to its greatest share, then all in proportion to ``max_bytes``."""
    total = sum(part.num_bytes for part in collected)
    shared = []
    for part in collected:
        share = part.source.max_share
        # A share s of all is s / (1 - s) of the rest.
        others = total - part.num_bytes
        limit = others * share / (1 - share) if share < 1 else float(part.num_bytes)
        shared.append(replace(part, documents=within(part.documents, limit)))
    factor = max_bytes / max(sum(part.num_bytes for part in shared), 1)
    if factor < 1:
        shared = [
            replace(part, documents=within(part.documents, part.num_bytes * factor))
            for part in shared
        ]
    return shared


def collect(packages: Mapping[str, Package]) -> list[Collected]:
    """Documents of every source, whose unpacked packages are given by name."""
    seen: set[str] = set()
    collected = []
    for source in SOURCES:
        package = packages[source.package]
        documents = without_repeats(source.read(package.folder), seen)
        collected.append(Collected(source, package.version, documents))
    return collected


def table(collected: Sequence[Collected]) -> str:
    """The origins, in Markdown."""
    lines = [
        "# Where the training text comes from",
        "",
        "Written by `python -m training.corpus`. Bytes are those kept after cleaning, the held-out",
        "part included.",
        "",
        "| text | package | version | licence of the text | documents | bytes kept |",
        "| --- | --- | --- | --- | ---: | ---: |",
    ]
    for part in collected:
        source = part.source
        registry = "Debian" if source.is_debian else "PyPI"
        lines.append(
            f"| {source.name} | {registry} `{source.package}` | {part.version} | {source.licence} "
            f"| {len(part.documents):,} | {part.num_bytes:,} |"
        )
    num_documents = sum(len(part.documents) for part in collected)
    num_bytes = sum(part.num_bytes for part in collected)
    return "\n".join([*lines, f"| all | | | | {num_documents:,} | {num_bytes:,} |", ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m training.corpus", description=main.__doc__)
    parser.add_argument("out", type=Path, help="file to write, *.xz")
    parser.add_argument("--packages", type=Path, required=True, help="folder of the packages")
    parser.add_argument("--held-out", type=Path, help="default: held_out.xz beside OUT")
    parser.add_argument("--max-megabytes", type=float, default=float("inf"), help="of text")
    parser.add_argument("--table", type=Path, default=TABLE, help="table of origins to write")
    options = parser.parse_args(arguments)
    packages = {source.package: fetch(source, options.packages) for source in SOURCES}
    collected = share_out(collect(packages), options.max_megabytes * 1e6)
    documents = [document for part in collected for document in part.documents]
    parts = {
        options.out: [document for document in documents if not document.is_held_out],
        options.held_out or options.out.with_name("held_out.xz"): [
            document for document in documents if document.is_held_out
        ],
    }
    for path, chosen in parts.items():
        num_bytes = write_documents(path, chosen)
        stored = path.stat().st_size
        sys.stdout.write(f"{path}: {len(chosen)} documents, {num_bytes} bytes, {stored} stored\n")
    options.table.write_text(table(collected), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
